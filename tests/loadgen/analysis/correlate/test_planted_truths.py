"""What is planted is found in at least 90 of 100 seeds; what is absent is claimed in at most 17 of 200."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import spearmanr

from loadgen.analysis.correlate.association import pearson, spearman
from loadgen.analysis.correlate.lags import find_lag
from loadgen.analysis.correlate.regression import least_squares
from loadgen.analysis.knee import LEVEL, find_knee, find_knees
from loadgen.analysis.leak import MIB, Load, judge_memory

PLANTED, ABSENT = 20, 40
"""Seeds here; tests.bench.correlate_power goes through 100 and 200."""
FOUND, FALSE_ALARMS = 18, 5
LOAD = Load(np.arange(0.0, 600.0, 0.5))


def drifting(rng: np.random.Generator, n: int, phi: float = 0.7) -> np.ndarray:
    """An AR(1) series: each value remembers *phi* of the one before."""
    return lfilter([1.0], [1.0, -phi], rng.standard_normal(n + 200))[200:]


def memory_with_noise(rng: np.random.Generator, mib_per_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Ten minutes at 1 Hz with cache-like noise of some hundred MiB that remembers itself."""
    t = np.arange(600.0)
    return t, MIB * (4000 + mib_per_s * t + 60 * drifting(rng, len(t), 0.8))


def latency_curve(rng: np.random.Generator, knee: float) -> tuple[np.ndarray, np.ndarray]:
    rates = np.linspace(1, 12, 10) * (1 + 0.03 * rng.standard_normal(10))
    return rates, (60 + 25 * np.maximum(rates - knee, 0)) * (1 + 0.05 * rng.standard_normal(10))


def test_a_planted_lag_of_three_tenths_is_found_and_none_is_claimed_between_strangers() -> None:
    found = claimed = moved = 0
    for seed in range(ABSENT):
        rng = np.random.default_rng(seed)
        x, other = drifting(rng, 3000), drifting(rng, 3000)
        later = np.concatenate([np.full(3, np.nan), x[:-3]]) + 0.7 * other
        if seed < PLANTED:
            lag = find_lag(x, later)
            found += lag is not None and lag.lag_s == pytest.approx(0.3)
        stranger, together = find_lag(x, other), find_lag(x, x + 0.7 * other)
        assert stranger is not None
        assert together is not None
        claimed += stranger.related
        moved += together.lag_s not in (0.0, None)
    assert found >= FOUND
    assert claimed <= FALSE_ALARMS
    assert moved <= FALSE_ALARMS


def test_a_planted_leak_of_five_mib_a_second_is_found_and_noise_is_none() -> None:
    leaks = [judge_memory(*memory_with_noise(np.random.default_rng(s), 5.0), LOAD) for s in range(PLANTED)]
    assert sum(leak.verdict == "leak" and leak.low / MIB <= 5 <= leak.high / MIB for leak in leaks) >= FOUND
    level = [judge_memory(*memory_with_noise(np.random.default_rng(s), 0.0), LOAD) for s in range(ABSENT)]
    assert sum(leak.verdict == "leak" for leak in level) <= FALSE_ALARMS


def test_memory_that_fills_up_once_is_no_leak() -> None:
    t = np.arange(600.0)
    for full_at in (100.0, 200.0, 300.0):
        warm = judge_memory(t, MIB * (4000 + 2000 * np.minimum(t / full_at, 1)))
        assert warm.verdict == "none"


def test_memory_that_grows_with_the_load_and_falls_with_it_is_no_leak() -> None:
    t = np.arange(600.0)
    assert judge_memory(t, MIB * (4000 + 1000 * np.sin(np.pi * t / 600))).verdict == "none"


def test_under_thirty_seconds_after_warmup_memory_is_never_called_free_of_leaks() -> None:
    for seconds, level, verdict in ((36.0, 0.0, "insufficient"), (40.0, 0.0, "none"), (36.0, 3.0, "insufficient"),
                                    (40.0, 3.0, "leak"), (20.0, 20.0, "leak")):  # fmt: skip
        t = np.arange(0.0, seconds + 0.1, 0.2)
        assert judge_memory(t, MIB * (1000 + level * t)).verdict == verdict, (seconds, level)


def test_a_level_that_fills_up_within_a_short_run_is_no_leak() -> None:
    t = np.arange(0.0, 20.0, 0.1)
    for tau_s in (5.0, 10.0):
        judged = judge_memory(t, MIB * (4000 + 300 * (1 - np.exp(-t / tau_s))))
        assert judged.verdict == "insufficient"


def test_the_planned_warmup_is_left_out_where_it_is_longer() -> None:
    t = np.arange(300.0)
    values = MIB * (1000 + 100 * np.minimum(t, 120))
    assert judge_memory(t, values, warmup_s=120.0).slope == 0


def test_a_planted_knee_is_found_near_its_rate_and_a_straight_line_has_none() -> None:
    found = false = 0
    for seed in range(ABSENT):
        rng = np.random.default_rng(seed)
        if seed < PLANTED:
            knee = find_knee(*latency_curve(rng, 6.0)).rate
            found += knee is not None and abs(knee - 6.0) <= 1.3
        rates = np.linspace(1, 12, 10)
        false += find_knee(rates, (60 + 10 * rates) * (1 + 0.05 * rng.standard_normal(10))).rate is not None
        false += find_knee(rates, 60 * (1 + 0.05 * rng.standard_normal(10))).rate is not None
    assert found >= FOUND
    assert false <= 2 * FALSE_ALARMS


def test_two_curves_together_need_more_evidence_than_each_alone_unless_both_have_it() -> None:
    for seed in range(PLANTED):
        rng = np.random.default_rng(seed)
        rates, strong = latency_curve(rng, 6.0)
        weak = 60 * (1 + 0.05 * rng.standard_normal(10)) + 9 * np.maximum(rates - 6, 0)
        alone, together = find_knee(rates, weak), find_knees(rates, {"weak": weak, "flat": rates * 0 + 60})
        assert find_knees(rates, {"weak": strong, "strong": strong})["weak"].rate is not None
        if together["weak"].rate is not None:
            assert alone.rate is not None
            assert alone.p_value is not None
            assert alone.p_value <= LEVEL / 2
        assert together["flat"].rate is None


def test_four_rates_are_too_few_for_a_knee() -> None:
    assert "a knee needs 5" in find_knee(np.arange(4.0), np.array([1.0, 1, 1, 9])).why


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_unrelated_series_are_seldom_called_related_and_related_ones_are(phi: float) -> None:
    false = found = 0
    for seed in range(ABSENT):
        rng = np.random.default_rng(seed)
        x, y = drifting(rng, 1500, phi), drifting(rng, 1500, phi)
        stranger, friend = spearman(x, y), pearson(x, 0.5 * x + y)
        assert stranger is not None
        assert friend is not None
        false += stranger.sure
        found += friend.sure
    assert false <= FALSE_ALARMS
    assert found >= 0.9 * ABSENT


def test_ranks_with_ties_correlate_as_scipys_do() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 5, 60).astype(float), rng.integers(0, 7, 60).astype(float)
    mine = spearman(x, y)
    assert mine is not None
    assert mine.value == pytest.approx(spearmanr(x, y)[0])


def test_the_regressions_intervals_cover_the_planted_coefficients() -> None:
    covered = false = 0
    for seed in range(ABSENT):
        rng = np.random.default_rng(seed)
        n = 3000
        x = np.column_stack([np.ones(n), rng.random(n), drifting(rng, n, 0.5)])
        y = 10 + 40 * x[:, 1] + 5 * drifting(rng, n, 0.5)
        fit = least_squares(x, y, ("intercept", "prompt_ktok", "sm_percent"))
        assert fit.low is not None
        assert fit.high is not None
        covered += fit.low[1] <= 40 <= fit.high[1]
        false += not fit.low[2] <= 0 <= fit.high[2]
    assert covered >= 0.85 * ABSENT
    assert false <= FALSE_ALARMS
