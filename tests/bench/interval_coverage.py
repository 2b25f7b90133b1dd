"""How often the 95 % intervals of percentiles and means hold the truth on data that remember themselves.

    python -m tests.bench.interval_coverage [SEEDS] [CASE …]        (200 seeds; all cases)

Cases: times in system of an M/M/1 queue (exact: exponential of mean 1 / (1 - rho)), first-order processes, and the
exponential of one (lognormal). Printed for each length: how many of the intervals that were given hold the truth, how
many were given, and how many runs of all were told a wrong one: a run whose memory looks too short is given an interval
more often than it should be, so that short runs show their errors in the first figure and the lengths in the second.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
from scipy.stats import norm

from loadgen.analysis.intervals import Interval, mean_interval, quantile_interval, series
from tests.loadgen.analysis.test_intervals import autoregressive, queue

Sample = Callable[[int, int], np.ndarray]
Truth = Callable[[float | None], float]
QUANTILES = (0.5, 0.9, 0.95, 0.99, None)
LENGTHS = (1000, 5000, 20_000)


def queue_case(rho: float) -> tuple[Sample, Truth]:
    return (
        lambda seed, n: queue(seed, n, rho),
        lambda q: 1 / (1 - rho) if q is None else -math.log(1 - q) / (1 - rho),
    )


def process_case(phi: float, *, lognormal: bool = False) -> tuple[Sample, Truth]:
    def truth(q: float | None) -> float:
        if q is None:
            return math.exp(0.5) if lognormal else 0.0
        return math.exp(norm.ppf(q)) if lognormal else float(norm.ppf(q))

    def sample(seed: int, n: int) -> np.ndarray:
        values = autoregressive(seed, n, phi) * math.sqrt(1 - phi * phi)
        return np.exp(values) if lognormal else values

    return sample, truth


CASES: dict[str, tuple[Sample, Truth]] = {
    "M/M/1 0.5": queue_case(0.5),
    "M/M/1 0.7": queue_case(0.7),
    "M/M/1 0.85": queue_case(0.85),
    "AR 0": process_case(0.0),
    "AR 0.5": process_case(0.5),
    "AR 0.9": process_case(0.9),
    "lognormal AR 0.9": process_case(0.9, lognormal=True),
}


def main(seeds: int, names: list[str]) -> None:
    """Print one line a case and length."""
    for name in names or CASES:
        sample, truth = CASES[name]
        for n in LENGTHS:
            data = [series(sample(seed, n)) for seed in range(seeds)]
            said = []
            for q in QUANTILES:
                found = [mean_interval(one) if q is None else quantile_interval(one, q) for one in data]
                given = [one for one in found if isinstance(one, Interval)]
                held = sum(one.low <= truth(q) <= one.high for one in given)
                what = "mean" if q is None else f"p{100 * q:g}"
                said.append(f"{what} {held}/{len(given)} ({len(given) - held} wrong)")
            print(f"{name}, {n:,} values, {seeds} runs: {'; '.join(said)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 200, sys.argv[2:])
