"""Which of two series leads: cross-correlation on a 0.1 s grid within two seconds, detrended per stage.

r(k) is the correlation of x(t) with y(t + k): a positive lag says that y follows x. The largest |r| of 41 lags is
never an accident-free figure, so that two simultaneous 95 % bands (block bootstrap over the whole curve) judge it: a
relation is found where the peak leaves the band round zero, and a lag other than zero is reported only where the peak
beats r(0) by more than the band of their differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.analysis.intervals import (
    MIN_BLOCKS,
    TooFew,
    autocorrelation_time,
    blocks_of,
    draws,
    widening,
)
from loadgen.analysis.rows import Floats, Ints, Mask

STEP_S = 0.1
REACH = 20
CAREFUL = 0.975
"""The bands' level: some blocks fewer than independent, so that a nominal 95 % errs in 6 to 9 % of unrelated pairs."""
LEAST = 100
"""Grid points below which nothing is said."""


@dataclass(frozen=True)
class Lag:
    """The peak of the curve; ``too_few``: no band, so that nothing is claimed about it.

    ``related``: beyond the band round zero. ``lag_s``: 0 unless the peak beats r(0) beyond the band.
    """

    peak_s: float
    peak: float
    at_zero: float
    points: int
    related: bool = False
    lag_s: float | None = None
    too_few: TooFew | None = None


def detrended(values: Floats, stage: Ints) -> Floats:
    """The values less each stage's own straight line; NaN outside of stages."""
    found = np.full(len(values), np.nan)
    at = np.arange(len(values), dtype=np.float64)
    for number in np.unique(stage[stage >= 0]):
        mine = (stage == number) & ~np.isnan(values)
        if mine.sum() >= 3:
            found[mine] = values[mine] - np.polyval(np.polyfit(at[mine], values[mine], 1), at[mine])
    return found


def find_lag(x: Floats, y: Floats) -> Lag | None:
    """The lag of y behind x, both detrended on the same grid of `STEP_S`; None with too few points."""
    both = ~np.isnan(x) & ~np.isnan(y)
    if both.sum() < LEAST or np.nanstd(x[both]) == 0 or np.nanstd(y[both]) == 0:
        return None
    zx, zy = standard(x, both), standard(y, both)
    present = both | (~np.isnan(x) & near_known(y))
    x_known, shifts = zx[present], shifted(zy, present)
    curve = np.array([np.nanmean(x_known * y_later) for y_later in shifts])
    peak = int(np.argmax(np.abs(curve)))
    sign = 1.0 if curve[peak] >= 0 else -1.0
    shape = (peak - REACH) * STEP_S, float(curve[peak]), float(curve[REACH]), len(x_known)
    tau = max(autocorrelation_time(np.nan_to_num(x_known * shifts[k])) for k in {peak, REACH})
    blocks = blocks_of(len(x_known), tau, MIN_BLOCKS)
    if isinstance(blocks, TooFew):
        return Lag(*shape, too_few=blocks)
    resampled = curves_of(x_known, shifts, blocks)
    widen = widening(blocks, tau)
    related_at = simultaneous(resampled - curve, widen)
    ahead = sign * (curve - curve[REACH])
    ahead_at = simultaneous(sign * (resampled - resampled[:, [REACH]]) - ahead, widen)
    related = bool(abs(curve[peak]) > related_at[peak])
    moved = related and bool(ahead[peak] > ahead_at[peak])
    return Lag(*shape, related, (shape[0] if moved else 0.0) if related else None)


def simultaneous(errors: Floats, widen: float) -> Floats:
    """Half widths that 95 % of the whole curves of *errors* (resamples x lags) stay within, in units of each lag's own
    standard error."""
    each = errors.std(axis=0)
    scaled = np.divide(np.abs(errors), each, out=np.zeros_like(errors), where=each > 0)
    found: Floats = widen * each * np.quantile(scaled.max(axis=1), CAREFUL)
    return found


def standard(values: Floats, known: Mask) -> Floats:
    """Zero mean, unit deviation; NaN stays."""
    found: Floats = (values - values[known].mean()) / values[known].std()
    return found


def near_known(values: Floats) -> Mask:
    """Instants with a known value within reach."""
    counts = np.convolve(~np.isnan(values), np.ones(2 * REACH + 1), "same")
    return np.asarray(counts > 0.5)


def shifted(values: Floats, present: Mask) -> list[Floats]:
    """y(t + k) at the present instants t, for every lag -REACH..REACH; NaN where unknown."""
    padded = np.full(len(values) + 2 * REACH, np.nan)
    padded[REACH : REACH + len(values)] = values
    return [padded[k : k + len(values)][present] for k in range(2 * REACH + 1)]


def curves_of(x: Floats, shifts: list[Floats], blocks: Ints) -> Floats:
    """The curve of every resample of blocks: resamples x lags."""
    n = int(blocks[-1]) + 1
    starts = np.searchsorted(blocks, np.arange(n))
    drawn = draws(n)
    found = np.empty((len(drawn), len(shifts)))
    for k, y_later in enumerate(shifts):
        products = x * y_later
        known = ~np.isnan(products)
        sums = np.add.reduceat(np.where(known, products, 0.0), starts)
        counts = np.add.reduceat(known.astype(np.float64), starts)
        found[:, k] = (drawn @ sums) / np.maximum(drawn @ counts, 1)
    return found
