"""The schedule: its size, peak and digest, and shards that share it out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan import build_plan
from loadgen.schedule import Schedule, ScheduleRow, survey
from loadgen.workload import schedule_of

S = 1_000_000_000
DUES = st.lists(st.integers(0, 20 * S), min_size=1, max_size=60).map(sorted)
SESSIONS = st.lists(st.none() | st.sampled_from("abcdef"), min_size=60, max_size=60)


def rows_of(dues: list[int], sessions: list[str | None] | None = None) -> list[ScheduleRow]:
    sessions = sessions or [None] * len(dues)
    return [ScheduleRow(i, due, 10 + i, 5, session=sessions[i]) for i, due in enumerate(dues)]


@given(DUES)
def test_the_peak_is_the_most_rows_that_any_second_holds(dues: list[int]) -> None:
    most = max(sum(start <= due < start + S for due in dues) for start in dues)
    found = survey(rows_of(dues))
    assert found.peak_rate_per_s == most
    assert (found.requests, found.span_ns) == (len(dues), dues[-1] - dues[0])
    assert found.input_tokens == sum(10 + i for i in range(len(dues)))


@given(DUES, SESSIONS, st.integers(1, 7))
def test_shards_share_the_rows_out_and_keep_sessions_whole(
    dues: list[int], sessions: list[str | None], of: int
) -> None:
    rows = rows_of(dues, sessions)
    schedule = Schedule("test", (), lambda: rows)
    shards = [list(schedule.rows(shard, of)) for shard in range(of)]
    assert sorted(row for shard in shards for row in shard) == sorted(rows)
    for name in set(sessions) - {None}:
        assert sum(any(row.session == name for row in shard) for shard in shards) <= 1
    for k, shard in enumerate(shards):
        assert [row.index for row in shard] == sorted(row.index for row in shard)
        assert all(row.index % of == k for row in shard if row.session is None)


@given(DUES, st.data())
def test_any_changed_row_changes_the_digest(dues: list[int], data: st.DataObject) -> None:
    rows = rows_of(dues)
    at = data.draw(st.integers(0, len(rows) - 1))
    field = data.draw(st.sampled_from(["due_ns", "n_input", "n_output", "class_name", "session", "hash_ids"]))
    value = {"class_name": "c", "session": "s", "hash_ids": (1,)}.get(field, 99 * S)
    changed = [*rows[:at], rows[at]._replace(**{field: value}), *rows[at + 1 :]]
    assert survey(changed).digest != survey(rows).digest
    assert survey(iter(rows)).digest == survey(rows).digest


def test_an_empty_schedule_is_counted_as_such() -> None:
    found = survey([])
    assert (found.requests, found.peak_rate_per_s, found.rate_per_s) == (0, 0, None)


def test_neither_salt_nor_target_enter_the_digest_but_the_seed_does() -> None:
    def digest(**options: object) -> str:
        plan = {"arrival": "poisson", "request_rate": 20, "num_requests": 50, **options}
        found = schedule_of(build_plan(plan)).survey()
        assert found is not None
        return found.digest

    plain = digest()
    assert digest(salt="x", base_url="http://127.0.0.1:1", model="m", out="elsewhere") == plain
    assert Counter(digest(seed=k) for k in range(3)).most_common(1)[0][1] == 1


def test_an_open_ended_closed_loop_has_no_size() -> None:
    plan = build_plan({"concurrency": 2, "duration": "5s"})
    schedule = schedule_of(plan)
    assert (schedule.survey(), schedule.closed, schedule.limit_ns) == (None, True, 5 * S)
