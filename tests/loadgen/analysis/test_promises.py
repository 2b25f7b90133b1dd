"""Which requests break a promise: gates, bounds of a class, failures."""

import pytest

from loadgen.analysis.load import load_run
from loadgen.analysis.promises import ERRORS, check_objectives, tallies_of
from loadgen.errors import UsageError
from loadgen.slo import parse_objectives
from tests.loadgen.analysis.run_builder import RunBuilder, not_sent, request


def tallies(builder, *slo, attainment=0.9, max_error_rate=0.05):
    return tallies_of(load_run(builder.write()), parse_objectives(slo), attainment, max_error_rate)


def broken(tally):
    return sum(tally.broken), sum(tally.weight)


@pytest.fixture
def mixed(tmp_path):
    """Ten high requests with TTFT 10 ms, ten low ones with 100 ms; one of each failed, one was never sent."""
    builder = RunBuilder(tmp_path / "run")
    for i in range(20):
        name, ttft = ("high", 10) if i % 2 else ("low", 100)
        chunks = [100 * i + ttft, 100 * i + ttft + 5]
        builder.add(request(i, 100 * i, class_name=name, chunks=chunks, tokens=[1, 1]))
    for i, name in ((20, "high"), (21, "low")):
        builder.add(request(i, 100 * i, class_name=name, outcome="timeout", error="late"))
    return builder.add(not_sent(22, 2200, "its session ended: the turn before it failed"))


def test_a_gate_is_a_share_that_may_be_broken_and_failures_break_it(mixed):
    found = tallies(mixed, "ttft@p90=50ms", "high:ttft@p99=50ms", "low:ttft@p99=50ms")
    assert broken(found["ttft@p90=50ms"]) == (12, 22)
    assert broken(found["high:ttft@p99=50ms"]) == (1, 11)
    assert broken(found["low:ttft@p99=50ms"]) == (11, 11)
    assert found["ttft@p90=50ms"].allowed == pytest.approx(0.1)
    assert found["low:ttft@p99=50ms"].allowed == pytest.approx(0.01)


def test_bounds_without_a_quantile_ask_their_share_of_every_class(mixed):
    found = tallies(mixed, "high:ttft=50ms", "ttft=200ms", attainment=0.8)
    assert set(found) == {"high: attainment", "low: attainment", ERRORS}
    assert broken(found["high: attainment"]) == (1, 11)
    assert broken(found["low: attainment"]) == (1, 11)
    assert found["low: attainment"].allowed == pytest.approx(0.2)


def test_failures_are_a_promise_of_their_own_until_any_are_allowed(mixed):
    assert broken(tallies(mixed, "ttft@p50=1s")[ERRORS]) == (2, 22)
    assert ERRORS not in tallies(mixed, "ttft@p50=1s", max_error_rate=1)


def test_a_gate_over_tokens_counts_tokens(tmp_path):
    builder = RunBuilder(tmp_path / "run")
    for i in range(10):
        at = 100 * i + 1
        builder.add(request(i, 100 * i, chunks=[at, at + 10, at + 40], tokens=[1, 1, 2]))
    builder.add(request(10, 1000, chunks=[1001], tokens=[1]))
    found = tallies(builder, "itl@p99=12ms", "icl@p99=12ms")
    assert broken(found["itl@p99=12ms"]) == (20, 30)
    assert broken(found["icl@p99=12ms"]) == (10, 20)


def test_warm_up_is_left_out(tmp_path):
    builder = RunBuilder(tmp_path / "run", options={"warmup_ns": 1_000_000_000})
    for i in range(20):
        slow = 500 if i < 10 else 5
        builder.add(request(i, 100 * i, chunks=[100 * i + slow]))
    assert broken(tallies(builder, "ttft@p90=50ms")["ttft@p90=50ms"]) == (0, 10)


@pytest.mark.parametrize(
    ("slo", "attainment", "errors", "said"),
    [
        ((), 0.9, 0.05, "nothing to keep"),
        (("ttft@p100=1s",), 0.9, 0.05, "p100"),
        (("ttft=1s",), 1.0, 0.05, "--attainment 1"),
        (("ttft=1s",), 0.9, 0.0, "--max-error-rate 0"),
    ],
)
def test_what_no_sample_can_tell_is_refused(slo, attainment, errors, said):
    with pytest.raises(UsageError, match=said):
        check_objectives(parse_objectives(slo), attainment, errors)
