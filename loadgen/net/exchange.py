"""One request on its way: its bytes out, its answer's stamped pieces in, and how it ended."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sized
from enum import Enum, auto
from typing import TYPE_CHECKING

from loadgen.record import ClockSource, Outcome, Record

if TYPE_CHECKING:
    from loadgen.clients.dialect import Reader
    from loadgen.net.connection import Connection

LONG_PIECES = 32
"""An answer that holds so many pieces asks to be read away before its end, so that its memory stays small."""

MAX_DECODED_BYTES = 1 << 30
"""A compressed answer may not unfold beyond this."""

_LOOP = ClockSource.LOOP

REJECTED_STATUS = frozenset({429, 503})
"""The server would not, for now."""

DETECT = 47
"""zlib's ``wbits`` for the largest window, gzip or zlib by the head."""


class Ending(Enum):
    """How an exchange ended, as the wire saw it."""

    WHOLE = auto()
    CUT = auto()
    FAILED = auto()


class Exchange:
    """State of one request. The connection writes it; *finished* is called once, from the hub: it must not block."""

    __slots__ = (
        "_decoded", "_decoder", "connection", "deadline_ns", "ending", "finished", "hints", "is_event_stream",
        "keep_headers", "leave_tokens", "long_at", "on_long", "payload", "pieces", "reader", "record", "resent",
        "status",
    )  # fmt: skip

    def __init__(self, record: Record, payload: Sized, finished: Callable[[Exchange], None]) -> None:
        self.record = record
        self.payload = payload
        self.finished = finished
        self.pieces: list[tuple[int, bytes]] = []
        self.status = 0
        self.hints: dict[str, str] = {}
        self.keep_headers: frozenset[bytes] = frozenset()
        self.is_event_stream = False
        self.ending: Ending | None = None
        self.deadline_ns = 0
        self.connection: Connection | None = None
        self.reader: Reader | None = None
        self.on_long: Callable[[Exchange], None] | None = None
        self.long_at = LONG_PIECES
        self.leave_tokens: int | None = None
        self.resent = False
        self._decoder: zlib._Decompress | None = None
        self._decoded = 0

    def header(self, name: bytes, value: bytes) -> None:
        """Keep of the answer's head what decides how its body is read."""
        name = name.lower()
        self.keep(name, value)
        if name == b"content-type":
            self.is_event_stream = value.lower().startswith(b"text/event-stream")
        elif name == b"content-encoding" and value.lower() not in (b"identity", b""):
            if value.lower() in (b"gzip", b"x-gzip", b"deflate"):
                self._decoder = zlib.decompressobj(wbits=DETECT)
            else:
                self.hints["content-encoding"] = value.decode("latin-1")
        elif name in (b"retry-after", b"location"):
            self.hints[name.decode()] = value.decode("latin-1")

    def keep(self, name: bytes, value: bytes) -> None:
        """Put a header (or trailer) into the record where the plan wants it; *name* in lower case."""
        if name in self.keep_headers:
            kept = self.record.answer_headers = self.record.answer_headers or {}
            kept[name.decode()] = value.decode("latin-1")

    def body(self, stamp_ns: int, data: bytes, source: ClockSource) -> None:
        """A piece of the body as it came."""
        if source is _LOOP:
            self.record.clock = _LOOP
        if self.keep_headers and self.record.body_ns is None:
            self.record.body_ns = stamp_ns
        self.pieces.append((stamp_ns, data))
        if len(self.pieces) == self.long_at and self.on_long is not None:
            self.on_long(self)

    def take_pieces(self) -> list[tuple[int, bytes]]:
        """The pieces since the last call, decoded. Raises ValueError for what cannot be decoded."""
        pieces, self.pieces = self.pieces, []
        if "content-encoding" in self.hints:
            raise ValueError(
                f"content-encoding {self.hints['content-encoding']} (only identity was asked for)"
            )
        if self._decoder is None:
            return pieces
        return [(stamp, self._decode(data)) for stamp, data in pieces]

    def _decode(self, data: bytes) -> bytes:
        assert self._decoder is not None
        parts: list[bytes] = []
        while data:
            if self._decoder.eof:  # gzip may come in several members
                self._decoder = zlib.decompressobj(wbits=DETECT)
            try:
                decoded = self._decoder.decompress(data, MAX_DECODED_BYTES - self._decoded + 1)
            except zlib.error as error:
                raise ValueError(f"broken compression: {error}") from None
            self._decoded += len(decoded)
            if self._decoded > MAX_DECODED_BYTES:
                raise ValueError("compressed answer unfolds beyond 1 GiB")
            parts.append(decoded)
            data = self._decoder.unused_data
        return b"".join(parts)

    @property
    def refused(self) -> bool:
        """Whether the answer's head alone says that the server would not, for now."""
        return self.status in REJECTED_STATUS

    @property
    def told_status(self) -> int | None:
        """The status as a record keeps it."""
        return self.status or None

    def abort(self, outcome: Outcome, error: str) -> None:
        """Give it up, wherever it is: it ends with *outcome*, what it had received is kept."""
        if self.connection is not None:
            self.connection.abort(outcome, error)
        else:
            self.end(Ending.FAILED, time.monotonic_ns(), outcome, error)

    def end(
        self, ending: Ending, done_ns: int, outcome: Outcome | None = None, error: str | None = None
    ) -> None:
        """The exchange is over; later calls change nothing (a time-out may race with the last byte)."""
        if self.ending is not None:
            return
        self.ending = ending
        record = self.record
        record.done_ns = done_ns
        if outcome is not None:
            record.outcome = outcome
            record.error = error or record.error
        else:  # its answer decides; how the connection went is beside that
            record.note = error or record.note
        self.finished(self)
