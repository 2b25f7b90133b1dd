"""The endpoint that `loadgen calibrate` measures against: one process, one epoll, answers prepared as bytes.

    python -m loadgen.blast

prints its port and serves on loopback until it is killed. ``POST`` anything streams ``max_tokens`` chunks, one write
each: the first `TTFT_NS` after the request, the others an ``x-blast-itl-us`` apart (absent or 0: all in one write).
``GET /truth`` is ``{"cpu_ns": …, "requests": {id: [the instant just before each write]}}`` of every `SAMPLED`-th
request, on CLOCK_MONOTONIC, and forgets it.
"""

from __future__ import annotations

import heapq
import itertools
import json
import select
import socket
import time
from typing import Any

TTFT_NS = 20_000_000
SAMPLED = 4
READ = select.EPOLLIN if hasattr(select, "EPOLLIN") else 1

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_FIELDS = b'"id":"chatcmpl-00000000","object":"chat.completion.chunk","created":1700000000,"model":"blast",'
now_ns = time.monotonic_ns


def _event(data: bytes) -> bytes:
    body = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(body), body)


CHUNK = _event(
    b"{%s" % _FIELDS
    + b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}'
)
FINISH = _event(
    b"{%s" % _FIELDS + b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}'
)


def ending(tokens: int) -> bytes:
    """Finish, usage, ``[DONE]`` and the end of the body."""
    usage = b'{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d,"total_tokens":%d}}'
    return FINISH + _event(usage % (tokens, tokens + 8)) + _event(b"[DONE]") + b"0\r\n\r\n"


class Client:
    """One connection and the answer under way on it."""

    __slots__ = ("data", "itl_ns", "left", "log", "sock", "tokens")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = b""
        self.tokens = self.left = self.itl_ns = 0
        self.log: list[int] | None = None


class BlastServer:
    """Serves until the process ends."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), READ)
        self._clients: dict[int, Client] = {}
        self._due: list[tuple[int, int, Client]] = []
        self._order = itertools.count()
        self._requests = 0
        self._logs: dict[str, list[int]] = {}

    def serve(self) -> None:
        """Forever."""
        while True:
            timeout = max(0.0, (self._due[0][0] - now_ns()) / 1e9) if self._due else -1
            for fd, _ in self._epoll.poll(timeout):
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._read(self._clients[fd])
            self._write_due()

    def _accept(self) -> None:
        try:
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._clients[sock.fileno()] = Client(sock)
                self._epoll.register(sock.fileno(), READ)
        except BlockingIOError:
            pass

    def _read(self, client: Client) -> None:
        try:
            part = client.sock.recv(1 << 18)
        except OSError:
            part = b""
        if not part:
            self._close(client)
            return
        client.data += part
        head, mark, body = client.data.partition(b"\r\n\r\n")
        if mark and len(body) >= int(_field(head, b"content-length") or 0):
            client.data = b""
            self._answer(client, head, body)

    def _answer(self, client: Client, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self._answer_json(client, head)
            return
        if head.startswith(b"POST /tokenize"):
            self._send(client, b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        client.tokens = client.left = int(body.rpartition(b'"max_tokens":')[2].split(b"}")[0].split(b",")[0])
        client.itl_ns = int(_field(head, b"x-blast-itl-us") or 0) * 1000
        client.log = None
        self._requests += 1
        if client.itl_ns == 0:
            self._send(client, HEAD + CHUNK * client.tokens + ending(client.tokens))
            return
        if self._requests % SAMPLED == 0:
            client.log = self._logs[_field(head, b"x-request-id").decode()] = []
        self._send(client, HEAD)
        heapq.heappush(self._due, (now_ns() + TTFT_NS, next(self._order), client))

    def _answer_json(self, client: Client, head: bytes) -> None:
        found: Any = {"data": [{"id": "blast", "owned_by": "loadgen"}]}
        if head.startswith(b"GET /truth"):
            found = {"cpu_ns": time.process_time_ns(), "requests": self._logs}
            self._logs = {}
        data = json.dumps(found).encode()
        client.sock.setblocking(True)
        client.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        client.sock.sendall(b"content-length: %d\r\n\r\n" % len(data) + data)
        client.sock.setblocking(False)

    def _write_due(self) -> None:
        due, now = self._due, now_ns()
        while due and due[0][0] <= now:
            instant, _, client = heapq.heappop(due)
            if client.left == 0:
                continue
            client.left -= 1
            if client.log is not None:
                client.log.append(now_ns())
            if client.left:
                self._send(client, CHUNK)
                heapq.heappush(due, (instant + client.itl_ns, next(self._order), client))
            else:
                self._send(client, CHUNK + ending(client.tokens))

    def _send(self, client: Client, data: bytes) -> None:
        try:
            if client.sock.send(data) < len(data):
                self._close(client)  # a reader that far behind is no part of a calibration
        except OSError:
            self._close(client)

    def _close(self, client: Client) -> None:
        client.left = 0
        if client.sock.fileno() >= 0:
            self._clients.pop(client.sock.fileno(), None)
            client.sock.close()


def _field(head: bytes, name: bytes) -> bytes:
    place = head.lower().find(b"\r\n" + name + b":")
    return head[place + len(name) + 3 :].split(b"\r\n", 1)[0].strip() if place >= 0 else b""


if __name__ == "__main__":
    server = BlastServer()
    print(server.port, flush=True)
    server.serve()
