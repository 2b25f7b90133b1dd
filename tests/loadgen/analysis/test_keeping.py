"""Keep, miss, cannot tell: shares of dependent requests, and overload that has no end to wait for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis.critical import Point, find_critical, smoothed
from loadgen.analysis.keeping import KEEP, MISS, SURE_OVERLOAD, UNTOLD, Tally, clopper_pearson, pool, tally

ALLOWED = 0.05


def independent(seed, n, share):
    rng = np.random.default_rng(seed)
    slow = rng.random(n) < share
    return np.where(slow, 2.0, 1.0) * rng.uniform(0.9, 1.1, n), slow.astype(float)


def bursts(seed, n, share, length):
    """Broken requests in bursts of about *length*: a two-state Markov chain of that stationary share."""
    rng = np.random.default_rng(seed)
    gaps = rng.geometric(share / (length * (1 - share)), n // length + 10)
    runs = rng.geometric(1 / length, len(gaps))
    slow = np.repeat(np.tile([0.0, 1.0], len(gaps)), np.stack([gaps, runs], axis=1).ravel())[:n]
    assert len(slow) == n
    return slow + rng.uniform(0.9, 1.1, n), slow


def judged(*runs, allowed=ALLOWED):
    return pool([tally(latency, broken, allowed) for latency, broken in runs])


def test_clear_shares_are_told_and_the_share_itself_is_not():
    assert judged(independent(1, 5000, 0.01)).verdict() == KEEP
    assert judged(independent(1, 5000, 0.2)).verdict() == MISS
    assert judged(independent(1, 5000, 0.05)).verdict() == UNTOLD


def test_nothing_broken_in_too_few_requests_does_not_prove_that_nothing_breaks():
    few = judged((np.random.default_rng(1).random(60), np.zeros(60)))
    assert few.share == 0
    assert few.verdict() == UNTOLD
    assert few.interval()[1] > 0.05
    assert judged((np.random.default_rng(1).random(3000), np.zeros(3000))).verdict() == KEEP


def test_bursts_are_worth_fewer_requests_than_they_are():
    alone, together = judged(independent(3, 20_000, 0.04)), judged(bursts(3, 20_000, 0.04, 50))
    assert alone.n_effective > 0.8 * alone.n
    assert together.n_effective < 0.1 * together.n


def test_equal_latencies_in_due_order_are_no_trend():
    flat = tally(np.ones(500), np.zeros(500), ALLOWED)
    assert flat.tau == 1
    assert len(flat.weight) == 40


def test_the_interval_of_a_bursty_share_holds_it_in_95_of_100_runs():
    held = 0
    for seed in range(60):
        low, high = judged(bursts(seed, 6_000, 0.05, 10)).interval()
        held += low <= 0.05 <= high
    assert held >= 55


def test_overload_is_told_without_an_autocorrelation_time():
    n = 400
    growing = np.linspace(1, 100, n)
    run = growing, (growing > 10).astype(float)
    once = judged(run, allowed=0.01)
    assert once.blocks < 8
    assert once.verdict() == MISS
    assert judged(run).verdict() == UNTOLD
    assert judged(run, run).verdict() == MISS


@pytest.mark.parametrize("allowed", [0.01, 0.05, 0.5])
def test_wholly_dependent_runs_that_keep_are_called_overloaded_no_more_often_than_stated(allowed):
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(2000):
        whole = rng.random(12) < allowed  # each run is broken as a whole or not at all: the worst dependence
        pooled = pool([Tally(allowed, 40, 40.0, (40.0,), (40.0 * w,)) for w in whole])
        alarms += pooled.log_e >= -np.log(SURE_OVERLOAD)
    assert alarms <= 2000 * SURE_OVERLOAD + 4 * np.sqrt(2000 * SURE_OVERLOAD)


@given(st.integers(0, 400), st.integers(1, 400))
@settings(max_examples=40)
def test_clopper_and_pearsons_interval_has_the_binomials_own_tails(x, n):
    from scipy.stats import binom

    x = min(x, n)
    low, high = clopper_pearson(x / n, n, 0.025)
    if x:
        assert binom.sf(x - 1, n, low) == pytest.approx(0.025, rel=1e-6)
    if x < n:
        assert binom.cdf(x, n, high) == pytest.approx(0.025, rel=1e-6)


def shares(critical, slope, n=4000, values=(4.0, 6.0, 7.0, 8.0)):
    odds = np.log(ALLOWED / (1 - ALLOWED))
    return [Point(x, 1 / (1 + np.exp(-odds - slope * (x - critical))), n) for x in values]


NEAR = (6.4, 6.45, 6.55, 6.6)


@given(st.floats(5.0, 7.8), st.floats(0.5, 6.0))
@settings(max_examples=25, deadline=None)
def test_shares_on_a_line_of_log_odds_give_its_crossing(critical, slope):
    found = find_critical(shares(critical, slope), ALLOWED, (4.0, 8.0))
    assert found.value == pytest.approx(critical, abs=0.05)
    assert found.low is None or found.low <= critical
    assert found.high is None or critical <= found.high


def width(points, within=(6.0, 7.0)):
    found = find_critical(points, ALLOWED, within)
    return (within[1] if found.high is None else found.high) - (within[0] if found.low is None else found.low)


def test_more_requests_near_the_critical_value_narrow_the_interval():
    few, many = (width(shares(6.5, 2.0, n, NEAR)) for n in (2000, 8000))
    assert many == pytest.approx(few / 2, rel=0.25)


def test_far_points_do_not_pretend_to_know_what_lies_between():
    far = shares(6.5, 2.0, 1e9, (5.0, 8.0))
    assert width(far) > 10 * width(shares(6.5, 2.0, 1e9, (6.49, 6.51)))
    assert width(far) > 0.5


def test_points_that_scatter_about_the_line_widen_it():
    straight = shares(6.5, 2.0, 4000, (6.3, 6.4, 6.5, 6.6, 6.7))
    scattered = [
        Point(p.value, p.share * f, p.n) for p, f in zip(straight, (1, 1.3, 0.8, 1.2, 0.9), strict=True)
    ]
    assert width(scattered, (3, 12)) > 2 * width(straight, (3, 12))


def test_a_run_that_was_spared_does_not_weigh_more_for_it():
    points = [Point(5, 0.01, 1000, 10, 30), Point(6, 0.001, 1000, 1, 30), Point(7, 0.05, 1000, 40, 30)]
    per = smoothed(points)
    assert per[0] < per[1] < per[2]
    assert per[1] > 5


def test_without_a_point_there_is_no_critical_value():
    assert find_critical([], ALLOWED, (1, 2)) is None
    assert find_critical([Point(1, 0, 0)], ALLOWED, (1, 2)) is None
