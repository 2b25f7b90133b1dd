"""The gRPC service: Describe, TimeSync, and Subscribe out of the ring."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from gpu_sidecar import sidecar_pb2 as pb
from gpu_sidecar.agent import Agent
from gpu_sidecar.clock import ClockIdentity, identity
from gpu_sidecar.codec import definitions
from gpu_sidecar.errors import UsageError
from gpu_sidecar.ring import Reading, Ring
from gpu_sidecar.security import MAX_REQUEST_BYTES, Address, Protection, TokenInterceptor, bind

FLUSH_S = 0.1
HEARTBEAT_S = 1.0
SERVICE = "gpu_sidecar.v1.GpuSidecar"

SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    # A peer behind a cut link frees its place within ten seconds.
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
]


class Service:
    """The handlers; ``clients`` counts open subscriptions."""

    def __init__(
        self, agent: Agent, ring: Ring, max_clients: int, clock_identity: ClockIdentity | None = None
    ) -> None:
        self._agent = agent
        self._ring = ring
        self._max_clients = max_clients
        self._identity = clock_identity or identity()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.clients = 0

    def _clock(self) -> Any:
        return pb.ClockIdentity(boot_id=self._identity.boot_id, time_namespace=self._identity.time_namespace)

    def describe(self, request: Any, context: Any) -> Any:
        """Who, since when, what."""
        return pb.DescribeReply(
            agent_id=self._agent.agent_id,
            epoch=self._agent.epoch,
            next_seq=self._ring.next_seq,
            clock=self._clock(),
            description_json=json.dumps(self._agent.describe()),
            metrics=definitions(),
        )

    def time_sync(self, request: Any, context: Any) -> Any:
        """The two middle timestamps of an exchange: the first line and the last of this handler."""
        received_ns = self._agent.clock.mono_ns()
        reply = pb.TimeSyncReply(
            received_ns=received_ns,
            wall_ns=self._agent.clock.wall_ns(),
            clock=self._clock(),
            epoch=self._agent.epoch,
        )
        reply.sent_ns = self._agent.clock.mono_ns()
        return reply

    def subscribe(self, request: Any, context: Any) -> Iterator[bytes]:
        """Batches of wire bytes: what the ring has, then what comes; an empty one each second without
        rows."""
        with self._lock:
            full = self.clients >= self._max_clients
            self.clients += 0 if full else 1
        if full:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._max_clients} clients are connected already"
            )
        try:
            yield from self._stream(request, context)
        finally:
            with self._lock:
                self.clients -= 1

    def _stream(self, request: Any, context: Any) -> Iterator[bytes]:
        from_seq, restarted = self._begin(request)
        # The first word says where the stream begins: a client cut off before its first row knows what to ask
        # for.
        yield pb.Batch(next_seq=from_seq, epoch=self._agent.epoch, restarted=restarted).SerializeToString()
        told = 0  # origins announced on this stream
        while context.is_active() and not self._stopped.is_set():
            reading = self._ring.read(from_seq, HEARTBEAT_S)
            told, wire = self._batch(reading, told)
            from_seq = reading.next_seq
            yield wire

    def _begin(self, request: Any) -> tuple[int, bool]:
        """A newcomer (epoch 0) starts now; one that knew another agent life gets all of this one from its
        start."""
        if not request.epoch:
            return self._ring.next_seq, False
        if not self._agent.is_own(request.epoch):
            return 1, True
        return max(1, min(request.from_seq, self._ring.next_seq)), False

    def _batch(self, reading: Reading, told: int) -> tuple[int, bytes]:
        extra = pb.Batch(next_seq=self._ring.next_seq, epoch=self._agent.epoch)
        if reading.missed is not None:
            first, last = reading.missed
            extra.gaps.append(pb.Gap(from_seq=first, to_seq=last, reason="older than the agent's ring"))
        needed = max((chunk.origins for chunk in reading.chunks), default=told)
        if needed > told:
            extra.origins.extend(self._ring.origins(told + 1, needed))
        # Serialised messages of one type concatenate to their merge: chunks are encoded once for all clients.
        return max(needed, told), extra.SerializeToString() + b"".join(chunk.wire for chunk in reading.chunks)

    def stop(self) -> None:
        """Let the streams end."""
        self._stopped.set()
        self._ring.wake()

    def handler(self) -> Any:
        """gRPC's view of the three methods; Subscribe passes ready bytes through."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.describe, pb.DescribeRequest.FromString, pb.DescribeReply.SerializeToString
                ),
                "TimeSync": grpc.unary_unary_rpc_method_handler(
                    self.time_sync, pb.TimeSyncRequest.FromString, pb.TimeSyncReply.SerializeToString
                ),
                "Subscribe": grpc.unary_stream_rpc_method_handler(
                    self.subscribe, pb.SubscribeRequest.FromString, lambda wire: wire
                ),
            },
        )


class Server:
    """A listening service and the thread that closes the ring's chunks."""

    def __init__(self, service: Service, ring: Ring, max_clients: int) -> None:
        self._service = service
        self._ring = ring
        self._max_clients = max_clients
        self._server: Any = None
        self._stopped = threading.Event()
        self._flusher = threading.Thread(target=self._flush, name="ring-flush", daemon=True)

    def start(self, address: Address, protection: Protection) -> int:
        """Listen; the port. Raises :class:`UsageError` where the address cannot be bound."""
        interceptors = [TokenInterceptor(protection.token)] if protection.token else []
        workers = self._max_clients + 4  # a stream holds one; the others answer Describe and TimeSync
        self._server = grpc.server(
            futures.ThreadPoolExecutor(workers, "grpc"), interceptors=interceptors, options=SERVER_OPTIONS
        )
        self._server.add_generic_rpc_handlers((self._service.handler(),))
        port = bind(self._server, address, protection)
        if not port and address.path is None:
            raise UsageError(f"cannot listen on {address.target}")
        self._server.start()
        self._flusher.start()
        return port

    def _flush(self) -> None:
        while not self._stopped.wait(FLUSH_S):
            self._ring.flush()

    def stop(self) -> None:
        """End the streams and stop listening."""
        self._service.stop()
        self._stopped.set()
        self._ring.flush()
        if self._server is not None:
            self._server.stop(grace=1.0).wait(3)
