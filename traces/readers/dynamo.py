"""Dynamo request traces (``dynamo.request.trace.v1``): epoch milliseconds, u64 block hashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.intake import BadRow, Intake, OtherRow
from traces.reader import LOG_REORDER_ROWS, Head, Reader, has_keys
from traces.readers.json_rows import jsonl_batches
from traces.readers.values import block_ids, text, whole
from traces.row import TraceRow
from traces.stamps import json_count, number_ns

SCHEMA = "dynamo.request.trace.v1"
NS_PER_MS = 1_000_000


def parse(seq: int, obj: dict[str, Any]) -> TraceRow:
    """One finished request, at the instant it was received; other events are dropped by their name."""
    event = obj["event"]
    if event["schema"] != SCHEMA:
        raise BadRow("unknown_schema", event["schema"])
    if "request" not in event:
        raise OtherRow("not_a_request", event.get("event_type"))
    request = event["request"]
    replay = request.get("replay") or {}
    hashes = replay.get("input_sequence_hashes")
    return TraceRow(
        seq,
        number_ns(request["request_received_ms"], NS_PER_MS),
        json_count(request["input_tokens"]),
        json_count(request["output_tokens"]),
        session=text((event.get("agent_context") or {}).get("session_id")),
        hash_ids=None if hashes is None else block_ids(hashes),
        block_size=whole(replay.get("trace_block_size")),
        model=text(request.get("model")),
    )


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Requests of the file; it is written as they end, so rows are put in order of arrival."""
    return jsonl_batches(intake, parse)


def matches(head: Head) -> int:
    """The schema says so itself."""
    if not has_keys("event.schema")(head):
        return 0
    event = head.first_object.get("event")
    return 100 if isinstance(event, dict) and event.get("schema") == SCHEMA else 0


DYNAMO = Reader(
    summary="NVIDIA Dynamo request traces: event.schema dynamo.request.trace.v1",
    matches=matches,
    read=read,
    reorder_rows=LOG_REORDER_ROWS,
)
