"""The conformance table through real sockets: each row, however the endpoint cuts its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.loadgen.net.drive import driven
from tests.loadgen.simulator.server import simulator

Fields = dict[str, Any]
EARLY = {"role": "early", "first_ms": 30}


def at(fault: str, **arguments: object) -> Fields:
    return {"name": fault, **arguments}


OK4 = {"outcome": "ok", "n_output": 4, "finish_reason": "length", "chunks": 4}

ROWS: dict[str, tuple[Fields, Fields]] = {
    "plain": ({}, {**OK4, "n_output_source": "usage", "status": 200, "note": None}),
    "role before prefill has ended": (EARLY, {**OK4, "ttft_at_least_ms": 30}),
    "no role": ({"role": "none"}, OK4),
    "reasoning first": ({"reasoning": 2, "itl_ms": 10}, {**OK4, "first_output_later": True}),
    "reasoning by its other name": ({"reasoning": 4, "reasoning_field": "reasoning"}, OK4),
    "tool calls": ({"tool_call": 4, "finish_reason": "tool_calls"}, {**OK4, "finish_reason": "tool_calls"}),
    "finish in its own chunk": ({"finish": "own"}, OK4),
    "usage in the finish chunk": ({"usage": "in_finish", "finish": "own"}, OK4),
    "usage with the last text": ({"usage": "in_finish"}, {**OK4, "chunk_tokens": None}),
    "no usage": (
        {"faults": ["no_usage"]},
        {**OK4, "n_output_source": {"final": "chunks", "continuous": "usage"}},
    ),
    "no DONE": ({"faults": ["no_done"]}, OK4),
    "neither finish nor DONE": (
        {"faults": [at("no_finish", at=2)]},
        {"outcome": "truncated", "error": "ended without finish_reason or [DONE]", "chunks": 2},
    ),
    "content filter": ({"finish_reason": "content_filter"}, {**OK4, "finish_reason": "content_filter"}),
    "fewer tokens than asked": ({"tokens": 2, "finish_reason": "stop"}, {"n_output": 2, "n_output_asked": 4}),
    "several tokens in a chunk": ({"tokens_per_chunk": 2}, {**OK4, "chunks": 2}),
    "unicode and odd line separators": ({"texts": ["a\u2028b", "\u0085", "日本", "🙂"]}, OK4),
    "carriage return and line feed": ({"faults": ["crlf"]}, OK4),
    "carriage returns": ({"faults": ["cr"]}, OK4),
    "no space": ({"faults": ["no_space"]}, OK4),
    "byte order mark": ({"faults": ["bom"]}, OK4),
    "data of several lines": ({"faults": ["multi_line"]}, OK4),
    "id, event and retry": ({"faults": ["fields"]}, OK4),
    "comments": ({"faults": ["comments"], "itl_ms": 2}, OK4),
    "gzip": ({"faults": ["gzip"]}, OK4),
    "delimited by the close": ({"faults": ["close_delimited"]}, OK4),
    "content-length": ({"faults": ["content_length"]}, OK4),
    "connection: close": ({"faults": ["connection_close"]}, OK4),
    "an interim answer": ({"faults": ["interim"]}, {**OK4, "status": 200}),
    "two interim answers": ({"faults": [at("interim", code=102), "interim"]}, {**OK4, "status": 200}),
    "slow headers": ({"faults": [at("slow_headers", s=0.03, parts=3)]}, OK4),
    "an error event": (
        {"faults": [at("error_event", at=2, message="boom", code=500)]},
        {"outcome": "error_in_stream", "error": "boom (500)", "chunks": 2, "status": 200},
    ),
    "an error event alone": (
        {"faults": [at("error_only", message="no")]},
        {"outcome": "error_in_stream", "chunks": 0, "first_ns": None},
    ),
    "no JSON": (
        {"faults": [at("bad_json", at=1)]},
        {"outcome": "error_in_stream", "error": "not JSON: {not json"},
    ),
    "closed in the middle": (
        {"faults": [at("drop", at=2)]},
        {"outcome": "truncated", "chunks": 2, "note": "the server closed the connection"},
    ),
    "reset in the middle": (
        {"faults": [at("rst", at=2)], "first_ms": 5, "itl_ms": 5},
        {"outcome": "truncated", "note": "connection reset by peer"},
    ),
    "closed without a byte": (
        {"faults": [at("hang", s=0.02)]},
        {
            "outcome": "protocol",
            "error": "the server closed the connection before its answer",
            "status": None,
        },
    ),
    "a JSON answer": ({"faults": ["json_answer"]}, {"outcome": "ok", "n_output": 4, "chunks": 1}),
    "429": (
        {"faults": [at("status", code=429, retry_after=2, message="slow down")]},
        {"outcome": "rejected", "status": 429, "error": "429 slow down (429) [retry-after: 2]", "chunks": 0},
    ),
    "503 in plain text": (
        {"faults": [at("status", code=503, plain=True, message="busy")]},
        {"outcome": "rejected", "status": 503, "error": "503 busy"},
    ),
    "413": ({"faults": [at("status", code=413)]}, {"outcome": "too_large", "status": 413}),
    "404": ({"faults": [at("status", code=404, message="no model")]}, {"outcome": "status_error"}),
    "a redirect": ({"faults": ["redirect"]}, {"outcome": "status_error", "status": 307}),
}

CUTS: dict[str, list[str | Fields]] = {
    "as it comes": [],
    "byte by byte": ["split"],
    "odd pieces": ["split_odd"],
    "HTTP chunks across events": [at("misalign", shift=7)],
    "all at once": [at("coalesce", n=1000)],
}
USAGES = {
    "final": {"include_usage": True},
    "continuous": {"include_usage": True, "continuous_usage_stats": True},
}

Key = tuple[str, str, str]


def cases() -> list[Key]:
    return [(row, cut, use) for row in ROWS for cut in CUTS for use in USAGES]


@pytest.fixture(scope="module")
def sent() -> dict[Key, Fields]:
    """Every case's record, all sent by one engine to one endpoint."""
    asks = []
    for row, cut, use in cases():
        script = dict(ROWS[row][0])
        script["faults"] = [*script.get("faults", []), *CUTS[cut]]
        asks.append(
            {"headers": {"x-sim-script": json.dumps(script)}, "body": {"stream_options": USAGES[use]}}
        )
    with simulator("--port", "0", "--model", "m") as url:
        return dict(zip(cases(), driven({"url": url, "requests": asks, "at_once": 64}), strict=True))


def seen(row: Fields) -> Fields:
    """A record with what the table's expectations name beside its own fields."""
    chunks = 0 if row["first_ns"] is None else len(row["chunk_ns"]) + 1
    first_output = row.get("first_output_ns")
    return {
        **dict.fromkeys(("note", "error", "status", "chunk_tokens")),
        **row,
        "chunks": chunks,
        "first_output_later": first_output is not None and first_output > row["first_ns"],
    }


@pytest.mark.parametrize("name", ROWS)
def test_a_row_ends_as_the_table_says_however_its_bytes_are_cut(name: str, sent: dict[Key, Fields]) -> None:
    for cut in CUTS:
        for use in USAGES:
            row, expected = seen(sent[name, cut, use]), dict(ROWS[name][1])
            expected = {k: v[use] if isinstance(v, dict) else v for k, v in expected.items()}
            if use == "continuous":  # tokens per chunk are known then
                expected.pop("chunk_tokens", None)
            least_ms = expected.pop("ttft_at_least_ms", 0)
            if cut == "all at once":
                expected.pop("first_output_later", None)
            assert {field: row.get(field) for field in expected} == expected, (cut, use)
            assert least_ms == 0 or row["first_ns"] - row["sent_ns"] >= least_ms * 1e6


@pytest.mark.parametrize("name", ROWS)
def test_the_instants_are_in_their_order_and_the_end_is_always_stamped(
    name: str, sent: dict[Key, Fields]
) -> None:
    for cut in CUTS:
        row = sent[name, cut, "final"]
        names = ("due_ns", "taken_ns", "sent_ns", "headers_ns", "first_ns", "last_ns", "done_ns")
        instants = [row[n] for n in names if row[n] is not None]
        assert instants == sorted(instants)
        assert row["done_ns"] is not None
        assert sum(row["chunk_ns"]) == (row["last_ns"] or 0) - (row["first_ns"] or 0)


def test_tokens_in_each_chunk_are_known_from_continuous_usage_alone(sent: dict[Key, Fields]) -> None:
    assert sent["several tokens in a chunk", "as it comes", "continuous"].get("chunk_tokens") == [2, 2]
    assert sent["several tokens in a chunk", "as it comes", "final"].get("chunk_tokens") is None


def test_events_of_one_write_share_their_instant(sent: dict[Key, Fields]) -> None:
    for use in USAGES:
        assert sent["plain", "all at once", use]["chunk_ns"] == [0, 0, 0]
