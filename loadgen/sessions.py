"""Sessions in a schedule: when later turns are due, and what they carry of the answers before them.

The law of every turn after the first, whatever the mode, is ``due = max(row.due_ns, previous answer's end +
row.think_ns)``. A mode decides what the row says:

* ``timestamp``: the planned instant, and the think time that the trace knows (0 where it knows none). A slow
  server delays a turn, a fast one does not bring it forward.
* ``idle-gap``: the previous answer's end + the idle gap that was recorded: this turn's arrival less the previous
  turn's arrival, undiminished, because traces do not say when an answer ended.
* ``think-only``: the previous answer's end + the think time (0 where unknown); planned instants count for first
  turns alone.

In the last two modes, and in a closed loop (where a slot takes a whole session), a turn may be due before its
planned instant: the turns of a session then stand together in the schedule, at their first turn's instant.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Literal

from loadgen.schedule import ScheduleRow

SessionMode = Literal["timestamp", "idle-gap", "think-only"]
Rows = Callable[[], Iterable[ScheduleRow]]


def turns_of(rows: Iterable[ScheduleRow]) -> Counter[str]:
    """How many turns each session has."""
    return Counter(row.session for row in rows if row.session is not None)


def with_last_turns(rows: Rows) -> Iterator[ScheduleRow]:
    """The rows in their order, each session's last one marked. Two passes; memory grows with the sessions."""
    left = turns_of(rows())
    for row in rows():
        if row.session is None:
            yield row
            continue
        left[row.session] -= 1
        yield row._replace(last=left[row.session] == 0)


def together(rows: Rows) -> Iterator[ScheduleRow]:
    """Sessions whole, in the order of their first turns. Two passes.

    Memory: the rows that arrive between a session's first turn and its last.
    """
    left = turns_of(rows())
    units: deque[list[ScheduleRow]] = deque()
    begun: dict[str, list[ScheduleRow]] = {}
    for row in rows():
        if row.session is None:
            units.append([row])
        else:
            if row.session not in begun:
                begun[row.session] = []
                units.append(begun[row.session])
            begun[row.session].append(row)
            left[row.session] -= 1
            if left[row.session] == 0:
                del begun[row.session]
        while units and units[0][0].session not in begun:
            yield from units.popleft()


def replanned(rows: Iterable[ScheduleRow], mode: SessionMode) -> Iterator[ScheduleRow]:
    """Sessions that stand together, their later turns planned by *mode* at their first turn's instant."""
    for name, turns in groupby(rows, key=lambda row: row.session):
        if name is None:
            yield from turns
            continue
        session = list(turns)
        previous = session[0]
        for row in session:
            think_ns = row.due_ns - previous.due_ns if mode == "idle-gap" else row.think_ns
            last = row is session[-1]
            yield row._replace(due_ns=session[0].due_ns, think_ns=think_ns, last=last)
            previous = row
