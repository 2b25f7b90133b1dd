import json
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.analysis.load import load_run
from loadgen.analysis.outcomes import count_outcomes
from loadgen.analysis.recordsfile import BATCH
from loadgen.errors import UsageError
from loadgen.report.html import write_html
from loadgen.report.summary import summarise
from tests.loadgen.analysis.run_builder import MS, T0_NS, RunBuilder, S, not_sent, request, watch


@pytest.fixture
def builder(tmp_path):
    return RunBuilder(tmp_path / "run")


def some_requests(n, start=0, step=1):
    return [request(i, due_ms=i * 10.0, chunks=[i * 10 + 5, i * 10 + 9]) for i in range(start, n, step)]


def test_instants_are_counted_from_the_schedules_instant_0(builder):
    run = load_run(builder.add(request(0, due_ms=3, sent=4, chunks=[9, 12, 18])).write())
    assert run.rows.instant("due_ns").tolist() == [3 * MS]
    assert run.rows.between("sent_ns", "first_ns").tolist() == [5 * MS]
    assert run.rows.gaps.of_row(0).tolist() == [3 * MS, 6 * MS]
    assert not run.problems


def test_a_worker_of_another_host_is_put_on_the_same_axis_by_its_own_t0(builder):
    directory = builder.add(request(0, due_ms=3, chunks=[9])).write()
    path = builder.path()
    header, *rest = path.read_text().splitlines()
    other = 999 * S
    moved = json.loads(header) | {"t0_ns": T0_NS + other}
    row = {k: v + other if k.endswith("_ns") and k not in ("chunk_ns", "held_ns") and v else v
           for k, v in json.loads(rest[0]).items()}  # fmt: skip
    path.write_text("\n".join([json.dumps(moved), json.dumps(row), rest[1]]) + "\n")
    assert load_run(directory).rows.instant("due_ns").tolist() == [3 * MS]


def test_gaps_longer_than_four_seconds_keep_every_nanosecond(builder):
    gaps = [5, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, 3600 * S + 1, 0]
    row = request(0, chunks=[1]) | {"chunk_ns": gaps}
    run = load_run(builder.add(request(1, chunks=[1, 2]), row, request(2, chunks=[1, 2])).write())
    place = run.rows.ids.index("run-0")
    assert run.rows.gaps.of_row(place).tolist() == gaps


def test_a_killed_workers_rows_are_lost_where_it_had_reached_them_and_not_sent_beyond(builder):
    builder.scheduled = 10
    builder.add(*some_requests(3), watch(dispatched=6)).end(None)
    run = load_run(builder.write())
    assert count_outcomes(run.rows) == {"not_sent": 4, "ok": 3, "lost": 3}
    by_index = dict(zip(run.rows.instant("index").tolist(), range(10), strict=True))
    assert {i: run.rows.texts["error"].at(by_index[i]) for i in (3, 5, 6, 9)} == {
        3: "no record", 5: "no record", 6: "worker lost", 9: "worker lost"
    }  # fmt: skip
    assert run.problems == ("records-0.jsonl: no end line, its worker was killed or is still writing",)


def test_a_killed_worker_that_never_reported_is_judged_by_its_largest_index(builder):
    builder.scheduled = 8
    run = load_run(builder.add(request(4, chunks=[1])).end(None).write())
    assert count_outcomes(run.rows) == {"lost": 4, "not_sent": 3, "ok": 1}


def test_of_two_workers_only_the_killed_ones_rows_are_missing(builder):
    builder.workers, builder.scheduled = 2, 10
    builder.add(*some_requests(10, 0, 2), worker=0)
    builder.add(*some_requests(4, 1, 2), watch(dispatched=4), worker=1).end(None, worker=1)
    run = load_run(builder.write())
    missing = run.rows.instant("index")[len(run.rows) - run.rows.made_up :].tolist()
    assert count_outcomes(run.rows) == {"ok": 7, "lost": 2, "not_sent": 1}
    assert sorted(missing) == [5, 7, 9]


def test_a_closed_loop_by_duration_owes_no_row_beyond_those_it_dispatched(builder):
    builder.workers, builder.scheduled = 2, -1
    builder.add(*some_requests(10, 0, 2), worker=0)
    builder.add(*some_requests(4, 1, 2), watch(dispatched=3), worker=1)
    assert count_outcomes(load_run(builder.write()).rows) == {"ok": 7, "lost": 1}


def test_a_record_that_turns_up_later_replaces_lost(builder):
    lost = request(0, outcome="lost") | {"done_ns": None}
    late = request(0, chunks=[5])
    for order in ([lost, late], [late, lost]):
        builder.lines, builder.scheduled = {}, 1
        run = load_run(builder.add(*order).write())
        assert count_outcomes(run.rows) == {"ok": 1}
        assert run.duplicates == 1
        assert "repeat an index" in run.notes[0]


def test_probes_and_indices_beyond_the_schedule_are_left_out_and_said(builder):
    builder.scheduled = 1
    run = load_run(builder.add(request(0), request(0, id="probe-1"), request(5)).write())
    assert count_outcomes(run.rows) == {"ok": 1}
    assert "2 record(s) outside the schedule" in run.notes[0]


def test_an_unfinished_last_line_is_named_and_the_rest_is_there(builder):
    directory = builder.add(*some_requests(3)).end(None).write()
    with builder.path().open("a") as file:
        file.write('{"id": "run-3", "ind')
    run = load_run(directory)
    assert count_outcomes(run.rows) == {"ok": 3}
    assert "records-0.jsonl: the last line is unfinished" in run.problems


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "not JSON"),
        ("[1, 2]", "not an object"),
        (json.dumps({"id": "x", "index": 1, "outcome": "ok"}), "no due_ns"),
        (json.dumps(request(1) | {"outcome": "splendid"}), "unknown outcome 'splendid'"),
        (json.dumps(request(1) | {"index": -1}), "index -1 is negative"),
        (json.dumps(request(1) | {"chunk_ns": [1, -1]}), "a negative chunk gap"),
        (json.dumps(request(1) | {"chunk_ns": [1.5]}), ""),
        (json.dumps(request(1) | {"chunk_ns": 7}), ""),
        (json.dumps(request(1) | {"sent_ns": "soon"}), ""),
        (json.dumps(request(1) | {"sent_ns": 1 << 70}), ""),
        (json.dumps(request(1) | {"id": 7}), "7 is not a text"),
        (json.dumps(request(1, chunks=[1, 2], tokens=[1, 1]) | {"chunk_tokens": [1, -4]}), "chunk_tokens"),
    ],
)
def test_a_garbled_line_is_counted_with_its_number_and_its_neighbours_survive(builder, line, why):
    builder.scheduled = 3
    directory = builder.add(request(0, chunks=[1, 2]), request(2, chunks=[3, 4])).write()
    lines = builder.path().read_text().splitlines()
    lines.insert(2, line)
    builder.path().write_text("\n".join(lines) + "\n")
    run = load_run(directory)
    assert count_outcomes(run.rows) == {"ok": 2, "lost": 1}
    assert run.problems[0].startswith("records-0.jsonl: 1 unreadable line(s): 3 (")
    assert why in run.problems[0]


def test_a_newer_version_and_a_missing_header_are_named(builder):
    directory = builder.add(request(0)).write()
    text = builder.path().read_text()
    builder.path().write_text(text.replace('"version": 1', '"version": 2', 1))
    assert load_run(directory).problems == ("records-0.jsonl: version 2, this reader knows 1",)
    builder.path().write_text(text.split("\n", 1)[1])
    run = load_run(directory)
    assert run.problems == ("records-0.jsonl: no header line of loadgen.records",)
    assert run.rows.instant("due_ns").tolist() == [0]  # the plan's t0 serves


def test_rows_that_the_end_line_counts_and_nobody_finds_are_named(builder):
    directory = builder.add(*some_requests(4)).write()
    lines = builder.path().read_text().splitlines()
    builder.path().write_text("\n".join(lines[:2] + lines[3:]) + "\n")
    assert load_run(directory).problems == ("records-0.jsonl: the end line says 4 rows, 3 were read",)


def test_a_workers_missing_file_is_named(builder):
    builder.workers = 2
    directory = builder.add(*some_requests(4)).write()
    builder.path(1).unlink()
    assert "2 workers ran, 1 records files are here" in load_run(directory).problems


@pytest.mark.parametrize("spoil", ["no plan", "no records", "no directory", "not json", "other format"])
def test_what_is_no_run_directory_is_refused_in_one_line(builder, spoil):
    directory = builder.add(request(0)).write()
    if spoil == "no plan":
        (directory / "plan.json").unlink()
    elif spoil == "no records":
        builder.path().unlink()
    elif spoil == "no directory":
        directory = directory / "nowhere"
    else:
        (directory / "plan.json").write_text("{" if spoil == "not json" else '{"format": "other"}')
    with pytest.raises(UsageError) as refused:
        load_run(directory)
    assert str(directory) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_batches_join_without_a_seam(builder):
    n = 2 * BATCH + 3
    rows = [request(i, chunks=[1, 2, 2 + i], tokens=[1, 2, 3] if i >= BATCH else None) for i in range(n)]
    run = load_run(builder.add(*rows).write())
    assert len(run.rows) == n
    for place in (0, BATCH - 1, BATCH, n - 1):
        assert run.rows.gaps.of_row(place).tolist() == [MS, place * MS]
    assert run.rows.gaps.has_tokens.sum() == n - BATCH
    assert len(run.rows.gaps.tokens) == len(run.rows.gaps.flat) == 2 * n


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(["ok", "lost", "not_sent", "timeout", "absent", "twice"]), min_size=1, max_size=30
    ),
    st.integers(0, 40),
    st.integers(1, 3),
    st.integers(0, 4000),
)
def test_scheduled_is_the_sum_of_outcomes_whatever_is_left_of_the_files(
    tmp_path, fates, dispatched, workers, cut
):
    builder = RunBuilder(tmp_path / "run", scheduled=len(fates), workers=workers)
    for i, fate in enumerate(fates):
        if fate == "not_sent":
            builder.add(not_sent(i, i, "held back"), worker=i % workers)
        elif fate != "absent":
            line = request(i, i, outcome="ok" if fate == "twice" else fate, chunks=[i + 5, i + 7])
            builder.add(*[line] * (2 if fate == "twice" else 1), worker=i % workers)
    builder.add(watch(dispatched=dispatched))
    directory = builder.write()
    whole = builder.path().read_bytes()
    builder.path().write_bytes(whole[: max(len(whole) - cut, 1)])
    run = load_run(directory)
    assert run.scheduled == len(fates) == sum(count_outcomes(run.rows).values())
    assert sorted(run.rows.instant("index").tolist()) == list(range(len(fates)))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("scheduled", [30, -1])
def test_random_digits_and_bytes_in_the_file_never_raise(builder, scheduled):
    builder.scheduled = scheduled
    directory = builder.add(*some_requests(30), watch(dispatched=30)).write()
    whole = bytearray(builder.path().read_bytes())
    rng = random.Random(3)
    for _ in range(25):
        garbled = bytearray(whole)
        for _ in range(8):
            place = rng.randrange(len(garbled))
            digit = chr(garbled[place]).isdigit()
            # a digit may become several: a number far beyond any sense is still JSON
            garbled[place : place + 1] = (
                b"9" * rng.choice((1, 1, 7)) if digit else bytes([rng.randrange(256)])
            )
        builder.path().write_bytes(garbled)
        run = load_run(directory)
        assert sum(count_outcomes(run.rows).values()) == run.scheduled
        if scheduled == 30:
            assert run.scheduled == 30
            assert np.isin(np.arange(30), run.rows.instant("index")).all()
        write_html(run, summarise(run), directory / "report.html")
