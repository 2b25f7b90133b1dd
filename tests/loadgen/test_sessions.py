"""Sessions in virtual time: when turns are due by each mode, slots that take whole sessions, carried answers."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.clients.chat import CHAT
from loadgen.clients.completions import COMPLETIONS
from loadgen.conversation import Conversations
from loadgen.dispatch import Caps
from loadgen.errors import UsageError
from loadgen.plan import build_plan
from loadgen.prompts import PromptWriter, RenderedAhead, RequestWriter, new_record
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow
from loadgen.sessions import SessionMode, replanned, together, with_last_turns
from loadgen.workload import schedule_of
from tests.loadgen.program import records, run, simulator
from tests.loadgen.test_dispatch import MS, Bench, turns
from traces.fit import fit, plan_toml


def by_mode(rows: list[ScheduleRow], mode: SessionMode) -> list[ScheduleRow]:
    return list(replanned(together(lambda: rows), mode))


@st.composite
def traces(draw: st.DrawFn) -> list[ScheduleRow]:
    names = draw(st.lists(st.sampled_from([None, "a", "b", "c", "d"]), max_size=30))
    gaps = draw(st.lists(st.integers(0, 300), min_size=len(names), max_size=len(names)))
    thinks = draw(st.lists(st.none() | st.integers(0, 200), min_size=len(names), max_size=len(names)))
    seen: Counter[str] = Counter()
    rows, at = [], 0
    for index, (name, gap, think) in enumerate(zip(names, gaps, thinks, strict=True)):
        at += gap
        turn = seen[name] if name else None
        seen[name or ""] += 1
        think_ns = None if think is None else think * MS
        rows.append(ScheduleRow(index, at * MS, 8, 8, session=name, turn=turn, think_ns=think_ns))
    return rows


def dues_by_hand(rows: list[ScheduleRow], mode: SessionMode, service_ns: int) -> list[int]:
    """The law of the mode, row by row."""
    before: dict[str, tuple[int, int]] = {}
    dues = []
    for row in rows:
        due = row.due_ns
        if row.session in before:
            planned, ended = before[row.session]
            think = row.think_ns or 0
            due = {
                "timestamp": max(due, ended + think),
                "idle-gap": ended + due - planned,
                "think-only": ended + think,
            }[mode]
        if row.session:
            before[row.session] = row.due_ns, due + service_ns
        dues.append(due)
    return dues


@given(traces(), st.sampled_from(["timestamp", "idle-gap", "think-only"]), st.integers(1, 400))
def test_each_turn_is_due_as_its_mode_says_and_taken_then(
    rows: list[ScheduleRow], mode: SessionMode, service_ms: int
) -> None:
    replayed = rows if mode == "timestamp" else by_mode(rows, mode)
    bench = Bench(replayed, service_ns=lambda record: service_ms * MS)
    found = bench.run(t0_ns=0)
    assert [r.due_ns for r in found] == dues_by_hand(rows, mode, service_ms * MS)
    assert all(r.lag_ns == 0 for r in found)
    assert bench.dispatcher.finished


@given(traces())
def test_sessions_stand_together_in_the_order_of_their_first_turns_and_no_row_is_lost(
    rows: list[ScheduleRow],
) -> None:
    found = by_mode(rows, "think-only")
    assert sorted(row.index for row in found) == [row.index for row in rows]
    assert [row.due_ns for row in found] == sorted(row.due_ns for row in found)
    ends = Counter(row.session for row in found if row.last)
    assert ends == Counter({row.session: 1 for row in rows if row.session})
    for before, row in pairwise(found):
        if row.session is not None and row.turn:
            assert (before.session, before.turn) == (row.session, row.turn - 1)
    marked = list(with_last_turns(lambda: rows))
    assert [row._replace(last=False) for row in marked] == rows
    assert {row.index for row in marked if row.last} == {row.index for row in found if row.last}


@given(traces(), st.integers(1, 4), st.integers(0, 2**31))
def test_a_slot_takes_a_whole_session_and_is_released_at_its_end(
    rows: list[ScheduleRow], slots: int, seed: int
) -> None:
    closed = [row._replace(due_ns=0) for row in by_mode(rows, "think-only")]
    bench = Bench(closed, Caps(concurrency=slots), service_ns=lambda r: (1 + r.index * seed % 97) * MS)
    found = bench.run()
    spans: dict[str, list[Record]] = {}
    for record in found:
        spans.setdefault(record.session or f"#{record.index}", []).append(record)
    edges = []
    for span in spans.values():
        for before, record in pairwise(span):
            assert record.due_ns == (before.done_ns or 0) + (rows[record.index].think_ns or 0)
        edges += [(span[0].due_ns, 1), (span[-1].done_ns or 0, -1)]
    held = most = 0
    for _, change in sorted(edges):
        held += change
        most = max(most, held)
    assert most <= slots
    releases = sorted(span[-1].done_ns or 0 for span in spans.values())
    starts = sorted(span[0].due_ns for span in spans.values())
    assert starts == ([0] * slots + releases)[: len(starts)]
    assert all(r.lag_ns == 0 for r in found)
    assert bench.dispatcher.finished


def test_a_failed_turn_frees_its_slot_and_its_later_turns_are_counted() -> None:
    rows = by_mode(
        turns(("a", 0, 0, 5), ("a", 1, 1, 5), ("a", 2, 2, 5), ("b", 0, 3, 5), ("b", 1, 4, 5)), "think-only"
    )
    bench = Bench(
        [row._replace(due_ns=0) for row in rows],
        Caps(concurrency=1),
        outcome=lambda r: Outcome.TIMEOUT if (r.session, r.turn) == ("a", 1) else Outcome.OK,
    )
    found = bench.run()
    assert [r.outcome.value for r in found] == ["ok", "timeout", "not_sent", "ok", "ok"]
    assert found[2].error == "its session ended: turn 1 was timeout"
    assert [r.due_ns // MS for r in found if r.taken_ns is not None] == [0, 15, 25, 40]
    assert bench.dispatcher.finished


def test_a_closed_loop_by_time_ends_while_its_users_think() -> None:
    rows = by_mode(turns(("a", 0, 0, 0), ("a", 1, 1, 500), ("b", 0, 2, 0), ("b", 1, 3, 50)), "think-only")
    bench = Bench([row._replace(due_ns=0) for row in rows], Caps(concurrency=2, stop_after_ns=100 * MS))
    found = bench.run()
    assert [(r.session, r.turn, r.due_ns // MS) for r in found] == [("a", 0, 0), ("b", 0, 0), ("b", 1, 60)]
    assert bench.dispatcher.finished


@given(traces(), st.integers(0, 3000), st.integers(1, 3))
def test_a_stopped_closed_loop_gives_every_turn_one_record(
    rows: list[ScheduleRow], stop_ms: int, slots: int
) -> None:
    bench = Bench([row._replace(due_ns=0) for row in by_mode(rows, "idle-gap")], Caps(concurrency=slots))
    bench.clock.call_at(stop_ms * MS, lambda: bench.dispatcher.stop("interrupted"))
    found = bench.run()
    assert [r.index for r in found] == [row.index for row in rows]
    assert bench.dispatcher.finished


def row_of(turn: int, n_input: int, *, last: bool = False, session: str | None = "s") -> ScheduleRow:
    return ScheduleRow(turn, 0, n_input, 3, session=session, turn=turn, last=last)


def answered(turn: int, n_output: int, outcome: Outcome = Outcome.OK, n_input: int | None = None) -> Record:
    record = new_record(row_of(turn, 1), "t")
    record.outcome, record.n_output, record.n_input = outcome, n_output, n_input
    return record


def test_a_chat_turn_carries_the_questions_and_the_real_answers_before_it() -> None:
    prompts = PromptWriter("salt")
    talk = Conversations(prompts, CHAT.joints or (b"", b""))
    writer = RequestWriter(CHAT, {"model": "m"}, b"", talk)

    def messages(row: ScheduleRow) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(writer.write(row, "x").partition(b"\r\n\r\n")[2])["messages"]
        return found

    first = messages(row_of(0, 4))
    assert [len(m["content"].split()) for m in first] == [4]
    talk.answered(answered(0, 3), 'say "hé"\n\\ done')
    second = messages(row_of(1, 12))
    assert second[0] == first[0]
    assert second[1] == {"role": "assistant", "content": 'say "hé"\n\\ done'}
    assert second[2]["role"] == "user"
    assert len(second[2]["content"].split()) == 12 - (4 + 3)
    talk.answered(answered(1, 9, n_input=20), " word" * 9)
    third = messages(row_of(2, 25, last=True))
    assert third[:3] == second
    assert len(third[4]["content"].split()) == 1, "29 tokens are carried already, and a question has a word"
    talk.answered(answered(2, 1), "x")
    assert not talk._sessions, "a session that has ended is forgotten"


def test_a_completion_is_one_text_and_an_answer_without_text_is_stood_in_for() -> None:
    talk = Conversations(PromptWriter("salt"), COMPLETIONS.joints or (b"?", b"?"))
    first = talk.text(row_of(0, 5))
    talk.answered(answered(0, 4), "")
    second = talk.text(row_of(1, 15))
    assert second.startswith(first)
    assert len(second.split()) == 15
    talk.answered(answered(1, 1, Outcome.TRUNCATED), "half")
    assert not talk._sessions


@pytest.mark.parametrize("followers", ["soon", "settled"])
def test_later_turns_are_rendered_when_they_may_and_not_before(followers: Any) -> None:
    written: list[int] = []

    class Writer:
        def write(self, row: ScheduleRow, request_id: str) -> bytes:
            written.append(row.index)
            return b"bytes"

    rows = by_mode(turns(("a", 0, 0, 0), ("a", 1, 1, 0), ("a", 2, 2, 0), ("b", 0, 3, 0)), "think-only")
    queue = RenderedAhead(iter(rows), Writer(), "t", followers=followers)  # type: ignore[arg-type]
    while queue.render_some(0):
        pass
    assert written == [0, 3]
    first, second = queue.pop(), queue.pop()
    assert first is not None
    assert second is not None
    queue.soon(second)
    queue.render_some(0)
    assert written == ([0, 3, 1] if followers == "soon" else [0, 3])
    queue.complete(second)
    assert written == [0, 3, 1]
    assert second.payload == b"bytes"


def test_without_carrying_growing_turns_share_a_synthetic_beginning_and_shrunk_ones_do_not() -> None:
    prompts = PromptWriter("salt")
    texts = [prompts.text(row_of(turn, n)).split() for turn, n in enumerate((10, 13, 40, 20))]
    assert texts[1][:10] == texts[0]
    assert texts[2][:13] == texts[1]
    assert texts[3] != texts[2][:20]
    assert prompts.text(row_of(0, 10, session="other")).split() != texts[0]


BASE = {"arrival": "poisson", "request_rate": 5, "num_requests": 30}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({**BASE, "input_len": "lognorm:3"}, "--input-len: unknown length model 'lognorm'"),
        ({**BASE, "output_len": 0}, "--output-len: '0': parameters must be above 0"),
        ({**BASE, "profile": "ramp:1"}, "--profile: profile 'ramp:1'"),
        ({**BASE, "prefix_tree": "4"}, "--prefix-tree: prefix tree '4'"),
        ({**BASE, "step": ["thin=0.5"]}, "--step and --max-requests need --trace"),
        ({"trace": "x", "step": ["thinn=0.5"]}, "--step: unknown step 'thinn'"),
        ({"trace": "x", "turns": 3}, "--turns goes with --arrival or --concurrency"),
        ({**BASE, "turns": 0.5}, "turns = 0.5"),
        ({**BASE, "think": "2s"}, "--think needs --turns"),
        ({**BASE, "carry_answers": True}, "need sessions"),
        ({**BASE, "lengths_from": "x", "input_len": 3}, "--lengths-from excludes"),
        ({"concurrency": 2, "num_requests": 3, "profile": "ramp:1:4:60"}, "--profile goes with --arrival"),
        ({"concurrency": 2, "num_requests": 3, "turns": 2, "session_mode": "timestamp"}, "has no instants"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_one_clear_error(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        build_plan(keys)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plan_file_has_the_options_keys_and_the_same_seed_gives_the_same_schedule(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'arrival = "gamma"\nrequest_rate = 5.0\nburstiness = 0.5\ninput_len = "lognormal:300:1"\noutput_len = 16\n'
        'turns = 3\nthink = "2s"\nprofile = "ramp:1:4:60"\nsession_mode = "think-only"\nseed = 7\n'
    )
    surveys = [schedule_of(build_plan({"num_requests": "20"}, file)).survey() for _ in range(2)]
    assert surveys[0] == surveys[1]
    other = schedule_of(build_plan({"num_requests": 20, "seed": 8}, file))
    assert other.survey() != surveys[0]
    rows = list(other.rows())
    assert len({row.session for row in rows}) == 20
    assert all(row.n_output == 16 for row in rows)
    assert len({row.n_input for row in rows}) > 10
    assert other.steps[0]["profile"] == "ramp:1:4:60"
    assert other.steps[1] == {"step": "sessions", "mode": "think-only", "carry_answers": False}


def test_steps_are_applied_in_their_order_and_recorded(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    lines = [f"2023-11-16 18:15:{i:02d}.0000000,20,5" for i in range(40)]
    trace.write_text("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    plan = build_plan({"trace": trace, "window": "0:10s", "step": ["loop=2", "scale_lengths=2.0:3.0"]})
    schedule = schedule_of(plan)
    rows = list(schedule.rows())
    assert len(rows) == 20
    assert {(row.n_input, row.n_output) for row in rows} == {(40, 15)}
    assert [step["step"] for step in schedule.steps] == ["window", "loop", "scale_lengths"]
    with pytest.raises(UsageError, match="this trace knows no sessions"):
        schedule_of(build_plan({"trace": trace, "carry_answers": True})).survey()


def test_carried_answers_are_what_the_servers_prefix_cache_finds(tmp_path: Path) -> None:
    noisy = Path(__file__).with_name("noisy_machine.toml")
    load = ("--plan", noisy, "--concurrency", 4, "--num-requests", 6, "--turns", 3, "--think", "0s",
            "--input-len", 200, "--output-len", 40, "--quiet")  # fmt: skip
    found = {}
    with simulator(
        "--enable-prompt-tokens-details", "--prefill-tokens-per-s", 1_000_000, "--decode-ms", 1
    ) as url:
        for name, extra in (("carried", ("--carry-answers",)), ("alone", ())):
            done = run("run", "--base-url", url, *load, *extra, "--out", tmp_path / name, "--salt", name)
            assert done.returncode == 0, done.stderr
            found[name] = records(tmp_path / name)
    for rows in found.values():
        assert all(r["outcome"] == "ok" for r in rows)
        assert max(r["turn"] for r in rows) >= 2
    last: dict[str, dict[str, Any]] = {}
    for record in found["carried"]:
        before = last.get(record["session"])
        if before is not None:
            # All full blocks of 16 tokens of what was said are found again: question and real answer.
            said = before["n_input"] + before["n_output"]
            assert said - 16 <= record["n_cached"] < record["n_input"]
            assert record["n_cached"] > (before["n_cached"] or 0)
        last[record["session"]] = record
    assert [r["n_input"] for r in found["carried"]] == [r["n_input"] for r in found["alone"]]
    # Synthetic text stands for the answers otherwise: the cache finds the questions, not the answers.
    assert sum(r["n_cached"] or 0 for r in found["alone"]) < sum(r["n_cached"] or 0 for r in found["carried"])


def test_what_a_fit_writes_is_a_plan_that_runs(tmp_path: Path) -> None:
    made = build_plan({"arrival": "poisson-gamma", "request_rate": 20, "num_requests": 3000, "burstiness": 0.5,
                       "correlation_time": "2s"})  # fmt: skip
    t_ns = np.array([row.due_ns for row in schedule_of(made).rows()], np.int64)
    file = tmp_path / "fragment.toml"
    file.write_text(plan_toml(fit(t_ns, bootstrap=2).plan()))
    schedule = schedule_of(build_plan({"num_requests": 50}, file))
    assert schedule.steps[0]["model"] == "poisson-gamma"
    assert len(list(schedule.rows())) == 50
