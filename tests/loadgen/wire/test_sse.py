"""Server-sent events: the standard's grammar, at every byte split."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.wire.sse import BOM, SseEvent, SseParser


def message(*data: str) -> list[SseEvent]:
    return [SseEvent(text.encode()) for text in data]


CASES: dict[str, tuple[bytes, list[SseEvent]]] = {
    "line feeds": (b"data: a\n\ndata: b\n\n", message("a", "b")),
    "carriage return and line feed": (b"data: a\r\n\r\ndata: b\r\n\r\n", message("a", "b")),
    "carriage returns": (b"data: a\r\rdata: b\r\r", message("a", "b")),
    "line ends mixed": (b"data: a\r\n\ndata: b\n\rdata: c\r\r\n", message("a", "b", "c")),
    "no space": (b"data:a\n\ndata:{}\n\n", message("a", "{}")),
    "only one space is dropped": (b"data:  a\n\n", message(" a")),
    "data of several lines": (b"data: {\ndata: }\n\n", message("{\n}")),
    "data of an empty line": (b"data\n\n", message("")),
    "byte order mark": (BOM + b"data: a\n\n", message("a")),
    "a byte order mark only at the start": (b"data: a\n\n" + BOM + b"data: b\n\n", message("a")),
    "id, event and retry": (
        b"id: 7\nevent: ping\nretry: 10\ndata: a\n\ndata: b\n\n",
        [SseEvent(b"a", b"ping"), SseEvent(b"b")],
    ),
    "an event name without data": (b"event: gone\n\ndata: a\n\n", message("a")),
    "comments": (b": ping\n\n:\n\ndata: a\n: within\ndata: b\n\n", message("a\nb")),
    "raw U+2028 and U+0085": ("data: a\u2028b\u0085c\n\n".encode(), message("a\u2028b\u0085c")),
    "unicode": ("data: 日本語 🙂\n\n".encode(), message("日本語 🙂")),
    "unknown fields": (b"datax: a\nfoo\ndata: b\n\n", message("b")),
    "an unfinished event is dropped": (b"data: a\n\ndata: b\n", message("a")),
    "a long quick stream": (b"data: x\n\n" * 50, message(*"x" * 50)),
}


def parse(*reads: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for read in reads for event in parser.feed(read)]


@pytest.mark.parametrize("name", CASES)
def test_the_standards_grammar_holds_at_every_split(name: str) -> None:
    body, expected = CASES[name]
    assert parse(body) == expected
    for i in range(len(body) + 1):
        assert parse(body[:i], body[i:]) == expected, (body[:i], body[i:])
    assert parse(*(body[i : i + 1] for i in range(len(body)))) == expected
    assert parse(*(body[i : i + 3] for i in range(0, len(body), 3))) == expected


def by_the_book(body: bytes) -> list[SseEvent]:
    """The standard's algorithm over the whole stream, written for clearness."""
    found, data, kind = [], [], b""
    for line in re.split(rb"\r\n|\n|\r", body.removeprefix(BOM))[:-1]:
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if not line:
            if data:
                found.append(SseEvent(b"\n".join(data), kind or b"message"))
            data, kind = [], b""
        elif name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value
    return found


PARTS = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"data: ",
        b"data:",
        b"data",
        b"event: e",
        b": c",
        b"x",
        BOM,
        b" ",
        "é".encode(),
    ]
)


@given(st.lists(PARTS, max_size=30), st.lists(st.integers(0, 60), max_size=8))
def test_any_stream_in_any_reads_gives_the_standards_events(parts: list[bytes], cuts: list[int]) -> None:
    body = b"".join(parts)
    edges = sorted({0, len(body), *(min(cut, len(body)) for cut in cuts)})
    reads = [body[a:b] for a, b in pairwise(edges)]
    assert parse(*reads) == by_the_book(body)


def test_a_line_of_a_megabyte_in_small_reads_costs_no_more_than_its_bytes() -> None:
    """Held pieces are joined once: the parser keeps references to them, never a growing copy."""
    body = b"data: " + b"x" * 1_000_000 + b"\n\n"
    assert parse(*(body[i : i + 1460] for i in range(0, len(body), 1460))) == [SseEvent(b"x" * 1_000_000)]


def test_what_is_held_at_the_end_is_said() -> None:
    parser = SseParser()
    assert not parser.pending
    parser.feed(b"data: a\n")
    assert parser.pending
    parser.feed(b"\n")
    assert not parser.pending
