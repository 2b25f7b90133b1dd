"""The finding: what a scenario answers, how sure it is, and what stands against believing it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import ExitCode, UsageError

FINDING_FILE = "finding.json"
ORDER = (
    ExitCode.USAGE,
    ExitCode.INTERRUPTED,
    ExitCode.UNREACHABLE,
    ExitCode.INVALID_RUN,
    ExitCode.GATE_FAILED,
)


@dataclass(frozen=True)
class Number:
    """One figure. ``low`` and ``high``: its 95 % interval; ``why``: why the value or the interval is missing."""

    value: float | None
    unit: str
    meaning: str
    low: float | None = None
    high: float | None = None
    why: str | None = None


@dataclass(frozen=True)
class Finding:
    """The answer, in the scenario's own form (*answer*) and in a sentence (*in_words*).

    ``why_not``: the reasons for which the answer is not to be believed; none: it is valid. ``codes``: exit
    codes of the runs that it rests on. ``runs``: their directories, relative to the finding's.
    """

    answer: Any
    in_words: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    why_not: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether nothing stands against the answer."""
        return not self.why_not

    @property
    def exit_code(self) -> ExitCode:
        """The first that applies of usage, interrupted, unreachable, invalid, gate failed."""
        own = () if self.valid else (ExitCode.INVALID_RUN,)
        return first_of((*self.codes, *own))


def first_of(codes: Iterable[int]) -> ExitCode:
    """The exit code that outranks the others."""
    found = set(codes)
    return next((code for code in ORDER if code in found), ExitCode.GOOD)


def finding_to_json(finding: Finding, about: Mapping[str, Any]) -> dict[str, Any]:
    """The finding as its file keeps it; *about*: what was asked of whom. NaN and infinity become null."""
    numbers = {name: asdict(number) for name, number in finding.numbers.items()}
    for number in numbers.values():
        for key in ("value", "low", "high"):
            if number[key] is not None and not math.isfinite(number[key]):
                number[key] = None
    return {
        "format": "loadgen.finding",
        "version": 1,
        **about,
        "answer": finding.answer,
        "in_words": finding.in_words,
        "valid": finding.valid,
        "why_not": list(finding.why_not),
        "numbers": numbers,
        "notes": list(finding.notes),
        "runs": list(finding.runs),
        "exit_code": int(finding.exit_code),
    }


def check_out(out: Path) -> None:
    """Refuse a directory that already holds a finding or a run. Raises UsageError."""
    for name in (FINDING_FILE, "plan.json"):
        if (out / name).exists():
            raise UsageError(f"{out} already holds a {name}: choose another --out")


def write_finding(out: Path, content: Mapping[str, Any]) -> Path:
    """Write finding.json as one atomic step; its path. Raises UsageError when the directory refuses."""
    part = out / f".{FINDING_FILE}.part"
    try:
        out.mkdir(parents=True, exist_ok=True)
        part.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
        return part.replace(out / FINDING_FILE)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {os.strerror(error.errno or 0).lower()}") from None
