"""How windows go together: Pearson and Spearman with intervals for dependent data.

The estimator's influence on each window is psi = zx zy - r (zx² + zy²) / 2; the autocorrelation time of psi decides
the blocks (at least five times it, at least thirty of them), which are drawn with replacement. With fewer the answer
is how many windows would do. No p-value here takes windows for independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadgen.analysis.intervals import (
    MIN_BLOCKS,
    TAIL,
    TooFew,
    autocorrelation_time,
    blocks_of,
    draws,
    widening,
)
from loadgen.analysis.rows import Floats, Ints

LEAST = 8
"""Windows below which not even the coefficient is given."""
CAREFUL = 1.08
"""Intervals are wider by this: without it 44 of 600 unrelated pairs were called related (correlate_power's)."""


@dataclass(frozen=True)
class Association:
    """A coefficient over ``windows``; ``low``, ``high``: 95 % interval, or None and why in ``too_few``."""

    value: float
    windows: int
    low: float | None = None
    high: float | None = None
    too_few: TooFew | None = None

    @property
    def sure(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def ranks(values: Floats) -> Floats:
    """Ranks from 1, ties averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    upto = np.cumsum(counts)
    return np.asarray((upto - (counts - 1) / 2)[inverse], np.float64)


def spearman(x: Floats, y: Floats) -> Association | None:
    """Rank correlation of the windows in which both are known; None with too few or a constant."""
    both = ~np.isnan(x) & ~np.isnan(y)
    return pearson(ranks(x[both]), ranks(y[both]))


def pearson(x: Floats, y: Floats) -> Association | None:
    """Correlation of the windows in which both are known; None with too few or a constant."""
    both = ~np.isnan(x) & ~np.isnan(y)
    x, y = x[both], y[both]
    if len(x) < LEAST or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    zx, zy = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    value = float(np.clip(np.mean(zx * zy), -1, 1))
    tau = association_time(zx, zy, value)
    blocks = blocks_of(len(x), tau, MIN_BLOCKS)
    if isinstance(blocks, TooFew):
        return Association(value, len(x), too_few=blocks)
    low, high = _interval(zx, zy, blocks, (value, CAREFUL * widening(blocks, tau)))
    return Association(value, len(x), low, high)


def association_time(zx: Floats, zy: Floats, value: float) -> float:
    """Autocorrelation time of the coefficient's influence function."""
    return autocorrelation_time(zx * zy - value * (zx**2 + zy**2) / 2)


def _interval(zx: Floats, zy: Floats, blocks: Ints, about: tuple[float, float]) -> tuple[float, float]:
    """Percentiles of Fisher's z over the resamples; *about*: the coefficient, and how much wider than they."""
    value, factor = about
    sums = np.stack(
        [np.bincount(blocks, w) for w in (np.ones_like(zx), zx, zy, zx * zx, zy * zy, zx * zy)], axis=1
    )
    drawn = draws(len(sums)) @ sums
    n, sx, sy, sxx, syy, sxy = drawn.T
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (sxy - sx * sy / n) / np.sqrt((sxx - sx * sx / n) * (syy - sy * sy / n))
    z = np.arctanh(np.clip(r[np.isfinite(r)], -0.999999, 0.999999))
    low, high = np.quantile(z, (TAIL, 1 - TAIL))
    middle = math.atanh(min(max(value, -0.999999), 0.999999))
    return math.tanh(middle - (middle - low) * factor), math.tanh(middle + (high - middle) * factor)
