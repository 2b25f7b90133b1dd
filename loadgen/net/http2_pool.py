"""HTTP/2 connections to one target: streams go to the least loaded, a new one is opened when all are full."""

from __future__ import annotations

from loadgen.net.exchange import Exchange
from loadgen.net.http2 import Http2Connection
from loadgen.net.stamps import StampClock
from loadgen.net.stream import StreamExchange
from loadgen.net.target import Target

STREAMS_PER_CONNECTION = 16
"""Streams of one connection share its reads: what comes together has one instant, so that few are truer than many."""


class Http2Pool:
    """Keeps connections for streams: at most *most* on one at a time, never more than the peer allows."""

    def __init__(
        self,
        target: Target,
        stamps: StampClock,
        most: int = STREAMS_PER_CONNECTION,
        reuse: int | None = None,
    ) -> None:
        self.target = target
        self._stamps, self._most, self._reuse = stamps, most, reuse
        self._all: list[Http2Connection] = []
        self._closing = False

    def open_ahead(self, count: int) -> None:
        """Start to open connections until *count* streams find room."""
        while len(self._all) * self._most < count and not self._closing:
            connection = self._new()
            connection.open()
            if connection not in self._all:
                return  # refused at once: the first request will say why

    def _new(self) -> Http2Connection:
        connection = Http2Connection(self.target, self._stamps, self, self._most, self._reuse)
        self._all.append(connection)
        return connection

    def send(self, exchange: Exchange) -> None:
        """Send on the least loaded connection that has room, else on a new one."""
        assert isinstance(exchange, StreamExchange)
        with_room = [connection for connection in self._all if connection.has_room]
        if with_room:
            min(with_room, key=_load).start(exchange)
            return
        connection = self._new()
        connection.start(exchange)
        connection.open()

    # The keeper's side.

    def elsewhere(self, exchange: StreamExchange) -> None:
        """Send *exchange* on another connection."""
        self.send(exchange)

    def closed(self, connection: Http2Connection) -> None:
        """Forget *connection*."""
        if connection in self._all:
            self._all.remove(connection)

    def close(self) -> None:
        """Close every connection that serves nothing."""
        self._closing = True
        for connection in [c for c in self._all if not c.load]:
            connection.close()


def _load(connection: Http2Connection) -> int:
    return connection.load
