"""Rows over the wire: each once, in order, across cuts, restarts and slow readers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_sidecar import sidecar_pb2 as pb
from gpu_sidecar.agent import Agent
from gpu_sidecar.client import Link, Position, Subscriber
from gpu_sidecar.codec import Decoder, Encoder
from gpu_sidecar.metrics import METRICS
from gpu_sidecar.ring import Ring
from gpu_sidecar.sample import Event, Gap, Row, Sample, from_json, to_json
from gpu_sidecar.security import Address, Protection
from gpu_sidecar.server import Server, Service
from tests.gpu_sidecar.relay import Relay

NAMES = [metric.name for metric in METRICS if metric.kind != "histogram"]
finite = st.floats(allow_nan=False, allow_infinity=False)
instants = st.integers(0, 2**60)
samples = st.builds(
    Sample,
    source=st.sampled_from(["nvml", "nvml.gpm", "proc"]),
    device=st.text(max_size=8),
    t_ns=instants,
    start_ns=st.just(0),
    values=st.dictionaries(st.sampled_from(NAMES), finite, max_size=5),
    nulls=st.dictionaries(st.sampled_from(NAMES), st.text(max_size=8), max_size=2),
    series=st.dictionaries(
        st.sampled_from(NAMES), st.lists(st.tuples(instants, finite), max_size=3), max_size=2
    ),
    histograms=st.dictionaries(
        st.just("engine_ttft_s"), st.lists(st.tuples(finite, finite), max_size=3), max_size=1
    ),
    labels=st.dictionaries(st.sampled_from(["pid", "comm"]), st.text(max_size=5), max_size=2),
    wall_ns=instants,
    epoch=instants,
    seq=st.integers(1, 2**40),
)
events = st.builds(
    Event, name=st.text(min_size=1, max_size=8), device=st.text(max_size=8), t_ns=instants,
    data=st.dictionaries(st.text(max_size=4), st.integers(), max_size=2), wall_ns=instants, epoch=instants,
    seq=st.integers(1, 2**40),
)  # fmt: skip


@given(st.lists(st.one_of(samples, events), max_size=6))
def test_a_row_survives_the_wire_unchanged(rows: list[Sample | Event]) -> None:
    encoder, decoder = Encoder(), Decoder()
    wire = pb.Batch(rows=[encoder.row(row) for row in rows], origins=encoder.origins).SerializeToString()
    batch = pb.Batch.FromString(wire)
    decoder.learn(batch.origins)
    assert [decoder.row(message) for message in batch.rows] == rows


@given(
    st.one_of(samples, events, st.builds(Gap, instants, instants, instants, st.text(max_size=9), instants))
)
def test_a_row_survives_its_line_unchanged(row: Row) -> None:
    assert from_json(to_json(row)) == row


def tick(number: int) -> Sample:
    return Sample("nvml", "GPU-0", number * 10**6, number * 10**6, {"power_w": float(number)})


@given(
    groups=st.lists(st.integers(1, 7), min_size=1, max_size=30),
    keep_bytes=st.integers(100, 5000),
    asks=st.lists(st.integers(1, 120), min_size=1, max_size=5),
)
def test_a_reader_gets_every_row_once_or_is_told_that_it_is_gone(
    groups: list[int], keep_bytes: int, asks: list[int]
) -> None:
    ring = Ring(keep_bytes=keep_bytes)
    total = 0
    for size in groups:
        ring.append([tick(total + k) for k in range(size)])
        total += size
        ring.flush()
    assert ring.next_seq == total + 1
    assert ring.dropped_rows == ring.oldest_seq - 1
    for from_seq in asks:
        if from_seq > total:
            assert ring.read(from_seq, 0).chunks == []
            continue
        got, ask, missed = [], from_seq, 0
        while ask <= total:
            reading = ring.read(ask, 0, at_most=3)
            if reading.missed is not None:
                missed += reading.missed[1] - reading.missed[0] + 1
            for chunk in reading.chunks:
                got += [row.seq for row in pb.Batch.FromString(chunk.wire).rows if row.seq >= ask]
            ask = reading.next_seq
        assert got == list(range(from_seq + missed, total + 1))


def test_a_ring_of_ten_minutes_of_eight_gpus_is_small() -> None:
    """30 rows a second a GPU (20 fast, 10 GPM), a dozen values each."""
    ring = Ring()
    values = {metric.name: 0.123456789 + index for index, metric in enumerate(METRICS[:12])}
    for number in range(600):
        rows = [
            Sample("nvml", f"GPU-{k % 8}", number * 10**8, number * 10**8, values, wall_ns=2**60, epoch=2**60)
            for k in range(24)
        ]
        ring.append(rows)
        ring.flush()
    per_row = ring.bytes / (600 * 24)
    assert per_row * 8 * 30 * 600 < 25 * 2**20


class Host:
    """An agent without samplers whose rows the test makes, served on a real socket."""

    def __init__(
        self, port: int = 0, ring: Ring | None = None, max_clients: int = 4, **protection: Any
    ) -> None:
        self.agent = Agent([], agent_id="host")
        self.ring = ring or Ring()
        self.agent.sinks.append(self.ring.append)
        self.service = Service(self.agent, self.ring, max_clients)
        self.server = Server(self.service, self.ring, max_clients)
        self.port = self.server.start(Address("127.0.0.1", port), Protection(**protection))
        self.made = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def make(self, count: int) -> None:
        for _ in range(count):
            self.made += 1
            self.agent.emit([tick(self.made)])
        self.ring.flush()

    def stop(self) -> None:
        self.server.stop()


@contextmanager
def following(address: str, **options: Any) -> Iterator[tuple[Subscriber, list[Row]]]:
    subscriber = Subscriber(Link(address), **options)
    rows: list[Row] = []

    def run() -> None:
        rows.extend(iter_into(subscriber, rows))

    def iter_into(source: Subscriber, into: list[Row]) -> list[Row]:
        for row in source.rows():
            into.append(row)
        return []

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield subscriber, rows
    finally:
        subscriber.stop()
        thread.join(timeout=5)
        subscriber.link.close()
        assert not thread.is_alive()


def until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.01)


def numbers(rows: list[Row]) -> list[int]:
    return [int(row.values["power_w"]) for row in rows if isinstance(row, Sample)]


def gaps(rows: list[Row]) -> list[Gap]:
    return [row for row in rows if isinstance(row, Gap)]


@pytest.fixture
def host() -> Iterator[Host]:
    each = Host()
    yield each
    each.stop()


def test_a_newcomer_gets_what_comes_from_now_on(host: Host) -> None:
    host.make(5)
    with following(host.address) as (subscriber, rows):
        until(lambda: subscriber.position.epoch != 0)
        host.make(7)
        until(lambda: len(rows) >= 7)
    assert numbers(rows) == list(range(6, 13))
    assert subscriber.statistics.gaps == 0


def test_a_cut_link_loses_nothing_and_repeats_nothing(host: Host) -> None:
    relay = Relay(("127.0.0.1", host.port))
    with following(relay.address, silent_s=0.6) as (subscriber, rows):
        until(lambda: subscriber.position.epoch != 0)
        host.make(10)
        until(lambda: len(rows) >= 10)
        relay.hold()
        for _ in range(12):
            host.make(5)
            time.sleep(0.1)
        until(lambda: subscriber.statistics.cut_since_ns is not None)
        relay.release()
        until(lambda: len(rows) >= 70)
        host.make(5)
        until(lambda: len(rows) >= 75)
    relay.close()
    assert numbers(rows) == list(range(1, 76))
    assert not gaps(rows)
    assert subscriber.statistics.cuts >= 1


def test_connections_closed_at_random_lose_nothing(host: Host) -> None:
    relay = Relay(("127.0.0.1", host.port))
    with following(relay.address) as (subscriber, rows):
        until(lambda: subscriber.position.epoch != 0)
        for _ in range(6):
            host.make(20)
            time.sleep(0.15)
            relay.drop()
        host.make(1)
        until(lambda: len(rows) >= 121)
    relay.close()
    assert numbers(rows) == list(range(1, 122))


def test_a_reader_outrun_by_the_ring_gets_a_gap_row_with_the_exact_count() -> None:
    host = Host(ring=Ring(keep_bytes=2000))
    link = Link(host.address)
    epoch = link.describe().epoch
    link.close()
    host.make(3)
    for _ in range(60):
        host.make(5)
    with following(host.address, position=Position(epoch, 2)) as (subscriber, rows):
        until(lambda: numbers(rows)[-1:] == [303])
    host.stop()
    gap = gaps(rows)[0]
    kept = numbers(rows)
    assert (gap.from_seq, gap.to_seq) == (3, kept[0] - 1)
    assert gap.count == kept[0] - 3
    assert kept == list(range(kept[0], 304))
    assert subscriber.statistics.rows_missed == gap.count


def test_an_agent_that_restarts_is_said_and_its_new_rows_all_come() -> None:
    first = Host()
    with following(first.address, silent_s=1.0) as (subscriber, rows):
        until(lambda: subscriber.position.epoch != 0)
        first.make(4)
        until(lambda: len(rows) >= 4)
        first.stop()
        second = Host(port=first.port)
        second.made = 100
        second.make(6)
        until(lambda: len(numbers(rows)) >= 10)
    second.stop()
    assert numbers(rows) == [1, 2, 3, 4, *range(101, 107)]
    restarts = [row for row in rows if isinstance(row, Event)]
    assert [row.name for row in restarts] == ["agent_restarted"]
    assert restarts[0].data["last_seq"] == 4


def test_a_second_process_can_go_on_where_the_first_one_stopped(host: Host) -> None:
    with following(host.address) as (subscriber, rows):
        until(lambda: subscriber.position.epoch != 0)
        host.make(5)
        until(lambda: len(rows) >= 5)
    host.make(5)
    with following(host.address, position=subscriber.position) as (_, more):
        until(lambda: len(more) >= 5)
    assert numbers(more) == list(range(6, 11))


def test_a_client_too_many_is_refused_and_gets_in_when_one_leaves() -> None:
    host = Host(max_clients=1)
    with following(host.address) as (first, _):
        until(lambda: first.position.epoch != 0)
        with following(host.address) as (second, rows):
            until(lambda: second.statistics.refused is not None)
            assert "RESOURCE_EXHAUSTED" in (second.statistics.refused or "")
            first.stop()
            until(lambda: second.position.epoch != 0)
            host.make(2)
            until(lambda: len(rows) >= 2)
    host.stop()


def test_a_reader_that_does_not_read_never_holds_up_the_agent(host: Host) -> None:
    link = Link(host.address)
    call = link.subscribe(Position())
    next(iter(call))
    for _ in range(300):
        host.make(20)
    assert host.ring.next_seq == 6001
    call.cancel()
    link.close()


def test_an_oversized_request_is_refused(host: Host) -> None:
    channel = grpc.insecure_channel(host.address)
    describe = channel.unary_unary("/gpu_sidecar.v1.GpuSidecar/Describe")
    with pytest.raises(grpc.RpcError) as refused:
        describe(b"\x0a" + b"x" * 200_000, timeout=5)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    channel.close()


def test_nobody_listening_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with following(f"127.0.0.1:{port}") as (subscriber, rows):
        until(lambda: subscriber.statistics.cuts == 1)
        host = Host(port=port)
        until(lambda: subscriber.position.epoch != 0)
        host.make(3)
        until(lambda: len(rows) >= 3)
    host.stop()
    assert subscriber.statistics.cut_ns > 0
