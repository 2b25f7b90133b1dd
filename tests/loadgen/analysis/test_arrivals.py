import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.analysis.arrivals import describe, index_of_dispersion, ks_distance

S = 1_000_000_000


def test_evenly_spaced_arrivals_have_no_dispersion():
    found = describe(np.arange(0, 101 * S, S // 10))
    assert found.n == 1010
    assert found.rate_per_s == pytest.approx(10)
    assert found.gap_cv == 0
    assert found.idc[1.0] == 0
    assert found.idc[60.0] is None  # one whole window has no variance


def test_counts_start_at_the_first_arrival_and_the_partial_window_is_dropped():
    # windows of 1 s from 5 s on: counts 3, 1, 2, then a rest of half a second
    instants = np.array([5.0, 5.1, 5.9, 6.5, 7.0, 7.9, 8.4]) * S
    assert index_of_dispersion(instants.astype(np.int64), 1.0) == pytest.approx(np.var([3, 1, 2], ddof=1) / 2)


def test_cv_is_that_of_the_gaps_with_ddof_0_in_any_order():
    assert describe(np.array([9, 0, 1, 3]) * S).gap_cv == pytest.approx(np.std([1, 2, 6]) / 3)


def test_too_few_arrivals_have_no_rate():
    for instants in ([], [5], [5, 5]):
        found = describe(np.array(instants, np.int64))
        assert (found.n, found.rate_per_s, found.gap_cv) == (len(instants), None, None)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=60),
    st.lists(st.integers(0, 50), min_size=1, max_size=60),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # its p-value, which nobody asks for
def test_the_ks_distance_is_scipys(one, other):
    expected = stats.ks_2samp(one, other).statistic
    assert ks_distance(np.array(one), np.array(other)) == pytest.approx(expected)


def test_without_gaps_there_is_no_distance():
    assert ks_distance(np.array([], np.int64), np.array([1])) is None
