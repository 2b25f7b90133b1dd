"""Trying again and leaving early, in virtual time: when, how often, and what the record keeps."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.clock import VirtualClock, VirtualTimer
from loadgen.leaving import Leavers
from loadgen.net.exchange import Ending, Exchange
from loadgen.plan import build_plan
from loadgen.record import PLANNED, Outcome, Record, record_from_json, record_to_json
from loadgen.retrying import Retrier, RetryRule, chance_of, retry_after_ns, rule_of
from loadgen.simulator.config import EngineConfig, Faults
from loadgen.simulator.whatif import Fleet, simulate_rows
from loadgen.workload import schedule_of

S = 1_000_000_000
RULE = RetryRule(most=3, backoff_ns=S, max_wait_ns=5 * S, jitter=0.0)


class Server:
    """Refuses the first *refusals* tries, each *takes_ns* after it was sent."""

    def __init__(
        self, rule: RetryRule, refusals: int, retry_after: str | None = None, status: int = 429
    ) -> None:
        self.clock = VirtualClock()
        self.sent_ns: list[int] = []
        self.refusals, self.retry_after, self.status = refusals, retry_after, status
        self.over: list[Exchange] = []
        self.retrier = Retrier(
            rule, self.clock, partial(VirtualTimer, self.clock), self.again, lambda name, tries: 0.5
        )

    def send(self, record: Record) -> None:
        exchange = Exchange(record, b"bytes", self.ended)
        record.sent_ns = self.clock.now_ns()
        self.sent_ns.append(record.sent_ns)
        refused = len(self.sent_ns) <= self.refusals
        exchange.status = self.status if refused else 200
        if self.retry_after:
            exchange.hints["retry-after"] = self.retry_after
        exchange.end(Ending.WHOLE, self.clock.now_ns())

    def again(self, exchange: Exchange) -> None:
        assert exchange.payload == b"bytes"
        self.send(exchange.record)

    def ended(self, exchange: Exchange) -> None:
        if not self.retrier.takes(exchange):
            self.over.append(exchange)


def served(rule: RetryRule, refusals: int, retry_after: str | None = None, status: int = 429) -> Server:
    server = Server(rule, refusals, retry_after, status)
    server.send(Record("r-0", 0, Outcome.NOT_SENT, 0, taken_ns=0))
    server.clock.run()
    return server


def test_back_off_doubles_up_to_its_limit_and_the_row_stays_one_record() -> None:
    server = served(RULE, 3)
    assert server.sent_ns == [0, S, 3 * S, 7 * S]
    (record,) = (exchange.record for exchange in server.over)
    assert (record.retries, record.sent_ns, record.due_ns, record.taken_ns) == (3, 7 * S, 0, 0)
    assert record.attempts is not None
    assert [(a["sent_ns"], a["wait_ns"], a["outcome"], a["status"]) for a in record.attempts] == [
        (0, S, "rejected", 429), (S, 2 * S, "rejected", 429), (3 * S, 4 * S, "rejected", 429)]  # fmt: skip
    assert record_from_json(record_to_json(record)) == record


def test_a_row_that_is_refused_to_the_end_ends_with_its_last_refusal() -> None:
    server = served(RULE, 9)
    assert len(server.sent_ns) == 4
    assert server.over[0].status == 429
    assert server.over[0].record.retries == 3


@pytest.mark.parametrize(
    ("rule", "said", "second_ns"),
    [
        (RULE, "2", 2 * S),
        (RULE, "600", 5 * S),  # no longer than the plan allows
        (RULE, "soon", S),
        (RetryRule(3, S, 5 * S, 0.0, heed_retry_after=False), "4", S),
        (RetryRule(3, S, 5 * S, 0.4), "2", round(2 * S * 0.8)),
    ],
)
def test_the_servers_word_counts_before_our_own_clock(rule: RetryRule, said: str, second_ns: int) -> None:
    assert served(rule, 1, said).sent_ns == [0, second_ns]


def test_retry_after_may_be_a_date() -> None:
    assert retry_after_ns("Thu, 01 Jan 1970 00:01:40 GMT", 40.0) == 60 * S
    assert retry_after_ns("Thu, 01 Jan 1970 00:01:40 GMT", 140.0) == 0
    assert [retry_after_ns(text, 0) for text in (None, "", "x", "1e12")] == [None] * 4


@pytest.mark.parametrize("status", [200, 400, 500, 413])
def test_only_refusals_are_tried_again(status: int) -> None:
    assert served(RULE, 1, status=status).sent_ns == [0]
    assert len(served(RetryRule(), 1).sent_ns) == 1


def test_rows_that_wait_when_the_run_ends_end_as_their_last_try_did() -> None:
    server = Server(RULE, 9)
    server.send(Record("r-0", 0, Outcome.NOT_SENT, 0))
    (left,) = server.retrier.abandon()
    server.clock.run()
    assert (left.status, left.record.retries, left.record.done_ns, len(server.sent_ns)) == (429, 0, 0, 1)


def test_jitter_spreads_clients_that_were_refused_at_once_and_is_the_same_again() -> None:
    chance = chance_of(build_plan({"retry_jitter": 1.0}))
    rule = rule_of(build_plan({"retries": 2, "retry_jitter": 1.0}))
    waits = [rule.wait_ns(0, None, chance(f"run-{i}", 0)) for i in range(200)]
    assert waits == [rule.wait_ns(0, None, chance(f"other-{i}", 0)) for i in range(200)]
    assert 0.4 < sum(waits) / 200 / S < 0.6
    assert (
        len(
            {rule_of(build_plan({"retries": 2, "retry_jitter": 0})).wait_ns(0, None, k / 9) for k in range(9)}
        )
        == 1
    )


class Line:
    """A connection that can only be hung up."""

    def __init__(self, exchange: Exchange, clock: VirtualClock) -> None:
        self.exchange, self.clock = exchange, clock

    def abort(self, outcome: Outcome, error: str) -> None:
        self.exchange.end(Ending.CUT, self.clock.now_ns(), outcome, error)


def calling(clock: VirtualClock, sent_ns: int | None) -> Exchange:
    exchange = Exchange(Record("r-0", 0, Outcome.NOT_SENT, 0, sent_ns=sent_ns), b"", lambda _: None)
    exchange.connection = Line(exchange, clock)  # type: ignore[assignment]
    return exchange


def test_a_client_leaves_so_long_after_sending_even_if_it_waited_for_its_connection() -> None:
    clock = VirtualClock()
    leavers = Leavers(clock, partial(VirtualTimer, clock))
    early, late, gone = calling(clock, 0), calling(clock, 3 * S), calling(clock, 0)
    for exchange in (early, late, gone):
        leavers.watch(exchange, 2 * S, None)
    gone.end(Ending.WHOLE, S)
    clock.run()
    assert [e.record.done_ns for e in (early, late, gone)] == [2 * S, 5 * S, S]
    assert early.record.outcome is Outcome.CANCELLED
    assert (early.record.error or "").startswith(PLANNED)


def test_a_client_that_counts_tokens_leaves_at_the_last_of_them() -> None:
    clock = VirtualClock()
    leavers = Leavers(clock, partial(VirtualTimer, clock))
    exchange = calling(clock, 0)
    leavers.watch(exchange, None, 16)
    assert exchange.long_at == 1
    leavers.counted(exchange, 15)
    assert exchange.ending is None
    leavers.counted(exchange, 17)
    assert "after 17 tokens (asked for 16)" in (exchange.record.error or "")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 4), st.sampled_from(["0.4@300ms", "0.5@3tokens", None]))
def test_every_row_of_a_retry_storm_ends_once(seed: int, retries: int, cancel: str | None) -> None:
    plan = build_plan({"arrival": "poisson", "request_rate": 40, "num_requests": 80, "output_len": 20, "seed": seed,
                       "retries": retries, "retry_jitter": 0, "cancel": cancel})  # fmt: skip
    config = EngineConfig(max_num_seqs=2, faults=Faults(max_num_queued_reqs=4))
    fleet = Fleet(retry=rule_of(plan), chance=chance_of(plan), max_concurrency=30)
    records = list(simulate_rows(schedule_of(plan).rows(), config, fleet))
    assert sorted(record.index for record in records) == list(range(80))
    assert {r.outcome for r in records} <= {Outcome.OK, Outcome.REJECTED, Outcome.CANCELLED}
    for record in records:
        tries = record.attempts or []
        assert record.retries == len(tries) <= retries
        assert record.outcome is not Outcome.REJECTED or len(tries) == retries
        instants = [*(a["sent_ns"] for a in tries), record.sent_ns or 0]
        assert all(b - a >= S for a, b in pairwise(instants))
        assert (record.outcome is Outcome.CANCELLED) == (record.error or "").startswith(PLANNED)
    assert Counter(r.outcome for r in records)[Outcome.CANCELLED] == 0 or cancel is not None
