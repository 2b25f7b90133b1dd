import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import rankdata

from loadgen.analysis.intervals import (
    Interval,
    Series,
    TooFew,
    autocorrelation_time,
    block_loss,
    least_values,
    mean_interval,
    quantile_interval,
    series,
    shared_ranks,
    upper_bound,
)
from loadgen.analysis.steady import find_cut


def queue(seed, n, load):
    """Times in system of an M/M/1 queue of service rate 1, past its start (Lindley's recursion)."""
    rng = np.random.default_rng(seed)
    work = rng.exponential(1, n + 3000)
    steps = np.concatenate([[0], work[:-1] - rng.exponential(1 / load, n + 2999)])
    level = np.cumsum(steps)
    return (level - np.minimum.accumulate(level) + work)[3000:]


def autoregressive(seed, n, phi):
    return lfilter([1], [1, -phi], np.random.default_rng(seed).normal(size=n + 500))[500:]


@given(st.lists(st.integers(0, 5), max_size=40))
def test_ranks_are_those_of_scipy_and_shared_by_equal_values(values):
    assert shared_ranks(np.array(values, float)).tolist() == (rankdata(values) - 1).tolist()


def test_a_server_without_spread_does_not_ask_for_more_requests_than_its_blocks_need():
    """98 % alike: ranked in due order, these would be one long trend (a time of 386 where 1 is true)."""
    rare = (np.random.default_rng(1).random(4000) < 0.02).astype(float)
    assert series(rare).rank_time < 1.3


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_the_autocorrelation_time_is_the_closed_form_of_a_first_order_process(phi):
    found = np.mean([autocorrelation_time(autoregressive(seed, 40_000, phi)) for seed in range(4)])
    assert found == pytest.approx((1 + phi) / (1 - phi), rel=0.1)


def test_long_series_are_averaged_without_changing_the_autocorrelation_time():
    assert autocorrelation_time(autoregressive(1, 400_000, 0.95)) == pytest.approx(39, rel=0.15)


def test_constant_and_tiny_series_count_as_independent():
    assert autocorrelation_time(np.ones(100)) == 1
    assert autocorrelation_time(np.arange(3.0)) == 1


def test_the_time_is_judged_by_its_upper_bound_save_for_independent_values():
    assert upper_bound(1.0, 100) == 1
    assert upper_bound(50.0, 5000) > 50 * 1.5


def test_p99_needs_367_values_even_when_they_are_independent():
    assert least_values(0.99) == 367
    assert isinstance(quantile_interval(series(np.random.default_rng(0).normal(size=366)), 0.99), TooFew)


def test_intervals_of_a_queues_quantiles_cover_the_truth_where_they_are_given():
    load, n, seeds = 0.6, 30_000, 40
    for q in (0.5, 0.99):
        truth = -np.log(1 - q) / (1 - load)
        found = [quantile_interval(series(queue(seed, n, load)), q) for seed in range(seeds)]
        given_ones = [i for i in found if isinstance(i, Interval)]
        assert len(given_ones) == seeds
        # 95 % nominal; 33 of 40 or fewer would happen to a true 95 % once in 2,000
        assert sum(i.low <= truth <= i.high for i in given_ones) >= 34


def test_a_short_run_of_a_queue_is_told_how_long_a_run_would_do():
    found = [quantile_interval(series(queue(seed, 3_000, 0.9)), 0.99) for seed in range(10)]
    assert all(isinstance(i, TooFew) and i.have == 3_000 and i.need > 3_000 for i in found)


def test_the_interval_of_a_mean_covers_it():
    hits = 0
    for seed in range(40):
        found = mean_interval(series(queue(seed, 30_000, 0.6)))
        assert isinstance(found, Interval)
        hits += found.low <= 1 / 0.4 <= found.high
    assert hits >= 34


def test_several_values_a_request_do_not_count_as_independent_ones():
    own = np.random.default_rng(1).normal(10, 1, 2000)
    request = np.repeat(np.arange(2000), 50)
    many = Series(own[request], request, np.ones(100_000), 2000, own)
    one, fifty = mean_interval(series(own)), mean_interval(many)
    assert isinstance(one, Interval)
    assert isinstance(fifty, Interval)
    assert fifty.high - fifty.low == pytest.approx(one.high - one.low, rel=0.05)


@given(st.integers(0, 60), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_few_values_have_no_interval_and_no_error(n, q):
    values = np.arange(float(n))
    values[::7] = np.nan
    found = quantile_interval(series(values), q)
    assert isinstance(found, TooFew) or n > 30


def test_the_same_values_give_the_same_interval():
    values = queue(3, 20_000, 0.5)
    assert quantile_interval(series(values), 0.9) == quantile_interval(series(values), 0.9)


def test_a_planted_warm_up_is_found_at_its_end():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = np.where(np.arange(2000) < 200, 3, 1) * rng.lognormal(sigma=0.5, size=2000)
        cut = find_cut(values)
        assert cut is not None
        assert 180 <= cut.requests <= 240
        assert cut.settled
        assert cut.median_outside > 2 * cut.median_inside


def test_without_a_transient_none_is_found():
    assert sum(find_cut(queue(seed, 3000, 0.7)) is not None for seed in range(40)) <= 3
    assert not any(find_cut(np.random.default_rng(s).lognormal(size=2000)) for s in range(20))


def test_a_difference_too_small_to_matter_is_not_called_a_transient():
    rng = np.random.default_rng(0)
    assert find_cut(np.where(np.arange(20_000) < 5000, 1.02, 1) + rng.normal(0, 0.001, 20_000)) is None


def test_a_short_run_is_not_searched():
    assert find_cut(np.r_[np.full(40, 9.0), np.ones(59)]) is None


def test_short_blocks_of_a_first_order_process_lose_the_share_that_is_made_good():
    phi, length = 0.8, 45
    tau = (1 + phi) / (1 - phi)
    lags = np.arange(1, length)
    of_blocks = 1 + 2 * ((1 - lags / length) * phi**lags).sum()
    assert block_loss(length, tau) == pytest.approx((tau / of_blocks) ** 0.5, rel=0.01)
    assert block_loss(5, 1.0) == 1
