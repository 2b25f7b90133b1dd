"""Header blocks that are sent: HPACK literals without table and without Huffman code (RFC 7541, 6.2.2 and 6.2.3).

Such a block depends on nothing that was sent before, so that requests can be encoded ahead of their instant, and a
prompt of 100 KB in a header costs a copy and not a hundred milliseconds of Huffman coding in the loop.
"""

from __future__ import annotations

from collections.abc import Iterable

Field = tuple[bytes, bytes]

INDEXED = {
    (b":method", b"GET"): b"\x82",
    (b":method", b"POST"): b"\x83",
    (b":scheme", b"http"): b"\x86",
    (b":scheme", b"https"): b"\x87",
}
"""Whole fields of the static table (appendix A)."""

SECRET = frozenset({b"authorization", b"proxy-authorization", b"cookie", b"x-api-key", b"api-key"})
"""Sent as never indexed: a hop may not put them into its own table."""

TABLE_SIZE_ZERO = b"\x20"
"""Begins the first block after the peer has lowered its table size: the sender has to say that it follows."""


def encode_fields(fields: Iterable[Field]) -> bytes:
    """A block, or a part of one: parts may be joined. Names must be lower case already."""
    return b"".join([INDEXED.get(field) or _literal(*field) for field in fields])


def _literal(name: bytes, value: bytes) -> bytes:
    mark = b"\x10" if name in SECRET else b"\x00"
    return b"".join((mark, _length(len(name)), name, _length(len(value)), value))


def _length(count: int) -> bytes:
    """A string's length as a 7-bit prefixed integer (RFC 7541, 5.1), Huffman bit unset."""
    if count < 127:
        return bytes((count,))
    out, count = bytearray((127,)), count - 127
    while count >= 128:
        out.append(count % 128 + 128)
        count //= 128
    out.append(count)
    return bytes(out)


def list_size(fields: Iterable[Field]) -> int:
    """Bytes of a header list as peers count them against their limits: 32 a field beside its text (RFC 9113, 6.5.2)."""
    return sum(len(name) + len(value) + 32 for name, value in fields)
