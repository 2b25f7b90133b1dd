"""A gRPC server in threads of the test's process that does to streams and connections exactly what a test says.

It speaks through the `h2` library, which the client under test does not use; frames that `h2` would not send (a
GOAWAY with streams that go on) are written past it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
from hyperframe.frame import GoAwayFrame

from loadgen.clients.vllm_grpc import MESSAGES
from loadgen.wire.grpc_frames import message_frame
from tests.loadgen.net.raw_server import serve_each

Fields = list[tuple[str, str]]


def chunk(*ids: int, prompt: int = 7) -> bytes:
    """A vLLM chunk message with so many token ids."""
    response = MESSAGES["GenerateResponse"]()
    response.chunk.token_ids.extend(ids)
    response.chunk.prompt_tokens, response.chunk.completion_tokens = prompt, len(ids)
    data: bytes = response.SerializeToString()
    return data


def complete(reason: str = "length", *ids: int) -> bytes:
    """The final message: it repeats the last tokens."""
    response = MESSAGES["GenerateResponse"]()
    response.complete.output_ids.extend(ids)
    response.complete.finish_reason = reason
    response.complete.prompt_tokens, response.complete.completion_tokens = 7, len(ids)
    data: bytes = response.SerializeToString()
    return data


class Stream:
    """One request, whole, and the ways to answer it. ``body``: its bytes, gRPC prefix included."""

    def __init__(self, line: Line, stream_id: int, fields: dict[str, str]) -> None:
        self.line, self.id, self.fields, self.body = line, stream_id, fields, b""
        self.reset_by_client: int | None = None
        self.ended_ns = 0

    def head(self, *extra: tuple[str, str], ended: bool = False) -> None:
        fields = [(":status", "200"), ("content-type", "application/grpc"), *extra]
        self.line.do(lambda h2c: h2c.send_headers(self.id, fields, end_stream=ended))

    def raw(self, data: bytes, size: int = 16_000) -> None:
        """Bytes in DATA frames of *size*, as the client's windows allow."""
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            self.line.do(lambda h2c, piece=piece: h2c.send_data(self.id, piece))

    def say(self, *messages: bytes) -> None:
        """Each message in a frame of its own."""
        for message in messages:
            self.raw(message_frame(message))

    def trailers(self, code: int = 0, message: str = "") -> None:
        fields = [("grpc-status", str(code)), *([("grpc-message", message)] if message else [])]
        self.line.do(lambda h2c: h2c.send_headers(self.id, fields, end_stream=True))

    def answer(self, *ids: int) -> None:
        """A whole good answer."""
        self.head()
        self.say(*(chunk(i) for i in ids or (1, 2, 3, 4)), complete("length", 4))
        self.trailers()

    def reset(self, code: int) -> None:
        self.line.do(lambda h2c: h2c.reset_stream(self.id, code))


Conduct = Callable[[Stream], None]


class Line:
    """One connection."""

    def __init__(self, server: H2Server, sock: socket.socket, number: int) -> None:
        self.server, self.sock, self.number = server, sock, number
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self.lock = threading.RLock()
        self.streams: dict[int, Stream] = {}

    def do(self, action: Callable[[h2.connection.H2Connection], None]) -> None:
        with self.lock, contextlib.suppress(OSError):
            action(self.h2)
            self.sock.sendall(self.h2.data_to_send())

    def goaway(self, last_stream_id: int, code: int = 0, debug: bytes = b"") -> None:
        """Past h2, which would refuse to go on with the streams that are left."""
        frame = GoAwayFrame(0, last_stream_id=last_stream_id, error_code=code, additional_data=debug)
        with self.lock:
            self.sock.sendall(frame.serialize())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        with contextlib.suppress(OSError), self.sock:
            limit = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self.server.max_streams}
            self.h2.local_settings = h2.settings.Settings(client=False, initial_values=limit)
            self.h2.decoder.max_header_list_size = 1 << 20
            self.do(lambda h2c: h2c.initiate_connection())
            while data := self.sock.recv(65536):
                with self.lock:
                    events = self.h2.receive_data(data)
                    self.sock.sendall(self.h2.data_to_send())
                for event in events:
                    self._take(event)

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self.streams[event.stream_id] = stream = Stream(self, event.stream_id, dict(event.headers))
            self.server.most = max(self.server.most, sum(not s.ended_ns for s in self.streams.values()))
            early = self.server.early.get(stream.fields.get("x-case", ""))
            if early is not None:
                early(stream)
        elif isinstance(event, h2.events.DataReceived):
            stream = self.streams[event.stream_id]
            stream.body += event.data
            size = event.flow_controlled_length
            if stream.fields.get("x-case") == "slow reader":
                # The connection's window opens at once, the stream's only when a while has passed.
                self.do(lambda h2c: h2c.increment_flow_control_window(size))
                threading.Timer(0.02, self._open, [event.stream_id, size]).start()
            else:
                self.do(lambda h2c: h2c.acknowledge_received_data(size, event.stream_id))
        elif isinstance(event, h2.events.StreamEnded):
            stream = self.streams[event.stream_id]
            threading.Thread(target=self.server.conduct, args=[stream], daemon=True).start()
        elif isinstance(event, h2.events.StreamReset):
            stream = self.streams[event.stream_id]
            stream.reset_by_client, stream.ended_ns = int(event.error_code), time.monotonic_ns()

    def _open(self, stream_id: int, size: int) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.do(lambda h2c: h2c.increment_flow_control_window(size, stream_id))


class H2Server:
    """Accepts until closed. Streams find their conduct by ``x-case``; ``early`` ones act before the body has come."""

    def __init__(
        self,
        conducts: Mapping[str, Conduct],
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        early: Mapping[str, Conduct],
        max_streams: int,
    ) -> None:
        self.conducts, self.early, self.listener, self.tls, self.max_streams = (
            conducts,
            early,
            listener,
            tls,
            max_streams,
        )
        self.lines: list[Line] = []
        self.most = 0
        serve_each(listener, self._serve)

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(self, sock, len(self.lines))
            self.lines.append(line)
            line.serve()

    def conduct(self, stream: Stream) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError, OSError):
            case = stream.fields.get("x-case", stream.fields[":path"])
            self.conducts.get(case, Stream.answer)(stream)
        stream.ended_ns = stream.ended_ns or time.monotonic_ns()

    def streams(self, case: str) -> list[Stream]:
        """All streams that asked for *case*, in order."""
        return [s for line in self.lines for s in line.streams.values() if s.fields.get("x-case") == case]


@contextlib.contextmanager
def h2_server(
    conducts: Mapping[str, Conduct] = {},
    *,
    tls: ssl.SSLContext | None = None,
    early: Mapping[str, Conduct] = {},
    max_streams: int = 100,
) -> Iterator[tuple[str, H2Server]]:
    """(base URL, the server)."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        server = H2Server(conducts, listener, tls, early, max_streams)
        yield f"grpc{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}", server
        listener.shutdown(socket.SHUT_RDWR)


def trailers_only(code: int, message: str = "") -> Conduct:
    def conduct(stream: Stream) -> None:
        stream.head(("grpc-status", str(code)), ("grpc-message", message), ended=True)

    return conduct


def after_chunks(then: Conduct, *ids: int) -> Conduct:
    def conduct(stream: Stream) -> None:
        stream.head()
        stream.say(*(chunk(i) for i in ids or (1, 2)))
        then(stream)

    return conduct


def paced(stream: Stream) -> None:
    stream.head()
    for i in range(4):
        time.sleep(0.02)
        stream.say(chunk(i + 1))
    stream.say(complete("length", 4))
    stream.trailers()
