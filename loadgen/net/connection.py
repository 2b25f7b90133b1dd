"""One HTTP/1.1 connection on gevent's loop: watcher callbacks, no greenlet and no thread a request.

Everything here runs in the hub and never blocks. A read callback does as little as it can (receive, stamp,
split the HTTP framing, keep the bytes): answers that end in lock-step would otherwise delay other reads, these
would coalesce and inherit the last segment's stamp. Parsing is the engine's, when the loop is idle.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from typing import Any, Protocol

import gevent
import httptools

from loadgen.net.batched import BatchedReads
from loadgen.net.exchange import Ending, Exchange
from loadgen.net.stamps import ANCILLARY_BYTES, StampClock, enable_stamps
from loadgen.net.target import Target
from loadgen.net.tls import TlsLayer
from loadgen.record import ClockSource, Outcome

READ, WRITE = 1, 2
READ_BYTES = 65536
NOTHING = memoryview(b"")
GENERATORS_OWN = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.ENOMEM}
"""Failures to connect that are this machine's limits, not the endpoint's."""

now_ns = time.monotonic_ns


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


class Connection:
    """A socket that serves one exchange at a time and belongs to a *keeper*."""

    __slots__ = (
        "_bodied", "_bodies", "_body", "_closed", "_framed", "_heard", "_keeper", "_kept", "_lasting",
        "_out", "_parser", "_reader", "_reads", "_recvmsg", "_source", "_stamp_ns", "_stamps", "_tls",
        "_whole", "_writer", "connect_end_ns", "connect_start_ns", "exchange", "idle_since_ns", "served",
        "sock", "target", "tls_end_ns",
    )  # fmt: skip

    def __init__(
        self, target: Target, stamps: StampClock, keeper: Keeper, reads: BatchedReads | None = None
    ) -> None:
        self.target = target
        self._reads = reads
        self._keeper = keeper
        self.exchange: Exchange | None = None
        self.served = 0
        self.idle_since_ns = 0
        self.connect_start_ns = now_ns()
        self.connect_end_ns: int | None = None
        self.tls_end_ns: int | None = None
        self.sock: socket.socket | None = None
        self._stamps = stamps
        self._tls: TlsLayer | None = None
        self._out = NOTHING
        self._closed = self._whole = self._framed = self._heard = self._lasting = self._bodied = False
        self._kept = False
        self._bodies = 0
        self._stamp_ns, self._source = 0, ClockSource.LOOP
        self._reader: Any = None
        self._writer: Any = None
        self._parser: Any = None
        self._recvmsg: Any = None
        self._body: Any = None

    def open(self) -> None:
        """Start to connect. A failure ends the exchange that waits."""
        family, address = self.target.next_address()
        try:
            sock = self.sock = _native_socket(family)
            self._recvmsg = sock.recvmsg
            sock.setblocking(False)
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stamped = enable_stamps(sock)
            code = sock.connect_ex(address)
        except OSError as error:
            self._fail_to_connect(error.errno or 0)
            return
        if code not in (0, errno.EINPROGRESS):  # EAGAIN: a unix socket's queue is full
            self._fail_to_connect(code)
            return
        loop = gevent.get_hub().loop
        batched = self._reads if stamped else None  # without a stamp the instant of reading is the figure
        self._reader = batched.reader(sock.fileno()) if batched else loop.io(sock.fileno(), READ)
        self._writer = loop.io(sock.fileno(), WRITE)
        self._writer.start(self._connected)

    def _connected(self) -> None:
        self._writer.stop()
        assert self.sock is not None
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail_to_connect(code)
            return
        self.connect_end_ns = now_ns()
        self._reader.start(self._read_once)
        if self.target.tls is None:
            self._ready()
            return
        self._tls = TlsLayer(self.target.tls, self.target.server_name)
        self._handshake()

    def _handshake(self) -> None:
        assert self._tls is not None
        try:
            self._send(self._tls.handshake())
        except ssl.SSLError as error:
            self._end(Ending.FAILED, now_ns(), Outcome.TLS, _tls_words(error))
            return
        if self._tls.established:
            self.tls_end_ns = now_ns()
            self._ready()

    def _ready(self) -> None:
        if self.exchange is not None:
            self._send_request()
        else:
            self._kept = True
            self.idle_since_ns = now_ns()
            self._keeper.idle(self)

    @property
    def ready(self) -> bool:
        """Whether a request can be sent at once."""
        return self.connect_end_ns is not None and (self._tls is None or self._tls.established)

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
        self._send(exchange.payload if self._tls is None else self._tls.encrypt(exchange.payload))
        if self.exchange is exchange and not self._out and record.sent_end_ns is None:
            record.sent_end_ns = now_ns()

    def _send(self, data: bytes) -> None:
        """Write what the socket takes now; the rest follows from the write watcher."""
        if not data:
            return
        self._out = memoryview(bytes(self._out) + data if self._out else data)
        self._writable()

    def _writable(self) -> None:
        assert self.sock is not None
        try:
            while self._out:
                self._out = self._out[self.sock.send(self._out) :]
            self._out = NOTHING  # an empty view would keep the whole request
        except BlockingIOError:
            if not self._writer.active:
                self._writer.start(self._writable)
            return
        except OSError as error:
            # The answer may be in the socket already (a refusal before the whole body was read): read it first.
            self._out = NOTHING
            self._writer.stop()
            self._read_last_words(error)
            return
        self._writer.stop()
        if self.exchange is not None and self.exchange.record.sent_end_ns is None and self.ready:
            self.exchange.record.sent_end_ns = now_ns()

    def _read_last_words(self, error: OSError) -> None:
        while not self._closed and self.exchange is not None and self._read_once():
            pass
        if not self._closed and self.exchange is not None:
            self._lost(f"connection lost while sending: {os.strerror(error.errno or 0)}")

    def _read_once(self) -> bool:
        """One read; False when there was nothing to read."""
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._stamp_ns, self._source = now_ns(), ClockSource.LOOP  # a reset brings no stamp
            self._lost(os.strerror(error.errno or 0).lower())
            return True
        self._stamp_ns, self._source = self._stamps.instant(ancillary)
        if self._tls is not None:
            return self._received_tls(data)
        if data:
            self._received(data)
        else:
            self._peer_closed()
        return True

    def _received_tls(self, data: bytes) -> bool:
        tls = self._tls
        assert tls is not None
        tls.receive(data)
        if not tls.established:
            if data:
                self._handshake()
            else:
                self._end(Ending.FAILED, now_ns(), Outcome.TLS, "connection closed during the TLS handshake")
            if self._closed or not tls.established:
                return True
        try:
            plain = tls.decrypt()
        except ssl.SSLError as error:
            self._end(Ending.FAILED, self._stamp_ns, Outcome.TLS, _tls_words(error))
            return True
        self._send(tls.pending())
        if plain:
            self._received(plain)
        if plain is None or not data:
            self._peer_closed()
        return True

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
                if (
                    self._bodied and self._reads is not None
                ):  # an answer's first and last reads bring several anyway
                    self._reads.count(self._bodies)
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
        if not self._out:
            exchange.payload = b""  # it will not be sent again, and may be long
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

    def _fail_to_connect(self, code: int) -> None:
        words = os.strerror(code).lower()
        if code in GENERATORS_OWN:
            self._end(Ending.FAILED, now_ns(), Outcome.NOT_SENT, f"this machine's limit: {words}")
        else:
            self._end(Ending.FAILED, now_ns(), Outcome.CONNECT, words)

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

    def close(self) -> None:
        """Close the socket and tell the keeper. An exchange in flight must have been ended before."""
        if self._closed:
            return
        self._closed = True
        for watcher in (self._reader, self._writer):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        if self.sock is not None:
            self.sock.close()
        self._recvmsg = None
        self._parser = self._body = (
            None  # it refers back: without the collector, which a run stops, both would stay
        )
        self._keeper.closed(self)


def _native_socket(family: int) -> socket.socket:
    """A plain socket: gevent's patched one would wait in greenlets, here watchers do."""
    from gevent.monkey import get_original

    native: socket.socket = get_original("socket", "socket")(family, socket.SOCK_STREAM)
    return native


def _tls_words(error: ssl.SSLError) -> str:
    return getattr(error, "verify_message", "") or error.reason or str(error)
