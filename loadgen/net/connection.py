"""One HTTP/1.1 connection on gevent's loop: watcher callbacks, no greenlet and no thread a request.

Everything here runs in the hub and never blocks; see `link` for what a read callback may do.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import httptools

from loadgen.net.batched import BatchedReads
from loadgen.net.exchange import Ending, Exchange
from loadgen.net.link import Link, now_ns
from loadgen.net.stamps import StampClock
from loadgen.net.target import Target
from loadgen.record import ClockSource, Outcome


class Keeper(Protocol):
    """Who owns connections: a pool."""

    def idle(self, connection: Connection) -> None:
        """It can take a request."""
        ...

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        ...

    def stale(self, exchange: Exchange) -> None:
        """A connection that had waited turned out closed before a byte of the answer: *exchange* wants a new one."""
        ...


class Connection(Link):
    """A link that serves one exchange at a time and belongs to a *keeper*."""

    __slots__ = (
        "_bodied", "_bodies", "_body", "_framed", "_heard", "_keeper", "_kept", "_lasting", "_parser", "_whole",
        "exchange", "idle_since_ns", "served",
    )  # fmt: skip

    def __init__(
        self, target: Target, stamps: StampClock, keeper: Keeper, reads: BatchedReads | None = None
    ) -> None:
        super().__init__(target, stamps, reads)
        self._keeper = keeper
        self.exchange: Exchange | None = None
        self.served = 0
        self.idle_since_ns = 0
        self._whole = self._framed = self._heard = self._lasting = self._bodied = self._kept = False
        self._bodies = 0
        self._parser: Any = None
        self._body: Any = None

    @property
    def _awaited(self) -> bool:
        return self.exchange is not None

    def _ready(self) -> None:
        if self.exchange is not None:
            if not self.exchange.must_wait():
                self._send_request()
        else:
            self._kept = True
            self.idle_since_ns = now_ns()
            self._keeper.idle(self)

    def start(self, exchange: Exchange) -> None:
        """Send *exchange*'s request now, or as soon as the connection stands."""
        self.exchange = exchange
        if self.ready:
            self._send_request()

    def _send_request(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        record = exchange.record
        if self.served == 0:
            record.connect_start_ns, record.connect_end_ns = self.connect_start_ns, self.connect_end_ns
            record.tls_end_ns = self.tls_end_ns
        self.served += 1
        self._parser = httptools.HttpResponseParser(self)
        self._whole = self._framed = self._heard = self._bodied = False
        self._body = exchange.body
        record.clock = ClockSource.KERNEL
        record.sent_ns = now_ns()
        payload = cast(bytes, exchange.payload)
        self._send(payload if self._tls is None else self._tls.encrypt(payload))
        if self.exchange is exchange and not self._out and record.sent_end_ns is None:
            record.sent_end_ns = now_ns()

    def _all_written(self) -> None:
        if self.exchange is not None and self.exchange.record.sent_end_ns is None and self.ready:
            self.exchange.record.sent_end_ns = now_ns()

    def _received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # nothing was asked: whatever this is, the connection cannot be trusted
            self.close()
            return
        self._heard = True
        self._bodies = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end(Ending.FAILED, self._stamp_ns, Outcome.PROTOCOL, "the server switched protocols")
        except httptools.HttpParserError as error:
            words = f"not HTTP/1.1: {error}; first bytes {data[:40]!r}"
            self._end(Ending.FAILED, self._stamp_ns, Outcome.PROTOCOL, words)
        else:
            if self._whole:
                self._answered()
            elif self._bodies:
                if self._bodies > 1 and self._bodied and self._reads is not None:
                    self._reads.coalesced()  # an answer's first and last reads bring several anyway
                self._bodied = True

    # httptools calls these while it is fed.

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        assert self.exchange is not None
        self.exchange.header(name, value)
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """The head is complete: its instant is the read's (an interim 1xx head is overwritten by the final one)."""
        exchange = self.exchange
        assert exchange is not None
        exchange.status = self._parser.get_status_code()
        if not self._out and 200 <= exchange.status < 300:
            exchange.payload = b""  # it may be long, and only what is refused may be sent again
        exchange.record.headers_ns = self._stamp_ns
        if self._source is ClockSource.LOOP:
            exchange.record.clock = ClockSource.LOOP

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._bodies += 1
        self._body(self._stamp_ns, body, self._source)

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was an interim one."""
        assert self.exchange is not None
        if self.exchange.status >= 200:
            self._whole = True
            self._lasting = self._parser.should_keep_alive()  # the parser forgets it when this returns
        else:  # nothing of it may look like the answer's own head
            self._framed = False
            self.exchange.status, self.exchange.record.headers_ns = 0, None

    def _answered(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        reusable = self._lasting and not self._out and self._framed
        self.exchange = None
        self._body = None
        if reusable:
            self._kept = True
            self.idle_since_ns = now_ns()
            self._keeper.idle(self)
        else:
            self.close()
        exchange.end(Ending.WHOLE, self._stamp_ns)

    def _peer_closed(self) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.status >= 200 and not self._framed:
            self._end(Ending.WHOLE, self._stamp_ns)  # a body delimited by the close
        else:
            self._lost("the server closed the connection")

    def _lost(self, words: str) -> None:
        exchange = self.exchange
        if exchange is not None and self._kept and not self._heard and not exchange.resent:
            self.exchange = None
            self.close()
            exchange.resent = True
            exchange.record.retries += 1
            exchange.record.sent_end_ns = None
            self._keeper.stale(exchange)
        elif exchange is None or exchange.status == 0:
            self._end(Ending.FAILED, now_ns(), Outcome.PROTOCOL, f"{words} before its answer")
        else:
            self._end(Ending.CUT, self._stamp_ns or now_ns(), None, words)

    def _end(
        self, ending: Ending, done_ns: int, outcome: Outcome | None = None, error: str | None = None
    ) -> None:
        exchange, self.exchange = self.exchange, None
        self.close()
        if exchange is not None:
            exchange.end(ending, done_ns, outcome, error)

    def abort(self, outcome: Outcome, error: str) -> None:
        """Give the exchange in flight up: it ends with *outcome*, whatever it had received is kept."""
        self._end(
            Ending.CUT if self.exchange and self.exchange.status else Ending.FAILED, now_ns(), outcome, error
        )

    def _gone(self) -> None:
        # The parser refers back: without the collector, which a run stops, both would stay.
        self._parser = self._body = None
        self._keeper.closed(self)
