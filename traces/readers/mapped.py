"""Any CSV, JSON lines or Parquet by a column map; the time's unit must be named, it is never guessed.

``columns`` maps our names (t, n_input, n_output, class, session, turn, think, hash_ids, block_size, model,
status) to the file's columns, dotted for nested JSON; ``time_unit`` is ns, us, ms, s or iso.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count as counted
from itertools import repeat
from typing import Any

import orjson

from traces.errors import TraceError
from traces.intake import BadRow, Intake
from traces.reader import Head, Reader, has_columns
from traces.readers.csv_rows import Block, column_indices, csv_batches
from traces.readers.json_rows import jsonl_batches
from traces.readers.values import block_ids, text, whole
from traces.row import TraceRow
from traces.stamps import NS_PER_S, Counts, IsoClock, decimal_ns, json_count, number_ns, unit_ns

_new = tuple.__new__
FIELDS = (
    "t",
    "n_input",
    "n_output",
    "class",
    "session",
    "turn",
    "think",
    "hash_ids",
    "block_size",
    "model",
    "status",
)
OPTIONS = frozenset({"columns", "time_unit", "block_size"})


@dataclass(frozen=True)
class Map:
    """A checked column map and what turns a time cell into nanoseconds."""

    columns: Mapping[str, str]
    unit: str
    block_size: int | None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.columns) - set(FIELDS))
        if unknown or "t" not in self.columns:
            wrong = f"unknown {', '.join(unknown)}" if unknown else "t is missing"
            raise TraceError(f"columns: {wrong}; it maps {', '.join(FIELDS)} to the file's names")
        if self.unit != "iso":
            unit_ns(self.unit)

    def clock(self) -> tuple[Callable[[Any], int], IsoClock | None]:
        """The time parser, and the ISO clock that knows its origin if it is one."""
        if self.unit == "iso":
            clock = IsoClock()
            return (lambda value: clock(iso_text(value))), clock
        unit = unit_ns(self.unit)
        return (lambda v: decimal_ns(v, unit) if type(v) is str else number_ns(v, unit)), None

    def think_ns(self, value: Any) -> int | None:
        """A pause in the time's unit (seconds where times are ISO)."""
        if value is None or value == "":
            return None
        unit = NS_PER_S if self.unit == "iso" else unit_ns(self.unit)
        return decimal_ns(value, unit) if type(value) is str else number_ns(value, unit)


def iso_text(value: object) -> str:
    """An instant as text; Parquet gives datetimes."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, str):
        return value
    raise BadRow("empty" if value is None else "wrong_type", value)


def map_of(intake: Intake) -> Map:
    """The map of the options. Raises TraceError naming what is missing and the choices."""
    columns, unit = intake.options.get("columns"), intake.options.get("time_unit")
    where = intake.source.path
    if not isinstance(columns, Mapping):
        raise TraceError(f"{where}: a generic reader needs columns: t=COLUMN,n_input=COLUMN,…")
    if not isinstance(unit, str):
        raise TraceError(
            f"{where}: a generic reader needs time_unit: ns, us, ms, s or iso; it is not guessed"
        )
    size = intake.options.get("block_size")
    if size is not None and (type(size) is not int or size < 1):
        raise TraceError(f"block_size must be a whole number above 0, got {size!r}")
    if "hash_ids" in columns and "block_size" not in columns and size is None:
        raise TraceError(f"{where}: hash_ids needs block_size, the tokens of a block; it is not guessed")
    return Map({str(k): str(v) for k, v in columns.items()}, unit, size)


Rows = Callable[[int, Mapping[str, Sequence[Any]]], list[TraceRow]]


def rows_maker(mapped: Map, clock: Callable[[Any], int]) -> Rows:
    """The function from (seq of the first, {field: cells}) to rows."""
    counts = Counts()

    def tokens(value: Any) -> int | None:
        if value is None:
            return None
        return counts[value] if type(value) is str else json_count(value)

    def number(value: Any) -> int | None:
        return (counts[value] if value else None) if type(value) is str else whole(value)

    def ids(value: Any) -> tuple[int, ...] | None:
        return None if value is None or value == "" else block_ids(_listed(value))

    size: Callable[[Any], int | None] = number if mapped.block_size is None else lambda _: mapped.block_size
    parsers: dict[str, Callable[[Any], Any]] = dict(
        zip(
            FIELDS,
            (clock, tokens, tokens, text, text, number, mapped.think_ns, ids, size, text, text),
            strict=True,
        )
    )
    unknown = repeat(None)
    constant = {"block_size": repeat(mapped.block_size)} if "hash_ids" in mapped.columns else {}

    def make(seq: int, cells: Mapping[str, Sequence[Any]]) -> list[TraceRow]:
        columns = [
            map(parsers[field], cells[field]) if field in cells else constant.get(field, unknown)
            for field in FIELDS
        ]
        return list(map(_new, repeat(TraceRow), zip(counted(seq), *columns, strict=False)))

    return make


def _listed(ids: Any) -> Any:
    if type(ids) is not str:
        return ids
    try:
        return orjson.loads(ids)
    except orjson.JSONDecodeError:
        raise BadRow("invalid_json", ids) from None


def with_origin(
    intake: Intake, clock: IsoClock | None, batches: Iterator[list[TraceRow]]
) -> Iterator[list[TraceRow]]:
    """Batches, the intake told what an ISO clock has subtracted."""
    for batch in batches:
        intake.origin_ns = (clock.origin_ns or 0) if clock else 0
        yield batch


def read_csv(intake: Intake, mapped: Map | None = None) -> Iterator[list[TraceRow]]:
    """Rows of a CSV file with a header line."""
    mapped = mapped or map_of(intake)
    clock, iso = mapped.clock()
    make = rows_maker(mapped, clock)
    fields, names = list(mapped.columns), list(mapped.columns.values())

    def columns(header: list[str]) -> Block:
        at = column_indices(intake, header, names)

        def parse(seq: int, rows: list[list[str]]) -> list[TraceRow]:
            cells = list(zip(*rows, strict=True))
            return make(seq, {field: cells[i] for field, i in zip(fields, at, strict=True)})

        return parse

    return with_origin(intake, iso, csv_batches(intake, columns))


def read_jsonl(intake: Intake, mapped: Map | None = None) -> Iterator[list[TraceRow]]:
    """Rows of a JSON-lines file; a dotted name goes into nested objects."""
    mapped = mapped or map_of(intake)
    clock, iso = mapped.clock()
    make = rows_maker(mapped, clock)
    paths = [(field, name.split(".")) for field, name in mapped.columns.items()]

    def parse(seq: int, obj: dict[str, Any]) -> TraceRow:
        return make(seq, {field: (dig(obj, path),) for field, path in paths})[0]

    return with_origin(intake, iso, jsonl_batches(intake, parse))


def dig(obj: Any, path: Sequence[str]) -> Any:
    """The value at a path of keys, None where it ends early. Raises BadRow for what is no object."""
    if not isinstance(obj, dict):
        raise BadRow("wrong_type", obj)
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def preset(summary: str, unit: str, columns: dict[str, str]) -> Reader:
    """A reader for a known CSV form: its map and unit are facts, not guesses."""
    mapped = Map(columns, unit, None)
    return Reader(summary, has_columns(*columns.values()), lambda intake: read_csv(intake, mapped))


def never(_: Head) -> int:
    """The generic readers are only used when they are named."""
    return 0


CSV = Reader("any CSV by columns and time_unit", never, read_csv, OPTIONS)
JSONL = Reader("any JSON lines by columns and time_unit", never, read_jsonl, OPTIONS)
VIDUR = preset(
    "Vidur request traces: arrived_at in s, num_prefill_tokens, num_decode_tokens",
    "s",
    {"t": "arrived_at", "n_input": "num_prefill_tokens", "n_output": "num_decode_tokens"},
)
SPLITWISE = preset(
    "splitwise-sim traces: arrival_timestamp in s, prompt_size, token_size",
    "s",
    {"t": "arrival_timestamp", "n_input": "prompt_size", "n_output": "token_size"},
)
