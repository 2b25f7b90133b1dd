"""Puts writes on the wire at absolute instants and notes when it really did."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterable

from aiohttp import web

from loadgen.simulator.answer import Write
from loadgen.simulator.truth import Truth

NS_PER_S = 1_000_000_000
BUFFER_LIMIT = 4 << 20
DRAIN_POLL_S = 0.002


async def sleep_until_ns(deadline_ns: int) -> None:
    """Sleep to an instant of ``time.monotonic_ns()``. The loop's timer wakes up to 1 ms late, never early."""
    loop = asyncio.get_running_loop()
    while (left := deadline_ns - time.monotonic_ns()) > 0:
        woken = loop.create_future()
        handle = loop.call_later(left / NS_PER_S, _wake, woken)
        try:
            await woken
        finally:
            handle.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class OwnBytes(web.StreamResponse):
    """Tells aiohttp that the handler has written the whole answer to the transport itself."""

    def __init__(self, *, keep: bool) -> None:
        super().__init__()
        if not keep:
            self.force_close()
        else:
            self._keep_alive = True

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing: the head is out."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing: the body is out."""


class Wire:
    """One answer's way out: past aiohttp's response objects, so that every byte and instant is ours."""

    def __init__(self, request: web.Request) -> None:
        self._transport = request.transport

    @property
    def is_gone(self) -> bool:
        """The client has left."""
        return self._transport is None or self._transport.is_closing()

    def send(self, data: bytes) -> int:
        """Write; returns the instant just before."""
        now = time.monotonic_ns()
        if self._transport is not None:
            self._transport.write(data)
        return now

    async def drained(self, limit: int = BUFFER_LIMIT) -> None:
        """Wait until at most *limit* bytes are unsent."""
        while not self.is_gone and self._unsent() > limit:
            await asyncio.sleep(DRAIN_POLL_S)

    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def end(self, ending: str) -> None:
        """fin: half-close after what is unsent; rst: reset at once after it."""
        await self.drained(0)
        if self._transport is None or ending == "keep":
            return
        if ending == "rst":
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()  # type: ignore[attr-defined]
        else:
            self._transport.close()


async def play(
    wire: Wire, parts: tuple[Iterable[Write], Iterable[Write]], ending: str, truth: Truth
) -> web.StreamResponse:
    """Send head and body writes at their offsets after ``truth.t_recv_ns``; fill in *truth*."""
    start = truth.t_recv_ns
    for is_head, writes in zip((True, False), parts, strict=True):
        for write in writes:
            await sleep_until_ns(start + write.offset_ns)
            await wire.drained()
            if wire.is_gone:
                truth.outcome = "client_left"
                truth.t_done_ns = time.monotonic_ns()
                return OwnBytes(keep=False)
            now = wire.send(write.data)
            if is_head and truth.t_head_ns is None:
                truth.t_head_ns = now
            for tokens in write.marks:
                if not truth.chunk_ns:
                    truth.planned_ns = start + write.offset_ns
                truth.chunk_ns.append(now)
                truth.chunk_tokens.append(tokens)
                truth.n_output += tokens
    await wire.end(ending)
    truth.t_done_ns = time.monotonic_ns()
    return OwnBytes(keep=ending == "keep")
