"""Our own JSON lines: a header line (format, version, source, units, provenance), then rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from traces.errors import TraceError
from traces.intake import BadRow, Intake
from traces.reader import Head, Reader
from traces.readers.json_rows import jsonl_batches
from traces.readers.values import block_ids
from traces.row import TraceRow
from traces.stamps import INT64_MAX, json_count, number_ns
from traces.writer import FORMAT, KEYS, VERSION

_new = tuple.__new__
_OTHER_KEYS = frozenset(KEYS[3:])
_TYPES: dict[str, type] = {
    "class": str,
    "session": str,
    "turn": int,
    "think_ns": int,
    "block_size": int,
    "model": str,
    "status": str,
}


def matches(head: Head) -> int:
    """The header says so itself, which beats any set of keys."""
    return 100 if head.first_object.get("format") == FORMAT else 0


def header(head: Head) -> Mapping[str, Any]:
    """The header line. Raises TraceError for a version that this reader does not know."""
    version = head.first_object.get("version")
    if matches(head) and version != VERSION:
        raise TraceError(f"{head.path}:1: version {version!r} of {FORMAT}; this program reads {VERSION}")
    if not matches(head):
        raise TraceError(f'{head.path}:1: no header line {{"format": "{FORMAT}", …}}')
    return head.first_object


def parse(seq: int, obj: dict[str, Any]) -> TraceRow:
    """One row."""
    t_ns = obj["t_ns"]
    if type(t_ns) is not int or not 0 <= t_ns <= INT64_MAX:
        t_ns = number_ns(t_ns, 1)
    n_input, n_output = obj.get("n_input"), obj.get("n_output")
    if n_input is not None:
        n_input = json_count(n_input)
    if n_output is not None:
        n_output = json_count(n_output)
    if _OTHER_KEYS.isdisjoint(obj):
        return _new(TraceRow, (seq, t_ns, n_input, n_output, None, None, None, None, None, None, None, None))
    get = obj.get
    for key, kind in _TYPES.items():
        value = get(key)
        if value is not None and type(value) is not kind:
            raise BadRow("wrong_type", {key: value})
        if isinstance(value, int) and value < 0:
            raise BadRow("negative", {key: value})
    return TraceRow(
        seq,
        t_ns,
        n_input,
        n_output,
        get("class"),
        get("session"),
        get("turn"),
        get("think_ns"),
        None if get("hash_ids") is None else block_ids(get("hash_ids")),
        get("block_size"),
        get("model"),
        get("status"),
    )


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows after the header line."""
    return jsonl_batches(intake, parse, skip_first=True)


LOADGEN = Reader(
    summary="loadgen's own JSON lines (header line, then t_ns, n_input, n_output, …)",
    matches=matches,
    read=read,
    header=header,
)
