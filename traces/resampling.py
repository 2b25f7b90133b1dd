"""Steps that read their rows more than once: superposition, repetition, Cox resampling.

They take ``Rows``, a function that gives the rows anew; only ``intensity`` holds them in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from operator import itemgetter

import numpy as np

from traces.errors import TraceError
from traces.row import TraceRow
from traces.salting import copy_of
from traces.stats import NS_PER_S, Floats, Ints
from traces.transforms import at, positive, window

Rows = Callable[[], Iterator[TraceRow]]
_time_of = itemgetter(1)
_new = tuple.__new__


def numbered(rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    """The rows with ``seq`` counted anew."""
    return (_new(TraceRow, (seq, *row[1:])) for seq, row in enumerate(rows))


def period_ns(rows: Rows) -> int:
    """The trace's span and one mean gap: the time after which it may start again."""
    number = last = 0
    for row in rows():
        number, last = number + 1, row.t_ns
    if number < 2 or last == 0:
        raise TraceError("needs two arrivals at different times")
    return last + last // (number - 1)


def superpose(rows: Rows, copies: int, *, seed: int = 0) -> Iterator[TraceRow]:
    """``copies`` of the trace, each shifted around its period by a random time of its own.

    Rate times copies, IDC about kept, gap CV towards 1. The first copy keeps its block ids and session
    names, the others get their own: else prompts would hit blocks that they never shared.
    """
    if copies < 1:
        raise TraceError(f"superpose must be 1 or more, got {copies}")
    period = period_ns(rows)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3,)))
    shifts = [0, *(int(u * period) for u in rng.random(copies - 1))]
    streams = [_shifted(rows, shift, period, index) for index, shift in enumerate(shifts)]
    yield from numbered(merge(*streams, key=_time_of))


def _shifted(rows: Rows, shift: int, period: int, index: int) -> Iterator[TraceRow]:
    """The trace begun at ``shift``, the part before it after its end; sessions stay whole."""
    if shift == 0:
        found: Iterator[TraceRow] = rows()
    else:
        before = (at(row, row.t_ns + period - shift) for row in window(rows(), 0, shift))
        found = merge(window(rows(), shift, None), before, key=_time_of)
    return found if index == 0 else (copy_of(row, f"copy{index}") for row in found)


def loop(rows: Rows, times: int) -> Iterator[TraceRow]:
    """The trace ``times`` times, one after another; each repetition has sessions and blocks of its own."""
    if times < 1:
        raise TraceError(f"loop must be 1 or more, got {times}")
    period = period_ns(rows) if times > 1 else 0
    streams = [_repetition(rows, index, period) for index in range(times)]
    yield from numbered(merge(*streams, key=_time_of))


def _repetition(rows: Rows, index: int, period: int) -> Iterator[TraceRow]:
    for row in rows():
        moved = at(row, row.t_ns + index * period)
        yield moved if index == 0 else copy_of(moved, f"loop{index}")


def intensity(rows: Rows, scale: float, *, bandwidth_s: float = 5.0, seed: int = 0) -> Iterator[TraceRow]:
    """Arrivals drawn anew from the trace's own rate with its variance times ``scale``, its mean kept.

    IDC' is about 1 + scale (IDC - 1) for windows well above the bandwidth. The unit is a row, or a
    session by its first turn; units come from the original's neighbourhood in time, and a unit drawn again
    gets a session and blocks of its own. Holds the rows in memory.
    """
    positive("intensity", scale)
    units = _units(rows)
    starts = np.array([unit[0].t_ns for unit in units], np.int64)
    if starts.size < 2 or starts[-1] == 0:
        raise TraceError("needs two arrivals at different times")
    width = int(positive("bandwidth_s", bandwidth_s) * NS_PER_S)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(4,)))
    counts = np.bincount(starts // width)
    number = rng.poisson(scaled_rate(counts, scale))
    instants = np.repeat(np.arange(counts.size) * width, number) + (
        rng.random(int(number.sum())) * width
    ).astype(np.int64)
    instants.sort()
    # The nearest original in time, jittered by the bandwidth so that quiet bins find neighbours too.
    wanted = instants + ((rng.random(instants.size) - 0.5) * width).astype(np.int64)
    chosen = np.clip(np.searchsorted(starts, wanted), 0, starts.size - 1)
    yield from numbered(_drawn(units, chosen, instants))


def scaled_rate(counts: Ints, scale: float) -> Floats:
    """Expected arrivals of each bin: the rate's estimate, its variance times ``scale``, never below 0.

    A bin's count has the rate's variance and its own Poisson noise (the mean): the deviations are
    scaled by one factor such that the variance comes to (variance - mean) * scale, also where the
    floor at 0 cuts in.
    """
    mean, variance = float(counts.mean()), float(counts.var(ddof=1)) if counts.size > 1 else 0.0
    wanted = max(0.0, variance - mean) * scale
    deviation = counts - mean
    if wanted == 0 or not deviation.any():
        return np.full(counts.size, mean)

    def rate(factor: float) -> Floats:
        floored = np.maximum(0.0, mean + factor * deviation)
        return np.asarray(floored * (mean / floored.mean()))

    low, high = 0.0, 1.0
    while rate(high).var(ddof=1) < wanted and high < 1e6:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle).var(ddof=1) < wanted else (low, middle)
    return rate(high)


def _units(rows: Rows) -> list[list[TraceRow]]:
    sessions: dict[str, list[TraceRow]] = {}
    units: list[list[TraceRow]] = []
    for row in rows():
        if row.session is None:
            units.append([row])
        elif row.session in sessions:
            sessions[row.session].append(row)
        else:
            sessions[row.session] = [row]
            units.append(sessions[row.session])
    return units


def _drawn(units: list[list[TraceRow]], chosen: Ints, instants: Ints) -> Iterator[TraceRow]:
    times: dict[int, int] = {}
    open_turns: list[TraceRow] = []
    for index, start in zip(chosen.tolist(), instants.tolist(), strict=True):
        again = times.get(index, 0)
        times[index] = again + 1
        ready = bisect_right(open_turns, start, key=_time_of)
        yield from open_turns[:ready]
        del open_turns[:ready]
        base = units[index][0].t_ns
        moved = [at(row, row.t_ns - base + start) for row in units[index]]
        if again:
            moved = [copy_of(row, f"draw{again}") for row in moved]
        yield moved[0]
        if len(moved) > 1:
            open_turns = list(merge(open_turns, moved[1:], key=_time_of))
    yield from open_turns
