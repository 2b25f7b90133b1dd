"""HTTP/2 for one client connection, sans IO (RFC 9113): bytes in, events out; requests in, frames out.

The `h2` library is not used for it: after a GOAWAY it refuses every further frame, so that the streams which the
server still answers could not be read to their end, and it has no sending queue. Received header blocks are
decoded by `hpack`. The receive windows are the largest there are: a load generator that holds an endpoint back
would measure itself.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from hpack import Decoder, HPACKError

from loadgen.wire.http2_headers import TABLE_SIZE_ZERO

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 3, 4, 5
FRAME_HEAD_BYTES = 9
MAX_WINDOW_BYTES = 2**31 - 1
DEFAULT_WINDOW_BYTES = 65_535
DEFAULT_FRAME_BYTES = 16_384
DEFAULT_TABLE_BYTES = 4096
MAX_BLOCK_BYTES = 16 << 20
"""Of one received header block, encoded or decoded."""

LAST_STREAM_ID = 2**31 - 1
PULL_BYTES = 65_536

ERRORS = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
    "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
)  # fmt: skip
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 7, 8, 9, 11

_SETTING = struct.Struct(">HL")
_GOAWAY = struct.Struct(">LL")


class Http2Error(ValueError):
    """The peer broke the protocol: the connection is over. ``code`` is HTTP/2's error code."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class Settled(NamedTuple):
    """The peer's settings; how many streams it takes at once (None: no limit)."""

    max_streams: int | None


class Head(NamedTuple):
    """A header block: the answer's head, or its trailers."""

    stream_id: int
    fields: list[tuple[bytes, bytes]]
    ended: bool


class Data(NamedTuple):
    """A DATA frame's content."""

    stream_id: int
    data: bytes
    ended: bool


class Reset(NamedTuple):
    """The peer gave the stream up."""

    stream_id: int
    code: int


class GoneAway(NamedTuple):
    """The peer takes no more streams; those above *last_stream_id* it has not begun."""

    last_stream_id: int
    code: int
    debug: bytes


Event = Settled | Head | Data | Reset | GoneAway


def error_name(code: int) -> str:
    """An error code in the RFC's word."""
    return ERRORS[code] if code < len(ERRORS) else f"error {code}"


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame's bytes."""
    head = struct.pack(">LBL", len(payload) << 8 | kind, flags, stream_id)
    return head + payload if payload else head


class _Sending:
    """A request's body that is not yet on its way: ``left`` bytes under the peer's ``window`` for the stream."""

    __slots__ = ("left", "window")

    def __init__(self, body: bytes, window: int) -> None:
        self.left, self.window = memoryview(body), window


class Http2Client:
    """One connection's state. ``started`` and ``written`` tell which streams' heads and last bytes `pull` gave out.

    *window_bytes*: what may come on all streams together before it is acknowledged; one stream may bring 2 GiB.
    """

    def __init__(self, window_bytes: int = MAX_WINDOW_BYTES) -> None:
        self._window_bytes = window_bytes
        self._in = b""
        self._block: list[bytes] | None = None
        self._block_of, self._block_ends, self._block_bytes = 0, False, 0
        self._decoder = Decoder(MAX_BLOCK_BYTES)
        self._settled = False
        self._unacknowledged = 0
        self._next_id = 1
        self._control: list[bytes] = [
            PREFACE,
            frame(SETTINGS, 0, 0, _settings({ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: MAX_WINDOW_BYTES})),
            frame(WINDOW_UPDATE, 0, 0, (window_bytes - DEFAULT_WINDOW_BYTES).to_bytes(4, "big")),
        ]
        self._sending: dict[int, _Sending] = {}
        self._turns: deque[int] = deque()
        self._window, self._stream_window = DEFAULT_WINDOW_BYTES, DEFAULT_WINDOW_BYTES
        self._frame_bytes = DEFAULT_FRAME_BYTES
        self._before_block = b""
        self.started: list[int] = []
        self.written: list[int] = []

    # What is sent.

    @property
    def exhausted(self) -> bool:
        """Whether the connection has no stream ids left."""
        return self._next_id > LAST_STREAM_ID

    def request(self, block: bytes, body: bytes) -> int:
        """Queue a request with its whole body; the stream's id. *block*: its fields, encoded."""
        stream_id = self._next_id
        self._next_id += 2
        block, self._before_block = self._before_block + block, b""
        size = self._frame_bytes
        flags = END_HEADERS if len(block) <= size else 0
        self._control.append(frame(HEADERS, flags if body else flags | END_STREAM, stream_id, block[:size]))
        for at in range(size, len(block), size):
            ends = END_HEADERS if at + size >= len(block) else 0
            self._control.append(frame(CONTINUATION, ends, stream_id, block[at : at + size]))
        self.started.append(stream_id)
        if body:
            self._sending[stream_id] = _Sending(body, self._stream_window)
            self._turns.append(stream_id)
        else:
            self.written.append(stream_id)
        return stream_id

    def reset(self, stream_id: int, code: int = CANCEL) -> None:
        """Give a stream up; nothing more of its body goes out."""
        self._sending.pop(stream_id, None)
        self._control.append(frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big")))

    def ended(self, stream_id: int) -> None:
        """The peer has ended the stream; what is left of its body is not sent any more."""
        if stream_id in self._sending:
            self.reset(stream_id)

    def say_goodbye(self, code: int = NO_ERROR) -> None:
        """Queue a GOAWAY: the connection ends."""
        self._control.append(frame(GOAWAY, 0, 0, _GOAWAY.pack(0, code)))

    def pull(self) -> bytes:
        """What may be written now: control frames and heads first, then the bodies in turn, a frame each."""
        parts, self._control = self._control, []
        room = PULL_BYTES
        blocked: list[int] = []
        while self._turns and room > 0 and self._window > 0:
            stream_id = self._turns.popleft()
            sending = self._sending.get(stream_id)
            if sending is None:
                continue
            size = min(len(sending.left), self._frame_bytes, sending.window, self._window)
            if size <= 0:
                blocked.append(stream_id)
                continue
            ends = size == len(sending.left)
            parts.append(frame(DATA, END_STREAM if ends else 0, stream_id, bytes(sending.left[:size])))
            room -= size
            self._window -= size
            if ends:
                del self._sending[stream_id]
                self.written.append(stream_id)
            else:
                sending.left, sending.window = sending.left[size:], sending.window - size
                self._turns.append(stream_id)
        self._turns.extend(blocked)
        return b"".join(parts)

    # What is received.

    def receive(self, data: bytes) -> list[Event]:
        """The events that *data* completes, in order. Raises Http2Error when the peer breaks the protocol."""
        events: list[Event] = []
        if self._in:
            data = self._in + data
        at, size = 0, len(data)
        while size - at >= FRAME_HEAD_BYTES:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            kind = data[at + 3]
            if not self._settled and (kind != SETTINGS or data[at + 4] & ACK):
                raise Http2Error(PROTOCOL_ERROR, f"not HTTP/2: first bytes {data[:40]!r}")
            if length > DEFAULT_FRAME_BYTES:
                raise Http2Error(
                    FRAME_SIZE_ERROR, f"a frame of {length} bytes, beyond the {DEFAULT_FRAME_BYTES} allowed"
                )
            start = at + FRAME_HEAD_BYTES
            at = start + length
            if at > size:
                at = start - FRAME_HEAD_BYTES
                break
            flags = data[start - 5]
            stream_id = int.from_bytes(data[start - 4 : start], "big") & LAST_STREAM_ID
            if self._block is not None and (kind != CONTINUATION or stream_id != self._block_of):
                raise Http2Error(PROTOCOL_ERROR, "a header block was interrupted by another frame")
            if kind == DATA:
                self._received(length)
                content = data[start:at] if not flags & PADDED else _unpadded(data[start:at])
                events.append(Data(stream_id, content, bool(flags & END_STREAM)))
            else:
                event = self._take(kind, flags, stream_id, data[start:at])
                if event is not None:
                    events.append(event)
        self._in = data[at:]
        return events

    def _received(self, length: int) -> None:
        self._unacknowledged += length
        if self._unacknowledged >= self._window_bytes // 2:
            self._control.append(frame(WINDOW_UPDATE, 0, 0, self._unacknowledged.to_bytes(4, "big")))
            self._unacknowledged = 0

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> Event | None:
        """A frame that is no DATA."""
        if kind == HEADERS:
            payload = _unpadded(payload) if flags & PADDED else payload
            self._block = [payload[5:] if flags & PRIORITY else payload]
            self._block_of, self._block_ends, self._block_bytes = (
                stream_id,
                bool(flags & END_STREAM),
                len(payload),
            )
            return self._head() if flags & END_HEADERS else None
        if kind == CONTINUATION:
            return self._continued(flags, payload)
        if kind == RST_STREAM:
            return Reset(stream_id, int.from_bytes(_exactly(payload, 4), "big"))
        if kind == WINDOW_UPDATE:
            self._widen(stream_id, int.from_bytes(_exactly(payload, 4), "big") & MAX_WINDOW_BYTES)
        elif kind == PING and not flags & ACK:
            self._control.append(frame(PING, ACK, 0, _exactly(payload, 8)))
        elif kind == GOAWAY:
            if len(payload) < _GOAWAY.size:
                raise Http2Error(FRAME_SIZE_ERROR, "a GOAWAY frame that is too short")
            last, code = _GOAWAY.unpack_from(payload)
            return GoneAway(last & LAST_STREAM_ID, code, payload[_GOAWAY.size :])
        elif kind == SETTINGS and not flags & ACK:
            return self._settle(payload)
        elif kind == PUSH_PROMISE:
            raise Http2Error(PROTOCOL_ERROR, "a push, though pushes were declined")
        return None  # PRIORITY, acknowledgements, and what is unknown

    def _continued(self, flags: int, payload: bytes) -> Head | None:
        if self._block is None:
            raise Http2Error(PROTOCOL_ERROR, "a CONTINUATION without a header block")
        self._block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > MAX_BLOCK_BYTES:
            raise Http2Error(PROTOCOL_ERROR, f"a header block beyond {MAX_BLOCK_BYTES} bytes")
        return self._head() if flags & END_HEADERS else None

    def _head(self) -> Head:
        block, self._block = b"".join(self._block or ()), None
        try:
            fields = [
                (bytes(name), bytes(value)) for name, value, *_ in self._decoder.decode(block, raw=True)
            ]
        except HPACKError as error:
            raise Http2Error(COMPRESSION_ERROR, f"a header block that cannot be decoded: {error}") from None
        return Head(self._block_of, fields, self._block_ends)

    def _widen(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            self._window += increment
            if self._window > MAX_WINDOW_BYTES:
                raise Http2Error(FLOW_CONTROL_ERROR, "the connection's window was opened too far")
        elif (sending := self._sending.get(stream_id)) is not None:
            sending.window += increment

    def _settle(self, payload: bytes) -> Settled:
        if len(payload) % _SETTING.size:
            raise Http2Error(FRAME_SIZE_ERROR, "a SETTINGS frame of a wrong size")
        found = dict(_SETTING.iter_unpack(payload))
        if (window := found.get(INITIAL_WINDOW_SIZE)) is not None:
            if window > MAX_WINDOW_BYTES:
                raise Http2Error(FLOW_CONTROL_ERROR, "an initial window beyond 2^31-1")
            for sending in self._sending.values():
                sending.window += window - self._stream_window
            self._stream_window = window
        if not DEFAULT_FRAME_BYTES <= found.get(MAX_FRAME_SIZE, DEFAULT_FRAME_BYTES) < 1 << 24:
            raise Http2Error(PROTOCOL_ERROR, "a maximal frame size out of its bounds")
        self._frame_bytes = min(found.get(MAX_FRAME_SIZE, self._frame_bytes), PULL_BYTES)
        if found.get(HEADER_TABLE_SIZE, DEFAULT_TABLE_BYTES) < DEFAULT_TABLE_BYTES:
            self._before_block = TABLE_SIZE_ZERO
        self._settled = True
        self._control.append(frame(SETTINGS, ACK, 0))
        return Settled(found.get(MAX_CONCURRENT_STREAMS))


def _settings(values: dict[int, int]) -> bytes:
    return b"".join(_SETTING.pack(name, value) for name, value in values.items())


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Error(PROTOCOL_ERROR, "a frame with more padding than content")
    return payload[1 : len(payload) - payload[0]]


def _exactly(payload: bytes, size: int) -> bytes:
    if len(payload) != size:
        raise Http2Error(FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes that should have {size}")
    return payload
