"""In how many of 100 seeds does the known critical rate lie in the search's stated 95 % interval?

    python -m tests.bench.search_power [mm1|mean|engine|all] [SEEDS]

mm1: response times of M/M/1 are exponential of rate mu - lambda, so that "p95 within b" is kept up to the rate
mu - ln(20) / b exactly. mean: the same, asked for p63.2, which is the mean of an exponential: "the mean within b" is
kept up to mu - 1 / b. engine: the engine model in virtual time with four seats and answers of random length; TTFT p95.
Its critical rate comes from brute force: at each of five rates a run of 200,000 requests, interpolated.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from loadgen.analysis.keeping import tally
from loadgen.evidence import Evidence, Question
from loadgen.search import Answer, search
from loadgen.simulator.config import EngineConfig
from loadgen.simulator.cost import LinearCost
from loadgen.simulator.whatif import simulate_rows
from tests.loadgen.simulator.rows import Row

MU = 10.0
SETTLE_S = 10.0
ENGINE = EngineConfig(max_num_seqs=4, cost=LinearCost(decode_ms=5.0))
BOUND_S = 0.3
Waits = Callable[[np.random.Generator, float, float], NDArray[np.float64]]
"""Seconds that each request due within a run of so many seconds waits, in due order: (random, rate, duration)."""


def main(which: str = "all", seeds: int = 100) -> None:
    """Print the counts."""
    mean = 1 - math.exp(-1)
    if which in ("mm1", "all"):
        for q, critical in ((0.95, 7.0), (0.99, 7.0), (0.95, 9.0), (0.5, 5.0)):
            bound = -math.log(1 - q) / (MU - critical)
            count(f"M/M/1, p{100 * q:g} within {bound:.3g} s", (mm1, bound, q), critical, seeds)
    if which in ("mean", "all"):
        count("M/M/1, mean within 0.333 s", (mm1, 1 / 3, mean), 7.0, seeds)
    if which in ("engine", "all"):
        critical = brute_force(engine, BOUND_S, 0.95, np.linspace(27, 31, 5))
        print(
            f"engine model, TTFT p95 within {BOUND_S} s: kept up to {critical:.4g}/s by brute force",
            flush=True,
        )
        count("engine model", (engine, BOUND_S, 0.95), critical, seeds, probe_s=60)


def count(
    words: str, asked_of: tuple[Waits, float, float], critical: float, seeds: int, probe_s: float = 300
) -> int:
    """Print and return how many intervals hold the critical rate; *asked_of*: (queue, bound in s, quantile)."""
    question = Question(1, 200, probe_s=probe_s, budget_s=120 * probe_s, tolerance=0.1, settle_s=SETTLE_S)
    ended: Counter[str] = Counter()
    widths, requests, began = [], [], time.perf_counter()
    for seed in range(seeds):
        answer, asked = searched(question, asked_of, seed)
        low, high = answer.low or 0.0, math.inf if answer.high is None else answer.high
        side = (
            "held" if low <= critical <= high else "interval below" if high < critical else "interval above"
        )
        ended[side] += 1
        ended[f"ended: {answer.reason}"] += 1
        widths.append((high - low) / critical)
        requests.append(asked)
    print(
        f"{words}: {critical:.4g}/s lies in {ended['held']} of {seeds} intervals {dict(ended)}; width of the interval "
        f"{np.median(widths):.1%} of the rate, requests {np.median(requests):,.0f} (medians); "
        f"{time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return ended["held"]


def searched(question: Question, asked_of: tuple[Waits, float, float], seed: int) -> tuple[Answer, int]:
    """One whole search; (its answer, the requests it took)."""
    waits, bound_s, q = asked_of
    rng = np.random.default_rng(seed)

    def probe(rate: float, seconds: float) -> Evidence:
        waited = waits(rng, rate, seconds)
        return Evidence({"p": tally(waited, (waited > bound_s).astype(float), 1 - q)}, requests=len(waited))

    answer, runs = search(question, probe)
    return answer, sum(run.evidence.requests for run in runs)


def arrivals(rng: np.random.Generator, rate: float, seconds: float) -> NDArray[np.float64]:
    """Poisson arrivals within the settling time and *seconds*, s."""
    end = SETTLE_S + seconds
    return np.sort(rng.uniform(0, end, rng.poisson(rate * end)))


def mm1(rng: np.random.Generator, rate: float, seconds: float) -> NDArray[np.float64]:
    """Response times. Departure n = C_n + max over k <= n of (arrival k - C_{k-1}), C the summed services (Lindley)."""
    at = arrivals(rng, rate, seconds)
    served = np.cumsum(rng.exponential(1 / MU, len(at)))
    left = served + np.maximum.accumulate(at - np.concatenate([[0.0], served[:-1]])) if len(at) else at
    return (left - at)[at >= SETTLE_S]


def engine(rng: np.random.Generator, rate: float, seconds: float) -> NDArray[np.float64]:
    """TTFT under the engine model; answers of 1 to 31 tokens."""
    at = (arrivals(rng, rate, seconds) * 1e9).astype(np.int64)
    return np.array([wait for due, wait in sorted(_engine(at, rng)) if due >= SETTLE_S * 1e9])


def _engine(at: NDArray[np.int64], rng: np.random.Generator) -> Iterator[tuple[int, float]]:
    lengths = rng.integers(1, 32, len(at)).tolist()
    rows = (Row(due, 64, length) for due, length in zip(at.tolist(), lengths, strict=True))
    for record in simulate_rows(rows, ENGINE):
        assert record.first_ns is not None
        yield record.due_ns, (record.first_ns - record.due_ns) / 1e9


def brute_force(waits: Waits, bound_s: float, q: float, rates: NDArray[np.float64]) -> float:
    """The rate at which the broken share of long runs passes 1 - q, interpolated in its log odds."""
    rng = np.random.default_rng(12345)
    shares = np.array([(waits(rng, rate, 200_000 / rate) > bound_s).mean() for rate in rates])
    odds = np.log(np.maximum(shares, 1e-9) / np.maximum(1 - shares, 1e-9))
    return float(np.interp(math.log((1 - q) / q), odds, rates))


if __name__ == "__main__":
    main(*sys.argv[1:2], *(int(word) for word in sys.argv[2:3]))
