"""Which of two series leads: cross-correlation on a 0.1 s grid within two seconds, detrended per stage.

r(k) is the correlation of x(t) with y(t + k): a positive lag says that y follows x. Blocks are as long as the memory of
the coefficient's influence function needs them. The largest |r| of 41 lags is
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
    curve = np.array([coefficient(x_known, y_later) for y_later in shifts])
    peak = int(np.argmax(np.abs(curve)))
    sign = 1.0 if curve[peak] >= 0 else -1.0
    shape = (peak - REACH) * STEP_S, float(curve[peak]), float(curve[REACH]), len(x_known)
    tau = max(influence_time(x_known, shifts[k], float(curve[k])) for k in {peak, REACH})
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


def coefficient(x: Floats, y: Floats) -> float:
    """sum(x y) / sqrt(sum(x²) sum(y²)) where both are known: the series are detrended, their means are 0."""
    known = ~np.isnan(y)
    x, y = x[known], y[known]
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale > 0 else 0.0


def influence_time(x: Floats, y: Floats, value: float) -> float:
    """Autocorrelation time of the coefficient's influence function, x y - r (x² + y²) / 2."""
    return autocorrelation_time(np.nan_to_num(x * y - value * (x * x + y * y) / 2))


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
        y = np.nan_to_num(y_later)
        known = np.where(np.isnan(y_later), 0.0, x)
        sums = np.add.reduceat(np.stack([known * y, known * known, y * y], axis=1), starts, axis=0)
        together, of_x, of_y = (drawn @ sums).T
        scale = np.sqrt(of_x * of_y)
        found[:, k] = np.divide(together, scale, out=np.zeros_like(scale), where=scale > 0)
    return found
