"""Validity both ways: each reason alone makes a run invalid, and just inside its limit the run is valid."""

import json

import pytest

from loadgen.analysis.load import load_run
from loadgen.analysis.validity import judge
from tests.loadgen.analysis.run_builder import MS, T0_NS, RunBuilder, not_sent, request


@pytest.fixture
def builder(tmp_path):
    return RunBuilder(tmp_path / "run")


def verdict(builder):
    return judge(load_run(builder.write()))


def late(n, ms, of):
    return [request(i, i, taken=i + (ms if i < n else 0), chunks=[i + 30]) for i in range(of)]


def test_a_run_on_time_with_whole_files_is_valid(builder):
    assert verdict(builder.add(*late(0, 0, 50))).valid


@pytest.mark.parametrize(("late_ms", "valid"), [(9.9, True), (10, True), (10.1, False)])
def test_lag_p99_over_10_ms_is_invalid(builder, late_ms, valid):
    found = verdict(builder.add(*late(20, late_ms, 1000)))
    assert found.valid is valid
    if not valid:
        assert found.reasons == ("lag p99 10.1 ms > 10 ms: the generator itself was late",)


def test_a_few_late_sends_below_the_percentile_leave_the_run_valid(builder):
    assert verdict(builder.add(*late(9, 500, 1000))).valid


def test_waiting_for_a_cap_is_not_the_generators_lateness(builder):
    assert verdict(builder.add(*(request(i, i, held=900, chunks=[i + 950]) for i in range(20)))).valid


def test_a_server_that_stalls_does_not_make_the_run_invalid(builder):
    assert verdict(builder.add(*(request(i, i, chunks=[i + 60_000]) for i in range(20)))).valid


@pytest.mark.parametrize(("unsent", "valid"), [(1, True), (2, False)])
def test_more_than_a_thousandth_not_sent_is_invalid(builder, unsent, valid):
    rows = [not_sent(i, i, "no file descriptor") if i < unsent else request(i, i) for i in range(1000)]
    found = verdict(builder.add(*rows))
    assert found.valid is valid
    if not valid:
        assert found.reasons == ("2 of 1000 rows (0.20%) not sent or lost by the generator > 0.10%",)


def test_lost_rows_count_with_those_not_sent(builder):
    rows = [request(i, i, outcome="lost") if i < 2 else request(i, i) for i in range(1000)]
    assert not verdict(builder.add(*rows)).valid


@pytest.mark.parametrize("reason", ["interrupted", "breaker: error rate 60 %", "drain_timeout"])
def test_rows_left_unsent_because_the_run_was_rightly_stopped_are_not_the_generators_fault(builder, reason):
    rows = [request(i, i) if i < 10 else not_sent(i, i, reason) for i in range(100)]
    assert verdict(builder.add(*rows).end(reason.split(":")[0])).valid


def test_rows_that_give_the_stops_own_reason_are_not_the_generators_fault_either(builder):
    why = "9 of 10 requests failed"
    rows = [request(i, i) if i < 10 else not_sent(i, i, why) for i in range(100)]
    stop = {"event": "phase", "t_ns": T0_NS, "name": "breaker", "reason": why}
    assert verdict(builder.add(*rows, stop).end("breaker")).valid


def test_a_turn_left_unsent_because_the_turn_before_it_failed_is_the_endpoints_doing(builder):
    rows = [
        request(i, i) if i < 90 else not_sent(i, i, "its session ended: turn 1 was timeout")
        for i in range(100)
    ]
    assert verdict(builder.add(*rows)).valid


def test_a_generator_that_stopped_itself_is_invalid_and_says_why(builder):
    stop = {"event": "phase", "t_ns": T0_NS, "name": "disk", "reason": "cannot write records: no space left"}
    found = verdict(builder.add(request(0), stop).end("disk"))
    assert found.reasons == ("stopped by the generator itself: cannot write records: no space left",)


def test_a_clock_step_is_invalid_and_says_how_far(builder):
    step = {"event": "clock_step", "t_ns": T0_NS, "step_ns": -37 * MS, "bound_ns": 1000}
    assert verdict(builder.add(request(0), step)).reasons == ("a clock stepped by -37 ms",)


def test_an_incomplete_file_is_invalid(builder):
    builder.scheduled = 1
    found = verdict(builder.add(request(0)).end(None))
    assert found.reasons == ("records-0.jsonl: no end line, its worker was killed or is still writing",)


def test_an_empty_schedule_draws_no_conclusions(builder):
    assert verdict(builder).reasons == ("no row was scheduled",)


def test_the_plan_may_move_the_limits(builder):
    builder.options = {"limits": {"lag_p99_ns": 20 * MS, "not_sent_ratio": 0.1}}
    rows = late(20, 15, 100)
    rows[50:55] = [not_sent(i, i, "no file descriptor") for i in range(50, 55)]
    directory = builder.add(*rows).write()
    assert judge(load_run(directory)).valid
    plan = json.loads((directory / "plan.json").read_text())
    plan["plan"]["limits"] = {"lag_p99_ns": 1 * MS, "not_sent_ratio": 0.0}
    (directory / "plan.json").write_text(json.dumps(plan))
    assert len(judge(load_run(directory)).reasons) == 2
