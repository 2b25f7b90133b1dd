"""What another tool's result file tells, in our words and units."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen.record import Outcome

Json = dict[str, Any]
S = 1_000_000_000

OF_STATUS = {413: Outcome.TOO_LARGE, 431: Outcome.TOO_LARGE, 429: Outcome.REJECTED, 503: Outcome.REJECTED}
OF_WORDS = (
    ("returned an error", Outcome.ERROR_IN_STREAM),
    ("not completed", Outcome.TRUNCATED),
    ("incomplete", Outcome.TRUNCATED),
    ("disconnected", Outcome.TRUNCATED),
    ("timeout", Outcome.TIMEOUT),
    ("timed out", Outcome.TIMEOUT),
    ("connect", Outcome.CONNECT),
)
"""Parts of the peers' messages, and what they mean; the first that is found counts."""


@dataclass(frozen=True)
class Stated:
    """A figure as the file states it.

    ``metric`` is ours of the same definition, ``None`` where we have none; ``words`` are the tool's own;
    ``figures`` are milliseconds under the names of summary.json (``mean_ms``, ``p99_ms``, …) and ``n``.
    """

    words: str
    metric: str | None
    figures: Json


@dataclass(frozen=True)
class PeerResult:
    """A file's content. ``requests`` are lines of a records file (ns), ``None`` where it has aggregates only.

    ``missing`` names what the file does not contain, ``differs`` where its figures mean something else than
    ours; ``more`` how to get the requests of a run whose file has none.
    """

    tool: str
    path: Path
    version: str | None = None
    started: str | None = None
    model: str | None = None
    base_url: str | None = None
    settings: Json = field(default_factory=dict)
    slo: tuple[str, ...] = ()
    requests: list[Json] | None = None
    stated: tuple[Stated, ...] = ()
    rates: Json = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    more: str = ""

    def to_json(self) -> Json:
        """Everything but the requests."""
        return {
            "tool": self.tool,
            "version": self.version,
            "file": self.path.name,
            "requests": None if self.requests is None else len(self.requests),
            "stated": [{"words": s.words, "metric": s.metric, **s.figures} for s in self.stated],
            "stated_rates": self.rates,
            "missing": list(self.missing),
            "differs": list(self.differs),
            "settings": self.settings,
        }


def beside(path: Path) -> Json:
    """The JSON object in the file; empty where there is no such file, or something else is in it."""
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def outcome_of(message: str, status: int | None = None) -> Outcome:
    """The outcome that a failure's status or, without one, its message speaks for."""
    if status is not None and status >= 400:
        return OF_STATUS.get(status, Outcome.STATUS_ERROR)
    low = message.lower()
    return next((outcome for part, outcome in OF_WORDS if part in low), Outcome.PROTOCOL)


def last_line(text: str) -> str:
    """Of a traceback, the line that says what happened."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def ns(seconds: float | None, origin: float = 0.0) -> int | None:
    """Seconds since *origin* as whole ns; ``None`` stays so."""
    return None if seconds is None else round((seconds - origin) * S)


def milliseconds(figures: Json, unit_ms: float, names: Json) -> Json:
    """The figures that ``names`` (theirs to ours) lists, in ms; what the file lacks is left out."""
    found = {
        ours: figures[theirs] * unit_ms for theirs, ours in names.items() if figures.get(theirs) is not None
    }
    return found
