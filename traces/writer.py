"""Our own JSON lines: one header line, then one line a row with the keys that are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from traces.row import TraceRow

FORMAT = "loadgen-trace"
VERSION = 1
UNITS = {"t_ns": "ns", "think_ns": "ns", "n_input": "tokens", "n_output": "tokens", "block_size": "tokens"}
KEYS = (
    "t_ns",
    "n_input",
    "n_output",
    "class",
    "session",
    "turn",
    "think_ns",
    "hash_ids",
    "block_size",
    "model",
    "status",
)
"""Keys of a row, in the order of TraceRow's fields after ``seq``, which is the row's own number."""


def header(source: str, provenance: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The header object: format, version, source, units and the recorded steps, each {"step": name, …}."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "source": source,
        "units": UNITS,
        "provenance": [dict(step) for step in provenance],
    }


def row_object(row: TraceRow) -> dict[str, Any]:
    """The row's object without unknown fields."""
    return {key: value for key, value in zip(KEYS, row[1:], strict=True) if value is not None}


def write_rows(
    out: IO[bytes],
    rows: Iterable[TraceRow],
    *,
    source: str,
    provenance: Sequence[Mapping[str, Any]] = (),
) -> int:
    """Write header and rows to an open binary file; returns the number of rows."""
    out.write(orjson.dumps(header(source, provenance), option=orjson.OPT_APPEND_NEWLINE))
    dumps, option, written = orjson.dumps, orjson.OPT_APPEND_NEWLINE, 0
    lines: list[bytes] = []
    for row in rows:
        lines.append(dumps(row_object(row), option=option))
        if len(lines) >= 4096:
            out.write(b"".join(lines))
            written += len(lines)
            lines.clear()
    out.write(b"".join(lines))
    return written + len(lines)


def write_jsonl(
    path: Path, rows: Iterable[TraceRow], *, source: str, provenance: Sequence[Mapping[str, Any]] = ()
) -> int:
    """Write a trace file, whole or not at all; returns the number of rows."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as out:
            written = write_rows(out, rows, source=source, provenance=provenance)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return written
