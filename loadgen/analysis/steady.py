"""Where the run settles and where its load runs out: found, shown, and never silently cut away.

MSER (White 1997): of all points at which the beginning could be cut off, the one that leaves the smallest
standard error of the mean of the rest. Here over ranks, so that one slow request does not decide. A cut is
only reported when the two sides truly differ: by `SURE` standard errors of dependent data and by `WORTH` of
the median.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadgen.analysis.intervals import MIN_BLOCKS, TIMES_PER_BLOCK, autocorrelation_time, upper_bound
from loadgen.analysis.rows import Floats

LEAST = 100
"""Requests below which nothing is looked for."""
MAX_BATCHES = 2000
SURE = 4.0
WORTH = 0.1
MOVED = 1.5
"""Outer thirds whose medians differ by this factor have moved."""


@dataclass(frozen=True)
class Cut:
    """The first ``requests`` values (in the order given) differ from the rest: medians of both sides.

    ``settled`` is False when the best cut lies in the middle: the series drifts throughout.
    """

    requests: int
    median_outside: float
    median_inside: float
    settled: bool


@dataclass(frozen=True)
class Drift:
    """The values move all the while: medians of the first and the last third."""

    median_first: float
    median_last: float


def find_drift(values: Floats) -> Drift | None:
    """A level that moves over the whole series; ``None`` where it does not, or is too short to say.

    A slow wave and a trend look alike from within one run: fewer than `MIN_BLOCKS` independent stretches, and outer
    thirds whose medians differ by `MOVED`, are called drift, whichever it is.
    """
    n = len(values)
    if n < LEAST:
        return None
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    if n >= MIN_BLOCKS * TIMES_PER_BLOCK * upper_bound(autocorrelation_time(ranks), n):
        return None
    first, last = float(np.median(values[: n // 3])), float(np.median(values[-(n // 3) :]))
    if max(first, last) < MOVED * min(first, last):
        return None
    return Drift(first, last)


def find_cut(values: Floats) -> Cut | None:
    """The transient at the beginning of the values; ``None`` where there is none to tell from chance."""
    n = len(values)
    if n < LEAST:
        return None
    each = max(n // MAX_BATCHES, 5)
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable") / n
    batches = ranks[: n // each * each].reshape(-1, each).mean(axis=1)
    cut = _mser(batches)
    requests = cut * each
    if not requests or not _differ(ranks[:requests], ranks[requests:]):
        return None
    outside, inside = float(np.median(values[:requests])), float(np.median(values[requests:]))
    if abs(outside - inside) < WORTH * inside:
        return None
    return Cut(requests, outside, inside, settled=cut < len(batches) // 2)


def _mser(batches: Floats) -> int:
    """Batches to cut off, at most half of them."""
    k = len(batches)
    left = k - np.arange(k // 2 + 1)
    sums = np.cumsum(batches[::-1])[::-1][: k // 2 + 1]
    squares = np.cumsum(batches[::-1] ** 2)[::-1][: k // 2 + 1]
    return int(np.argmin((squares - sums**2 / left) / left**2))


def _differ(outside: Floats, inside: Floats) -> bool:
    tau = upper_bound(autocorrelation_time(inside), len(inside))
    error = math.sqrt(float(inside.var()) * tau * (1 / len(outside) + 1 / len(inside)))
    return abs(float(outside.mean() - inside.mean())) > SURE * error
