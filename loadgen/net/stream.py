"""One request as a stream of an HTTP/2 connection: what goes out, and what of its answer has come."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TYPE_CHECKING

from loadgen.net.exchange import Ending, Exchange
from loadgen.record import ClockSource, Outcome, Record

if TYPE_CHECKING:
    from loadgen.net.http2 import Http2Connection

Fields = list[tuple[bytes, bytes]]

LONG_PIECES = 16
"""Read away in smaller portions than HTTP/1.1's: streams that share a connection share the instant of what comes
while the loop is busy."""

PUSHBACK = b"grpc-retry-pushback-ms"
"""Where a server says when to come again, as HTTP's Retry-After does."""

UNWILLING = frozenset({8, 14})
"""gRPC's RESOURCE_EXHAUSTED and UNAVAILABLE."""


class StreamRequest(Sized):
    """All bytes of a request: its header block and its body, both as they go into frames.

    ``list_bytes`` and ``list_fields``: the header list as peers count it against their limits;
    ``largest_value_bytes``: of one value in it.
    """

    __slots__ = ("block", "body", "largest_value_bytes", "list_bytes", "list_fields")

    def __init__(self, block: bytes, body: bytes, measures: tuple[int, int, int] = (0, 0, 0)) -> None:
        self.block, self.body = block, body
        self.list_bytes, self.list_fields, self.largest_value_bytes = measures

    def __len__(self) -> int:
        return len(self.block) + len(self.body)


class StreamExchange(Exchange):
    """State of one stream.

    ``fields`` and ``trailers``: of the answer (the same where nothing came between them); ``reset_code``: HTTP/2's
    error code where the peer gave the stream up.
    """

    __slots__ = ("began", "fields", "heard_before", "link", "request", "reset_code", "stream_id", "trailers")

    def __init__(self, record: Record, request: StreamRequest, finished: Callable[[Exchange], None]) -> None:
        super().__init__(record, request, finished)
        self.long_at = LONG_PIECES
        self.request = request
        self.began = False
        self.link: Http2Connection | None = None
        self.stream_id = 0
        self.heard_before: int | None = None
        self.fields: Fields = []
        self.trailers: Fields | None = None
        self.reset_code: int | None = None

    @property
    def refused(self) -> bool:
        """Whether the status says that the server would not, for now; after a message it did."""
        return not self.began and (self._code in UNWILLING or (self.trailers is None and super().refused))

    @property
    def told_status(self) -> int | None:
        """gRPC's code where there is one, else HTTP's status."""
        return super().told_status if self._code is None else self._code

    @property
    def _code(self) -> int | None:
        value = next((value for name, value in self.trailers or () if name == b"grpc-status"), b"")
        return int(value) if value.isdigit() else None

    @property
    def heard(self) -> bool:
        """Whether anything of the answer has come."""
        return self.status != 0

    def head(self, stamp_ns: int, fields: Fields, ended: bool, source: ClockSource) -> None:
        """A header block of the answer: interim ones (1xx) count for nothing; the second is the trailers."""
        if source is ClockSource.LOOP:
            self.record.clock = ClockSource.LOOP
        if self.status:
            self._end_with(fields)
            return
        status = next((value for name, value in fields if name == b":status"), b"")
        if status.startswith(b"1"):
            return
        self.status = int(status) if status.isdigit() else 599
        self.record.headers_ns = stamp_ns
        self.fields = fields
        for name, value in fields:
            self.keep(name, value)
        if ended:
            self._end_with(fields)

    def _end_with(self, trailers: Fields) -> None:
        self.trailers = trailers
        for name, value in trailers:
            self.keep(name, value)
            if name == PUSHBACK and value.isdigit():
                self.hints["retry-after"] = f"{int(value) / 1000:g}"

    def begin(self) -> None:
        """The first of the answer's body has come: the request will not be sent again, and may be long."""
        self.began = True
        request = self.request
        measures = request.list_bytes, request.list_fields, request.largest_value_bytes
        self.payload = self.request = StreamRequest(b"", b"", measures)

    def abort(self, outcome: Outcome, error: str) -> None:
        """Give the stream up (the peer is told); what it had received is kept."""
        if self.link is not None:
            self.link.abort_stream(self, outcome, error)
        else:
            super().abort(outcome, error)

    def again(self) -> None:
        """Forget the connection, to be sent on another one."""
        self.link, self.stream_id, self.heard_before = None, 0, None
        self.record.sent_end_ns = None

    def cut(self, done_ns: int, words: str) -> None:
        """The stream ended without its trailers; what that means is its client's to say."""
        if self.heard:
            self.end(Ending.CUT, done_ns, None, words)
        else:
            self.end(Ending.FAILED, done_ns, None, f"{words} before its answer")
