"""Does memory grow without end? Theil-Sen's slope, a block bootstrap of it, and four conditions.

After the warm-up (the first fifth, at most 30 s), a series leaks only if

1. the 95 % interval of its slope lies above zero,
2. both halves grow by at least a quarter of the whole slope,
3. it grew by more than max(64 MiB, 2 % of where it began),
4. it grows per finished request, or goes on while the load does not.

Significance alone is no leak: a healthy server's resident set grew with p < 1e-70, by 13 MiB. The interval: the
series in at most `POINTS` medians of equal time, residuals round the line drawn in moving blocks of at least five,
and of the first zero of their autocorrelation. Under 30 s after the warm-up the verdict is ``insufficient``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from loadgen.analysis.intervals import SEED, TAIL
from loadgen.analysis.rows import Floats, Ints

MIB = 2.0**20
LEAST_S = 30.0
WARMUP_S = 30.0
WARMUP_RATIO = 0.2
LEAST_GROWTH_BYTES = 64 * MIB
LEAST_GROWTH_RATIO = 0.02
HALF_RATIO = 0.25
POINTS = 80
RESAMPLES = 400
LEAST_BLOCK = 5
STEADY_LOAD = 1.2
"""The second half's load at most this many times the first's: constant."""
SEGMENT_BYTES = 20 * MIB
"""What PyTorch's caching allocator asks of the driver for tensors of 1 to 10 MiB."""
LEAK, NO_LEAK, INSUFFICIENT = "leak", "none", "insufficient"


@dataclass(frozen=True)
class Load:
    """What was asked of the server, in the series' own seconds: ends of requests, ascending."""

    done_s: Floats


@dataclass(frozen=True)
class Leak:
    """The verdict on one series; slopes in bytes a second, ``reasons``: which conditions failed.

    ``growing``: all conditions but the length of the run hold.
    """

    verdict: str
    slope: float
    low: float
    high: float
    halves: tuple[float, float]
    growth_bytes: float
    start_bytes: float
    duration_s: float
    per_request_bytes: float | None
    step_bytes: float | None
    growing: bool
    reasons: tuple[str, ...]

    @property
    def in_segments(self) -> bool:
        """Whether it grows in the steps of PyTorch's caching allocator."""
        return self.step_bytes is not None and abs(self.step_bytes - SEGMENT_BYTES) < MIB / 2


def judge_memory(t_s: Floats, values: Floats, load: Load | None = None, warmup_s: float = 0.0) -> Leak:
    """The rule on one series of bytes at seconds (ascending). *warmup_s*: the plan's own, from second 0."""
    known = ~np.isnan(values)
    t_s, values = t_s[known], values[known]
    t_s, values = _after_warmup(t_s, values, warmup_s)
    duration = float(t_s[-1] - t_s[0]) if len(t_s) else 0.0
    if len(t_s) < 2 * LEAST_BLOCK or duration <= 0:
        reasons = (f"{len(t_s)} values in {duration:.0f} s after warm-up",)
        nan = float("nan")
        return Leak(INSUFFICIENT, nan, nan, nan, (nan, nan), 0.0, nan, duration, None, None, False, reasons)
    at, level = thinned(t_s, values)
    slope = theil_sen(at, level)
    low, high = slope_interval(at, level, slope)
    middle = len(at) // 2
    halves = theil_sen(at[:middle], level[:middle]), theil_sen(at[middle:], level[middle:])
    start = float(np.median(level[: max(len(level) // 10, 1)]))
    growth = slope * duration
    per_request, goes_on = _by_load(at, level, halves, load)
    needed = max(LEAST_GROWTH_BYTES, LEAST_GROWTH_RATIO * start)
    failed = [
        text
        for held, text in (
            (low > 0, f"the slope's interval reaches {low / MIB:.3g} MiB/s"),
            (
                min(halves) > 0 and min(halves) >= HALF_RATIO * slope,
                f"halves grow by {halves[0] / MIB:.3g} and {halves[1] / MIB:.3g} MiB/s",
            ),
            (growth > needed, f"it grew by {growth / MIB:.0f} MiB, a leak by more than {needed / MIB:.0f}"),
            (goes_on, "it grows with the load only"),
        )
        if not held
    ]
    growing = not failed
    verdict = LEAK if growing else NO_LEAK
    if duration < LEAST_S:
        verdict = INSUFFICIENT
        failed.insert(0, f"{duration:.0f} s after warm-up, a verdict needs {LEAST_S:.0f}")
    return Leak(
        verdict, slope, low, high, halves, growth, start, duration, per_request, step_of(values), growing,
        tuple(failed),
    )  # fmt: skip


def _after_warmup(t_s: Floats, values: Floats, warmup_s: float) -> tuple[Floats, Floats]:
    if not len(t_s):
        return t_s, values
    own = float(t_s[0]) + min(WARMUP_RATIO * float(t_s[-1] - t_s[0]), WARMUP_S)
    kept = t_s >= max(own, warmup_s)
    return t_s[kept], values[kept]


def thinned(t_s: Floats, values: Floats) -> tuple[Floats, Floats]:
    """At most `POINTS` points: medians of equal stretches of time."""
    if len(t_s) <= POINTS:
        return t_s, values
    edges = np.linspace(t_s[0], t_s[-1], POINTS + 1)[1:-1]
    cuts = np.searchsorted(t_s, edges)
    parts = [part for part in np.split(np.arange(len(t_s)), cuts) if len(part)]
    return np.array([t_s[p].mean() for p in parts]), np.array([np.median(values[p]) for p in parts])


def theil_sen(t: Floats, values: Floats) -> float:
    """Median of the slopes of all pairs (Theil 1950, Sen 1968); NaN for fewer than two points."""
    if len(t) < 2:
        return float("nan")
    i, j = _pairs(len(t))
    apart = t[j] - t[i]
    kept = apart > 0
    return float(np.median((values[j] - values[i])[kept] / apart[kept])) if kept.any() else float("nan")


@lru_cache(maxsize=8)
def _pairs(n: int) -> tuple[Ints, Ints]:
    i, j = np.triu_indices(n, 1)
    return i.astype(np.int64), j.astype(np.int64)


def slope_interval(t: Floats, values: Floats, slope: float) -> tuple[float, float]:
    """95 % interval of Theil-Sen's slope: moving blocks of the residuals, drawn onto the line."""
    residuals = values - slope * t
    residuals = residuals - np.median(residuals)
    n = len(t)
    length = min(max(LEAST_BLOCK, first_zero(residuals)), max(n // 4, 1))
    rng = np.random.default_rng(SEED)
    begins = rng.integers(0, n - length + 1, size=(RESAMPLES, -(-n // length)))
    drawn = residuals[(begins[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :n]]
    i, j = _pairs(n)
    kept = t[j] > t[i]
    i, j = i[kept], j[kept]
    extra = np.median((drawn[:, j] - drawn[:, i]) / (t[j] - t[i]), axis=1)
    low, high = np.quantile(slope + extra, (TAIL, 1 - TAIL))
    return float(low), float(high)


def first_zero(x: Floats) -> int:
    """The first lag at which the autocorrelation is not positive; the length for none."""
    n = len(x)
    centred = x - x.mean()
    if not centred.any():
        return 1
    covariance = np.correlate(centred, centred, "full")[n - 1 :]
    below = np.flatnonzero(covariance <= 0)
    return int(below[0]) if len(below) else n


def _by_load(
    at: Floats, level: Floats, halves: tuple[float, float], load: Load | None
) -> tuple[float | None, bool]:
    """Bytes a finished request, and whether growth is more than the load's own growth."""
    if load is None or not len(load.done_s):
        return None, True  # nobody asked anything: the load was constant
    done = np.searchsorted(load.done_s, at).astype(np.float64)
    per_request = theil_sen(done, level)
    middle = len(at) // 2
    served = done[middle] - done[0], done[-1] - done[middle]
    constant = served[1] <= STEADY_LOAD * max(served[0], 1)
    return (per_request if np.isfinite(per_request) else None), bool(
        per_request > 0 or (constant and halves[1] > 0)
    )


def step_of(values: Floats) -> float | None:
    """The size in which it grows, where most of its steps up have the same size (within 1 MiB)."""
    steps = np.diff(values)
    steps = steps[steps > 0]
    if len(steps) < 3:
        return None
    usual = float(np.median(steps))
    return usual if np.mean(np.abs(steps - usual) < MIB / 2) > 0.5 else None
