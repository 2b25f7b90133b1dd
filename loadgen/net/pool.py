"""Connections to one target: opened ahead, reused last-in-first-out, never capped unless asked."""

from __future__ import annotations

import time
from typing import Protocol

from loadgen.net.batched import BatchedReads
from loadgen.net.connection import Connection
from loadgen.net.exchange import Exchange
from loadgen.net.stamps import StampClock
from loadgen.net.target import Target

IDLE_LIMIT_NS = 4_000_000_000
"""A connection idle for longer is replaced: servers close theirs after some seconds (uvicorn after 5)."""


class Sender(Protocol):
    """Where exchanges go: connections to one target, or to several."""

    def open_ahead(self, count: int) -> None:
        """Start to open connections for *count* requests at once."""
        ...

    def send(self, exchange: Exchange) -> None:
        """Send now, on a connection that is free or new."""
        ...

    def close(self) -> None:
        """Close what serves nothing; the rest closes when it has served."""
        ...


class Pool:
    """Keeps connections for exchanges. ``reuse``: how many requests one may serve (None: no limit)."""

    def __init__(
        self, target: Target, stamps: StampClock, reuse: int | None = None, reads: BatchedReads | None = None
    ) -> None:
        self.target = target
        self._reads = reads
        self._stamps = stamps
        self._reuse = reuse
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._closing = False

    def open_ahead(self, count: int) -> None:
        """Start to open connections until *count* exist."""
        while len(self._all) < count and not self._closing:
            connection = self._new()
            connection.open()
            if connection.sock is None or connection not in self._all:
                return  # refused at once: the first request will say why

    def _new(self) -> Connection:
        connection = Connection(self.target, self._stamps, self, self._reads)
        self._all.add(connection)
        return connection

    def send(self, exchange: Exchange) -> None:
        """Send on the connection idle for the shortest time, or on a new one."""
        while self._idle:
            connection = self._idle.pop()
            if time.monotonic_ns() - connection.idle_since_ns < IDLE_LIMIT_NS or connection.served == 0:
                exchange.connection = connection
                connection.start(exchange)
                return
            connection.close()
        self._send_on_new(exchange)

    def _send_on_new(self, exchange: Exchange) -> None:
        connection = exchange.connection = self._new()
        connection.exchange = exchange
        connection.open()

    # The keeper's side.

    def idle(self, connection: Connection) -> None:
        """Take *connection* back, or close it when it has served its share."""
        if self._closing or (self._reuse is not None and connection.served >= self._reuse):
            connection.close()
        else:
            self._idle.append(connection)

    def closed(self, connection: Connection) -> None:
        """Forget *connection*."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def stale(self, exchange: Exchange) -> None:
        """Send *exchange* again, on a new connection."""
        self._send_on_new(exchange)

    def in_flight(self) -> list[Connection]:
        """Connections with an exchange under way."""
        return [c for c in self._all if c.exchange is not None]

    def close(self) -> None:
        """Close every connection without an exchange; those with one close when it ends."""
        self._closing = True
        for connection in [c for c in self._all if c.exchange is None]:
            connection.close()
