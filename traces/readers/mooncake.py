"""Mooncake JSON lines: milliseconds, blocks of 512 tokens, ceil(input_length / 512) of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.intake import BadRow, Intake
from traces.reader import Head, Reader, has_keys
from traces.readers.json_rows import jsonl_batches
from traces.readers.values import block_ids
from traces.row import TraceRow
from traces.stamps import INT64_MAX, MOST_TOKENS, json_count, number_ns

_new = tuple.__new__
BLOCK_TOKENS = 512
NS_PER_MS = 1_000_000
_YEARS_MS = INT64_MAX // NS_PER_MS


def parse(seq: int, obj: dict[str, Any]) -> TraceRow:
    """One row. Raises BadRow wrong_block_count where the hashes do not cover the prompt."""
    n_input, n_output, stamp = obj["input_length"], obj["output_length"], obj["timestamp"]
    if not (type(n_input) is int and 0 <= n_input <= MOST_TOKENS):
        n_input = json_count(n_input)
    if not (type(n_output) is int and 0 <= n_output <= MOST_TOKENS):
        n_output = json_count(n_output)
    hash_ids = block_ids(obj["hash_ids"])
    if len(hash_ids) != -(-n_input // BLOCK_TOKENS):
        raise BadRow("wrong_block_count", {"input_length": n_input, "hash_ids": len(hash_ids)})
    t_ns = stamp * NS_PER_MS if type(stamp) is int and 0 <= stamp < _YEARS_MS else number_ns(stamp, NS_PER_MS)
    return _new(
        TraceRow,
        (seq, t_ns, n_input, n_output, None, None, None, None, hash_ids, BLOCK_TOKENS, None, None),
    )


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows; stamps come in batches every 3 s, which ``dequantise`` spreads and this reader does not."""
    return jsonl_batches(intake, parse)


_has = has_keys("timestamp", "input_length", "output_length", "hash_ids[]")


def matches(head: Head) -> int:
    """Exactly these four keys: more of them mean another format that grew out of this one."""
    return _has(head) if len(head.first_object) == 4 else 0


MOONCAKE = Reader(
    summary="Mooncake JSON lines: timestamp in ms, blocks of 512 tokens", matches=matches, read=read
)
