"""Passes pooled: the mean, an interval never narrower than the requests give, and disagreement that shows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.compare import Difference, with_verdicts
from loadgen.analysis.intervals import Z
from loadgen.analysis.passes import disagree, mean_half, pooled


def passed(centre: float, half: float | None = 0.05) -> Difference:
    return Difference("tpot_p50", 1e7, 1e7 * math.exp(centre), True, None if half is None else centre, half,
                      why="" if half is not None else "insufficient data: 3 of about 150")  # fmt: skip


centres = st.lists(st.floats(-1, 1), min_size=1, max_size=5)


@given(centres, st.floats(0.001, 0.5))
def test_the_change_is_the_mean_of_the_log_ratios_and_the_interval_no_narrower_than_the_requests(
    found: list[float], half: float
) -> None:
    one = pooled([passed(c, half) for c in found])
    assert one.centre == pytest.approx(np.mean(found), abs=1e-9)
    assert math.log1p(one.change) == pytest.approx(one.centre, abs=1e-9)
    assert one.half >= half / math.sqrt(len(found)) * (1 - 1e-9)


@given(st.floats(0.0001, 1), st.floats(0.0001, 1), st.floats(1e-6, 0.5))
def test_two_passes_of_opposite_sign_never_tell(above: float, below: float, half: float) -> None:
    [one] = with_verdicts([pooled([passed(above, half), passed(-below, half)])])
    assert one.verdict in ("same", "cannot tell")


def test_a_drift_that_turns_with_the_order_cancels_and_is_told() -> None:
    sides = [passed(0.1, 0.01), passed(-0.1, 0.01)]
    assert pooled(sides).centre == pytest.approx(0)
    assert disagree(sides)
    assert not disagree([passed(0.1, 0.05), passed(0.13, 0.05)])
    assert not disagree([passed(0.1)])


def test_one_pass_is_itself_and_one_without_an_interval_leaves_none() -> None:
    assert pooled([passed(0.1)]).half == pytest.approx(0.05)
    lacking = pooled([passed(0.1), passed(0.2, None)])
    assert lacking.interval is None
    assert lacking.why == "insufficient data: 3 of about 150"
    assert lacking.change == pytest.approx(math.expm1(0.15))
    assert not disagree([passed(0.1), passed(0.9, None)])


def test_shares_and_zeros_have_plain_means() -> None:
    share = Difference("failed_share", 0.0, 0.1, ratio=False)
    assert (pooled([share, share]).a, pooled([share, share]).b) == (0.0, pytest.approx(0.1))
    with pytest.raises(ValueError, match="no pass"):
        mean_half([], [])


def test_the_interval_of_a_mean_of_passes_holds_the_truth_as_often_as_it_says() -> None:
    rng, inside = np.random.default_rng(5), 0
    for _ in range(400):
        values = rng.normal(10, 1, 2)
        inside += abs(values.mean() - 10) <= mean_half(list(values), [Z, Z])
    assert inside >= 372  # at least 95 in 100 are expected, and the scale factor only adds


def test_a_rate_with_its_place_behind_an_at_is_still_one_of_which_more_is_better() -> None:
    more = Difference("output_throughput@8192/b", 10, 20, True, math.log(2), 0.01)
    slow = Difference("ttft_p50@8192/b", 10, 20, True, math.log(2), 0.01)
    assert [d.verdict for d in with_verdicts([more, slow])] == ["better", "worse"]
