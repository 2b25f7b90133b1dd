"""Every end that a gRPC stream can take, through real sockets against a server that speaks through another library."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.wire.grpc_frames import message_frame
from loadgen.wire.http2 import (
    ENHANCE_YOUR_CALM,
    INTERNAL_ERROR,
    REFUSED_STREAM,
)
from tests.loadgen.net.drive import driven
from tests.loadgen.net.h2_server import (
    Conduct,
    Stream,
    after_chunks,
    chunk,
    complete,
    h2_server,
    paced,
    trailers_only,
)

Row = dict[str, Any]

CONDUCTS: dict[str, Conduct] = {}
EXPECTED: dict[str, Row] = {}
OK4 = {
    "outcome": "ok", "status": 0, "n_output": 4, "n_output_source": "usage", "finish_reason": "length", "error": None,
}  # fmt: skip


def case(name: str, conduct: Conduct, expected: Row) -> None:
    CONDUCTS[name], EXPECTED[name] = conduct, expected


def byte_by_byte(stream: Stream) -> None:
    stream.head()
    stream.raw(b"".join(map(message_frame, (chunk(1), chunk(2, 3), chunk(4), complete("length", 4)))), size=1)
    stream.trailers()


def in_one_frame(stream: Stream) -> None:
    stream.head()
    stream.raw(b"".join(map(message_frame, (chunk(1), chunk(2, 3), chunk(4), complete("length", 4)))))
    stream.trailers()


def whole_in_the_last(stream: Stream) -> None:
    stream.head()
    stream.say(complete("stop", 1, 2, 3, 4, 5))
    stream.trailers()


def gzipped(stream: Stream) -> None:
    stream.head(("grpc-encoding", "gzip"))
    for message in (chunk(1), chunk(2), chunk(3), chunk(4), complete("length", 4)):
        stream.raw(message_frame(message, compressed=True))
    stream.trailers()


def http_status(status: str, body: bytes) -> Conduct:
    def conduct(stream: Stream) -> None:
        fields = [(":status", status), ("content-type", "text/plain")]
        stream.line.do(lambda h2c: h2c.send_headers(stream.id, fields))
        stream.line.do(lambda h2c: h2c.send_data(stream.id, body, end_stream=True))

    return conduct


def interim(stream: Stream) -> None:
    stream.line.do(lambda h2c: h2c.send_headers(stream.id, [(":status", "103"), ("x", "y")]))
    stream.answer()


case("plain", Stream.answer, OK4)
case("paced", paced, {**OK4, "chunk_tokens": [1, 1, 1, 1]})
case("byte by byte", byte_by_byte, {**OK4, "chunk_tokens": [1, 2, 1]})
case("in one frame", in_one_frame, {**OK4, "chunk_tokens": [1, 2, 1], "chunk_ns": [0, 0]})
case("gzipped", gzipped, OK4)
case("an interim head", interim, OK4)
case(
    "answer in the last message", whole_in_the_last, {"outcome": "ok", "n_output": 5, "finish_reason": "stop"}
)
case(
    "trailers only",
    trailers_only(5, "no%20such%20model"),
    {"outcome": "status_error", "status": 5, "error": "NOT_FOUND no such model", "first_ns": None},
)
case("unavailable", trailers_only(14, "try later"), {"outcome": "rejected", "status": 14})
case(
    "exhausted",
    trailers_only(8, "queue full"),
    {"outcome": "rejected", "status": 8, "error": "RESOURCE_EXHAUSTED queue full"},
)
case("deadline at the server", trailers_only(4, "Deadline Exceeded"), {"outcome": "timeout", "status": 4})
case(
    "metadata beyond the soft limit",
    trailers_only(8, "received metadata size exceeds soft limit (12604 vs. 8192)"),
    {
        "outcome": "too_large",
        "error": "RESOURCE_EXHAUSTED received metadata size exceeds soft limit (12604 vs. 8192) "
        "[hop: gRPC core server; limit of metadata (soft): 8192 bytes]",
    },
)
case(
    "metadata beyond the hard limit",
    trailers_only(8, "received metadata size exceeds hard limit (value length 142000 vs. 16384)"),
    {"outcome": "too_large", "hop": "gRPC core server; limit of metadata (hard): 16384 bytes"},
)
case(
    "message too large for the server",
    trailers_only(8, "Received message larger than max (5000000 vs. 4194304)"),
    {"outcome": "too_large", "hop": "gRPC server; limit of a message: 4194304 bytes"},
)
case(
    "error after tokens",
    after_chunks(lambda s: s.trailers(13, "engine died")),
    {"outcome": "status_error", "status": 13, "error": "INTERNAL engine died", "chunks": 2, "n_output": 2},
)
case(
    "in-band error",
    after_chunks(lambda s: (s.say(complete("error")), s.trailers())[0]),
    {"outcome": "error_in_stream", "error": "finish_reason 'error'", "chunks": 2},
)
case(
    "no final message",
    after_chunks(lambda s: s.trailers()),
    {"outcome": "truncated", "error": "status OK without the message that ends an answer", "chunks": 2},
)
case(
    "ended within a message",
    after_chunks(lambda s: (s.raw(b"\0\0\0\0\x09abc"), s.trailers())[0]),
    {"outcome": "truncated", "error": "ended within a message"},
)
case(
    "no protobuf",
    after_chunks(lambda s: (s.say(b"\xff\xff"), s.trailers())[0]),
    {"outcome": "error_in_stream", "chunks": 2},
)
case(
    "no grpc-status",
    after_chunks(lambda s: s.line.do(lambda h: h.send_headers(s.id, [("x", "y")], end_stream=True))),
    {"outcome": "truncated", "error": "the stream ended without a grpc-status"},
)
case(
    "ended without trailers",
    after_chunks(lambda s: s.line.do(lambda h: h.end_stream(s.id))),
    {"outcome": "truncated", "error": "the stream ended without trailers"},
)
case(
    "reset in the middle",
    after_chunks(lambda s: s.reset(INTERNAL_ERROR)),
    {"outcome": "truncated", "error": "the stream was reset (INTERNAL_ERROR)", "chunks": 2, "note": None},
)
case(
    "reset before an answer",
    lambda s: s.reset(INTERNAL_ERROR),
    {
        "outcome": "protocol",
        "error": "the stream was reset (INTERNAL_ERROR) before its answer",
        "status": None,
    },
)
case("told to calm down", lambda s: s.reset(ENHANCE_YOUR_CALM), {"outcome": "rejected"})
case("refused each time", lambda s: s.reset(REFUSED_STREAM), {"outcome": "rejected", "retries": 1})
case(
    "HTTP 503 of a proxy",
    http_status("503", b"upstream connect error"),
    {"outcome": "rejected", "status": 503, "error": "503 upstream connect error"},
)
case("HTTP 431 of a proxy", http_status("431", b""), {"outcome": "too_large", "status": 431})
case(
    "not gRPC",
    http_status("200", b"<html>"),
    {"outcome": "protocol", "error": "not gRPC: content-type 'text/plain'", "status": 200},
)


@pytest.fixture(scope="module")
def sent() -> dict[str, Row]:
    """Every case's record, all sent at once by one engine to one server; every case also in a gzipped request."""
    with h2_server(CONDUCTS) as (url, _):
        asks = [{"headers": {"x-case": name}} for name in CONDUCTS]
        rows = driven({"url": url, "requests": asks, "streams": 100})
    return dict(zip(CONDUCTS, rows, strict=True))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_stream_ends_as_the_table_says(name: str, sent: dict[str, Row]) -> None:
    row, expected = sent[name], dict(EXPECTED[name])
    chunks = 0 if row["first_ns"] is None else len(row["chunk_ns"]) + 1
    assert row["done_ns"] is not None
    assert expected.pop("chunks", chunks) == chunks
    assert expected.pop("hop", "") in (row.get("error") or "")
    assert {field: row.get(field) for field in expected} == expected


@pytest.mark.parametrize("name", EXPECTED)
def test_the_instants_of_a_stream_are_in_their_order(name: str, sent: dict[str, Row]) -> None:
    row = sent[name]
    names = ("due_ns", "taken_ns", "sent_ns", "headers_ns", "first_ns", "last_ns", "done_ns")
    instants = [row[n] for n in names if row[n] is not None]
    assert instants == sorted(instants)
    assert row["clock"] == "kernel"


def test_chunks_apart_have_instants_apart(sent: dict[str, Row]) -> None:
    assert all(gap >= 15_000_000 for gap in sent["paced"]["chunk_ns"])
    assert sent["paced"]["first_ns"] - sent["paced"]["sent_ns"] >= 20_000_000
