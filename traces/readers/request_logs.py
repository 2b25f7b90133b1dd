"""Logs that people have: LiteLLM's, OpenAI-style responses with ``created`` and ``usage``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.intake import BadRow, Intake
from traces.reader import LOG_REORDER_ROWS, Head, Reader, has_keys
from traces.readers.json_rows import jsonl_batches
from traces.readers.mapped import with_origin
from traces.readers.values import text
from traces.row import TraceRow
from traces.stamps import NS_PER_S, IsoClock, json_count, number_ns


def read_litellm(intake: Intake) -> Iterator[list[TraceRow]]:
    """LiteLLM standard logging payloads (epoch seconds) and spend logs (ISO ``startTime``).

    The arrival is ``startTime``; a failed call has no ``completion_tokens`` to speak of and keeps its status.
    """
    clock = IsoClock()
    iso: bool | None = None

    def instant(value: Any) -> int:
        nonlocal iso
        is_iso = isinstance(value, str)
        if iso is None:
            iso = is_iso
        if iso != is_iso:
            raise BadRow("mixed_time_units", value)
        return clock(value) if is_iso else number_ns(value, NS_PER_S)

    def parse(seq: int, obj: dict[str, Any]) -> TraceRow:
        return TraceRow(
            seq,
            instant(obj["startTime"]),
            json_count(obj["prompt_tokens"]),
            json_count(obj["completion_tokens"]),
            session=text(obj.get("session_id")),
            model=text(obj.get("model")),
            status=text(obj.get("status")),
        )

    return with_origin(intake, clock, jsonl_batches(intake, parse))


def read_openai(intake: Intake) -> Iterator[list[TraceRow]]:
    """Logged responses, bare or under ``response``: ``created`` (or ``created_at``) in epoch seconds.

    ``created`` is a whole second in most servers, so rows come in batches of one second: see ``dequantise``.
    """

    def parse(seq: int, obj: dict[str, Any]) -> TraceRow:
        response = obj.get("response", obj)
        stamp = response["created"] if "created" in response else response["created_at"]
        usage = response["usage"]
        chat = "prompt_tokens" in usage
        n_output = usage["completion_tokens" if chat else "output_tokens"] if _has_output(usage) else 0
        return TraceRow(
            seq,
            number_ns(stamp, NS_PER_S),
            json_count(usage["prompt_tokens" if chat else "input_tokens"]),
            json_count(n_output),
            class_name=text(response.get("object")),
            session=text(obj.get("session_id") or response.get("conversation_id")),
            model=text(response.get("model")),
        )

    return jsonl_batches(intake, parse)


def _has_output(usage: dict[str, Any]) -> bool:
    # Embeddings report a prompt only.
    return "completion_tokens" in usage or "output_tokens" in usage


def matches_openai(head: Head) -> int:
    """A stamp and a usage, at the top or under ``response``."""
    for prefix in ("", "response."):
        for stamp in ("created", "created_at"):
            for tokens in ("prompt_tokens", "input_tokens"):
                fit = has_keys(prefix + stamp, f"{prefix}usage.{tokens}")(head)
                if fit:
                    return fit + 1
    return 0


LITELLM = Reader(
    "LiteLLM request logs (JSON lines): startTime, prompt_tokens, completion_tokens",
    has_keys("startTime", "prompt_tokens", "completion_tokens"),
    read_litellm,
    reorder_rows=LOG_REORDER_ROWS,
)
OPENAI = Reader(
    "OpenAI-style responses (JSON lines): created in s, usage.prompt_tokens, usage.completion_tokens",
    matches_openai,
    read_openai,
    reorder_rows=LOG_REORDER_ROWS,
)
