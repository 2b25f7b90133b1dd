"""Weka's agentic sessions: one JSON object a session, times in s from its start, blocks of 64 tokens.

``floor(in / 64)`` ids a request; ids are local to the session, so they are salted with its id here:
equal small numbers of two sessions would otherwise look like a shared prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import Any

from traces.errors import TraceError
from traces.intake import BadRow, Intake
from traces.reader import Reader, has_keys
from traces.readers.documents import json_documents
from traces.readers.values import block_ids, text
from traces.row import TraceRow
from traces.salting import salted_ids
from traces.stamps import NS_PER_S, json_count, number_ns


def requests(intake: Intake, line: int, session: object, start_ns: int) -> list[TraceRow]:
    """One session's rows by time, its sub-agents' among them as sessions ``id/agent_id``."""
    rows: list[TraceRow] = []
    try:
        name, size, entries = opened(session)
    except BadRow as error:
        intake.accounting.rows_read += 1
        intake.bad(line, error)
        return rows

    def add(entries: object, own: str, kind: str | None) -> None:
        turn = 0
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and isinstance(entry.get("requests"), list):
                add(entry["requests"], f"{own}/{entry.get('agent_id')}", "subagent")
                continue
            seq = intake.accounting.rows_read
            intake.accounting.rows_read += 1
            try:
                row = request(seq, entry, name, size)
            except BadRow as error:
                intake.bad(line, error)
            except KeyError as error:
                intake.bad(line, BadRow("missing_key", error.args[0]))
            except (TypeError, AttributeError):
                intake.bad(line, BadRow("wrong_type", entry))
            else:
                rows.append(row._replace(t_ns=start_ns + row.t_ns, session=own, turn=turn, class_name=kind))
                turn += 1

    add(entries, name, None)
    rows.sort(key=lambda row: row.t_ns)
    return rows


def opened(session: object) -> tuple[str, int, object]:
    """(id, block size, requests). Raises BadRow wrong_type."""
    if isinstance(session, BadRow):
        raise session
    if not isinstance(session, dict):
        raise BadRow("wrong_type", session)
    name, size = session.get("id"), session.get("block_size")
    if not isinstance(name, str) or type(size) is not int or size < 1:
        raise BadRow("wrong_type", {"id": name, "block_size": size})
    return name, size, session.get("requests")


def request(seq: int, entry: dict[str, Any], session: str, size: int) -> TraceRow:
    """One request. Raises BadRow wrong_block_count where ids are not floor(in / block_size)."""
    n_input, ids = json_count(entry["in"]), block_ids(entry["hash_ids"])
    if len(ids) != n_input // size:
        raise BadRow("wrong_block_count", {"in": n_input, "hash_ids": len(ids)})
    think = entry.get("think_time")
    return TraceRow(
        seq,
        number_ns(entry["t"], NS_PER_S),
        n_input,
        json_count(entry["out"]),
        think_ns=None if think is None else number_ns(think, NS_PER_S),
        hash_ids=salted_ids(ids, session),
        block_size=size,
        model=text(entry.get("model")),
    )


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows. Each session counts from its own zero: several in one file need ``session_gap_s``,
    the time from one session's start to the next one's. Sessions that overlap are merged."""
    gap = intake.options.get("session_gap_s")
    gap_ns = None if gap is None else number_ns(float(str(gap)), NS_PER_S)
    waiting: list[TraceRow] = []
    for index, (line, session) in enumerate(json_documents(intake)):
        if index and gap_ns is None:
            raise TraceError(
                f"{intake.place(line)}: a second session, each with a clock of its own; "
                "give session_gap_s, the time between their starts"
            )
        start_ns = index * (gap_ns or 0)
        ready = [row for row in waiting if row.t_ns < start_ns]
        rows = requests(intake, line, session, start_ns)
        waiting = list(merge(waiting[len(ready) :], rows, key=lambda row: row.t_ns))
        yield ready
    yield waiting


WEKA = Reader(
    summary="Weka agentic sessions (JSON, or one session a line): t in s, in, out, blocks of 64 tokens",
    matches=has_keys("id", "block_size", "hash_id_scope", "requests[]"),
    read=read,
    options=frozenset({"session_gap_s"}),
)
