"""What an exchange makes of an answer's head and of a compressed body."""

from __future__ import annotations

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.net import exchange as module
from loadgen.net.exchange import LONG_PIECES, Ending, Exchange
from loadgen.record import ClockSource, Outcome, Record

KERNEL, LOOP = ClockSource.KERNEL, ClockSource.LOOP


def exchange(*headers: tuple[bytes, bytes]) -> Exchange:
    record = Record(id="r-0", index=0, outcome=Outcome.NOT_SENT, due_ns=0, clock=KERNEL)
    made = Exchange(record, b"", lambda ended: None)
    for name, value in headers:
        made.header(name, value)
    return made


def decoded(one: Exchange) -> bytes:
    return b"".join(data for _, data in one.take_pieces())


PACKERS = {
    b"gzip": gzip.compress,
    b"x-gzip": gzip.compress,
    b"deflate": zlib.compress,
    b"GZIP": lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:]),
}


@given(st.binary(max_size=300), st.sampled_from(sorted(PACKERS)), st.lists(st.integers(0, 400), max_size=5))
def test_a_compressed_body_unfolds_the_same_however_it_is_cut(
    body: bytes, name: bytes, cuts: list[int]
) -> None:
    wire = PACKERS[name](body)
    one = exchange((b"Content-Encoding", name))
    edges = sorted({0, len(wire), *(min(cut, len(wire)) for cut in cuts)})
    for k, (start, end) in enumerate(pairwise(edges)):
        one.body(k, wire[start:end], KERNEL)
    assert decoded(one) == body


def test_identity_is_no_encoding_and_another_is_an_error_that_names_it() -> None:
    one = exchange((b"content-encoding", b"identity"))
    one.body(1, b"x", KERNEL)
    assert decoded(one) == b"x"
    for name in (b"br", b"zstd", b"gzip, br"):
        with pytest.raises(ValueError, match=f"content-encoding {name.decode()}"):
            exchange((b"content-encoding", name)).take_pieces()


def test_a_body_that_unfolds_beyond_the_cap_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DECODED_BYTES", 1000)
    for body, fits in ((b"x" * 1000, True), (b"x" * 1001, False), (b"x" * 10_000_000, False)):
        one = exchange((b"content-encoding", b"gzip"))
        one.body(1, gzip.compress(body[: len(body) // 2]) + gzip.compress(body[len(body) // 2 :]), KERNEL)
        if fits:
            assert decoded(one) == body
        else:
            with pytest.raises(ValueError, match="unfolds beyond"):
                one.take_pieces()


def test_bytes_that_are_not_compressed_are_an_error() -> None:
    one = exchange((b"content-encoding", b"gzip"))
    one.body(1, b"data: plain\n\n", KERNEL)
    with pytest.raises(ValueError, match="broken compression"):
        one.take_pieces()


@pytest.mark.parametrize(
    ("value", "is_stream"),
    [(b"text/event-stream", True), (b"Text/Event-Stream; charset=utf-8", True), (b"application/json", False)],
)
def test_the_content_type_says_whether_it_is_a_stream(value: bytes, is_stream: bool) -> None:
    assert exchange((b"Content-Type", value)).is_event_stream is is_stream


def test_pieces_are_taken_once_with_their_instants() -> None:
    one = exchange()
    one.body(3, b"a", KERNEL)
    one.body(5, b"b", KERNEL)
    assert one.take_pieces() == [(3, b"a"), (5, b"b")]
    assert one.take_pieces() == []


def test_one_piece_by_the_loops_clock_makes_the_records_clock_the_loop() -> None:
    one = exchange()
    one.body(1, b"a", KERNEL)
    assert one.record.clock is KERNEL
    one.body(2, b"a", LOOP)
    one.body(3, b"a", KERNEL)
    assert one.record.clock is LOOP


def test_a_long_answer_asks_to_be_read_away_each_time_it_has_grown_long() -> None:
    asked: list[Exchange] = []
    one = exchange()
    one.on_long = asked.append
    for _ in range(2):
        for k in range(LONG_PIECES):
            one.body(k, b"a", KERNEL)
        one.take_pieces()
    assert asked == [one, one]


def test_it_ends_once() -> None:
    ended: list[Exchange] = []
    record = Record(id="r-0", index=0, outcome=Outcome.NOT_SENT, due_ns=0)
    one = Exchange(record, b"", ended.append)
    one.end(Ending.FAILED, 9, Outcome.TIMEOUT, "late")
    one.end(Ending.WHOLE, 12)
    assert (ended, record.done_ns, record.outcome, record.error) == ([one], 9, Outcome.TIMEOUT, "late")


def test_a_cut_leaves_the_outcome_to_the_answer_and_says_how_in_the_note() -> None:
    one = exchange()
    one.end(Ending.CUT, 9, None, "connection reset by peer")
    record = one.record
    assert (record.outcome, record.error, record.note) == (Outcome.NOT_SENT, None, "connection reset by peer")


def test_headers_are_kept_in_the_record_only_where_asked_for() -> None:
    one = exchange((b"X-Served-By", b"a"), (b"x-other", b"b"))
    assert one.record.answer_headers is None
    one.keep_headers = frozenset({b"x-served-by"})
    for name, value in ((b"X-Served-By", b"a"), (b"x-other", b"b")):
        one.header(name, value)
    assert one.record.answer_headers == {"x-served-by": "a"}


def test_the_first_byte_of_the_body_is_stamped_where_headers_are_kept() -> None:
    one, other = exchange(), exchange()
    one.keep_headers = frozenset({b"x-served-by"})
    for made in (one, other):
        made.body(7, b"a", KERNEL)
        made.body(9, b"b", KERNEL)
    assert (one.record.body_ns, other.record.body_ns) == (7, None)
