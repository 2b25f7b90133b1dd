"""Is B worse than A? Differences of two runs with intervals and one verdict for each metric.

Runs of one schedule (equal digests) are paired: the same blocks of schedule rows are drawn for both, so that
what the schedule does to both cancels out. Other runs are drawn independently. Blocks hold at least 5
autocorrelation times of either run, and there are at least 30 (see `intervals`).

Latencies and rates are compared as ratios (log B/A), shares as differences. With the resamples' standard
error s, a difference d is significant beyond the margin m when 2 Phi(-(|d| - m) / s) passes Holm's step-down
test (1979) over all metrics at 5 %; it is "same" when its 95 % interval lies within the margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from loadgen.analysis.intervals import (
    MIN_BLOCKS,
    Series,
    TooFew,
    Z,
    blocks_of,
    draws,
    least_values,
    quantile_time,
    resampled_quantile,
    widening,
)
from loadgen.analysis.pairing import Pair
from loadgen.analysis.rows import Floats, Ints

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LATENCIES = ("ttft", "ttft_from_due", "tpot", "itl", "e2e")
RATES = ("throughput", "output_throughput", "goodput")
SHARES = ("failed_share", "attainment")
MORE_IS_BETTER = (*RATES, "attainment")
NAMES = (*(f"{metric}_{p}" for metric in LATENCIES for p in QUANTILES), *RATES, *SHARES)
"""Everything that is compared; a margin may be stated for each."""

SAME_WITHIN = 0.05
"""Margin within which an undetected difference is called "same" where no margin is stated."""
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """One metric of both runs (ns, 1/s or a share), its difference and the verdict.

    ``centre`` and ``half`` are the difference and half its 95 % interval: of log B/A where ``ratio``, else of
    B - A; ``None`` where there is no interval (``why`` says what is missing).
    """

    name: str
    a: float
    b: float
    ratio: bool
    centre: float | None = None
    half: float | None = None
    stated_margin: float | None = None
    verdict: str = "cannot tell"
    why: str = ""

    @property
    def change(self) -> float:
        """B/A - 1 for latencies and rates, B - A for shares."""
        return (self.b / self.a - 1 if self.a else math.nan) if self.ratio else self.b - self.a

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the change."""
        if self.centre is None or self.half is None:
            return None
        low, high = self.centre - self.half, self.centre + self.half
        return (math.expm1(low), math.expm1(high)) if self.ratio else (low, high)

    @property
    def p(self) -> float:
        """Chance of a difference this far beyond the stated margin (0 if none) where there is none."""
        if self.centre is None or self.half is None:
            return 1.0
        margin = self.stated_margin or 0.0
        distance = abs(self.centre) - (math.log1p(margin) if self.ratio else margin)
        return 1.0 if distance <= 0 else math.erfc(distance / max(self.half / Z, 1e-300) / math.sqrt(2))


def compare(pair: Pair, margins: Mapping[str, float]) -> list[Difference]:
    """Compare B with A in everything that both have, verdicts included. ``margins``: name to margin."""
    return with_verdicts([replace(d, stated_margin=margins.get(d.name)) for d in differences(pair)])


def differences(pair: Pair, names: Collection[str] = NAMES) -> list[Difference]:
    """B against A in those of *names* that both have, in the order of `NAMES`; not judged yet."""
    found = [
        _quantile_difference(pair, metric, p, q)
        for metric in LATENCIES
        for p, q in QUANTILES.items()
        if f"{metric}_{p}" in names
    ]
    found += [_mean_difference(name, pair.rate(name), ratio=True) for name in RATES if name in names]
    found += [_mean_difference(name, pair.share(name), ratio=False) for name in SHARES if name in names]
    return [d for d in found if d is not None]


def overall(differences: list[Difference]) -> str:
    """One word for all: worse if anything is, else better if anything is, else same only if all are."""
    verdicts = {d.verdict for d in differences}
    for word in ("worse", "better"):
        if word in verdicts:
            return word
    return "same" if verdicts == {"same"} else "cannot tell"


def with_verdicts(differences: list[Difference]) -> list[Difference]:
    """Fill in the verdicts: Holm's test over all that have an interval, then equivalence.

    Names differ; one may say of what it is behind an @: ``output_throughput@8192``.
    """
    tested = sorted((d for d in differences if d.interval), key=lambda d: d.p)
    significant: set[str] = set()
    for place, difference in enumerate(tested):
        if difference.p * (len(tested) - place) > LEVEL:
            break
        significant.add(difference.name)
    return [replace(d, verdict=_verdict(d, d.name in significant)) for d in differences]


def _verdict(d: Difference, significant: bool) -> str:
    if d.interval is None:
        return "cannot tell"
    if significant:
        return "better" if (d.change > 0) == (d.name.partition("@")[0] in MORE_IS_BETTER) else "worse"
    margin = SAME_WITHIN if d.stated_margin is None else d.stated_margin
    return "same" if -margin <= d.interval[0] and d.interval[1] <= margin else "cannot tell"


def _quantile_difference(pair: Pair, metric: str, p: str, q: float) -> Difference | None:
    a, b = pair.latency(metric)
    if not len(a.values) or not len(b.values):
        return None
    values = _weighted_quantile(a, q), _weighted_quantile(b, q)
    return _difference(
        f"{metric}_{p}", values, (a, b), _Statistic(
            lambda data: quantile_time(data, q),
            lambda data, blocks, drawn: resampled_quantile(data, blocks, q, drawn),
            least_values(q), ratio=True, paired=pair.paired,
        )
    )  # fmt: skip


def _mean_difference(
    name: str, sides: tuple[Series, Series, bool] | None, *, ratio: bool
) -> Difference | None:
    if sides is None or not len(sides[0].values) or not len(sides[1].values):
        return None
    a, b, paired = sides
    values = float(a.values.mean()), float(b.values.mean())
    statistic = _Statistic(lambda data: data.own_time, _resampled_mean, MIN_BLOCKS, ratio, paired)
    return _difference(name, values, (a, b), statistic)


@dataclass(frozen=True)
class _Statistic:
    time: Callable[[Series], float]
    resample: Callable[[Series, Ints, Floats], Floats]
    least: int
    ratio: bool
    paired: bool


def _difference(
    name: str, values: tuple[float, float], sides: tuple[Series, Series], statistic: _Statistic
) -> Difference:
    a, b = sides
    only = Difference(name, *values, ratio=statistic.ratio)
    if statistic.ratio and min(values) <= 0:
        return replace(only, why="0 has no ratio")
    time_a, time_b = statistic.time(a), statistic.time(b)
    if statistic.paired:
        time_a = time_b = max(time_a, time_b)
    blocks_a = blocks_of(a.n_requests, time_a, statistic.least)
    blocks_b = blocks_of(b.n_requests, time_b, statistic.least)
    if isinstance(blocks_a, TooFew):
        return replace(only, why=_insufficient(blocks_a))
    if isinstance(blocks_b, TooFew):
        return replace(only, why=_insufficient(blocks_b))
    drawn_a = draws(int(blocks_a[-1]) + 1)
    drawn_b = drawn_a if statistic.paired else draws(int(blocks_b[-1]) + 1, stream=1)
    found = statistic.resample(a, blocks_a, drawn_a), statistic.resample(b, blocks_b, drawn_b)
    return _with_interval(only, found, Z * max(widening(blocks_a, time_a), widening(blocks_b, time_b)))


def _insufficient(few: TooFew) -> str:
    return f"insufficient data: {few.have} of about {few.need}"


def _with_interval(only: Difference, found: tuple[Floats, Floats], width: float) -> Difference:
    spread, centre = found[1] - found[0], only.b - only.a
    if only.ratio:
        if min(side.min() for side in found) <= 0:
            return replace(only, why="insufficient data: a resample of the run holds nothing")
        spread, centre = np.log(found[1]) - np.log(found[0]), math.log(only.b) - math.log(only.a)
    return replace(only, centre=centre, half=float(spread.std()) * width)


def _resampled_mean(data: Series, blocks: Ints, drawn: Floats) -> Floats:
    block = blocks[data.request]
    n = int(blocks[-1]) + 1
    sums = np.bincount(block, weights=data.values, minlength=n)
    return (drawn @ sums) / np.maximum(drawn @ np.bincount(block, minlength=n), 1)


def _weighted_quantile(data: Series, q: float) -> float:
    order = np.argsort(data.values, kind="stable")
    upto = np.cumsum(data.weights[order])
    return float(data.values[order][min(int(np.searchsorted(upto, q * upto[-1])), len(order) - 1)])
