"""One HTTP/2 connection on gevent's loop: many streams, each an exchange; nothing here blocks.

A stream starts only when the peer's settings are known, so that its limit of concurrent streams is never passed.
After a GOAWAY the streams that the peer still answers go on, those that it has not begun are sent once more on
another connection. Reads are stamped by the kernel; what one read brought shares one instant.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from loadgen.net.exchange import Ending
from loadgen.net.link import Link, now_ns
from loadgen.net.stamps import StampClock
from loadgen.net.stream import StreamExchange
from loadgen.net.target import Target
from loadgen.record import ClockSource, Outcome
from loadgen.wire.http2 import (
    COMPRESSION_ERROR,
    NO_ERROR,
    REFUSED_STREAM,
    Data,
    Event,
    GoneAway,
    Head,
    Http2Client,
    Http2Error,
    Reset,
    error_name,
)

HARMLESS_BLOCK_BYTES = 16_384
"""No hop that is known breaks on a header block of this size."""


class StreamKeeper(Protocol):
    """Who owns HTTP/2 connections: a pool."""

    def closed(self, connection: Http2Connection) -> None:
        """It is gone."""
        ...

    def elsewhere(self, exchange: StreamExchange) -> None:
        """*exchange* cannot be served here: it wants another connection."""
        ...


class Http2Connection(Link):
    """A link that serves up to *most* streams at once, and *reuse* in all (None: no limit)."""

    __slots__ = (
        "_asked_most", "_core", "_farewell", "_flushing", "_keeper", "_most", "_read_count", "_reuse", "_settled",
        "_streams", "_unwritten", "_waiting", "served",
    )  # fmt: skip

    def __init__(
        self, target: Target, stamps: StampClock, keeper: StreamKeeper, most: int, reuse: int | None = None
    ) -> None:
        super().__init__(target, stamps)
        self._keeper, self._reuse = keeper, reuse
        self._asked_most = self._most = most
        self._core = Http2Client()
        self._streams: dict[int, StreamExchange] = {}
        self._waiting: deque[StreamExchange] = deque()
        self._unwritten: list[StreamExchange] = []
        self._farewell: GoneAway | None = None
        self._settled = self._flushing = False
        self._read_count = 0
        self.served = 0

    @property
    def load(self) -> int:
        """Streams under way or waiting here."""
        return len(self._streams) + len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether one more stream may come."""
        if self._closed or self._farewell is not None or self._core.exhausted:
            return False
        return self.load < self._most and (
            self._reuse is None or self.served + len(self._waiting) < self._reuse
        )

    def start(self, exchange: StreamExchange) -> None:
        """Send *exchange*'s request now, or as soon as the connection stands."""
        exchange.link = self
        if self._settled:
            exchange.heard_before = self._read_count
            self._begin_or_pause(exchange)
            self._flush()
        else:
            self._waiting.append(exchange)

    def _begin_or_pause(self, exchange: StreamExchange) -> None:
        if exchange.must_wait():
            exchange.again()
        else:
            self._begin(exchange)

    def _begin(self, exchange: StreamExchange) -> None:
        record = exchange.record
        if self.served == 0:
            record.connect_start_ns, record.connect_end_ns = self.connect_start_ns, self.connect_end_ns
            record.tls_end_ns = self.tls_end_ns
        self.served += 1
        record.clock = ClockSource.KERNEL
        exchange.stream_id = self._core.request(exchange.request.block, exchange.request.body)
        self._streams[exchange.stream_id] = exchange

    # Writing.

    def _ready(self) -> None:
        self._flush()

    def _flush(self) -> None:
        """Write frames until the socket takes no more: heads first, then bodies in turn as windows allow."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while not self._out and not self._closed and self.ready:
                data = self._core.pull()
                if not data:
                    break
                self._note_started()
                self._send(data if self._tls is None else self._tls.encrypt(data))
        finally:
            self._flushing = False

    def _note_started(self) -> None:
        core = self._core
        if core.started:
            now = now_ns()
            for stream_id in core.started:
                if (exchange := self._streams.get(stream_id)) is not None:
                    exchange.record.sent_ns = now
            core.started.clear()
        if core.written:
            self._unwritten += [self._streams[i] for i in core.written if i in self._streams]
            core.written.clear()

    def _all_written(self) -> None:
        if self._unwritten:
            now = now_ns()
            for exchange in self._unwritten:
                exchange.record.sent_end_ns = now
            self._unwritten.clear()
        self._flush()

    # Reading.

    @property
    def _awaited(self) -> bool:
        return self.load > 0

    def _received(self, data: bytes) -> None:
        self._read_count += 1
        try:
            events = self._core.receive(data)
        except Http2Error as error:
            self._core.say_goodbye(error.code)
            self._flush()
            self._end(Ending.FAILED, self._stamp_ns, Outcome.PROTOCOL, str(error))
            return
        for event in events:
            self._take(event)
        if not self._closed:
            self._flush()
            self._close_when_left()

    def _take(self, event: Event) -> None:
        if isinstance(event, Data):
            if (exchange := self._streams.get(event.stream_id)) is not None:
                if event.data:
                    if not exchange.began:
                        exchange.begin()
                    exchange.body(self._stamp_ns, event.data, self._source)
                if event.ended:
                    self._finish(exchange)
        elif isinstance(event, Head):
            if (exchange := self._streams.get(event.stream_id)) is not None:
                exchange.head(self._stamp_ns, event.fields, event.ended, self._source)
                if event.ended:
                    self._finish(exchange)
        elif isinstance(event, Reset):
            self._was_reset(event)
        elif isinstance(event, GoneAway):
            self._leave(event)
        else:
            self._settle(event.max_streams)

    def _finish(self, exchange: StreamExchange) -> None:
        del self._streams[exchange.stream_id]
        self._core.ended(exchange.stream_id)
        exchange.end(Ending.WHOLE, self._stamp_ns)

    def _settle(self, max_streams: int | None) -> None:
        """The peer's settings have come: what waited may go, as far as the limit allows."""
        if max_streams is not None:
            self._most = min(self._asked_most, max(1, max_streams))
        self._settled = True
        while self._waiting and len(self._streams) < self._most:
            self._begin_or_pause(self._waiting.popleft())
        self._send_elsewhere()

    def _send_elsewhere(self) -> None:
        while self._waiting:
            exchange = self._waiting.popleft()
            exchange.again()
            self._keeper.elsewhere(exchange)

    def _was_reset(self, event: Reset) -> None:
        exchange = self._streams.pop(event.stream_id, None)
        if exchange is None:
            return
        self._core.ended(event.stream_id)
        if event.code == REFUSED_STREAM and self._try_again(exchange):
            return
        exchange.reset_code = event.code
        exchange.cut(self._stamp_ns, f"the stream was reset ({error_name(event.code)})")

    def _try_again(self, exchange: StreamExchange) -> bool:
        """Send a stream that the peer has not begun once more, elsewhere."""
        if exchange.heard or exchange.resent or self._is_to_blame(exchange):
            return False
        exchange.resent = True
        exchange.record.retries += 1
        exchange.again()
        self._keeper.elsewhere(exchange)
        return True

    def _is_to_blame(self, exchange: StreamExchange) -> bool:
        """Whether the peer gave up on a header block that may be this one's: it would end the next connection too."""
        broken = self._farewell is not None and self._farewell.code == COMPRESSION_ERROR
        return broken and len(exchange.request.block) > HARMLESS_BLOCK_BYTES

    # The end.

    def _leave(self, event: GoneAway) -> None:
        self._farewell = event
        for stream_id in [i for i in self._streams if i > event.last_stream_id]:
            exchange = self._streams.pop(stream_id)
            if not self._try_again(exchange):
                self._part(exchange, self._stamp_ns, "the connection was given up")
        self._send_elsewhere()

    def _part(self, exchange: StreamExchange, done_ns: int, words: str) -> None:
        """End a stream that the connection leaves behind, with what the peer said at its going."""
        if self._farewell is not None and self._farewell.code != NO_ERROR:
            exchange.reset_code = self._farewell.code
        exchange.cut(done_ns, self._parting_words(words))

    def _close_when_left(self) -> None:
        if not self.load and (self._farewell is not None or self._served_its_share):
            self.close()

    @property
    def _served_its_share(self) -> bool:
        return self._core.exhausted or (self._reuse is not None and self.served >= self._reuse)

    def _parting_words(self, words: str) -> str:
        if self._farewell is None:
            return words
        debug = self._farewell.debug[:200].decode(errors="replace")
        said = f"GOAWAY {error_name(self._farewell.code)}" + (f": {debug}" if debug else "")
        return f"{words} ({said})" if self._farewell.code != NO_ERROR or debug else words

    def _peer_closed(self) -> None:
        self._lost("the server closed the connection")

    def _lost(self, words: str) -> None:
        """Requests that the peer cannot have begun go elsewhere, the others end as they are."""
        done_ns = max(self._stamp_ns, 0) or now_ns()
        streams, self._streams = list(self._streams.values()), {}
        waiting, self._waiting = list(self._waiting), deque()
        self.close()
        for exchange in streams:
            stale = (
                exchange.heard_before == self._read_count
            )  # nothing came since it was put on a standing connection
            if not stale or not self._try_again(exchange):
                self._part(exchange, done_ns if exchange.heard else now_ns(), words)
        for exchange in waiting:
            self._part(exchange, now_ns(), words)

    def _end(
        self, ending: Ending, done_ns: int, outcome: Outcome | None = None, error: str | None = None
    ) -> None:
        exchanges = [*self._streams.values(), *self._waiting]
        self._streams, self._waiting = {}, deque()
        self.close()
        for exchange in exchanges:
            exchange.end(Ending.CUT if exchange.heard else ending, done_ns, outcome, error)

    def abort_stream(self, exchange: StreamExchange, outcome: Outcome, error: str) -> None:
        """End one stream with *outcome* and tell the peer; the others go on."""
        if exchange in self._waiting:
            self._waiting.remove(exchange)
        elif self._streams.pop(exchange.stream_id, None) is not None:
            self._core.reset(exchange.stream_id)
            self._flush()
        exchange.end(Ending.CUT if exchange.heard else Ending.FAILED, now_ns(), outcome, error)
        if not self._closed:
            self._close_when_left()

    def _gone(self) -> None:
        self._keeper.closed(self)
