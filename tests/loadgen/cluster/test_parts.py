"""The parts of a cluster by themselves: shares, offsets, shipping, tokens, what travels and what does not."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.cluster import hello
from loadgen.cluster.accounts import recorded_indices
from loadgen.cluster.messages import Inbox, Outbox
from loadgen.cluster.offsets import OffsetEstimate, exchanged
from loadgen.cluster.ownership import Loss, Ownership
from loadgen.cluster.shard import ClaimedRows, claim_of, even_share, holds, split
from loadgen.cluster.ship import RESEND_NS, Replica, Shipper
from loadgen.cluster.work import plan_from_work, plan_to_work
from loadgen.errors import UsageError
from loadgen.keyfile import KeyFile
from loadgen.leased import LEASE_ENDED, give_up_waiting, start_waiting
from loadgen.live import Histogram
from loadgen.net.exchange import Exchange
from loadgen.plan import build_plan
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow, shard_key

S = 1_000_000_000
calm = settings(deadline=None, max_examples=50)
"""No deadline: a busy machine is no fault of the code."""


def rows_of(count: int, sessions: int = 0) -> list[ScheduleRow]:
    return [
        ScheduleRow(i, i * S // 10, 8, 8, session=f"s{i % sessions}" if sessions else None)
        for i in range(count)
    ]


losses = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), max_size=4)


@calm
@given(st.integers(1, 5), losses, st.integers(0, 7), st.one_of(st.none(), st.integers(5, 40)))
def test_every_row_has_one_owner_through_every_loss(
    workers: int, lost: list[tuple[int, int]], sessions: int, slots: int | None
) -> None:
    ownership = Ownership(workers, slots)
    alive = set(range(workers))
    for worker, from_s in lost:
        if worker in alive:
            alive.discard(worker)
            ownership.lose(Loss(worker, 0, 0, from_s * S, tuple(sorted(alive)), "test"))
    streams = {w: [claim for owner, claim in ownership.given if owner == w] for w in range(workers)}
    starts: dict[str, int] = {}
    for row in rows_of(200, sessions):
        start_ns = starts.setdefault(row.session, row.due_ns) if row.session else row.due_ns
        owner = ownership.owner(shard_key(row), start_ns)
        lost_from = [ownership.losses[w].from_ns for w in ownership.losses if w == owner]
        assert owner in alive or not alive or start_ns < lost_from[0]
        holders = [w for w in alive if any(holds(c, shard_key(row), start_ns) for c in streams[w])]
        assert holders == ([owner] if owner in alive else [])


@calm
@given(st.integers(1, 4), st.integers(0, 80), st.integers(0, 3), st.integers(0, 5))
def test_a_claim_brings_exactly_the_rows_that_the_pass_has_left_behind(
    workers: int, passed: int, heir: int, sessions: int
) -> None:
    rows = rows_of(100, sessions)
    stream = ClaimedRows(rows, claim_of(0, workers + 1), lambda: 0)
    seen = [row for _, row in zip(range(passed), stream, strict=False)]
    new = split(claim_of(1, workers + 1), 4, 3 * S)[heir]
    brought = stream.claim(new)
    later = list(stream)
    first = {}
    for row in rows:
        first.setdefault(row.session, row.due_ns)
    start = {row.index: first[row.session] if row.session else row.due_ns for row in rows}
    wanted = [r.index for r in rows if holds(new, shard_key(r), start[r.index])]
    own = [r.index for r in rows if holds(claim_of(0, workers + 1), shard_key(r), 0)]
    assert sorted(r.index for r in [*seen, *brought, *later]) == sorted([*own, *wanted])
    assert [r.index for r in brought] == sorted(r.index for r in brought)


def test_rows_of_others_are_forgotten_once_they_are_long_past() -> None:
    now = 0
    rows = (ScheduleRow(i, i * S // 1000, 8, 8) for i in range(60_000))
    stream = ClaimedRows(rows, claim_of(0, 4), lambda: now)
    for row in stream:
        now = row.due_ns - 2 * S
    assert len(stream._passed) < 8_000


@calm
@given(st.integers(0, 1000), st.integers(1, 50))
def test_shares_are_exact(total: int, of: int) -> None:
    shares = [even_share(total, part, of) for part in range(of)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@calm
@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9))))
def test_the_true_offset_is_within_the_stated_bound(offset: int, delays: list[tuple[int, int]]) -> None:
    estimate = OffsetEstimate()
    now = 10**12
    for there, back in delays:
        now += 10**7
        t2 = now + there + offset
        t4 = now + there + 1000 + back
        assert abs(exchanged(now, t2, t2 + 1000, t4).offset_ns - offset) <= (there + back + 1) // 2
        estimate.take(now, t2, t2 + 1000, t4)
        assert estimate.best is not None
        assert abs(estimate.best.offset_ns - offset) <= estimate.best.bound_at(t4)
        now = t4


@calm
@given(st.lists(st.sampled_from(["send", "drop", "twice", "late", "ack lost", "wait", "write"]), max_size=60))
def test_the_copy_becomes_the_file_whatever_the_wire_does(
    tmp_path_factory: pytest.TempPathFactory, happens: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("ship")
    source = (folder / "source").open("ab", buffering=0)
    shipper, replica = Shipper(folder / "source"), Replica(folder / "copy")
    late: list[tuple[int, bytes]] = []
    now, written = 0, 0
    for what in [*happens, "write", "wait", "wait"]:
        now += RESEND_NS + 1 if what == "wait" else 1000
        if what == "write":
            written += 1
            source.write(b"line %d " % written + b"x" * (written * 7919 % 200_000) + b"\n")
        for offset, data in shipper.pieces(now):
            if what == "drop":
                continue
            if what == "late":
                late.append((offset, data))
                continue
            size = replica.take(offset, data)
            if what == "twice":
                assert replica.take(offset, data) == size
            if what != "ack lost":
                shipper.shipped(size, now)
        for offset, data in late if what == "send" else ():
            replica.take(offset, data)
    for _ in range(200):
        now += RESEND_NS + 1
        for offset, data in shipper.pieces(now):
            shipper.shipped(replica.take(offset, data), now)
    replica.close()
    shipper.close()
    assert (folder / "copy").read_bytes() == (folder / "source").read_bytes()
    assert shipper.complete((folder / "source").stat().st_size)


def test_an_outbox_is_heard_once_and_in_order_however_often_it_is_sent() -> None:
    outbox, inbox = Outbox(), Inbox()
    heard = []
    for n in range(20):
        outbox.put("item", {"n": n})
        for _ in range(n % 3):
            heard += [said.data["n"] for said in inbox.take(outbox.pending())]
        if n % 4 == 0:
            outbox.confirm(inbox.seen)
    heard += [said.data["n"] for said in inbox.take(outbox.pending())]
    assert heard == list(range(20))
    outbox.confirm(inbox.seen)
    assert outbox.empty


@calm
@given(st.lists(st.floats(1e3, 1e12), min_size=1, max_size=300), st.floats(0, 1), st.integers(1, 4))
def test_quantiles_of_merged_histograms_are_within_the_stated_error(
    values: list[float], q: float, workers: int
) -> None:
    parts = [Histogram() for _ in range(workers)]
    for number, value in enumerate(values):
        parts[number % workers].add(value)
    merged = Histogram()
    for part in parts:
        merged.merge(part)
    rank = max(1, -(-q * len(values) // 1))
    exact = sorted(values)[int(rank) - 1]
    found = merged.quantile(q)
    assert merged.total == len(values)
    assert found is not None
    assert abs(found - exact) <= 0.0100001 * exact


def test_a_proof_holds_for_its_role_its_nonces_and_its_token_alone() -> None:
    mine, theirs = hello.new_nonce(), hello.new_nonce()
    good = hello.proof(b"token", hello.WORKER, mine, theirs)
    assert hello.proves(good, b"token", hello.WORKER, mine, theirs)
    assert not hello.proves(good, b"other", hello.WORKER, mine, theirs)
    assert not hello.proves(good, b"token", hello.MASTER, mine, theirs)
    assert not hello.proves(good, b"token", hello.WORKER, theirs, mine)
    assert not hello.proves(None, b"token", hello.WORKER, mine, theirs)


def test_a_master_listens_beyond_loopback_only_with_a_token(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        hello.check_bind(host, b"")
    for host in ("0.0.0.0", "10.0.0.1", "*", "master.example.org"):
        with pytest.raises(UsageError, match="cluster-token-file"):
            hello.check_bind(host, b"")
        hello.check_bind(host, b"a long enough token")
    short = tmp_path / "short"
    short.write_text("abc\n")
    with pytest.raises(UsageError, match="at least 16"):
        hello.cluster_token(short)


def test_a_plan_travels_without_its_secrets_and_arrives_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = build_plan(
        {"base_url": "http://127.0.0.1:1", "arrival": "poisson", "request_rate": 3.5, "duration": "90s",
         "header": {"Authorization": "Bearer hush", "x-plain": "seen"}, "warmup": "1.5s", "slo": ["ttft=2s"],
         "limits": {"lag_p99_ns": "25ms"}, "retry_backoff": "20ms",
         "class": ["a:share=0.5,header=x-api-key=class-hush,header=x-tier=gold", "b:cancel=0.1@2s"]},
    )  # fmt: skip
    work = plan_to_work(plan)
    assert b"hush" not in orjson.dumps(work)
    assert b"gold" in orjson.dumps(work)
    with pytest.raises(UsageError, match="is secret and does not travel"):
        plan_from_work(work, {})
    own = {"header": {"authorization": "Bearer hush", "a/x-api-key": "class-hush"}}
    assert plan_from_work(work, own) == plan
    monkeypatch.setenv(
        "LOADGEN_SECRET_HEADERS", '{"Authorization": "Bearer hush", "a/x-api-key": "class-hush"}'
    )
    assert plan_from_work(work, {}) == plan


def test_a_key_that_is_replaced_in_its_file_is_handed_on_once(tmp_path: Path) -> None:
    path, keys = tmp_path / "key", []
    path.write_text("first\n")
    file = KeyFile(path, "first", keys.append)
    file.refresh()
    assert keys == []
    for text in ("second\n", "second\n", "two words\n", "", "third"):
        part = tmp_path / "part"
        part.write_text(text)
        os.utime(part, ns=(10**9 + len(keys), 10**9 + len(text)))
        part.replace(path)
        file.refresh()
        file.refresh()
    path.unlink()
    file.refresh()
    assert keys == ["second", "third"]


def test_recorded_rows_are_found_past_damage(tmp_path: Path) -> None:
    path = tmp_path / "records-0.jsonl"
    path.write_bytes(
        b'{"format":"loadgen.records"}\n{"id":"a-0","index":0,"outcome":"ok"}\nnot json\n'
        b'{"event":"watch","index":3}\n{"id":"a-9000","index":9000,"outcome":"ok"}\n{"id":"a-5","ind'
    )
    flags = recorded_indices([path])
    assert [i for i, flag in enumerate(flags) if flag] == [0, 9000]


class FakeConnection:
    def __init__(self) -> None:
        self.started: list[Exchange] = []
        self.aborted: list[str] = []

    def start(self, exchange: Exchange) -> None:
        self.started.append(exchange)

    def abort(self, outcome: Outcome, error: str) -> None:
        self.aborted.append(f"{outcome}: {error}")


def test_what_waits_for_a_lease_is_sent_once_when_it_comes_or_given_up() -> None:
    connections = [FakeConnection() for _ in range(3)]
    exchanges = []
    for connection in connections:
        exchange = Exchange(Record("r-0", 0, Outcome.NOT_SENT, 0), b"", lambda exchange: None)
        exchange.connection = connection  # type: ignore[assignment]
        exchanges.append(exchange)
    exchanges[1].waits = True
    elsewhere = Exchange(Record("r-1", 1, Outcome.NOT_SENT, 0), b"", lambda exchange: None)
    elsewhere.may_send = lambda: False
    assert elsewhere.must_wait()
    sent: list[Exchange] = []
    start_waiting([*exchanges, elsewhere], sent.append)
    start_waiting([*exchanges, elsewhere], sent.append)
    assert [len(c.started) for c in connections] == [0, 1, 0]
    assert sent == [elsewhere]
    exchanges[2].waits = True
    give_up_waiting(exchanges)
    assert [c.aborted for c in connections] == [[], [], [f"not_sent: {LEASE_ENDED}"]]
