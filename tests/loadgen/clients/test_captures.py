"""Answers recorded from real servers, replayed through the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.clients.openai import (
    AnswerReader,
    Carrier,
    chat_carrier,
    completion_carrier,
    settle_refusal,
    settle_whole,
)
from loadgen.record import Outcome, Record, record_to_json

# chunks, their tokens by continuous usage, n_input, n_output and its source, cached tokens, the text's start:
# counted by hand in the recordings.
STREAMS: dict[str, tuple[int, list[int] | None, int | None, int, str, int | None, str]] = {
    "vllm_chat_stream": (6, None, 14, 6, "usage", None, " appear__) abs"),
    "vllm_chat_stream_nousage": (4, None, None, 4, "chunks", None, " Itual thenquote"),
    "vllm_chat_stream_contusage": (4, [1, 1, 1, 1], 14, 4, "usage", None, "oding"),
    "vllm_chat_stream_metrics_1": (3, [1, 1, 1], 671, 3, "usage", 0, " appear__) abs"),
    "vllm_chat_stream_metrics_2": (3, [1, 1, 1], 671, 3, "usage", 640, " Texts increLIB"),
    "vllm_completion_stream": (4, None, 4, 4, "usage", None, "encodeningdayssl"),
    "vllm_completion_stream_tokids_n2": (8, None, 7, 8, "usage", None, "generatile status"),
    "llamacpp_chat_stream": (6, None, 14, 6, "usage", 0, " keepple Open"),
    "llamacpp_chat_stream_nousage": (4, None, None, 4, "chunks", None, "AS85 Iflient"),
    "llamacpp_completion_stream": (4, None, 4, 4, "usage", 0, " rawfultcnapshot"),
    "transformers_chat_stream": (6, None, 14, 6, "usage", None, "Byrgener bound]"),
    "transformers_cb_chat_stream": (6, None, 14, 6, "usage", None, " muchprecatedtc"),
    "transformers_completion_stream": (3, None, 4, 4, "usage", None, "\ufffdbeBugs30"),
    "xpyd_sim_chat_stream": (3, None, 3, 3, "usage", None, "The quick brown"),
}

WHOLE = {
    "vllm_chat_nonstream": (14, 4, None, "19 extensionshesesff"),
    "llamacpp_chat_nonstream": (14, 4, 13, " module handplecache"),
    "transformers_chat_nonstream": (14, 4, None, "By handr complex"),
}

REFUSED = {
    "vllm_wrong_model": "404 The model `nope` does not exist. Valid aliases: tiny. (404)",
    "vllm_too_long_maxtok": "400 max_tokens=40000 cannot be greater than max_model_len=32768. "
    "Please request fewer output tokens. (parameter=max_tokens, value=40000) (400)",
    "llamacpp_bad_request": "400 Expected 'messages' to be an array (400)",
    "llamacpp_too_long": "400 request (20011 tokens) exceeds the available context size (8192 tokens), "
    "try increasing it (400)",
}


def recorded(shared: Path, name: str) -> tuple[int, bytes]:
    """Status and body of a recording; its head is text, its body the dechunked bytes."""
    text = (shared / "servers" / "captures" / f"{name}.txt").read_bytes()
    head, _, body = text.replace(b"\r\n", b"\n").partition(b"\n\n")
    return int(head.split()[1]), body


def carrier_of(name: str) -> Carrier:
    return completion_carrier if "completion" in name else chat_carrier


def fresh() -> Record:
    return Record(id="r-0", index=0, outcome=Outcome.NOT_SENT, due_ns=0)


def replay(body: bytes, name: str, size: int) -> tuple[dict[str, Any], str]:
    """The record of *body* in reads of *size* bytes, and the text."""
    reader, record = AnswerReader(carrier_of(name), keep_text=True), fresh()
    for start in range(0, len(body), size):
        reader.feed(7, body[start : start + size])
    reader.settle(record, ended_whole=True)
    return record_to_json(record), reader.text


@pytest.mark.parametrize("name", STREAMS)
def test_a_real_servers_stream_is_read_as_it_was_meant(shared: Path, name: str) -> None:
    chunks, tokens, n_input, n_output, source, cached, text = STREAMS[name]
    for size in (1, 7, 1460, 1 << 20):
        row, said = replay(recorded(shared, name)[1], name, size)
        assert (row["outcome"], row["finish_reason"]) == ("ok", "length")
        assert len(row["chunk_ns"]) + 1 == chunks
        assert (row.get("chunk_tokens"), row["n_input"], row.get("n_cached")) == (tokens, n_input, cached)
        assert (row["n_output"], row["n_output_source"]) == (n_output, source)
        assert said.startswith(text)


def test_an_engine_killed_in_mid_stream_is_an_error_that_keeps_its_tokens(shared: Path) -> None:
    name = "vllm_engine_killed_mid_stream"
    body = recorded(shared, name)[1].replace(b"\n[... cut ...]\n", b"\n\n")  # the recording's own mark
    row, _ = replay(body, name, 1460)
    assert row["outcome"] == "error_in_stream"
    assert row["error"].startswith("EngineCore encountered an issue.")
    assert (row["n_output"], row["finish_reason"], row["chunk_tokens"]) == (249, None, [1, 1, 246, 1])


@pytest.mark.parametrize("name", WHOLE)
def test_a_real_servers_whole_answer_is_read(shared: Path, name: str) -> None:
    record = fresh()
    n_input, n_output, cached, text = WHOLE[name]
    assert settle_whole(record, recorded(shared, name)[1], 7, chat_carrier) == text
    assert (record.n_input, record.n_output, record.n_cached) == (n_input, n_output, cached)
    assert (record.outcome, record.finish_reason) == (Outcome.OK, "length")


@pytest.mark.parametrize("name", REFUSED)
def test_a_real_servers_refusal_keeps_its_words(shared: Path, name: str) -> None:
    record = fresh()
    status, body = recorded(shared, name)
    settle_refusal(record, status, body, {})
    assert (record.outcome, record.error) == (Outcome.STATUS_ERROR, REFUSED[name])
