"""Rows in time order within a bounded look-ahead."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import gt, itemgetter

from traces.errors import TraceError
from traces.intake import Accounting
from traces.row import TraceRow

REORDER_ROWS = 1024
_SORTED_AT_ONCE = 512
_time_of = itemgetter(1)


def in_order(
    batches: Iterator[list[TraceRow]],
    accounting: Accounting,
    reach: int = REORDER_ROWS,
    *,
    strict: bool = False,
) -> Iterator[list[TraceRow]]:
    """Batches sorted by ``t_ns``, ties in file order, for rows displaced by at most ``reach`` rows.

    ``reach`` rows are always held back, which gives the guarantee of a heap of that size at the cost
    of one sort of an almost sorted list. A row displaced further cannot be put right without
    loading the file: it is dropped as ``out_of_order``, or raised as TraceError in strict mode.
    """
    held: list[TraceRow] = []
    emitted_to: int | None = None
    previous: int | None = None
    in_time = True
    for batch in batches:
        if not batch:
            continue
        times = [row[1] for row in batch]
        late = sum(map(gt, times, times[1:])) + (previous is not None and previous > times[0])
        previous = times[-1]
        accounting.out_of_order += late
        in_time = in_time and not late and (not held or held[-1][1] <= times[0])
        held += batch
        if len(held) < reach + _SORTED_AT_ONCE:
            continue
        # Sorting thousands of rows for each batch would cost as much as reading them.
        if not in_time:
            held.sort(key=_time_of)
            in_time = True
        ready, held = held[:-reach] if reach else held, held[-reach:] if reach else []
        ready = _without_late(ready, emitted_to, accounting, strict)
        if ready:
            emitted_to = ready[-1][1]
            yield ready
    held.sort(key=_time_of)
    held = _without_late(held, emitted_to, accounting, strict)
    if held:
        yield held


def _without_late(
    ready: list[TraceRow], emitted_to: int | None, accounting: Accounting, strict: bool
) -> list[TraceRow]:
    if emitted_to is None:
        return ready
    late = bisect_left(ready, emitted_to, key=_time_of)
    if late:
        message = f"row {ready[0].seq} is earlier than rows already read beyond the reordering reach"
        if strict:
            raise TraceError(f"{message}; sort the file, or raise reorder_rows")
        accounting.drop("out_of_order", message, late)
    return ready[late:]
