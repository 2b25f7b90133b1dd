"""gRPC's ends as outcomes: status codes, resets, and refusals for size with the hop and the limit they name.

Codes are those of gRPC's "statuscodes"; an answer without a status is judged by HTTP's, as gRPC clients do.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from loadgen.net.stream import StreamRequest
from loadgen.record import Outcome
from loadgen.wire.http2 import COMPRESSION_ERROR, INTERNAL_ERROR, PROTOCOL_ERROR

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED = 0, 1, 2, 3, 4
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 8, 12, 13, 14, 16
NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip

OUTCOMES = {
    DEADLINE_EXCEEDED: Outcome.TIMEOUT,
    RESOURCE_EXHAUSTED: Outcome.REJECTED,
    UNAVAILABLE: Outcome.REJECTED,
}
"""Every other code but OK is a status_error. UNAVAILABLE is gRPC's 503."""

MESSAGE_LIMIT_CHARS = 500


class SizeRefusal(NamedTuple):
    """What a hop refused for its size: who, what of, and the limit in bytes where it says so."""

    hop: str
    what: str
    limit_bytes: int | None

    @property
    def words(self) -> str:
        """As it stands in a record's error."""
        limit = f"{self.limit_bytes} bytes" if self.limit_bytes is not None else "not told"
        return f"[hop: {self.hop}; limit of {self.what}: {limit}]"


SIZE_WORDS = (
    (r"metadata size exceeds soft limit \((?:value length )?\d+ vs\. (\d+)\)", "gRPC core server", "metadata (soft)"),
    (r"metadata size exceeds hard limit \((?:value length )?\d+ vs\. (\d+)\)", "gRPC core server", "metadata (hard)"),
    (r"[Rr]eceived message larger than max \(\d+ vs\.? (\d+)\)", "gRPC server", "a message"),
    (r"CLIENT: Received message larger than max", "gRPC proxy's client side", "a message"),
    (r"[Ss]ent message larger than max \(\d+ vs\.? (\d+)\)", "gRPC server", "its own answer's message"),
    (r"exceeds maximum size (\d+): \d+", "gRPC Java server", "a message"),
    (r"message length too large: found \d+ bytes, the limit is: (\d+)", "tonic server", "a message"),
)  # fmt: skip
"""Refusals in servers' own words; the first group is the limit. Sources: the servers' code and recordings."""

ENVOY_LIST_BYTES, ENVOY_FIELDS, NGHTTP2_VALUE_BYTES = 60 * 1024, 100, 65_536
"""Envoy's defaults of max_request_headers_kb and max_headers_count, and nghttp2's bound of one value."""


def status_name(code: int) -> str:
    """The code in gRPC's word."""
    return NAMES[code] if 0 <= code < len(NAMES) else f"status {code}"


def status_of(fields: list[tuple[bytes, bytes]]) -> tuple[int | None, str]:
    """(code, message) of a trailer block; the code is None where it has none."""
    code: int | None = None
    message = ""
    for name, value in fields:
        if name == b"grpc-status":
            code = int(value) if value.isdigit() else UNKNOWN
        elif name == b"grpc-message":
            message = unquote_to_bytes(value).decode(errors="replace")[:MESSAGE_LIMIT_CHARS]
    return code, message


def refusal_of(code: int, message: str) -> SizeRefusal | None:
    """The size refusal that a status tells of, in whatever words."""
    if code not in (RESOURCE_EXHAUSTED, INTERNAL, INVALID_ARGUMENT, UNAVAILABLE):
        return None
    for pattern, hop, what in SIZE_WORDS:
        if (found := re.search(pattern, message)) is not None:
            return SizeRefusal(hop, what, int(found.group(1)) if found.groups() else None)
    return None


def refusal_by_silence(request: StreamRequest, code: int) -> SizeRefusal | None:
    """Why a request without an answer was reset or its connection given up with *code*, as its own size explains it.

    Proxies say no more than an error code; that it was for size is inferred, and the hop's name says so.
    """
    if code == COMPRESSION_ERROR and request.largest_value_bytes > NGHTTP2_VALUE_BYTES:
        return SizeRefusal("a proxy with nghttp2 (inferred)", "one metadata value", NGHTTP2_VALUE_BYTES)
    if code not in (INTERNAL_ERROR, PROTOCOL_ERROR):
        return None
    if request.list_bytes > ENVOY_LIST_BYTES:
        return SizeRefusal("a proxy such as Envoy (inferred)", "all metadata", ENVOY_LIST_BYTES)
    if request.list_fields > ENVOY_FIELDS:
        hop = f"a proxy such as Envoy (inferred: {request.list_fields} fields, by default at most {ENVOY_FIELDS})"
        return SizeRefusal(hop, "the number of metadata fields", None)
    return None
