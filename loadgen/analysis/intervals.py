"""95 % intervals for figures of dependent data: latencies of one queue resemble their neighbours'.

An interval that takes requests for independent is far too narrow under load. Here the run, in due order, is
cut into blocks of at least `TIMES_PER_BLOCK` autocorrelation times; blocks are drawn with replacement
(non-overlapping block bootstrap: Carlstein 1986, Lahiri 2003). With fewer than `MIN_BLOCKS` blocks, or too
few values for the quantile to have an upper bound even were they independent, the answer is `TooFew`.

Integrated autocorrelation time, in values: tau = 1 + 2 sum rho(k), summed up to the first lag of at least
5 tau (Sokal 1989); n Var(mean) = Var(x) tau.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from loadgen.analysis.rows import Floats, Ints

TIMES_PER_BLOCK = 5
MIN_BLOCKS = 30
MAX_BLOCKS = 200
RESAMPLES = 1000
GRID = 512
"""Order statistics round the quantile among which a resample's quantile is sought."""
LONGEST = 1 << 15
"""Longer series are averaged over runs of values before their autocorrelation is taken."""
SEED = 97
"""Resampling is part of the computation, not of the run: the same files give the same report."""
Z = 1.959964
TAIL = 0.025


@dataclass(frozen=True)
class Interval:
    """The figure's 95 % interval, in the unit of the values."""

    low: float
    high: float
    blocks: int
    tau: float


@dataclass(frozen=True)
class TooFew:
    """No interval: ``have`` values (or requests), about ``need`` would do at this autocorrelation time."""

    have: int
    need: int
    tau: float


@dataclass(frozen=True)
class Series:
    """Values with the request (place in due order, 0..n_requests-1) each belongs to, and their weights."""

    values: Floats
    request: Ints
    weights: Floats
    n_requests: int
    by_request: Floats
    """One value a request, for the autocorrelation."""

    @cached_property
    def order(self) -> Ints:
        """Places of the values, ascending by value."""
        return np.argsort(self.values)

    @cached_property
    def ordered(self) -> Floats:
        """The values, ascending."""
        return self.values[self.order]

    @cached_property
    def requests_ordered(self) -> Ints:
        """The request of each of `ordered`."""
        return self.request[self.order]

    @cached_property
    def weights_ordered(self) -> Floats:
        """The weight of each of `ordered`."""
        return self.weights[self.order]

    @cached_property
    def own_time(self) -> float:
        """Autocorrelation time of the requests' values."""
        return autocorrelation_time(self.by_request)

    @cached_property
    def rank_time(self) -> float:
        """Autocorrelation time of the requests' ranks."""
        return autocorrelation_time(shared_ranks(self.by_request, self._order))

    @cached_property
    def times_beyond(self) -> dict[float, float]:
        """What `time_beyond` has found so far."""
        return {}

    @cached_property
    def _order(self) -> Ints:
        return self.order if self.by_request is self.values else np.argsort(self.by_request)

    def time_beyond(self, q: float) -> float:
        """Autocorrelation time of lying beyond the quantile q."""
        if q not in self.times_beyond:
            n = len(self.by_request)
            level = self.by_request[self._order[min(max(math.ceil(q * n) - 1, 0), n - 1)]]
            self.times_beyond[q] = autocorrelation_time(self.by_request > level)
        return self.times_beyond[q]


def series(values_in_due_order: Floats) -> Series:
    """The series of one value a request; NaN (no value) is left out."""
    values = values_in_due_order[~np.isnan(values_in_due_order)]
    places = np.arange(len(values), dtype=np.int64)
    return Series(values, places, np.ones(len(values)), len(values), values)


def quantile_interval(data: Series, q: float) -> Interval | TooFew:
    """Interval of the quantile q of all values."""
    if not len(data.values):
        return TooFew(0, least_values(q), math.nan)
    tau = quantile_time(data, q)
    blocks = blocks_of(data.n_requests, tau, least_values(q))
    if isinstance(blocks, TooFew):
        return blocks
    drawn = draws(int(blocks[-1]) + 1)
    found = resampled_quantile(data, blocks, q, drawn)
    whole = (data.weights == 1).all()
    middle = _quantile_of(data.ordered, q) if whole else float(np.median(found))
    return _interval(found, middle, blocks, tau)


def quantile_time(data: Series, q: float) -> float:
    """Autocorrelation time for the quantile: of ranks, or of lying beyond it if that is longer.

    A rare tail cannot tell its own dependence, so that beyond p90 (below p10) that level's counts as well.
    """
    return max(data.rank_time, data.time_beyond(q), data.time_beyond(min(max(q, 0.1), 0.9)))


def shared_ranks(values: Floats, order: Ints | None = None) -> Floats:
    """Each value's rank, from 0; equal values share the middle one: in due order they would be a trend.

    *order*: the places of the values, ascending, where they are known.
    """
    order = np.argsort(values) if order is None else order
    ordered = values[order]
    begins = (
        np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, np.int64)
    )
    counts = np.diff(np.r_[begins, len(values)])
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(begins + (counts - 1) / 2, counts)
    return ranks


def resampled_quantile(data: Series, blocks: Ints, q: float, drawn: Floats) -> Floats:
    """The quantile of every resample (one a row of ``drawn``: how often each block was drawn)."""
    order = data.ordered
    # a block's own share beyond the quantile varies at most this much: eight standard errors to either
    # side leave no resample outside the grid
    reach = 8 * math.sqrt(q * (1 - q) * quantile_time(data, q) / data.n_requests) + 2 / data.n_requests
    ranks = np.linspace(max(q - reach, 0), min(q + reach, 1), GRID) * (len(order) - 1)
    grid = np.unique(order[ranks.astype(np.int64)])
    upto = drawn @ np.cumsum(_counts(data, blocks, grid), axis=1)
    reached = upto[:, :-1] >= q * upto[:, -1:]  # the last column counts everything
    found: Floats = np.where(reached.any(axis=1), grid[np.argmax(reached, axis=1)], grid[-1])
    return found


def mean_interval(data: Series) -> Interval | TooFew:
    """Interval of the mean of all values; of a share, for values 0 and 1."""
    if not len(data.values):
        return TooFew(0, MIN_BLOCKS, math.nan)
    tau = data.own_time
    blocks = blocks_of(data.n_requests, tau, MIN_BLOCKS)
    if isinstance(blocks, TooFew):
        return blocks
    block = blocks[data.request]
    sums = np.bincount(block, weights=data.values * data.weights)
    weights = np.bincount(block, weights=data.weights)
    drawn = draws(int(blocks[-1]) + 1)
    found = (drawn @ sums) / np.maximum(drawn @ weights, 1e-300)
    return _interval(found, float(sums.sum() / weights.sum()), blocks, tau)


def autocorrelation_time(x: NDArray[np.generic]) -> float:
    """Integrated autocorrelation time of the series, in values; at least 1."""
    values = x.astype(np.float64)
    largest = float(np.abs(values).max(initial=0.0))
    if not 0 < largest < math.inf:
        return 1.0
    values /= largest  # the time has no unit, and squares of huge values no room
    variance = float(values.var())
    if len(values) < 4 or variance == 0:
        return 1.0
    each = -(-len(values) // LONGEST)
    if each > 1:
        whole = len(values) // each * each
        values = values[:whole].reshape(-1, each).mean(axis=1)
    n = len(values)
    spectrum = np.fft.rfft(values - values.mean(), 1 << (2 * n - 1).bit_length())
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[:n] / n
    if covariance[0] <= 0:
        return 1.0
    taus = 2 * np.cumsum(covariance / covariance[0]) - 1
    settled = np.flatnonzero(np.arange(n) >= TIMES_PER_BLOCK * taus)
    tau = max(float(taus[settled[0] if len(settled) else n - 1]), 1.0)
    return max(tau * each * float(covariance[0]) / variance, 1.0)


def upper_bound(tau: float, n: int) -> float:
    """Two standard errors above a tau estimated from n values; independent ones stay at 1.

    Short series underestimate tau, most of all those that would then pass for long enough. Its relative
    standard error is sqrt(20 tau / n) for a window of 5 tau (Madras & Sokal 1988).
    """
    return tau + (tau - 1) * 2 * math.sqrt(20 * tau / n)


def least_values(q: float) -> int:
    """Independent values below which the quantile's 95 % interval has no end: 367 for p99."""
    rarer = max(min(q, 1 - q), 1e-9)
    return max(int(math.log(TAIL) / math.log(1 - rarer)), MIN_BLOCKS)


def _quantile_of(ordered: Floats, q: float) -> float:
    rank = q * (len(ordered) - 1)
    low, high = float(ordered[math.floor(rank)]), float(ordered[math.ceil(rank)])
    return low + (high - low) * (rank - math.floor(rank))


def blocks_of(n: int, tau: float, least: int) -> Ints | TooFew:
    """The block of each of n requests in due order, or why there cannot be enough of them."""
    tau = upper_bound(tau, n)
    count = min(int(n / (TIMES_PER_BLOCK * tau)), MAX_BLOCKS)
    if count < MIN_BLOCKS or n < least * tau:
        return TooFew(n, math.ceil(max(MIN_BLOCKS * TIMES_PER_BLOCK, least) * tau), tau)
    return np.arange(n, dtype=np.int64) * count // n


def _counts(data: Series, blocks: Ints, grid: Floats) -> Floats:
    """Weight in each block (row) up to each grid value; the last column holds what lies beyond."""
    width = len(grid) + 1
    upto = np.searchsorted(data.ordered, grid, side="right")
    column = np.repeat(np.arange(width), np.diff(upto, prepend=0, append=len(data.ordered)))
    cells = blocks[data.requests_ordered] * width + column
    n_blocks = int(blocks[-1]) + 1
    counts = np.bincount(cells, data.weights_ordered, n_blocks * width).astype(np.float64)
    return counts.reshape(n_blocks, width)


@lru_cache(maxsize=4)
def draws(blocks: int, stream: int = 0) -> Floats:
    """How often each block is drawn: RESAMPLES rows, each row's sum is ``blocks``."""
    rng = np.random.default_rng((SEED, stream))
    drawn = rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=RESAMPLES).astype(np.float64)
    drawn.setflags(write=False)  # kept for the next caller
    return drawn


def small_sample_t(blocks: int) -> float:
    """Half width of a 95 % interval in standard deviations of the resamples, for so many blocks.

    t(blocks - 1) sqrt(blocks / (blocks - 1)), t by Abramowitz & Stegun 26.7.5.
    """
    nu = blocks - 1
    t = Z + (Z**3 + Z) / (4 * nu) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * nu**2)
    return t * math.sqrt(blocks / nu)


def block_loss(length: float, tau: float) -> float:
    """How much too small a standard error from blocks of so many values is: its inverse, at least 1.

    A block of length l misses the share (tau² - 1) / (2 tau l) of an AR(1)'s variance (2 rho / ((1 - rho²) l), with
    tau = (1 + rho) / (1 - rho)): a tenth at five autocorrelation times, none of independent values.
    """
    missed = (tau - 1) * (tau + 1) / (2 * tau * length) if tau > 1 else 0.0
    return 1 / math.sqrt(1 - min(missed, 0.5))


def widening(blocks: Ints, tau: float) -> float:
    """What an interval from these blocks is to be widened by: few of them, and each of them short."""
    count = int(blocks[-1]) + 1
    return small_sample_t(count) / Z * block_loss(len(blocks) / count, tau)


def _interval(found: Floats, middle: float, blocks: Ints, tau: float) -> Interval:
    """Percentile interval, widened round the estimate."""
    factor = widening(blocks, tau)
    low, high = np.quantile(found, (TAIL, 1 - TAIL))
    return Interval(
        middle - (middle - float(low)) * factor,
        middle + (float(high) - middle) * factor,
        int(blocks[-1]) + 1,
        tau,
    )
