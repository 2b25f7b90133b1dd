"""A subscriber: every row once, in order, across cuts and agent restarts, and on a clock of known offset.

Blocking, with threads of gRPC's own: run it in a process that has no event loop to stall.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from gpu_sidecar import sidecar_pb2 as pb
from gpu_sidecar.clock import ClockIdentity, Exchange
from gpu_sidecar.codec import Decoder, gap_row, names_of
from gpu_sidecar.sample import Event, Gap, Row
from gpu_sidecar.security import ClientSecurity
from gpu_sidecar.sidecar_pb2_grpc import GpuSidecarStub

SILENT_S = 3.0
"""The agent sends something each second: three without are a cut link, whatever TCP still hopes."""
CALL_S = 3.0
FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 2.0
BURST = 8

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(slots=True)
class Description:
    """What Describe said."""

    agent_id: str
    epoch: int
    clock: ClockIdentity
    description: dict[str, Any]
    names: dict[int, str]


@dataclass(slots=True)
class Position:
    """The last row seen: enough to go on from, after a cut or in another process."""

    epoch: int = 0
    seq: int = 0


class Link:
    """One agent's channel and its plain calls."""

    def __init__(self, address: str, security: ClientSecurity | None = None) -> None:
        """Raises :class:`UsageError` for what is no address. Connects lazily."""
        self.address = address
        self._security = security or ClientSecurity()
        self._channel: Any = None
        self._open()

    def _open(self) -> None:
        self._channel = self._security.channel(self.address, CHANNEL_OPTIONS)
        self.stub: Any = GpuSidecarStub(self._channel)  # type: ignore[no-untyped-call]

    def reopen(self) -> None:
        """A new connection: the old one may hang on a link that is cut."""
        self._channel.close()
        self._open()

    def describe(self) -> Description:
        """Raises ``grpc.RpcError``."""
        reply = self.stub.Describe(pb.DescribeRequest(), timeout=CALL_S, metadata=self._security.metadata)
        clock = ClockIdentity(reply.clock.boot_id, reply.clock.time_namespace)
        return Description(
            reply.agent_id, reply.epoch, clock, json.loads(reply.description_json), names_of(reply.metrics)
        )

    def exchange(self, now_ns: Callable[[], int] = time.monotonic_ns) -> Exchange:
        """One four-timestamp exchange. Raises ``grpc.RpcError``."""
        t1_ns = now_ns()
        reply = self.stub.TimeSync(pb.TimeSyncRequest(), timeout=CALL_S, metadata=self._security.metadata)
        return Exchange(t1_ns, reply.received_ns, reply.sent_ns, now_ns())

    def burst(self, count: int = BURST) -> list[Exchange]:
        """*count* exchanges in a row. Raises ``grpc.RpcError``."""
        return [self.exchange() for _ in range(count)]

    def subscribe(self, position: Position) -> Any:
        """The raw stream from after *position* on."""
        request = pb.SubscribeRequest(
            epoch=position.epoch, from_seq=position.seq + 1 if position.epoch else 0
        )
        return self.stub.Subscribe(request, metadata=self._security.metadata)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


@dataclass(slots=True)
class Statistics:
    """What a subscription went through."""

    rows: int = 0
    overlap: int = 0
    gaps: int = 0
    rows_missed: int = 0
    cuts: int = 0
    restarts: int = 0
    refused: str | None = None
    cut_since_ns: int | None = None
    cut_ns: int = 0


@dataclass(slots=True)
class Subscriber:
    """Follows one agent for ever; ``rows()`` yields them, ``on_describe`` hears of each (re)connection.

    ``silent_s``: how long without a word before the link counts as cut.
    """

    link: Link
    position: Position = field(default_factory=Position)
    on_describe: Callable[[Description], None] | None = None
    silent_s: float = SILENT_S
    statistics: Statistics = field(default_factory=Statistics)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _call: Any = None
    _heard_s: float = 0.0

    def stop(self) -> None:
        """End ``rows()`` soon, from any thread."""
        self._stopped.set()
        if self._call is not None:
            self._call.cancel()

    def rows(self) -> Iterator[Row]:
        """Rows in order, each once; gap rows where some are lost; reconnects until :meth:`stop`."""
        retry_s = FIRST_RETRY_S
        while not self._stopped.is_set():
            before = self.statistics.rows
            try:
                description = self.link.describe()
                if self.on_describe is not None:
                    self.on_describe(description)
                yield from self._follow(Decoder(description.names))
            except grpc.RpcError as error:
                self._note_cut(error)
                self.link.reopen()
            retry_s = FIRST_RETRY_S if self.statistics.rows > before else min(retry_s * 2, LONGEST_RETRY_S)
            if self._stopped.wait(retry_s):
                return

    def _note_cut(self, error: Any) -> None:
        if self._stopped.is_set():
            return
        if self.statistics.cut_since_ns is None:
            self.statistics.cuts += 1
            self.statistics.cut_since_ns = time.monotonic_ns()
        code = error.code() if hasattr(error, "code") else None
        refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.statistics.refused = f"{code.name}: {error.details()}" if code in refusals else None

    def _note_connected(self) -> None:
        if self.statistics.cut_since_ns is not None:
            self.statistics.cut_ns += time.monotonic_ns() - self.statistics.cut_since_ns
            self.statistics.cut_since_ns = None

    def _follow(self, decoder: Decoder) -> Iterator[Row]:
        call = self._call = self.link.subscribe(self.position)
        self._heard_s = time.monotonic()
        watchdog = threading.Thread(target=self._cancel_when_silent, args=(call,), daemon=True)
        watchdog.start()
        try:
            for batch in call:
                self._heard_s = time.monotonic()
                self._note_connected()
                yield from self._take(batch, decoder)
        finally:
            call.cancel()

    def _cancel_when_silent(self, call: Any) -> None:
        while call.is_active():
            # Also when stopped: stop() may have come before this call was there to be cancelled.
            if self._stopped.wait(min(0.5, self.silent_s / 4)) or self._is_silent():
                call.cancel()
                return

    def _is_silent(self) -> bool:
        return time.monotonic() - self._heard_s > self.silent_s

    def _take(self, batch: Any, decoder: Decoder) -> Iterator[Row]:
        decoder.learn(batch.origins)
        if batch.restarted:
            self.statistics.restarts += 1
            yield self._restart(batch)
        if not self.position.epoch:
            self.position = Position(batch.epoch, batch.next_seq - 1)
        for gap in batch.gaps:
            yield self._gap(gap_row(gap, batch.epoch), gap.to_seq)
        for message in batch.rows:
            if message.seq <= self.position.seq:
                self.statistics.overlap += 1  # a chunk that began before what we asked for
                continue
            if message.seq > self.position.seq + 1:
                first, last = self.position.seq + 1, message.seq - 1
                yield self._gap(Gap(first, last, last - first + 1, "lost on the way", message.epoch), last)
            row = decoder.row(message)
            self.position = Position(message.epoch, message.seq)
            self.statistics.rows += 1
            yield row

    def _restart(self, batch: Any) -> Event:
        old, self.position = self.position, Position(batch.epoch, 0)
        now_ns = time.monotonic_ns()
        return Event(
            "agent_restarted", "all", now_ns,
            {"old_epoch": old.epoch, "last_seq": old.seq, "missed": "later rows died with the old agent"},
            epoch=batch.epoch,
        )  # fmt: skip

    def _gap(self, gap: Gap, last: int) -> Gap:
        self.statistics.gaps += 1
        self.statistics.rows_missed += gap.count or 0
        self.position = Position(gap.epoch, last)
        return gap
