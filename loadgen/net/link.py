"""A byte stream on gevent's loop: TCP or unix socket, plain or TLS, with the kernel's receive stamps.

Everything here runs in the hub and never blocks. A read callback does as little as it can (receive, stamp,
split the framing, keep the bytes): answers that end in lock-step would otherwise delay other reads, these
would coalesce and inherit the last segment's stamp. Parsing is the engine's, when the loop is idle.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from abc import ABC, abstractmethod
from typing import Any

import gevent

from loadgen.net.batched import BatchedReads
from loadgen.net.exchange import Ending
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


class Link(ABC):
    """Connects, writes what it is given, hands on what comes. A protocol's connection fills in the hooks."""

    __slots__ = (
        "_closed", "_instant", "_out", "_reader", "_reads", "_recvmsg", "_source", "_stamp_ns", "_tls", "_writer",
        "connect_end_ns", "connect_start_ns", "sock", "target", "tls_end_ns",
    )  # fmt: skip

    def __init__(self, target: Target, stamps: StampClock, reads: BatchedReads | None = None) -> None:
        self.target = target
        self._reads = reads
        self.connect_start_ns = now_ns()
        self.connect_end_ns: int | None = None
        self.tls_end_ns: int | None = None
        self.sock: socket.socket | None = None
        self._instant = stamps.instant
        self._tls: TlsLayer | None = None
        self._out = NOTHING
        self._closed = False
        self._stamp_ns, self._source = 0, ClockSource.LOOP
        self._reader: Any = None
        self._writer: Any = None
        self._recvmsg: Any = None

    @property
    @abstractmethod
    def _awaited(self) -> bool:
        """Whether an answer is waited for."""

    @abstractmethod
    def _ready(self) -> None:
        """It stands, TLS included."""

    @abstractmethod
    def _received(self, data: bytes) -> None:
        """Plain bytes, read at ``_stamp_ns`` by clock ``_source``."""

    @abstractmethod
    def _all_written(self) -> None:
        """The socket has taken everything."""

    @abstractmethod
    def _peer_closed(self) -> None:
        """The peer has ended its side."""

    @abstractmethod
    def _lost(self, words: str) -> None:
        """The connection broke."""

    @abstractmethod
    def _end(
        self, ending: Ending, done_ns: int, outcome: Outcome | None = None, error: str | None = None
    ) -> None:
        """End what is in flight, and close."""

    @abstractmethod
    def _gone(self) -> None:
        """It has been closed."""

    def open(self) -> None:
        """Start to connect. A failure ends what waits."""
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

    @property
    def ready(self) -> bool:
        """Whether a request can be sent at once."""
        return self.connect_end_ns is not None and (self._tls is None or self._tls.established)

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
        self._all_written()

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
        self._stamp_ns, self._source = self._instant(ancillary)
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

    def _fail_to_connect(self, code: int) -> None:
        words = os.strerror(code).lower()
        if code in GENERATORS_OWN:
            self._end(Ending.FAILED, now_ns(), Outcome.NOT_SENT, f"this machine's limit: {words}")
        else:
            self._end(Ending.FAILED, now_ns(), Outcome.CONNECT, words)

    def close(self) -> None:
        """Close the socket and tell the keeper. What is in flight must have been ended before."""
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
        self._gone()

    def _read_last_words(self, error: OSError) -> None:
        while not self._closed and self._awaited and self._read_once():
            pass
        if not self._closed and self._awaited:
            self._lost(f"connection lost while sending: {os.strerror(error.errno or 0)}")


def _native_socket(family: int) -> socket.socket:
    """A plain socket: gevent's patched one would wait in greenlets, here watchers do."""
    from gevent.monkey import get_original

    native: socket.socket = get_original("socket", "socket")(family, socket.SOCK_STREAM)
    return native


def _tls_words(error: ssl.SSLError) -> str:
    return getattr(error, "verify_message", "") or error.reason or str(error)
