import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from loadgen.analysis import spread as module
from loadgen.analysis.spread import quantile_with_failures, spread, spread_of_blocks

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
values = npst.arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e12, 1e15, allow_subnormal=False))


@settings(deadline=None)  # the full depth counts millions of bins
@given(values, st.sampled_from([0, 7, 1 << 22]))
def test_quantiles_are_numpys_whatever_the_blocks_and_the_depth_of_the_selection(array, at_hand):
    blocks = np.array_split(array, 3)
    patched, module.AT_HAND = module.AT_HAND, at_hand
    try:
        found = spread_of_blocks(lambda: ((b, None) for b in blocks), QUANTILES)
    finally:
        module.AT_HAND = patched
    assert found.n == len(array)
    expected = np.quantile(array, QUANTILES)
    assert np.allclose([found.quantiles[q] for q in QUANTILES], expected, rtol=1e-12, atol=1e-9)


@given(values)
def test_every_figure_lies_between_the_extremes_and_quantiles_do_not_fall(array):
    found = spread(array, QUANTILES)
    figures = [found.quantiles[q] for q in QUANTILES]
    assert (found.min, found.max) == (array.min(), array.max())
    assert all(found.min <= f <= found.max for f in [*figures, found.mean])
    assert figures == sorted(figures)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(1, 9)), min_size=1, max_size=60))
def test_a_weight_of_w_counts_as_w_equal_values(pairs):
    array = np.array([v for v, _ in pairs])
    weights = np.array([float(w) for _, w in pairs])
    expanded = np.repeat(array, weights.astype(int))
    found = spread_of_blocks(lambda: [(array[:5], weights[:5]), (array[5:], weights[5:])], QUANTILES)
    expected = spread(expanded, QUANTILES)
    assert found.n == expected.n
    assert found.quantiles == expected.quantiles
    assert found.mean == pytest.approx(expected.mean, rel=1e-9, abs=1e-9)
    assert found.std == pytest.approx(expected.std, rel=1e-6, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0.01, 9)), min_size=1, max_size=60))
def test_weights_that_are_not_whole_stay_within_the_values(pairs):
    array = np.array([v for v, _ in pairs])
    weights = np.array([w for _, w in pairs])
    found = spread_of_blocks(lambda: [(array, weights)], QUANTILES)
    assert all(array.min() <= q <= array.max() for q in found.quantiles.values())


def test_the_std_of_nearly_equal_large_values_does_not_vanish():
    array = 1e15 + np.array([0.0, 1.0, 2.0, 3.0])
    assert spread(array, []).std == pytest.approx(array.std())


def test_nothing_has_no_figures():
    found = spread(np.array([np.nan, np.nan]), [0.5])
    assert found.n == 0
    assert np.isnan([found.mean, found.min, found.max, found.quantiles[0.5]]).all()


def test_failures_push_a_quantile_to_infinity_once_they_reach_it():
    array = np.arange(1.0, 10.0)  # nine answers
    assert quantile_with_failures(array, 0, 0.5) == 5
    assert quantile_with_failures(array, 1, 0.5) == 5.5
    assert quantile_with_failures(array, 1, 0.99) == np.inf
    assert quantile_with_failures(array[:0], 3, 0.5) == np.inf
    assert np.isnan(quantile_with_failures(array[:0], 0, 0.5))


@given(values, st.integers(0, 50), st.floats(0, 1))
def test_failures_never_make_a_quantile_better(array, failures, q):
    assert quantile_with_failures(array, failures, q) >= quantile_with_failures(array, 0, q)
