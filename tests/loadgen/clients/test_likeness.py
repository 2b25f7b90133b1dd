"""Chunks read by likeness are read as the parser reads them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.clients.likeness import likeness_of
from loadgen.clients.openai import AnswerReader, chat_carrier, completion_carrier
from loadgen.record import Outcome, Record, record_to_json

Stream = list[tuple[int, bytes]]


def chunk(text: str | None, use: int | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None, **more}
    fields: dict[str, Any] = {"id": "c-1", "created": 1700000000, "model": "m7", "choices": [choice]}
    if use is not None:
        fields["usage"] = {"prompt_tokens": 9, "total_tokens": 9 + use, "completion_tokens": use}
    return b"data: " + orjson.dumps(fields) + b"\n\n"


def read(stream: Stream, *, by_bytes: bool, keep_text: bool = True) -> tuple[dict[str, Any], str]:
    reader = AnswerReader(chat_carrier, keep_text=keep_text)
    for stamp, piece in stream:
        for part in [piece[i : i + 1] for i in range(len(piece))] if by_bytes else [piece]:
            reader.feed(stamp, part)
    record = Record("r", 0, Outcome.NOT_SENT, 0)
    reader.settle(record, ended_whole=True)
    return record_to_json(record), reader.text


words = st.one_of(
    st.text(min_size=0, max_size=6),
    st.sampled_from([" the", " é", '"', "\\", "\n", "12", "null", "}", "data: ", "m7"]),
)
odd = st.sampled_from(
    [
        b": ping\n\n",
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7}}\n\n',
        b'data: {"error":{"message":"gone"}}\n\n',
        b"data: no json\n\n",
        b"data: [DONE]\n\n",
        b'data: {"id":"c-1","created":1700000000,"model":"m7","choices":[{"index":0,"delta":{"content":" a\xff"},'
        b'"logprobs":null,"finish_reason":null}]}\n\n',
        chunk(None, finish_reason="stop"),
        chunk(" x", finish_reason="length"),
        chunk(" x", delta={"role": "assistant", "content": ""}),
        chunk(" x", delta={"reasoning": "hm"}),
        chunk(" x").replace(b'"m7"', b'"m8"'),
        chunk(" x").replace(b"\n\n", b"\r\n\r\n"),
    ]
)
usual = st.builds(chunk, words)
counted = st.builds(chunk, words, st.integers(0, 40))


@given(st.lists(st.one_of(usual, usual, counted, odd), max_size=14), st.booleans())
def test_an_answer_reads_the_same_by_events_and_by_single_bytes(pieces: list[bytes], keep: bool) -> None:
    stream = [(100 * (k + 1), piece) for k, piece in enumerate(pieces)]
    assert read(stream, by_bytes=False, keep_text=keep) == read(stream, by_bytes=True, keep_text=keep)


@given(st.lists(st.tuples(st.sampled_from([" a", " bb", " 7"]), st.integers(1, 3)), min_size=4, max_size=20))
def test_continuous_counts_are_taken_by_likeness_too(said: list[tuple[str, int]]) -> None:
    stream, total = [], 0
    for k, (text, tokens) in enumerate(said):
        total += tokens
        stream.append((100 * k, chunk(text, total)))
    record, text = read(stream, by_bytes=False)
    assert record["chunk_tokens"] == [tokens for _, tokens in said]
    assert (record["n_output"], text) == (total, "".join(text for text, _ in said))


def test_most_chunks_of_an_answer_fit_the_pattern_of_one_of_them() -> None:
    events = [chunk(f" w{k}", k) for k in range(1, 50)]
    found = likeness_of(events[0], " w1", {"completion_tokens": 1})
    assert found is not None
    for k, event in enumerate(events[1:], start=2):
        fits = found.tail.fullmatch(event, len(found.head))
        assert event.startswith(found.head)
        assert fits is not None
        assert (fits[1], fits[2]) == (b" w%d" % k, b"%d" % k)


@pytest.mark.parametrize(
    "other",
    [
        chunk(" w", 2, finish_reason="stop"),
        chunk(" w", 2).replace(b'"prompt_tokens":9', b'"prompt_tokens":8'),
        chunk('"', 2),
        chunk("", 2),
        chunk(" w"),
        chunk(" w", 2) + chunk(" w", 3),
    ],
)
def test_what_says_anything_else_does_not_fit(other: bytes) -> None:
    found = likeness_of(chunk(" v", 1), " v", {"completion_tokens": 1})
    assert found is not None
    assert not (other.startswith(found.head) and found.tail.fullmatch(other, len(found.head)))


def test_a_text_that_occurs_twice_gives_no_pattern() -> None:
    assert likeness_of(chunk("m7"), "m7", None) is None
    assert likeness_of(b'data: {"a":["x"]}\n\n', "x", None) is None


def test_a_completions_answer_is_read_by_likeness() -> None:
    event = b'data: {"choices":[{"index":0,"text":" %s","finish_reason":null}],"mono_ns":%d}\n\n'
    reader, record = AnswerReader(completion_carrier, keep_text=True), Record("r", 0, Outcome.NOT_SENT, 0)
    for k in range(5):
        reader.feed(10 * k, event % (b"abc"[k % 3 : k % 3 + 1], k))
    reader.settle(record, ended_whole=False)
    assert (reader.text, record.n_output, record.chunk_ns) == (" a b c a b", 5, [10] * 4)
