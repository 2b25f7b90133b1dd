"""A server that does to a connection exactly what a test says, byte by byte, in threads of the test's process."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping

Conduct = Callable[[socket.socket, bytes], bool]
"""Answers one request whose head is given (its body not read yet); False: close the connection."""

RESET = struct.pack("ii", 1, 0)


def sse(*events: str) -> bytes:
    return "".join(f"data: {event}\n\n" for event in events).encode()


ANSWER = sse(
    '{"choices":[{"delta":{"content":"a"}}]}', '{"choices":[{"delta":{},"finish_reason":"stop"}]}', "[DONE]"
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def whole(body: bytes = ANSWER, extra: bytes = b"") -> bytes:
    """An answer with content-length."""
    return STREAM_HEAD + extra + b"content-length: %d\r\n\r\n" % len(body) + body


def reset(sock: socket.socket) -> None:
    """Close with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def read_head(sock: socket.socket) -> bytes:
    """Up to and including the empty line; b"" when the client closed."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            return b""
        head += byte
    return head


def field(head: bytes, name: str) -> str:
    """A header's value ("" where it is missing)."""
    for line in head.decode().split("\r\n")[1:]:
        key, _, value = line.partition(": ")
        if key.lower() == name:
            return value
    return ""


def read_body(sock: socket.socket, head: bytes) -> bytes:
    """The whole body."""
    left, parts = int(field(head, "content-length")), []
    while left and (part := sock.recv(min(left, 65536))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def serve_each(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """A thread for each connection, until *listener* is closed."""

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=[sock], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


class RawServer:
    """Accepts until closed; requests find their conduct by their ``x-case`` header. Counts what it accepts."""

    def __init__(
        self,
        conducts: Mapping[str, Conduct],
        listener: socket.socket,
        tls: ssl.SSLContext | None = None,
        greet: bytes | None = None,
    ) -> None:
        self.conducts, self.listener, self.tls, self.greet = conducts, listener, tls, greet
        self.accepted = 0
        self.heads: list[bytes] = []
        serve_each(listener, self._serve)

    def _serve(self, sock: socket.socket) -> None:
        self.accepted += 1
        with contextlib.suppress(OSError), sock:
            if self.greet is not None:
                sock.recv(4096)
                sock.sendall(self.greet)
                return
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
            with sock:
                while (head := read_head(sock)) and self._answer(sock, head):
                    pass

    def _answer(self, sock: socket.socket, head: bytes) -> bool:
        self.heads.append(head)
        return self.conducts[field(head, "x-case")](sock, head)


@contextlib.contextmanager
def raw_server(
    conducts: Mapping[str, Conduct],
    family: socket.AddressFamily = socket.AF_INET,
    address: object = None,
    tls: ssl.SSLContext | None = None,
    greet: bytes | None = None,
) -> Iterator[tuple[str, RawServer]]:
    """(base URL, the server). *greet*: say this to the first bytes of each connection, and close it."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    with listener:
        host = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}.get(family, "")
        listener.bind(address or (host, 0))
        listener.listen(256)
        server = RawServer(conducts, listener, tls, greet)
        port = listener.getsockname()[1] if host else 0
        name = f"[{host}]" if ":" in host else host
        yield (f"http{'s' if tls else ''}://{name}:{port}" if host else f"unix:{address}"), server
        listener.shutdown(socket.SHUT_RDWR)
