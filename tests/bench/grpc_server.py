"""A gRPC server for benchmarks: vLLM's Generate with paced one-token messages, and the instant of each one's write.

It is an asyncio protocol on our own framing, cheap enough to leave the other core to the client, and says the
truth: `truth.jsonl` gets ``{"id", "sent_ns": […]}`` a stream, stamped just before each write.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import signal
import struct
import sys
import time
from pathlib import Path

from loadgen.clients.vllm_grpc import MESSAGES
from loadgen.wire import http2
from loadgen.wire.grpc_frames import message_frame
from loadgen.wire.http2 import Data, Head, Http2Client, Reset, frame
from loadgen.wire.http2_headers import encode_fields

HEAD = encode_fields([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = encode_fields([(b"grpc-status", b"0")])
WINDOW = (http2.MAX_WINDOW_BYTES - http2.DEFAULT_WINDOW_BYTES).to_bytes(4, "big")


def _messages() -> tuple[bytes, bytes]:
    chunk, end = MESSAGES["GenerateResponse"](), MESSAGES["GenerateResponse"]()
    chunk.chunk.token_ids.append(1234)
    chunk.chunk.prompt_tokens, chunk.chunk.completion_tokens = 20, 1
    end.complete.output_ids.append(1234)
    end.complete.finish_reason, end.complete.prompt_tokens, end.complete.completion_tokens = "length", 20, 1
    return message_frame(chunk.SerializeToString()), message_frame(end.SerializeToString())


CHUNK, END = _messages()


class Answer:
    """One stream's messages to come."""

    __slots__ = ("id", "line", "sent_ns", "stream", "wanted")

    def __init__(self, line: Line, stream: int, wanted: int, request_id: str) -> None:
        self.line, self.stream, self.wanted, self.id = line, stream, wanted, request_id
        self.sent_ns: list[int] = []


class Beat:
    """All messages of all streams in one heap; one timer for the next."""

    def __init__(self, first_ns: int, gap_ns: int) -> None:
        self.first_ns, self.gap_ns = first_ns, gap_ns
        self.due: list[tuple[int, int, Answer]] = []
        self.order = itertools.count()
        self.done: list[Answer] = []
        self.timer: asyncio.TimerHandle | None = None

    def begin(self, answer: Answer) -> None:
        self._push(time.monotonic_ns() + self.first_ns, answer)
        self._set()

    def _push(self, at_ns: int, answer: Answer) -> None:
        heapq.heappush(self.due, (at_ns, next(self.order), answer))

    def _set(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        loop = asyncio.get_running_loop()
        left = (self.due[0][0] - time.monotonic_ns()) / 1e9
        self.timer = loop.call_later(max(0.0, left), self.send) if left > 0 else loop.call_later(0, self.send)

    def send(self) -> None:
        now = time.monotonic_ns()
        while self.due and self.due[0][0] <= now:
            at, _, answer = heapq.heappop(self.due)
            if answer.line.transport.is_closing():
                continue
            head = struct.pack(">LBL", len(CHUNK) << 8, 0, answer.stream)
            answer.sent_ns.append(time.monotonic_ns())
            if len(answer.sent_ns) < answer.wanted:
                answer.line.transport.write(head + CHUNK)
                self._push(at + self.gap_ns, answer)
            else:
                tail = frame(0, 0, answer.stream, END) + frame(1, 5, answer.stream, TRAILERS)
                answer.line.transport.write(head + CHUNK + tail)
                self.done.append(answer)
        if self.due:
            self._set()


class Line(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, beat: Beat, wanted: int) -> None:
        self.beat, self.wanted, self.core, self.greeted = beat, wanted, Http2Client(), b""
        self.core.pull()
        self.ids: dict[int, str] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.write(frame(http2.SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff") + frame(8, 0, 0, WINDOW))

    def data_received(self, data: bytes) -> None:
        if len(self.greeted) < len(http2.PREFACE):
            data = self.greeted + data
            self.greeted, data = data[: len(http2.PREFACE)], data[len(http2.PREFACE) :]
        for event in self.core.receive(data):
            if isinstance(event, Head):
                fields = dict(event.fields)
                self.ids[event.stream_id] = fields.get(b"x-loadgen-id", b"").decode()
                self.transport.write(frame(1, 4, event.stream_id, HEAD))
            elif isinstance(event, Data) and event.ended:
                answer = Answer(self, event.stream_id, self.wanted, self.ids.pop(event.stream_id))
                self.beat.begin(answer)
            elif isinstance(event, Reset):
                self.ids.pop(event.stream_id, None)
        if out := self.core.pull():
            self.transport.write(out)


async def main(truth: Path, wanted: int, first_ms: float, gap_ms: float) -> None:
    """Serve until SIGTERM; then write the truth."""
    stop, beat = asyncio.Event(), Beat(int(first_ms * 1e6), int(gap_ms * 1e6))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(lambda: Line(beat, wanted), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stop.wait()
    truth.write_text("".join(json.dumps({"id": a.id, "sent_ns": a.sent_ns}) + "\n" for a in beat.done))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
