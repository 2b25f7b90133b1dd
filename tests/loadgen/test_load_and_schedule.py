"""The faults of other tools' loads and schedules, row by row: which test of ours holds each of them off.

`TABLE` names them; a row whose test is gone fails here. The laws that no other file holds stand below, in virtual
time.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.dispatch import Caps
from loadgen.plan import build_plan
from loadgen.record import Outcome
from loadgen.schedule import ScheduleRow
from loadgen.workload import schedule_of
from tests.loadgen.test_dispatch import MS, Bench, rows_at

TESTS = Path(__file__).parents[1]
S = 1_000_000_000

TABLE: dict[str, tuple[str, ...]] = {
    "a hidden connection cap while the tool shows full concurrency": (
        "loadgen/net/test_connection.py::test_there_is_no_cap_on_connections",
        "loadgen/test_dispatch.py::test_a_slow_server_does_not_slow_the_sending",
        "loadgen/test_end_to_end.py::test_a_cap_by_option_shows_as_held",
        "loadgen/analysis/test_metrics.py::test_a_connection_that_was_open_already_is_not_counted_as_waited_for",
    ),
    "connect and TLS inside TTFT without saying so": (
        "loadgen/analysis/test_metrics.py::test_every_duration_is_the_difference_that_its_formula_says",
        "loadgen/net/test_connection.py::test_connections_are_opened_ahead",
        "loadgen/test_transport_options.py::test_tls_is_verified_and_its_instants_come_from_the_kernel",
    ),
    "sleep relative to the last send; reset to now when behind; ticks of 10 ms": (
        "loadgen/test_dispatch.py::test_every_open_loop_row_is_taken_at_its_due_instant",
        "loadgen/test_dispatch.py::test_a_blocked_loop_shows_as_lag_and_nothing_is_skipped_or_moved",
        "loadgen/test_load_and_schedule.py::test_late_wakings_do_not_add_up",
    ),
    "drops when out of users, uncounted": (
        "loadgen/test_dispatch.py::test_a_stopped_run_still_gives_every_row_exactly_one_record",
        "loadgen/test_load_and_schedule.py::test_every_scheduled_row_ends_as_one_record_whatever_happens",
        "loadgen/analysis/test_load.py::test_scheduled_is_the_sum_of_outcomes_whatever_is_left_of_the_files",
    ),
    "constant that is exponential": (
        "traces/test_processes.py::test_constant_does_not_drift",
        "loadgen/test_load_and_schedule.py::test_a_constant_plan_has_equal_gaps",
    ),
    "Poisson with an arrival on each whole second": (
        "traces/test_processes.py::test_a_renewal_models_gap_cv_is_its_closed_form_within_2_percent",
        "traces/test_processes.py::test_mean_idc_over_many_seeds_is_the_closed_form_within_10_percent",
        "loadgen/test_load_and_schedule.py::test_poisson_arrivals_prefer_no_phase_of_the_second",
    ),
    "workers seeded alike": (
        "loadgen/test_schedule.py::test_shards_share_the_rows_out_and_keep_sessions_whole",
        "loadgen/test_load_and_schedule.py::test_shards_are_unlike_parts_of_one_process",
    ),
    "gaps rescaled": (
        "loadgen/test_load_and_schedule.py::test_gaps_are_as_drawn_and_the_span_is_what_comes_of_them",
        "loadgen/report/test_summary.py::test_asked_and_sent_stand_side_by_side",
    ),
    "what was sent differs from what was asked, and nobody is told": (
        "loadgen/report/test_summary.py::test_asked_and_sent_stand_side_by_side",
        "loadgen/analysis/test_arrivals.py::test_the_ks_distance_is_scipys",
        "loadgen/analysis/test_validity.py::test_lag_p99_over_10_ms_is_invalid",
        "loadgen/analysis/test_validity.py::test_more_than_a_thousandth_not_sent_is_invalid",
    ),
    "32 asked, 64 in flight": (
        "loadgen/test_dispatch.py::test_a_closed_loop_keeps_its_slots_full_and_due_is_the_release",
        "loadgen/test_load_and_schedule.py::test_a_closed_loop_has_exactly_as_many_in_flight_as_asked",
    ),
    "failures left out of percentiles": (
        "loadgen/report/test_summary.py::test_failures_are_a_second_series_where_they_are_infinitely_slow",
        "loadgen/analysis/test_spread.py::test_failures_never_make_a_quantile_better",
    ),
    "exit code 0 on mass failure": (
        "loadgen/test_end_to_end.py::test_failures_open_the_breaker_and_fail_the_gate",
        "loadgen/report/test_summary.py::test_the_exit_code_is_the_first_that_applies",
    ),
    "two-digit rounding before percentiles; p99 above the maximum": (
        "loadgen/analysis/test_spread.py::test_quantiles_are_numpys_whatever_the_blocks_and_the_depth_of_the_selection",
        "loadgen/analysis/test_spread.py::test_every_figure_lies_between_the_extremes_and_quantiles_do_not_fall",
    ),
    "the wall clock for durations": (
        "loadgen/test_load_and_schedule.py::test_no_instant_of_a_request_is_read_from_the_wall_clock",
        "loadgen/analysis/test_validity.py::test_a_clock_step_is_invalid_and_says_how_far",
    ),
    "counters since boot reported as the run's": (
        "loadgen/analysis/correlate/test_windows.py::"
        "test_a_counter_is_its_growth_and_says_nothing_across_a_reset_or_a_pause",
    ),
    "49 distinct prompts behind 40,000 requests": (
        "loadgen/test_prompt_reuse.py::test_forty_nine_prompts_behind_many_requests_are_seen",
        "loadgen/test_prompts.py::test_no_two_rows_without_blocks_share_their_first_words",
    ),
    "a second Ctrl-C dead; a cancelled run looks complete": (
        "loadgen/test_end_to_end.py::test_one_interrupt_drains_and_reports_and_a_second_stops_at_once",
        "loadgen/test_dispatch.py::test_a_stopped_run_gives_its_rows_their_records_a_few_at_a_time",
    ),
}


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("fault", TABLE)
def test_each_fault_of_the_table_has_its_tests(fault: str) -> None:
    for name in TABLE[fault]:
        file, _, test = name.partition("::")
        assert test in names_in(TESTS / file), name


@given(st.lists(st.integers(0, 7), min_size=1, max_size=80), st.integers(1, 9))
def test_late_wakings_do_not_add_up(late_ms: list[int], gap_ms: int) -> None:
    bench = Bench(rows_at(*range(0, gap_ms * len(late_ms), gap_ms)))
    for place, late in enumerate(late_ms):  # the loop is busy just before each row is due
        bench.clock.call_at(place * gap_ms * MS, lambda late=late: bench.clock.advance(late * MS))
    records = bench.run(t0_ns=MS // 2)
    assert [r.due_ns for r in records] == [MS // 2 + i * gap_ms * MS for i in range(len(late_ms))]
    last = 0
    for place, record in enumerate(records):  # as late as the work that was really in its way, no later
        last = max(last, place * gap_ms * MS) + late_ms[place] * MS
        assert (record.lag_ns or 0) <= max(0, last - record.due_ns + MS)


@given(
    st.lists(st.integers(0, 300), max_size=40),
    st.sampled_from([Caps(), Caps(max_concurrency=3), Caps(concurrency=2), Caps(concurrency=5)]),
    st.one_of(st.none(), st.integers(0, 400)),
    st.integers(1, 7),
)
def test_every_scheduled_row_ends_as_one_record_whatever_happens(
    instants: list[int], caps: Caps, stop_ms: int | None, fails: int
) -> None:
    bench = Bench(
        rows_at(*sorted(instants)),
        caps,
        service_ns=lambda record: (record.index * 37 % 90) * MS,
        outcome=lambda record: Outcome.OK if record.index % fails else Outcome.TRUNCATED,
    )
    if stop_ms is not None:
        bench.clock.call_at(stop_ms * MS, lambda: bench.dispatcher.stop("interrupted"))
    records = bench.run()
    assert [r.index for r in records] == list(range(len(instants)))
    assert bench.dispatcher.finished


@given(st.integers(1, 40), st.integers(1, 120))
def test_a_closed_loop_has_exactly_as_many_in_flight_as_asked(slots: int, requests: int) -> None:
    bench = Bench(
        rows_at(*[0] * requests), Caps(concurrency=slots), service_ns=lambda r: (5 + r.index % 7) * MS
    )
    records = bench.run()
    assert bench.most_in_flight == min(slots, requests)
    edges = sorted([(r.taken_ns or 0, 1) for r in records] + [(r.done_ns or 0, -1) for r in records])
    in_flight, low = 0, []
    for _, step in edges:
        in_flight += step
        low.append(in_flight)
    assert max(low) == min(slots, requests)


def dues_ns(**options: object) -> np.ndarray:
    return np.array([row.due_ns for row in schedule_of(build_plan(options)).make_rows()], dtype=np.int64)


def test_a_constant_plan_has_equal_gaps() -> None:
    gaps = np.diff(dues_ns(arrival="constant", request_rate=37, num_requests=3000))
    assert gaps.max() - gaps.min() <= 1
    assert gaps.mean() == pytest.approx(S / 37, abs=1)


def test_poisson_arrivals_prefer_no_phase_of_the_second() -> None:
    dues = dues_ns(arrival="poisson", request_rate=50, num_requests=20_000, seed=3)
    assert np.mean(dues[1:] % S == 0) == 0
    counts, _ = np.histogram(dues % S, bins=20, range=(0, S))
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 43.8  # the 99.9 % quantile of 19 degrees of freedom


def test_gaps_are_as_drawn_and_the_span_is_what_comes_of_them() -> None:
    spans = [
        np.ptp(dues_ns(arrival="poisson", request_rate=10, num_requests=400, seed=seed)) for seed in range(8)
    ]
    assert len(set(spans)) == 8  # rescaled gaps would all end together
    long = dues_ns(arrival="poisson", request_rate=10, num_requests=800, seed=1)
    short = dues_ns(arrival="poisson", request_rate=10, num_requests=400, seed=1)
    assert np.array_equal(long[:400], short)


def test_shards_are_unlike_parts_of_one_process() -> None:
    schedule = schedule_of(build_plan({"arrival": "poisson", "request_rate": 20, "num_requests": 900}))
    parts: list[list[ScheduleRow]] = [list(schedule.rows(shard, 3)) for shard in range(3)]
    assert sorted(row for part in parts for row in part) == list(schedule.make_rows())
    dues = [{row.due_ns for row in part} for part in parts]
    assert not dues[0] & dues[1]
    assert not dues[1] & dues[2]


WALL = {"time", "time_ns"}
MAY_ASK_THE_WALL = {"clock.py"}


def test_no_instant_of_a_request_is_read_from_the_wall_clock() -> None:
    root = TESTS.parent / "loadgen"
    engine_room = [*root.glob("net/*.py"), *root.glob("clients/*.py"), *root.glob("wire/*.py")]
    engine_room += [root / name for name in ("clock.py", "engine.py", "dispatch.py", "record.py", "spool.py")]
    found = {
        path.name
        for path in engine_room
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in WALL and ast.unparse(node.value) == "time"
    }
    assert found <= MAY_ASK_THE_WALL
