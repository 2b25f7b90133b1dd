"""Rates and their intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.intervals import Interval
from loadgen.analysis.load import load_run
from loadgen.analysis.rates import BINS, Span, TooShort, counted, rate_interval
from tests.loadgen.analysis.run_builder import RunBuilder, request


class Ends:
    """Rows of which only their ends are asked."""

    def __init__(self, ends_ns):
        self.ends_ns = np.asarray(ends_ns, np.int64)

    def __len__(self):
        return len(self.ends_ns)

    def has(self, name):
        return np.ones(len(self), np.bool_)

    def instant(self, name):
        return self.ends_ns


def everyone(rows):
    return np.ones(len(rows), np.bool_)


@given(st.lists(st.integers(-50, 10_000), max_size=80), st.integers(1, 9_000))
def test_the_mean_of_the_bins_is_the_count_over_the_time(ends_ms, end_ms):
    rows, span = Ends([e * 1_000_000 for e in ends_ms]), Span(0, end_ms * 1_000_000)
    inside = sum(0 <= e < end_ms for e in ends_ms)
    values = counted(rows, everyone(rows), span).values
    assert len(values) == BINS
    assert values.mean() == pytest.approx(inside / (end_ms / 1e3))


def test_weights_are_added_and_an_empty_span_has_no_rate(tmp_path):
    lines = (request(i, i * 100, chunks=[i * 100 + 10], n_output=3 + i) for i in range(4))
    rows = load_run(RunBuilder(tmp_path / "run").add(*lines).write()).rows
    assert counted(rows, everyone(rows), Span(0, 10**9), "n_output").values.mean() == pytest.approx(
        3 + 4 + 5 + 6
    )
    assert len(counted(rows, everyone(rows), Span(5, 5)).values) == 0


def test_95_of_100_intervals_hold_the_true_rate_of_random_and_of_bursty_traffic():
    for burst in (1, 4):  # so many ends at a time
        held = widths = 0
        for seed in range(100):
            rng = np.random.default_rng(seed)
            at = np.cumsum(rng.exponential(0.1 * burst, 4 * 1200 // burst))
            rows = Ends(np.repeat(at[at < 120], burst) * 1e9)
            found = rate_interval(rows, everyone(rows), Span(0, 120 * 10**9))
            assert isinstance(found, Interval)
            held += found.low < 10 < found.high
            widths += found.high - found.low
        assert 89 <= held <= 100  # binomial(100, 0.95): 89 to 99 in 99 of 100
        assert widths / 100 == pytest.approx(2 * 1.96 * np.sqrt(10 * burst / 120), rel=0.2)


def test_ends_in_one_long_wave_are_too_few_and_say_how_long_would_do():
    at = np.arange(0, 60, 0.05)
    rows = Ends(at[np.sin(at / 10) > 0] * 1e9)
    found = rate_interval(rows, everyone(rows), Span(0, 60 * 10**9))
    assert isinstance(found, TooShort)
    assert found.have_s == 60
    assert found.need_s > 300
