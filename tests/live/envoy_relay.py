"""A TCP relay that holds a request back for known times, and says for how long it really did."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

PIECE = 65536


@dataclass
class Held:
    """What one request was held for, ns: its first byte, and its body after the head."""

    first_ns: int
    body_ns: int


@dataclass
class Relay:
    """``url``: where to send; ``held``: a row a request, in order (one request at a time)."""

    url: str
    held: list[Held] = field(default_factory=list)


@contextmanager
def holding_relay(upstream: str, first_s: float, body_s: float) -> Iterator[Relay]:
    """Requests on their way to *upstream*: the head is held *first_s*, the body *body_s* more; answers pass at once."""
    target = urlsplit(upstream)
    listener = socket.create_server(("127.0.0.1", 0))
    relay = Relay(f"http://127.0.0.1:{listener.getsockname()[1]}")
    over = threading.Event()

    def serve(client: socket.socket) -> None:
        server = socket.create_connection((target.hostname or "", target.port or 80))
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answers, args=(server, client), daemon=True).start()
        with client, server:
            requests(client, server)

    def requests(client: socket.socket, server: socket.socket) -> None:
        while head := client.recv(PIECE):
            arrived = time.monotonic_ns()
            while b"\r\n\r\n" not in head:
                head += client.recv(PIECE)
            head, _, body = head.partition(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            time.sleep(first_s)
            passed = time.monotonic_ns()
            server.sendall(head + b"\r\n\r\n")
            left = int(fields.get(b"content-length", b"0")) - len(body)
            while left > 0:
                more = client.recv(min(PIECE, left))
                body, left = body + more, left - len(more)
            time.sleep(body_s)
            if body:
                relay.held.append(Held(passed - arrived, time.monotonic_ns() - passed))
            server.sendall(body)

    def answers(server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(PIECE):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def accept() -> None:
        while not over.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=guarded, args=(client,), daemon=True).start()

    def guarded(client: socket.socket) -> None:
        try:
            serve(client)
        except OSError:
            return

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield relay
    finally:
        over.set()
        listener.close()
