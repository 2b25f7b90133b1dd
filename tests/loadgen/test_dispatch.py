"""Who sends what when, in virtual time: the laws of due, taken, held and lag."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st

from loadgen.clock import VirtualClock, VirtualTimer
from loadgen.dispatch import Caps, Dispatcher
from loadgen.prompts import RenderedAhead, Request
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow

MS = 1_000_000


class FakeWriter:
    """Stands in for RequestWriter: payloads whose content does not matter here."""

    def write(self, row: ScheduleRow, request_id: str) -> bytes:
        return request_id.encode()


class Bench:
    """A dispatcher on a virtual clock before a server that answers each request after `service_ns`."""

    def __init__(
        self,
        rows: Iterable[ScheduleRow],
        caps: Caps = Caps(),
        service_ns: Callable[[Record], int] = lambda record: 10 * MS,
        outcome: Callable[[Record], Outcome] = lambda record: Outcome.OK,
    ) -> None:
        self.clock = VirtualClock()
        self.records: list[Record] = []
        self.most_in_flight = 0
        self._service_ns, self._outcome = service_ns, outcome
        queue = RenderedAhead(iter(rows), FakeWriter(), "t")  # type: ignore[arg-type]
        self.dispatcher = Dispatcher(
            queue,
            self.clock,
            lambda callback: VirtualTimer(self.clock, callback),
            self._send,
            self.records.append,
            caps,
        )
        self._queue = queue

    def _send(self, request: Request) -> None:
        record = request.record
        self.most_in_flight = max(self.most_in_flight, self.dispatcher.in_flight)
        record.sent_ns = self.clock.now_ns()
        self.clock.call_at(record.sent_ns + self._service_ns(record), lambda: self._answer(record))

    def _answer(self, record: Record) -> None:
        record.done_ns = self.clock.now_ns()
        record.outcome = self._outcome(record)
        self.records.append(record)
        self.dispatcher.answered(record)
        self.dispatcher.settled(record)

    def run(self, t0_ns: int = 0) -> list[Record]:
        self._queue.begin(t0_ns)
        self.dispatcher.start(t0_ns)
        self.clock.run()
        while self.dispatcher.give_up_some(3):
            pass
        return sorted(self.records, key=lambda r: r.index)


def rows_at(*instants_ms: float) -> list[ScheduleRow]:
    return [ScheduleRow(i, round(t * MS), 8, 8) for i, t in enumerate(instants_ms)]


@given(st.lists(st.integers(0, 10_000), max_size=50))
def test_every_open_loop_row_is_taken_at_its_due_instant(instants: list[int]) -> None:
    bench = Bench(rows_at(*sorted(instants)))
    records = bench.run(t0_ns=5 * MS)
    assert [r.due_ns for r in records] == [5 * MS + t * MS for t in sorted(instants)]
    assert all(r.lag_ns == 0 and r.held_ns == 0 for r in records)
    assert bench.dispatcher.finished


def test_a_slow_server_does_not_slow_the_sending() -> None:
    records = Bench(rows_at(*range(100)), service_ns=lambda record: 60_000 * MS).run()
    assert [r.taken_ns for r in records] == [i * MS for i in range(100)]


def test_a_blocked_loop_shows_as_lag_and_nothing_is_skipped_or_moved() -> None:
    bench = Bench(rows_at(*range(0, 4000, 10)))
    bench.clock.call_at(1000 * MS, lambda: bench.clock.advance(2000 * MS))
    records = bench.run()
    assert [r.due_ns for r in records] == [i * 10 * MS for i in range(400)]
    assert max(r.lag_ns or 0 for r in records) == 2000 * MS
    assert all(r.lag_ns == 3000 * MS - r.due_ns for r in records if 1000 * MS < r.due_ns < 3000 * MS)
    assert all(r.held_ns == 0 for r in records)


def test_a_cap_that_was_asked_for_shows_as_held_and_not_as_lag() -> None:
    bench = Bench(rows_at(0, 0, 0, 0, 0, 0), Caps(max_concurrency=4), service_ns=lambda record: 100 * MS)
    records = bench.run()
    assert bench.most_in_flight == 4
    assert [r.held_ns for r in records] == [0, 0, 0, 0, 100 * MS, 100 * MS]
    assert all(r.lag_ns == 0 for r in records)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.integers(1, 7), st.integers(0, 2**31))
def test_a_cap_is_never_exceeded_and_holds_first_come_first_served(
    instants: list[int], cap: int, seed: int
) -> None:
    bench = Bench(
        rows_at(*sorted(instants)),
        Caps(max_concurrency=cap),
        service_ns=lambda record: (record.index * seed) % 97 * MS,
    )
    records = bench.run()
    assert bench.most_in_flight <= cap
    assert len(records) == len(instants)
    taken = [r.taken_ns or 0 for r in records]
    assert taken == sorted(taken)
    assert all(r.lag_ns == 0 for r in records)


def test_a_closed_loop_keeps_its_slots_full_and_due_is_the_release() -> None:
    bench = Bench(rows_at(*[0] * 10), Caps(concurrency=3), service_ns=lambda record: 10 * MS)
    records = bench.run()
    assert bench.most_in_flight == 3
    assert [r.due_ns // MS for r in records] == [0, 0, 0, 10, 10, 10, 20, 20, 20, 30]
    assert all(r.lag_ns == 0 for r in records)


def test_a_closed_loop_by_time_releases_no_slot_after_it() -> None:
    endless = (ScheduleRow(i, 0, 8, 8) for i in range(10**9))
    bench = Bench(endless, Caps(concurrency=2, stop_after_ns=100 * MS))
    records = bench.run()
    assert len(records) == 20
    assert max(r.due_ns for r in records) < 100 * MS
    assert bench.dispatcher.finished


def test_a_closed_loop_by_time_that_is_stopped_ends_though_its_schedule_has_no_end() -> None:
    endless = (ScheduleRow(i, 0, 8, 8) for i in itertools.count())
    bench = Bench(endless, Caps(concurrency=2, stop_after_ns=100 * MS), service_ns=lambda record: 10 * MS)
    bench.clock.call_at(45 * MS, lambda: bench.dispatcher.stop("interrupted"))
    records = bench.run()
    assert Counter(r.outcome for r in records) == {Outcome.OK: 10}
    assert bench.dispatcher.finished


def turns(*rows: tuple[str, int, float, float | None]) -> list[ScheduleRow]:
    return [
        ScheduleRow(
            i, round(at * MS), 8, 8, session=name, turn=turn,
            think_ns=None if think is None else round(think * MS),
        )
        for i, (name, turn, at, think) in enumerate(rows)
    ]  # fmt: skip


def test_a_turn_waits_for_the_answer_before_it_plus_the_think_time() -> None:
    rows = turns(("a", 0, 0, None), ("a", 1, 5, 20), ("b", 0, 6, None), ("a", 2, 500, 20))
    records = Bench(rows, service_ns=lambda record: 100 * MS).run()
    assert [r.due_ns // MS for r in records] == [0, 120, 6, 500]
    assert all(r.lag_ns == 0 for r in records)


def test_a_failed_turn_ends_its_session_and_its_later_turns_are_counted() -> None:
    rows = turns(("a", 0, 0, None), ("a", 1, 1, 0), ("a", 2, 300, 0), ("b", 0, 2, None))
    bench = Bench(rows, outcome=lambda record: Outcome.TRUNCATED if record.session == "a" else Outcome.OK)
    records = bench.run()
    assert Counter(r.outcome for r in records) == {
        Outcome.TRUNCATED: 1, Outcome.NOT_SENT: 2, Outcome.OK: 1,
    }  # fmt: skip
    assert "its session ended: turn 0 was truncated" in (records[1].error or "")
    assert bench.dispatcher.finished


@given(st.lists(st.integers(0, 500), max_size=40), st.integers(0, 500), st.integers(1, 5))
def test_a_stopped_run_still_gives_every_row_exactly_one_record(
    instants: list[int], stop_ms: int, cap: int
) -> None:
    bench = Bench(rows_at(*sorted(instants)), Caps(max_concurrency=cap), service_ns=lambda r: 50 * MS)
    bench.clock.call_at(stop_ms * MS, lambda: bench.dispatcher.stop("interrupted by the user"))
    records = bench.run()
    assert [r.index for r in records] == list(range(len(instants)))
    assert all(r.error == "interrupted by the user" for r in records if r.outcome is Outcome.NOT_SENT)
    assert bench.dispatcher.finished


def test_a_stopped_run_gives_its_rows_their_records_a_few_at_a_time() -> None:
    bench = Bench(ScheduleRow(i, i * MS, 8, 8) for i in range(1_000_000))
    bench.dispatcher.start(0)
    bench.clock.run(until_ns=0)
    bench.dispatcher.stop("interrupted")
    assert len(bench.records) == 0
    assert bench.dispatcher.give_up_some(64)
    assert [r.index for r in bench.records] == list(range(1, 65))
    assert not bench.dispatcher.finished


def test_a_lease_renewed_before_the_start_sends_nothing_early() -> None:
    bench = Bench(rows_at(1, 2, 3))
    bench.clock.advance(50 * MS)  # all rows would be due, were they on the clock already
    bench.dispatcher.permit(0)  # ended already: the first look wants a new one
    assert not bench.dispatcher.permitted()
    bench.dispatcher.permit(10**18)
    bench.dispatcher.rows_came()
    assert bench.most_in_flight == 0
    done = bench.run(t0_ns=100 * MS)
    assert [record.taken_ns for record in done] == [101 * MS, 102 * MS, 103 * MS]
