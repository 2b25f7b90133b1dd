"""How often the correlation finds what was planted, and how often it claims what is not there.

    python -m tests.bench.correlate_power [NAME …]        (no name: all of them)

Each line: what was planted, found in how many of 100 seeds; what is absent, claimed in how many of 200. Wanted: 90 at
least, and 17 at most (what a nominal 5 % gives once in a hundred such counts). Exits with 1 where a count misses that.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from loadgen.analysis.correlate.answer import knee_json
from loadgen.analysis.correlate.association import pearson, spearman
from loadgen.analysis.correlate.lags import find_lag
from loadgen.analysis.correlate.regression import least_squares
from loadgen.analysis.correlate.samples import read_samples
from loadgen.analysis.leak import MIB, judge_memory
from tests.loadgen.analysis.correlate.planted import SamplesBuilder
from tests.loadgen.analysis.correlate.test_planted_truths import LOAD, drifting, memory_with_noise
from tests.loadgen.analysis.run_builder import T0_NS

PLANTED, ABSENT = 100, 200
FOUND, ALARMS = 90, 17
RATES = np.linspace(1, 12, 10)

Judge = Callable[[np.random.Generator], bool]


def offset_within_bound(true_ms: float) -> Judge:
    """An agent whose clock is so far ahead, learnt over a network of 0.2 to 0.5 ms each way."""

    def judge(rng: np.random.Generator) -> bool:
        with tempfile.TemporaryDirectory() as name:
            builder = SamplesBuilder(Path(name) / "samples-a.jsonl", offset_s=true_ms / 1e3)
            path = builder.clock(int(rng.integers(1 << 30))).sample(1.0, {"sm_active": 0.5}).write()
            _, offset = read_samples(path).take(T0_NS)
        assert offset is not None
        claimed = abs(offset.offset_ns) > offset.bound_ns
        right = abs(offset.offset_ns / 1e6 - true_ms) <= offset.bound_ns / 1e6 < 1
        return (claimed and right) if true_ms else claimed

    return judge


def lag_found(rng: np.random.Generator) -> bool:
    """Five minutes at 10 Hz; 0.3 s behind, with noise of its own."""
    x, other = drifting(rng, 3000), drifting(rng, 3000)
    lag = find_lag(x, np.concatenate([np.full(3, np.nan), x[:-3]]) + 0.7 * other)
    return lag is not None and lag.lag_s is not None and abs(lag.lag_s - 0.3) < 1e-9


def strangers_related(rng: np.random.Generator) -> bool:
    lag = find_lag(drifting(rng, 3000), drifting(rng, 3000))
    return lag is not None and lag.related


def lag_claimed_without_one(rng: np.random.Generator) -> bool:
    x = drifting(rng, 3000)
    lag = find_lag(x, x + 0.7 * drifting(rng, 3000))
    return lag is not None and lag.lag_s not in (0.0, None)


def leaks(mib_per_s: float) -> Judge:
    """Ten minutes at 1 Hz under noise of 100 MiB that remembers itself."""

    def judge(rng: np.random.Generator) -> bool:
        found = judge_memory(*memory_with_noise(rng, mib_per_s), LOAD)
        covered = not mib_per_s or found.low / MIB <= mib_per_s <= found.high / MIB
        return found.verdict == "leak" and covered

    return judge


def short_leak(mib_per_s: float) -> Judge:
    """Twenty seconds at 10 Hz, under 30 s after warm-up."""

    def judge(rng: np.random.Generator) -> bool:
        t = np.arange(0.0, 20.0, 0.1)
        values = MIB * (4000 + mib_per_s * t + 60 * drifting(rng, len(t), 0.8))
        return judge_memory(t, values).verdict == "leak"

    return judge


def knees(curve: Callable[[np.ndarray], np.ndarray], knee: float | None, scatter: float) -> Judge:
    """Ten stages; TTFT p95 and ITL p50 of the form of *curve*, each with its own scatter in proportion."""

    def judge(rng: np.random.Generator) -> bool:
        ttft, itl = (curve(RATES) * np.exp(scatter * rng.standard_normal(len(RATES))) for _ in range(2))
        stages = [
            {"closed": False, "offered_per_s": float(rate), "ttft_p95_ms": float(a), "itl_p50_ms": float(b),
             "requests": 60 * rate, "from_s": 60.0 * i, "to_s": 60.0 * i + 60, "engine_waiting": None}
            for i, (rate, a, b) in enumerate(zip(RATES, ttft, itl, strict=True))
        ]  # fmt: skip
        work = [{"requests": stage["requests"]} for stage in stages]
        found = knee_json(stages, work)
        if knee is None:
            return bool(found["found"])
        step = float(RATES[1] - RATES[0])
        return found["found"] and found["bracket_per_s"][0] - step <= knee <= found["bracket_per_s"][1]

    return judge


def sure_of_strangers(phi: float) -> Judge:
    def judge(rng: np.random.Generator) -> bool:
        found = spearman(drifting(rng, 1500, phi), drifting(rng, 1500, phi))
        return found is not None and found.sure

    return judge


def sure_of_friends(phi: float) -> Judge:
    def judge(rng: np.random.Generator) -> bool:
        x, y = drifting(rng, 1500, phi), drifting(rng, 1500, phi)
        found = pearson(x, 0.5 * x + y)
        return found is not None and found.sure

    return judge


def coefficient_covered(which: int) -> Judge:
    """TTFT = 10 + 40 ktok: the interval of the prompt's coefficient (1) holds 40; of SM's (2) leaves out 0."""

    def judge(rng: np.random.Generator) -> bool:
        n = 3000
        x = np.column_stack([np.ones(n), rng.random(n), drifting(rng, n, 0.5)])
        fit = least_squares(x, 10 + 40 * x[:, 1] + 5 * drifting(rng, n, 0.5), ("intercept", "ktok", "sm"))
        if fit.low is None or fit.high is None:
            return False
        inside = fit.low[which] <= (0, 40, 0)[which] <= fit.high[which]
        return bool(inside if which == 1 else not inside)

    return judge


def flat(rates: np.ndarray) -> np.ndarray:
    return np.full(len(rates), 60.0)


def line(rates: np.ndarray) -> np.ndarray:
    return 60 + 10 * rates


def hinge(rates: np.ndarray) -> np.ndarray:
    return 60 + 25 * np.maximum(rates - 6, 0)


TRUTHS: dict[str, Judge] = {
    "offset of 37 ms": offset_within_bound(37.0),
    "lag of 0.3 s": lag_found,
    "leak of 5 MiB/s": leaks(5.0),
    "leak of 40 MiB/s in 20 s": short_leak(40.0),
    "knee at 6/s": knees(hinge, 6.0, 0.05),
    "knee at 6/s, scatter 10 %": knees(hinge, 6.0, 0.10),
    "Pearson, phi 0.8": sure_of_friends(0.8),
    "regression: prompt's 40 ms/ktok": coefficient_covered(1),
}
TOLD_ONLY = ("leak of 40 MiB/s in 20 s",)
"""Counted without a limit: so short a run need not be judged at all."""
ABSENCES: dict[str, Judge] = {
    "offset of 0": offset_within_bound(0.0),
    "relation of strangers": strangers_related,
    "lag of 0": lag_claimed_without_one,
    "leak under noise": leaks(0.0),
    "leak under noise in 20 s": short_leak(0.0),
    "knee of a level curve": knees(flat, None, 0.10),
    "knee of a straight line": knees(line, None, 0.10),
    "knee of a straight line, scatter 20 %": knees(line, None, 0.20),
    "Spearman, phi 0": sure_of_strangers(0.0),
    "Spearman, phi 0.5": sure_of_strangers(0.5),
    "Spearman, phi 0.8": sure_of_strangers(0.8),
    "regression: SM without effect": coefficient_covered(2),
}


def main(names: list[str]) -> int:
    """Print every count; 1 where one of them misses its limit."""
    bad = 0
    for kind, truths, seeds in (("found", TRUTHS, PLANTED), ("claimed", ABSENCES, ABSENT)):
        for name, judge in truths.items():
            if names and not any(one in name for one in names):
                continue
            count = sum(judge(np.random.default_rng(seed)) for seed in range(seeds))
            held = (count >= FOUND or name in TOLD_ONLY) if kind == "found" else count <= ALARMS
            bad += not held
            print(f"{name}: {kind} in {count} of {seeds}{'' if held else '  MISSED'}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
