"""What a reader is given: the source, its options, and where to account for every row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traces.errors import TraceError
from traces.source import Source


class BadRow(Exception):
    """One row that cannot be used: a named reason and the value that shows it."""

    def __init__(self, reason: str, value: object) -> None:
        super().__init__(reason, value)
        self.reason = reason
        self.value = value


class OtherRow(BadRow):
    """A sound row of another kind (a tool event, another service's span): dropped by name, no error."""


@dataclass
class Accounting:
    """Where every row of one pass went: ``rows_read == emitted + sum(dropped.values())`` at its end.

    ``rows_read`` is counted where lines are split, ``emitted`` where rows leave, so that the law
    can fail. ``out_of_order`` counts rows earlier than their predecessor in the file;
    ``first_dropped`` keeps one place and value for each reason.
    """

    rows_read: int = 0
    emitted: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    blank_lines: int = 0
    out_of_order: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    first_dropped: dict[str, str] = field(default_factory=dict)

    def drop(self, reason: str, example: str, count: int = 1) -> None:
        """Count ``count`` rows under ``reason``; ``example`` names the place and value."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.first_dropped.setdefault(reason, example)

    def note(self, name: str, count: int = 1) -> None:
        """Count something worth knowing that dropped no row."""
        self.notes[name] = self.notes.get(name, 0) + count


@dataclass
class Intake:
    """One pass over one source. ``origin_ns`` is what the reader has subtracted from its times."""

    source: Source
    strict: bool
    options: Mapping[str, object]
    accounting: Accounting = field(default_factory=Accounting)
    origin_ns: int = 0

    def place(self, line: int) -> str:
        """``file:line``."""
        return f"{self.source.path}:{line}"

    def bad(self, line: int, error: BadRow) -> None:
        """Drop the row under its reason; in strict mode raise TraceError naming file:line and value."""
        shown = repr(error.value)
        shown = shown if len(shown) <= 120 else shown[:117] + "..."
        place = f"{self.place(line)}: {error.reason}: {shown}"
        if self.strict and not isinstance(error, OtherRow):
            raise TraceError(place)
        self.accounting.drop(error.reason, place)

    def text_option(self, name: str, default: str) -> str:
        """A string option. Raises TraceError for another type."""
        value = self.options.get(name, default)
        if not isinstance(value, str):
            raise TraceError(f"option {name} must be a string, got {value!r}")
        return value
