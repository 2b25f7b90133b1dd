"""Is a share of broken promises within what is allowed? Keep, miss, or cannot tell, for dependent data.

Every objective is a share: ``ttft@p99=800ms`` is kept where at most 1 % of requests take longer (failures do).
Requests of one queue break their bounds in bursts, so that n of them are worth fewer independent ones:

    n_eff = n / max(deff, tau) * (z / t(B - 1))^2,   deff = Var(share between blocks) / (share (1 - share) / n)

with blocks of at least `BLOCK_TIMES` autocorrelation times tau; the interval is that of Clopper and Pearson (1934)
for n_eff trials (Korn & Graubard 1998). It needs no broken request to be there, and at least `LEAST_BLOCKS` blocks.

Overload has no autocorrelation time to wait for: the queue only grows. It is told without one. Under "kept" the
mean of a run's share is at most the allowed one, whatever the dependence; so for independent runs

    e = prod (1 - w + w share_i / allowed)

has a mean of at most 1 and exceeds 1 / alpha, ever, with probability alpha at most (Ville 1939).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadgen.analysis.intervals import Z, autocorrelation_time, shared_ranks, upper_bound
from loadgen.analysis.rows import Floats, Ints

BLOCK_TIMES = 5
MOST_BLOCKS = 40
"""A run is cut into at most so many blocks."""
LEAST_BLOCKS = 8
"""Below this nothing is told by the interval."""
BET = 0.9
"""w of the e-value."""
SURE = 0.001
"""Chance of a wrong keep, and of a wrong miss: a search asks many times, and builds on every answer."""
SURE_OVERLOAD = 0.0125
"""Chance of a wrong miss by the e-value, which holds for all looks together and is far from reached in practice."""
KEEP, MISS, UNTOLD = "keep", "miss", "cannot tell"


@dataclass(frozen=True)
class Tally:
    """One objective in one run: weight and broken weight of each block, requests, autocorrelation time.

    ``allowed``: the share that may be broken, 0..1 (exclusive). Weights are requests, or tokens where the objective
    is over tokens.
    """

    allowed: float
    n: int
    tau: float
    weight: tuple[float, ...]
    broken: tuple[float, ...]

    @property
    def share(self) -> float:
        """Broken share; NaN without a request."""
        return sum(self.broken) / sum(self.weight) if self.n else math.nan


def tally(latency: Floats, broken: Floats, allowed: float) -> Tally:
    """The tally of requests in due order: *latency* in any unit (infinite: failed), *broken* 0 or 1."""
    ones = np.ones(len(broken))
    return tally_weighted(latency, broken, (np.arange(len(broken)), ones), allowed)


def tally_weighted(latency: Floats, broken: Floats, carried: tuple[Ints, Floats], allowed: float) -> Tally:
    """As `tally`, for values of which a request has several: *carried* is (request of each value, its weight)."""
    request, weight = carried
    n = len(latency)
    if not n:
        return Tally(allowed, 0, 1.0, (), ())
    each = np.bincount(request, broken * weight, n) / np.maximum(np.bincount(request, weight, n), 1e-300)
    tau = upper_bound(_tau(latency, each), n)
    count = int(np.clip(n / (BLOCK_TIMES * tau), 1, MOST_BLOCKS))
    block = (np.arange(n) * count // n)[request]
    weights, brokens = np.bincount(block, weight, count), np.bincount(block, broken * weight, count)
    return Tally(allowed, n, tau, tuple(weights.tolist()), tuple(brokens.tolist()))


def _tau(latency: Floats, broken: Floats) -> float:
    """Autocorrelation time of being broken, and of what leads there: ranks, and lying in the slowest tenth."""
    ranks = shared_ranks(latency)
    slowest = ranks >= 0.9 * len(latency)
    return max(autocorrelation_time(x) for x in (ranks, slowest, broken))


@dataclass(frozen=True)
class Pooled:
    """All runs at one value, taken together. The runs are independent of each other."""

    tallies: tuple[Tally, ...]

    @property
    def allowed(self) -> float:
        """Share that may be broken."""
        return self.tallies[0].allowed

    @cached_property
    def n(self) -> int:
        """Requests."""
        return sum(t.n for t in self.tallies)

    @cached_property
    def share(self) -> float:
        """Broken share."""
        weight = sum(sum(t.weight) for t in self.tallies)
        return sum(sum(t.broken) for t in self.tallies) / weight if weight else math.nan

    @cached_property
    def blocks(self) -> int:
        """Blocks in all."""
        return sum(len(t.weight) for t in self.tallies)

    @cached_property
    def n_effective(self) -> float:
        """Independent requests that they are worth."""
        if not self.n:
            return 0.0
        from scipy.special import stdtrit

        tau = sum(t.tau * t.n for t in self.tallies) / self.n
        freedom = max(self.blocks - 1, 1)
        small = (Z / float(stdtrit(freedom, 0.975))) ** 2
        return self.n / max(tau, self._design_effect()) * small

    def _design_effect(self) -> float:
        weight = np.array([w for t in self.tallies for w in t.weight])
        broken = np.array([b for t in self.tallies for b in t.broken])
        share, blocks = self.share, len(weight)
        if blocks < 2 or not 0 < share < 1:
            return 1.0
        variance = ((broken - share * weight) ** 2).sum() / weight.sum() ** 2 * blocks / (blocks - 1)
        return float(variance) * self.n / (share * (1 - share))

    def interval(self, tail: float = 0.025) -> tuple[float, float]:
        """Clopper and Pearson's interval of the broken share, each side missed with probability *tail*."""
        n = self.n_effective
        return clopper_pearson(self.share, n, tail) if n else (0.0, 1.0)

    @property
    def log_e(self) -> float:
        """Log of the evidence against "kept" that needs no autocorrelation time."""
        return sum(math.log(1 - BET + BET * t.share / t.allowed) for t in self.tallies if t.n)

    def verdict(self, tail: float = SURE) -> str:
        """Keep, miss or cannot tell."""
        if not self.n:
            return UNTOLD
        if self.log_e >= -math.log(SURE_OVERLOAD):
            return MISS
        if self.blocks < LEAST_BLOCKS:
            return UNTOLD
        low, high = self.interval(tail)
        if high <= self.allowed:
            return KEEP
        return MISS if low > self.allowed else UNTOLD


def clopper_pearson(share: float, n: float, tail: float) -> tuple[float, float]:
    """Exact binomial interval for a share of *n* trials; n need not be whole."""
    from scipy.special import betaincinv

    x = share * n
    low = float(betaincinv(x, n - x + 1, tail)) if x > 0 else 0.0
    high = float(betaincinv(x + 1, n - x, 1 - tail)) if x < n else 1.0
    return low, high


def pool(tallies: Sequence[Tally]) -> Pooled:
    """The runs' tallies of one objective, together."""
    return Pooled(tuple(tallies))
