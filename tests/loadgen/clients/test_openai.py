"""What an answer says and when: each row of the conformance table, at every byte split."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.clients.openai import (
    AnswerReader,
    Carrier,
    chat_carrier,
    completion_carrier,
    settle_refusal,
    settle_whole,
)
from loadgen.record import Outcome, Record, record_to_json

Fields = dict[str, Any]


def sse(*chunks: object) -> bytes:
    """Chunks as events; a string goes in as it is."""
    texts = [c if isinstance(c, str) else json.dumps(c, ensure_ascii=False) for c in chunks]
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def delta(finish: str | None = None, use: int | None = None, **fields: object) -> Fields:
    """A chat chunk; *use*: its running count of completion tokens."""
    chunk: Fields = {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}
    if use is not None:
        chunk["usage"] = usage(use)
    return chunk


def usage(n_output: int, n_input: int = 9) -> Fields:
    return {"prompt_tokens": n_input, "completion_tokens": n_output, "total_tokens": n_input + n_output}


def total(n_output: int) -> Fields:
    return {"choices": [], "usage": usage(n_output)}


ROLE = delta(role="assistant", content="")
ROLE_NULL = delta(role="assistant", content=None)
DONE = "[DONE]"


def fresh() -> Record:
    return Record(id="r-0", index=0, outcome=Outcome.NOT_SENT, due_ns=0, n_output_asked=16)


def read(pieces: list[tuple[int, bytes]], carrier: Carrier = chat_carrier, *, whole: bool = True) -> Record:
    reader, record = AnswerReader(carrier), fresh()
    for stamp_ns, piece in pieces:
        reader.feed(stamp_ns, piece)
    reader.settle(record, ended_whole=whole)
    return record


def timed(*chunks: object, carrier: Carrier = chat_carrier, whole: bool = True) -> Record:
    """Chunk k is read at instant 100·(k+1)."""
    pieces = [(100 * (k + 1), sse(chunk)) for k, chunk in enumerate(chunks)]
    return read(pieces, carrier, whole=whole)


# --- rows of the table: (chunks, expected fields of the record); chunk k comes at 100·(k+1) ns --------

ROWS: dict[str, tuple[list[object], Fields]] = {
    "a role chunk before prefill has ended is no token": (
        [ROLE, delta(content="a"), delta("stop", content="b"), DONE],
        {"first_ns": 200, "last_ns": 300, "chunk_ns": [100], "n_output": 2, "outcome": "ok"},
    ),
    "nor is one with null content": (
        [ROLE_NULL, delta(content="a"), delta("stop"), DONE],
        {"first_ns": 200, "last_ns": 200, "chunk_ns": [], "n_output": 1},
    ),
    "reasoning comes first, output later": (
        [ROLE, delta(reasoning_content="r"), delta(reasoning="s"), delta(content="a"), delta("stop"), DONE],
        {"first_ns": 200, "first_output_ns": 400, "last_ns": 400, "chunk_ns": [100, 100]},
    ),
    "reasoning alone is never output": (
        [delta(reasoning_content="r"), delta("length", reasoning_content="s"), DONE],
        {"first_ns": 100, "first_output_ns": None, "finish_reason": "length", "outcome": "ok"},
    ),
    "tool calls are output": (
        [ROLE, delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]), delta("tool_calls"), DONE],
        {"first_ns": 200, "finish_reason": "tool_calls", "n_output": 1, "outcome": "ok"},
    ),
    "usage, finish, empty choices and DONE are no tokens and make no gap": (
        [ROLE, delta(content="a"), delta(content="b"), delta("stop"), {"choices": []}, total(2), DONE],
        {"first_ns": 200, "last_ns": 300, "chunk_ns": [100], "n_output": 2, "n_output_source": "usage"},
    ),
    "usage and finish_reason in one chunk": (
        [ROLE, delta(content="a"), delta("stop", use=5, content="b"), DONE],
        {"n_output": 5, "n_input": 9, "finish_reason": "stop", "chunk_tokens": None, "chunk_ns": [100]},
    ),
    "usage beside finish_reason without text": (
        [ROLE, delta(content="a"), delta("stop", use=5), DONE],
        {"n_output": 5, "chunk_ns": [], "last_ns": 200, "chunk_tokens": None},
    ),
    "several tokens in a chunk, from continuous usage": (
        [delta(use=0, role="assistant", content=""), delta(use=1, content="a"), delta(use=4, content="bcd"),
         delta("length", use=6, content="ef"), total(6), DONE],
        {"chunk_tokens": [1, 3, 2], "chunk_ns": [100, 100], "first_ns": 200, "last_ns": 400, "n_output": 6},
    ),
    "a token without visible text counts where usage is continuous": (
        [delta(use=0, role="assistant", content=""), delta(use=1, content=""), delta("stop", use=2, content="é")],
        {"first_ns": 200, "chunk_tokens": [1, 1], "n_output": 2},
    ),
    "a finish chunk that adds no token is none": (
        [delta(use=0, role="assistant"), delta(use=1, content="a"), delta("stop", use=1), total(1), DONE],
        {"first_ns": 200, "last_ns": 200, "chunk_tokens": [1], "chunk_ns": []},
    ),
    "a usage-only chunk is never a token, though it counts more than the chunks did": (
        [delta(use=0, role="assistant"), delta(use=1, content="a"), delta("stop", use=1), total(2), DONE],
        {"first_ns": 200, "last_ns": 200, "chunk_tokens": [1], "chunk_ns": [], "n_output": 2},
    ),
    "an error event after tokens": (
        [ROLE, delta(content="a"), {"error": {"message": "engine died", "code": 500}}, DONE],
        {"outcome": "error_in_stream", "error": "engine died (500)", "first_ns": 200, "last_ns": 200},
    ),
    "an error event alone": (
        [{"error": {"message": "no", "type": "BadRequestError"}}],
        {"outcome": "error_in_stream", "error": "no (BadRequestError)", "first_ns": None, "n_output": 0},
    ),
    "data that is no JSON": (
        [ROLE, delta(content="a"), "{not json", delta("stop", content="b"), DONE],
        {"outcome": "error_in_stream", "error": "not JSON: {not json", "first_ns": 200, "last_ns": 400},
    ),
    "data that is no object": (
        [ROLE, "[1]", DONE], {"outcome": "error_in_stream", "error": "not an object: [1]"}
    ),
    "the stream ends without finish_reason and DONE": (
        [ROLE, delta(content="a"), delta(content="b")],
        {"outcome": "truncated", "error": "ended without finish_reason or [DONE]", "n_output": 2},
    ),
    "finish_reason without DONE": ([delta("stop", content="a")], {"outcome": "ok", "finish_reason": "stop"}),
    "DONE without finish_reason": ([delta(content="a"), DONE], {"outcome": "ok", "finish_reason": None}),
    "fewer tokens than asked": (
        [delta("stop", content="a"), total(1), DONE], {"n_output": 1, "n_output_asked": 16, "outcome": "ok"}
    ),
    "filtered": ([delta("content_filter"), DONE], {"finish_reason": "content_filter", "first_ns": None}),
    "the server's count wins over the chunks'": (
        [delta(content="a"), delta("stop", content="b"), total(7), DONE],
        {"n_output": 7, "n_output_source": "usage"},
    ),
    "without usage the chunks are counted, and that is said": (
        [delta(content="ab cd"), delta("stop", content="b"), DONE],
        {"n_output": 2, "n_output_source": "chunks"},
    ),
    "U+2028 and U+0085 raw inside JSON": (
        [delta(content="a\u2028b\u0085c"), delta("stop"), DONE], {"outcome": "ok", "n_output": 1}
    ),
    "null usage and null choices": (
        [{**delta(content="a"), "usage": None}, {"choices": None}, delta("stop"), DONE],
        {"outcome": "ok", "n_output": 1, "n_output_source": "chunks"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_table_comes_out_as_it_says(name: str) -> None:
    chunks, expected = ROWS[name]
    row = record_to_json(timed(*chunks))
    assert {field: row.get(field) for field in expected} == expected


@pytest.mark.parametrize("name", ROWS)
def test_no_byte_split_changes_a_row_but_for_its_instants(name: str) -> None:
    body = sse(*ROWS[name][0])
    expected = read([(5, body)])
    for i in range(len(body) + 1):
        assert read([(5, body[:i]), (5, body[i:])]) == expected
    assert read([(5, body[i : i + 1]) for i in range(len(body))]) == expected


@given(
    st.sampled_from(sorted(ROWS)),
    st.lists(st.integers(0, 1200), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_any_reads_and_any_line_ends_give_the_same_record(name: str, cuts: list[int], end: str) -> None:
    body = sse(*ROWS[name][0])
    expected = read([(5, body)])
    body = body.replace(b"\n", end.encode())
    edges = sorted({0, len(body), *(min(cut, len(body)) for cut in cuts)})
    assert read([(5, body[a:b]) for a, b in pairwise(edges)]) == expected


def test_events_read_together_share_the_instant_and_show_as_a_gap_of_nothing() -> None:
    together = sse(delta(content="a"), delta(content="b"))
    record = read([(100, together), (250, sse(delta("stop", content="c"), DONE))])
    assert (record.first_ns, record.chunk_ns, record.last_ns) == (100, [0, 150], 250)


def test_an_event_has_the_instant_of_the_read_that_completed_it() -> None:
    body = sse(delta(content="a"))
    record = read([(100, body[:7]), (200, body[7:-1]), (300, body[-1:])])
    assert record.first_ns == 300


def test_a_cut_connection_is_truncated_unless_DONE_had_come() -> None:
    assert timed(delta("stop", content="a"), whole=False).outcome is Outcome.TRUNCATED
    assert timed(delta(content="a"), whole=False).error == "connection closed in mid-answer"
    assert timed(delta("stop", content="a"), DONE, whole=False).outcome is Outcome.OK


def test_a_named_error_event_is_an_error_whatever_it_holds() -> None:
    record = read([(1, b'event: error\ndata: {"message": "too long"}\n\n')])
    assert (record.outcome, record.error) == (Outcome.ERROR_IN_STREAM, "too long")


def test_completions_carry_text() -> None:
    chunks = [
        {"choices": [{"text": "", "finish_reason": None}]},
        {"choices": [{"text": "a", "finish_reason": None}]},
        {"choices": [{"text": "b", "finish_reason": "length"}]},
        DONE,
    ]
    record = timed(*chunks, carrier=completion_carrier)
    assert (record.first_ns, record.last_ns, record.n_output) == (200, 300, 2)


def test_long_answers_and_long_lines_have_no_limit() -> None:
    long = sse(delta(content="x" * 1_000_000), delta("stop", content="日" * 300_000), DONE)
    record = read([(k, long[i : i + 1460]) for k, i in enumerate(range(0, len(long), 1460))])
    assert (record.outcome, record.n_output) == (Outcome.OK, 2)
    many = sse(*[delta(content="x")] * 20_000, delta("length"), total(64_000), DONE)
    assert read([(1, many)]).n_output == 64_000


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["choices", "delta", "content", "usage", "completion_tokens", "finish_reason", "text",
                         "tool_calls", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "error", "message"]),
        inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(ANYTHING, max_size=4), st.sampled_from([chat_carrier, completion_carrier]))
def test_whatever_json_a_server_sends_ends_as_a_record_that_can_be_written(
    chunks: list[object], carrier: Carrier
) -> None:
    body = sse(*(json.dumps(chunk) for chunk in chunks), DONE)
    orjson.dumps(record_to_json(read([(1, body)], carrier)))


@given(ANYTHING, st.sampled_from([chat_carrier, completion_carrier]), st.sampled_from([400, 429, 503, 413]))
def test_whatever_body_comes_whole_ends_as_a_record_that_can_be_written(
    body: object, carrier: Carrier, status: int
) -> None:
    whole, refused = fresh(), fresh()
    settle_whole(whole, json.dumps(body).encode(), 5, carrier)
    settle_refusal(refused, status, json.dumps(body).encode(), {})
    assert Outcome.NOT_SENT not in (whole.outcome, refused.outcome)
    orjson.dumps([record_to_json(whole), record_to_json(refused)])


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [None]},
        {"choices": "x"},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {}}], "usage": 3},
    ],
)
def test_a_chunk_of_a_wrong_shape_is_a_failed_request_with_its_text(chunk: Fields) -> None:
    record = timed(delta(content="a"), chunk, delta("stop", content="b"), DONE)
    assert record.outcome is Outcome.ERROR_IN_STREAM
    assert "not a chunk" in str(record.error)
    assert (record.first_ns, record.last_ns) == (100, 300)


def test_a_json_answer_to_a_streaming_request_is_kept_with_its_only_instant() -> None:
    body = {"choices": [{"message": {"content": "hi there"}, "finish_reason": "stop"}], "usage": usage(3)}
    record = fresh()
    assert settle_whole(record, json.dumps(body).encode(), 700, chat_carrier) == "hi there"
    assert (record.outcome, record.first_ns, record.last_ns, record.n_output) == (Outcome.OK, 700, 700, 3)
    assert "not streamed" in str(record.note)


@pytest.mark.parametrize(
    ("status", "body", "hints", "outcome", "words"),
    [
        (429, b'{"error":{"message":"slow down","code":429}}', {"retry-after": "2"}, "rejected",
         "429 slow down (429) [retry-after: 2]"),
        (503, b"upstream connect error", {}, "rejected", "503 upstream connect error"),
        (413, b"", {}, "too_large", "413"),
        (431, b"", {}, "too_large", "431"),
        (404, b'{"error":{"message":"no such model","type":"NotFoundError"}}', {}, "status_error",
         "404 no such model (NotFoundError)"),
        (422, b'{"detail":"bad field"}', {}, "status_error", "422 bad field"),
        (500, b'{"error":"boom"}', {}, "status_error", "500 boom"),
        (500, b"\xff\xfe", {}, "status_error", "500 \ufffd\ufffd"),
        (307, b"", {"location": "http://x/"}, "status_error",
         "307  [location: http://x/] (redirects are not followed: they would carry the key elsewhere)"),
    ],
)  # fmt: skip
def test_a_refusal_keeps_the_endpoints_words(
    status: int, body: bytes, hints: dict[str, str], outcome: str, words: str
) -> None:
    record = fresh()
    settle_refusal(record, status, body, hints)
    assert (record.outcome, record.error) == (outcome, words)
