"""Steps from rows to rows: pure iterators in constant memory, each recordable as {"step": name, …}.

Rows come and go in time order. A session is a whole: it is kept or left out, never cut, unless
the step is told to cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite

from traces.errors import TraceError
from traces.row import TraceRow

_new = tuple.__new__


def at(row: TraceRow, t_ns: int) -> TraceRow:
    """The row at another instant."""
    return _new(TraceRow, (row[0], t_ns, *row[2:]))


def window(
    rows: Iterable[TraceRow], start_ns: int, end_ns: int | None, *, sessions: str = "whole"
) -> Iterator[TraceRow]:
    """Arrivals in [start, end) of trace time, counted from the window's start.

    A session belongs to the window in which its first turn arrives: all its turns are kept, also
    those after the end, and the later turns of earlier sessions are left out. ``sessions="cut"``
    looks at each row alone.
    """
    if start_ns < 0 or (end_ns is not None and end_ns <= start_ns):
        raise TraceError(f"window needs 0 <= start < end, got {start_ns} ns to {end_ns} ns")
    if sessions not in ("whole", "cut"):
        raise TraceError(f"sessions must be whole or cut, got {sessions!r}")
    begun_before: set[str] = set()
    inside: set[str] = set()
    for row in rows:
        session = row.session if sessions == "whole" else None
        if row.t_ns < start_ns:
            if session is not None:
                begun_before.add(session)
        elif end_ns is not None and row.t_ns >= end_ns:
            if not inside:
                return
            if session in inside:
                yield at(row, row.t_ns - start_ns)
        elif session is None or session not in begun_before:
            if session is not None:
                inside.add(session)
            yield at(row, row.t_ns - start_ns)


def speedup(rows: Iterable[TraceRow], factor: float) -> Iterator[TraceRow]:
    """Every instant divided by ``factor``: gap CV stays, IDC'(w) = IDC(factor * w). Think times too."""
    if not (isfinite(factor) and factor > 0):
        raise TraceError(f"speedup must be above 0, got {factor!r}")
    for row in rows:
        think = None if row.think_ns is None else round(row.think_ns / factor)
        yield row._replace(t_ns=round(row.t_ns / factor), think_ns=think)
