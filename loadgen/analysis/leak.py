"""Does memory grow without end? Theil-Sen's slope, a block bootstrap of it, and four conditions.

After the warm-up (the first fifth, at most 30 s), a series leaks only if

1. the 95 % interval of its slope lies above zero,
2. both halves grow by at least a quarter of the whole slope,
3. it grew by more than max(64 MiB, 2 % of where it began),
4. it grows per finished request, or goes on while the load does not.

Significance alone is no leak: a healthy server's resident set grew with p < 1e-70, by 13 MiB. The interval: the
series in at most `POINTS` medians of equal time, residuals round the line drawn in moving blocks of at least five,
and of the first zero of their autocorrelation; with fewer than `FEW_BLOCKS` of them it is widened by Student's t.

Under 30 s after the warm-up nothing is called free of leaks: what does not meet the conditions is ``insufficient``.
"Only under 30 s" is read as what that word needs, and not as what forbids the other: a process that takes 8 MiB each
100 ms leaks after ten seconds, too. A fifth of some seconds is no warm-up, so that a short series is judged whole
(after the plan's own warm-up), on up to `SHORT_POINTS` points where it grew enough; and as nothing of its beginning
was left out, it must grow by twice as much, and hold `FEW_BLOCKS` blocks. A level that a server fills up to in such a
time has residuals that hang together, and so too few blocks; where noise hides the bend, only a longer run can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from loadgen.analysis.intervals import SEED, TAIL, Z, small_sample_t
from loadgen.analysis.rows import Floats, Ints, Mask

MIB = 2.0**20
LEAST_S = 30.0
WARMUP_S = 30.0
WARMUP_RATIO = 0.2
LEAST_GROWTH_BYTES = 64 * MIB
LEAST_GROWTH_RATIO = 0.02
HALF_RATIO = 0.25
POINTS = 80
SHORT_POINTS = 200
FEW_BLOCKS = 10
SHORT_GROWTH = 2.0
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
    """The verdict on one series; slopes in bytes a second, ``reasons``: which conditions failed."""

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
    reasons: tuple[str, ...]

    @property
    def in_segments(self) -> bool:
        """Whether it grows in the steps of PyTorch's caching allocator."""
        return self.step_bytes is not None and abs(self.step_bytes - SEGMENT_BYTES) < MIB / 2


def judge_memory(t_s: Floats, values: Floats, load: Load | None = None, warmup_s: float = 0.0) -> Leak:
    """The rule on one series of bytes at seconds (ascending). *warmup_s*: the plan's own, from second 0."""
    kept = ~np.isnan(values) & (t_s >= warmup_s)
    t_s, values = t_s[kept], values[kept]
    settled = _settled(t_s)
    after_s = float(t_s[-1] - t_s[settled][0]) if len(t_s) else 0.0
    if len(t_s[settled]) < 2 * LEAST_BLOCK or after_s <= 0:
        return _too_little(len(t_s[settled]), after_s)
    short = after_s < LEAST_S
    if not short:
        t_s, values = t_s[settled], values[settled]
    line, span_s = _fitted(*thinned(t_s, values)), float(t_s[-1] - t_s[0])
    needed = max(LEAST_GROWTH_BYTES, LEAST_GROWTH_RATIO * line.start) * (SHORT_GROWTH if short else 1)
    if short and line.slope * span_s > needed:
        line = _fitted(*thinned(t_s, values, SHORT_POINTS))
    growth = line.slope * span_s
    per_request, goes_on = _by_load(line, load)
    failed = [
        text
        for held, text in (
            (line.low > 0, f"the slope's interval reaches {line.low / MIB:.3g} MiB/s"),
            (
                min(line.halves) > 0 and min(line.halves) >= HALF_RATIO * line.slope,
                f"halves grow by {line.halves[0] / MIB:.3g} and {line.halves[1] / MIB:.3g} MiB/s",
            ),
            (growth > needed, f"it grew by {growth / MIB:.0f} MiB, a leak by more than {needed / MIB:.0f}"),
            (goes_on, "it grows with the load only"),
            (
                not short or line.blocks >= FEW_BLOCKS,
                f"{line.blocks:.0f} blocks, a short run needs {FEW_BLOCKS}",
            ),
        )
        if not held
    ]
    if failed and short:
        failed.insert(0, f"{after_s:.0f} s after warm-up, a verdict of none needs {LEAST_S:.0f}")
    return Leak(
        (INSUFFICIENT if short else NO_LEAK) if failed else LEAK,
        line.slope, line.low, line.high, line.halves, growth, line.start, span_s, per_request,
        step_of(values), tuple(failed),
    )  # fmt: skip


def _too_little(values: int, after_s: float) -> Leak:
    nan = float("nan")
    reasons = (f"{values} values in {after_s:.0f} s after warm-up",)
    return Leak(INSUFFICIENT, nan, nan, nan, (nan, nan), 0.0, nan, after_s, None, None, reasons)


def _settled(t_s: Floats) -> Mask:
    """What lies after the rule's own warm-up."""
    if not len(t_s):
        return np.zeros(0, np.bool_)
    return np.asarray(t_s >= float(t_s[0]) + min(WARMUP_RATIO * float(t_s[-1] - t_s[0]), WARMUP_S))


@dataclass(frozen=True)
class _Line:
    """Theil-Sen's line through points; ``blocks``: how many of them the points hold."""

    at: Floats
    level: Floats
    slope: float
    low: float
    high: float
    halves: tuple[float, float]
    start: float
    blocks: float


def _fitted(at: Floats, level: Floats) -> _Line:
    slope = theil_sen(at, level)
    low, high = slope_interval(at, level, slope)
    blocks = len(at) / block_length(level - slope * at)
    if blocks < FEW_BLOCKS:
        wider = small_sample_t(max(int(blocks), 2)) / Z
        low, high = slope - wider * (slope - low), slope + wider * (high - slope)
    middle = len(at) // 2
    halves = theil_sen(at[:middle], level[:middle]), theil_sen(at[middle:], level[middle:])
    start = float(np.median(level[: max(len(level) // 10, 1)]))
    return _Line(at, level, slope, low, high, halves, start, blocks)


def thinned(t_s: Floats, values: Floats, points: int = POINTS) -> tuple[Floats, Floats]:
    """At most so many points: medians of equal stretches of time."""
    if len(t_s) <= points:
        return t_s, values
    edges = np.linspace(t_s[0], t_s[-1], points + 1)[1:-1]
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
    length = min(block_length(residuals), max(n // 4, 1))
    rng = np.random.default_rng(SEED)
    begins = rng.integers(0, n - length + 1, size=(RESAMPLES, -(-n // length)))
    drawn = residuals[(begins[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :n]]
    i, j = _pairs(n)
    kept = t[j] > t[i]
    i, j = i[kept], j[kept]
    extra = np.median((drawn[:, j] - drawn[:, i]) / (t[j] - t[i]), axis=1)
    low, high = np.quantile(slope + extra, (TAIL, 1 - TAIL))
    return float(low), float(high)


def block_length(residuals: Floats) -> int:
    """Points a block needs: at least `LEAST_BLOCK`, and up to the first zero of the autocorrelation."""
    return max(LEAST_BLOCK, first_zero(residuals))


def first_zero(x: Floats) -> int:
    """The first lag at which the autocorrelation is not positive; the length for none."""
    n = len(x)
    centred = x - x.mean()
    if not centred.any():
        return 1
    covariance = np.correlate(centred, centred, "full")[n - 1 :]
    below = np.flatnonzero(covariance <= 0)
    return int(below[0]) if len(below) else n


def _by_load(line: _Line, load: Load | None) -> tuple[float | None, bool]:
    """Bytes a finished request, and whether growth is more than the load's own growth."""
    if load is None or not len(load.done_s):
        return None, True  # nobody asked anything: the load was constant
    done = np.searchsorted(load.done_s, line.at).astype(np.float64)
    per_request = theil_sen(done, line.level)
    middle = len(line.at) // 2
    served = done[middle] - done[0], done[-1] - done[middle]
    constant = served[1] <= STEADY_LOAD * max(served[0], 1)
    return (per_request if np.isfinite(per_request) else None), bool(
        per_request > 0 or (constant and line.halves[1] > 0)
    )


def step_of(values: Floats) -> float | None:
    """The size in which it grows, where most of its steps up have the same size (within 1 MiB)."""
    steps = np.diff(values)
    steps = steps[steps > 0]
    if len(steps) < 3:
        return None
    usual = float(np.median(steps))
    return usual if np.mean(np.abs(steps - usual) < MIB / 2) > 0.5 else None
