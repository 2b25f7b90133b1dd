"""gRPC's messages within a stream's bytes, sans IO: a flag, four bytes of length, the message.

The grammar is gRPC's "PROTOCOL-HTTP2" (Length-Prefixed-Message). Messages may be split over any number of DATA
frames, and several may stand in one.
"""

from __future__ import annotations

import gzip
import struct
import zlib

PREFIX_BYTES = 5
NO_LIMIT = 1 << 30
DETECT = 47
"""zlib's ``wbits`` for the largest window, gzip or zlib by the head."""

_PREFIX = struct.Struct(">BL")


class MessageTooLargeError(ValueError):
    """A message beyond the limit that was set for it here; ``size`` as announced, or at least that large.

    ``before``: the messages that the same piece completed before it.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a message of {size} bytes, beyond the {limit} that this client takes")
        self.size, self.limit = size, limit
        self.before: list[bytes] = []


def message_frame(message: bytes, *, compressed: bool = False) -> bytes:
    """A message as it stands in the stream, gzipped where asked (announce it as ``grpc-encoding: gzip`` then)."""
    if compressed:
        message = gzip.compress(message, 1, mtime=0)
    return _PREFIX.pack(compressed, len(message)) + message


class GrpcFrames:
    """Feed it a stream's bytes in pieces of any size; each call returns the messages that the piece completed.

    *encoding*: the answer's ``grpc-encoding``; *limit_bytes*: of one message, unpacked. After an error nothing more
    is found.
    """

    __slots__ = ("_broken", "_encoding", "_held", "_limit", "_size")

    def __init__(self, encoding: bytes = b"identity", limit_bytes: int = NO_LIMIT) -> None:
        self._encoding, self._limit = encoding.lower(), limit_bytes
        self._held: list[bytes] = []
        self._size = 0
        self._broken = False

    @property
    def pending(self) -> bool:
        """Whether a part of a message is held: at the stream's end it was cut off."""
        return self._size > 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Raises MessageTooLargeError, and ValueError for what cannot be unpacked."""
        if self._broken:
            return []
        if self._held:
            self._held.append(piece)
            self._size += len(piece)
            if self._size < self._wanted():
                return []
            piece = b"".join(self._held)
            self._held.clear()
        found: list[bytes] = []
        try:
            rest = self._split(piece, found)
        except ValueError as error:
            self._broken = True
            if isinstance(error, MessageTooLargeError):
                error.before = found
            raise
        self._size = len(rest)
        if rest:
            self._held.append(rest)
        return found

    def _split(self, piece: bytes, found: list[bytes]) -> bytes:
        """Put whole messages into *found*; what is left."""
        at, size = 0, len(piece)
        while size - at >= PREFIX_BYTES:
            flag, length = _PREFIX.unpack_from(piece, at)
            if length > self._limit:
                raise MessageTooLargeError(length, self._limit)
            end = at + PREFIX_BYTES + length
            if end > size:
                break
            message = piece[at + PREFIX_BYTES : end]
            found.append(self._unpacked(message) if flag else message)
            at = end
        return piece[at:]

    def _wanted(self) -> int:
        """How many bytes must be held before the first message can be whole; joins the prefix when it is split."""
        if len(self._held[0]) < PREFIX_BYTES:
            self._held = [b"".join(self._held)]
        if len(self._held[0]) < PREFIX_BYTES:
            return PREFIX_BYTES
        length: int = _PREFIX.unpack_from(self._held[0])[1]
        return PREFIX_BYTES + (length if length <= self._limit else 0)

    def _unpacked(self, message: bytes) -> bytes:
        if self._encoding not in (b"gzip", b"deflate"):
            raise ValueError(f"a compressed message in encoding {self._encoding.decode('latin-1')!r}")
        unpacker = zlib.decompressobj(wbits=DETECT)
        try:
            out = unpacker.decompress(message, self._limit + 1)
        except zlib.error as error:
            raise ValueError(f"broken compression: {error}") from None
        if len(out) > self._limit:
            raise MessageTooLargeError(len(out), self._limit)
        return out
