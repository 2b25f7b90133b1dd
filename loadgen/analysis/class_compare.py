"""One schedule under two schedulers: what changed for a class, row by row, and whether labels mattered.

Means are compared as the mean of the rows' differences, quantiles by drawing the same blocks of rows for both (see
`intervals`: dependent data). The label test asks something else, and of less data: had the rows' classes been drawn
anew, how often would the difference be as large? It holds where the classes differ in nothing but their label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.analysis.intervals import (
    Interval,
    TooFew,
    blocks_of,
    draws,
    least_values,
    mean_interval,
    quantile_interval,
    quantile_time,
    resampled_quantile,
    series,
    small_sample_t,
)
from loadgen.analysis.inversions import passed_over
from loadgen.analysis.load import Run
from loadgen.analysis.rows import Floats, Ints, Mask
from loadgen.analysis.service import Service

DRAWS = 199
SEED = 12


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval, in the values' unit; ``why``: why there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None
    why: str | None = None


@dataclass(frozen=True)
class Change:
    """Under scheduler A, under B, and B - A."""

    a: Estimate
    b: Estimate
    change: Estimate


NOTHING = Change(*[Estimate(float("nan"), why="no row was answered in both runs")] * 3)


def common_rows(a: Run, b: Run, class_name: str | None = None) -> tuple[Ints, Ints]:
    """Places of the schedule rows that both runs measured, in due order; of one class where it is named."""

    def mine(run: Run) -> Ints:
        which = run.measured if class_name is None else run.measured & run.rows.of_class(class_name)
        return np.flatnonzero(which)

    places = mine(a), mine(b)
    index = [run.rows.instant("index")[at] for run, at in zip((a, b), places, strict=True)]
    _, in_a, in_b = np.intersect1d(index[0], index[1], assume_unique=True, return_indices=True)
    order = np.argsort(a.rows.instant("due_ns")[places[0][in_a]], kind="stable")
    return places[0][in_a[order]], places[1][in_b[order]]


def mean_change(x: Floats, y: Floats) -> Change:
    """Of the means of values that belong together pair by pair; pairs with a NaN are left out."""
    x, y = _pairs(x, y)
    if not len(x):
        return NOTHING
    a, b, difference = (_estimate(float(v.mean()), mean_interval(series(v))) for v in (x, y, y - x))
    return Change(a, b, difference)


def quantile_change(x: Floats, y: Floats, q: float) -> Change:
    """Of a quantile of values that belong together pair by pair; pairs with a NaN are left out."""
    x, y = _pairs(x, y)
    if not len(x):
        return NOTHING
    sides = series(x), series(y)
    a, b = (_estimate(float(np.quantile(s.values, q)), quantile_interval(s, q)) for s in sides)
    difference = b.value - a.value
    blocks = blocks_of(len(x), max(quantile_time(side, q) for side in sides), least_values(q))
    if isinstance(blocks, TooFew):
        return Change(a, b, _estimate(difference, blocks))
    drawn = draws(int(blocks[-1]) + 1)
    found = [resampled_quantile(side, blocks, q, drawn) for side in sides]
    half = float((found[1] - found[0]).std()) * small_sample_t(len(drawn[0]))
    return Change(a, b, Estimate(difference, difference - half, difference + half))


def _pairs(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    both = ~np.isnan(x) & ~np.isnan(y)
    return x[both], y[both]


def _estimate(value: float, interval: Interval | TooFew) -> Estimate:
    if isinstance(interval, TooFew):
        why = f"too few for an interval: {interval.have} rows, about {interval.need} needed"
        return Estimate(value, why=why)
    return Estimate(value, interval.low, interval.high)


def label_test(services: Sequence[Service], places: Sequence[Ints], urgent: Mask) -> float:
    """Permutation test over labels: the chance of a difference between directions as large as the one seen.

    One run: pairs in which an unurgent start passed an urgent wait over, less those the other way round. Two runs of
    one schedule: the first's difference less the second's, the rows' labels drawn alike for both. *places*: each run's
    rows, in the order of *urgent*. Of `DRAWS` draws, so that the least answer is 1 / (DRAWS + 1).
    """
    rng = np.random.default_rng(SEED)
    sides = [(s.start[at], s.sent[at], s.wait_end[at]) for s, at in zip(services, places, strict=True)]

    def difference(labels: Mask) -> float:
        return sum(sign * _preference(side, labels) for sign, side in zip((1, -1), sides, strict=False))

    seen = abs(difference(urgent))
    as_large = sum(abs(difference(rng.permutation(urgent))) >= seen for _ in range(DRAWS))
    return (1 + as_large) / (1 + DRAWS)


def _preference(side: tuple[Floats, Floats, Floats], urgent: Mask) -> float:
    start, sent, end = side
    began, waits = ~np.isnan(start), ~np.isnan(sent) & ~np.isnan(end)

    def over(first: Mask, waiting: Mask) -> float:
        them = waiting & waits
        return float(passed_over(start[first & began], sent[them], end[them]).over.sum())

    return over(~urgent, urgent) - over(urgent, ~urgent)
