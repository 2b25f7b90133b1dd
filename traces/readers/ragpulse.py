"""RAGPulse JSON lines: seconds as a string, hash_ids an object of five lists of parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.errors import TraceError
from traces.intake import BadRow, Intake
from traces.reader import Reader, has_keys
from traces.readers.json_rows import jsonl_batches
from traces.readers.values import block_ids, text
from traces.row import TraceRow
from traces.stamps import NS_PER_S, decimal_ns, json_count

PARTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
"""The prompt's parts in the order of the file's object."""


WEEK_NS = 604_800 * NS_PER_S


def parse(seq: int, obj: dict[str, Any]) -> TraceRow:
    """One row. Its ids name parts of differing lengths, so ``block_size`` is not known."""
    stamp, parts = obj["timestamp"], obj["hash_ids"]
    if type(stamp) is not str:
        raise BadRow("wrong_type", {"timestamp": stamp})
    ids: tuple[int, ...] = ()
    for part in PARTS:
        ids += block_ids(parts[part])
    return TraceRow(
        seq,
        decimal_ns(stamp, NS_PER_S),
        json_count(obj["input_length"]),
        json_count(obj["output_length"]),
        session=text(obj.get("session_id")),
        hash_ids=ids,
    )


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows of ``0_trace.jsonl``.

    The published file counts seconds in the week and runs over two of them: its one step back, from
    604,453 to 0, is the clock's wrap (the epoch milliseconds in the session ids go on by a week and
    no row). A step back by more than half a week therefore adds a week, unless ``week_clock`` is
    ``as-is``. It stays counted as out of order.
    """
    wraps = {"wrap": True, "as-is": False}.get(intake.text_option("week_clock", "wrap"))
    if wraps is None:
        raise TraceError("week_clock must be wrap or as-is")
    week_ns = previous = 0

    def unwrapped(seq: int, obj: dict[str, Any]) -> TraceRow:
        nonlocal week_ns, previous
        row = parse(seq, obj)
        if wraps and previous - row.t_ns > WEEK_NS // 2:
            week_ns += WEEK_NS
            intake.accounting.out_of_order += 1
            intake.accounting.note("week_wrapped")
        previous = row.t_ns
        return row._replace(t_ns=row.t_ns + week_ns) if week_ns else row

    return jsonl_batches(intake, unwrapped)


RAGPULSE = Reader(
    summary="RAGPulse JSON lines: timestamp a string of s, five lists of hashed parts, session_id",
    matches=has_keys("timestamp", "input_length", "output_length", "hash_ids.sys_prompt[]", "session_id"),
    read=read,
    options=frozenset({"week_clock"}),
)
