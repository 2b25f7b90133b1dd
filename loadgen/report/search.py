"""A search as its file keeps it, read back to go on from, and as tables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import orjson
from rich.markup import escape

from loadgen.analysis.keeping import Tally, pool
from loadgen.axes import Axis
from loadgen.errors import ExitCode, UsageError
from loadgen.evidence import Evidence, ProbeRun, Question, spots_of
from loadgen.report.terminal import SIMULATED, console_for, number, printable, show, table_of
from loadgen.search import Answer

Json = dict[str, Any]
SEARCH_FILE = "search.json"
FORMAT = "loadgen.search"
WIDE = 160
CODES = {
    "told": ExitCode.GOOD,
    "all keep": ExitCode.GOOD,
    "none keeps": ExitCode.GATE_FAILED,
    "generator": ExitCode.INVALID_RUN,
    "interrupted": ExitCode.INTERRUPTED,
}
"""Exit code by the search's end; one that ran out of budget is good if it has an interval."""


def search_code(answer: Answer) -> ExitCode:
    """The exit code."""
    told = answer.low is not None or answer.high is not None
    return CODES.get(answer.reason, ExitCode.GOOD if told else ExitCode.INVALID_RUN)


def search_to_json(
    axis: Axis, asked: Json, question: Question, runs: Sequence[ProbeRun], answer: Answer
) -> Json:
    """The whole search; *asked*: what was asked of whom, the same whenever the search goes on."""
    return {
        "format": FORMAT,
        "version": 1,
        "axis": axis.name,
        "unit": axis.unit,
        "asked": asked,
        "question": asdict(question),
        "answer": asdict(answer),
        "in_words": in_words(axis, answer),
        "valid": search_code(answer) != ExitCode.INVALID_RUN,
        "why_not": why_not(runs, answer),
        "exit_code": int(search_code(answer)),
        "cost": cost_of(runs),
        "curve": curve(question, runs),
        "runs": [asdict(run) for run in runs],
    }


def runs_from_json(content: Json, asked: Json, where: Path) -> list[ProbeRun]:
    """The finished runs of an earlier session. Raises UsageError where it asked for something else."""
    if content.get("format") != FORMAT:
        raise UsageError(f"{where} is not a {FORMAT} document")
    before = content["asked"]
    differing = sorted(n for n in {**before, **asked} if before.get(n) != asked.get(n))
    if differing:
        raise UsageError(
            f"{where} is of another search (they differ in {', '.join(differing)}): choose another --out"
        )
    return [_run(row) for row in content["runs"]]


def _run(row: Json) -> ProbeRun:
    evidence = dict(row["evidence"])
    evidence["tallies"] = {
        name: Tally(**(t | {"weight": tuple(t["weight"]), "broken": tuple(t["broken"])}))
        for name, t in evidence["tallies"].items()
    }
    evidence["why_not"] = tuple(evidence["why_not"])
    evidence["stopped"] = False  # who interrupted it has asked to go on
    return ProbeRun(**(row | {"evidence": Evidence(**evidence)}))


def as_written(asked: Json) -> Json:
    """As search.json will have it: to be compared with what it has."""
    found: Json = orjson.loads(orjson.dumps(_plain(asked)))
    return found


def read_search(out: Path) -> Json | None:
    """search.json of the directory; None where there is none. Raises UsageError for one that cannot be read."""
    path = out / SEARCH_FILE
    try:
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, orjson.JSONDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    return found if isinstance(found, dict) else {}


def write_search(out: Path, content: Json) -> None:
    """Write search.json as one atomic step. Raises UsageError when the directory refuses."""
    part = out / f".{SEARCH_FILE}.part"
    try:
        out.mkdir(parents=True, exist_ok=True)
        part.write_bytes(orjson.dumps(_plain(content), option=orjson.OPT_INDENT_2) + b"\n")
        part.replace(out / SEARCH_FILE)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {os.strerror(error.errno or 0).lower()}") from None


def cost_of(runs: Sequence[ProbeRun]) -> Json:
    """What the search has cost so far."""
    return {
        "runs": len(runs),
        "seconds": sum(max(run.duration_s, run.took_s) for run in runs),
        "requests": sum(run.evidence.requests for run in runs),
        "tokens": sum(run.evidence.tokens for run in runs),
    }


def curve(question: Question, runs: Sequence[ProbeRun]) -> list[Json]:
    """One entry a value, ascending: verdict, every promise's broken share, and the longest run's figures."""
    found = []
    for spot in spots_of(question, runs):
        mine = [r for r in runs if question.dose(r.value) == spot.dose and not r.evidence.why_not]
        longest = max(mine, key=lambda run: run.duration_s)
        shares = {}
        for name in spot.pooled:
            pooled = pool([r.evidence.tallies[name] for r in mine if name in r.evidence.tallies])
            low, high = pooled.interval()
            shares[name] = {"share": pooled.share, "low": low, "high": high, "allowed": pooled.allowed,
                            "requests": pooled.n, "worth": pooled.n_effective, "verdict": pooled.verdict()}  # fmt: skip
        found.append({
            "value": longest.value, "verdict": spot.verdict, "seconds": spot.seconds, "runs": [r.name for r in mine],
            "requests": sum(r.evidence.requests for r in mine), "figures": dict(longest.evidence.figures),
            "broken": shares,
        })  # fmt: skip
    return sorted(found, key=lambda row: row["value"])


def why_not(runs: Sequence[ProbeRun], answer: Answer) -> list[str]:
    """What stands against the answer: runs that count for nothing, a budget that gave out."""
    found = [
        f"{run.name} counts for nothing: {'; '.join(run.evidence.why_not)}"
        for run in runs
        if run.evidence.why_not
    ]
    if answer.reason == "budget":
        found.append("the budget gave out before the interval was as narrow as asked")
    if answer.reason == "generator":
        found.append("the generator, not the endpoint, limits what can be asked")
    if answer.reason == "interrupted":
        found.append("interrupted; the same command goes on from here")
    return found


def in_words(axis: Axis, answer: Answer) -> str:
    """The answer as one sentence."""
    if answer.reason == "none keeps":
        return (
            f"No {axis.name} in the range keeps the SLO: even {_figure(answer.misses)} {axis.unit} misses it."
        )
    if answer.reason == "all keep":
        return f"Every {axis.name} in the range keeps the SLO, up to {_figure(answer.keeps)} {axis.unit}."
    if answer.value is None:
        return f"{axis.meaning[0].upper()}{axis.meaning[1:]} the SLO cannot be told from these runs."
    broken = f"; {answer.binding} is broken first" if answer.binding else ""
    return (
        f"{axis.meaning[0].upper()}{axis.meaning[1:]} the SLO: {_figure(answer.value)} {axis.unit} "
        f"(95 % interval {_bounds(answer)}){broken}."
    )


def _bounds(answer: Answer) -> str:
    if answer.low is None and answer.high is None:
        return "not known"
    if answer.high is None:
        return f"{_figure(answer.low)} or more"
    return (
        f"{_figure(answer.high)} or less"
        if answer.low is None
        else f"{_figure(answer.low)} – {_figure(answer.high)}"
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def print_search(content: Mapping[str, Any], file: TextIO) -> None:
    """Print the answer and the curve; nothing is computed here."""
    console = console_for(file)
    console.width = max(console.width, WIDE)  # a promise's words must not be squeezed away
    if content["asked"].get("simulated"):
        console.print(f"SIMULATED {SIMULATED}", markup=False, soft_wrap=True)
    console.print(escape(content["in_words"]), soft_wrap=True)
    for reason in content["why_not"]:
        console.print(f"note: {escape(printable(reason))}", soft_wrap=True)
    table = table_of((
        content["axis"], "verdict", "s", "requests", "TTFT p95 ms", "e2e p95 ms", "requests/s", "tokens/s",
        "broken % (95 %) / allowed",
    ))  # fmt: skip
    for row in content["curve"]:
        figures = [
            number(row["figures"].get(name))
            for name in ("p95_ttft_ms", "p95_e2e_ms", "request_throughput", "output_throughput")
        ]
        table.add_row(
            _figure(row["value"]),
            row["verdict"],
            number(row["seconds"]),
            number(row["requests"]),
            *figures,
            _worst(row),
        )
    show(console, f"{content['axis']} in {content['unit']}; figures of each value's longest run", table)
    cost = content["cost"]
    console.print(
        f"{cost['runs']} runs, {number(cost['seconds'])} s, {cost['requests']:,} requests, {cost['tokens']:,} tokens"
    )


def _worst(row: Json) -> str:
    """The promise that is nearest to being broken, or furthest beyond."""
    shares: dict[str, Json] = row["broken"]
    name = max(shares, key=lambda n: (shares[n]["share"] or 0) / shares[n]["allowed"])
    found = shares[name]
    share, low, high, allowed = (
        f"{100 * round(found[key], 5):.3g}" for key in ("share", "low", "high", "allowed")
    )
    return f"{share} ({low}–{high}) / {allowed}  {printable(name)}"


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become ``None``."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
