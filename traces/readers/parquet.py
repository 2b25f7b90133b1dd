"""Parquet: our own (the header in the file's metadata) and any other by a column map; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from traces.errors import TraceError
from traces.intake import BadRow, Intake
from traces.reader import Head, Reader
from traces.readers.loadgen_jsonl import parse
from traces.readers.mapped import OPTIONS, map_of, rows_maker, with_origin
from traces.row import TraceRow
from traces.source import PARQUET as MAGIC
from traces.writer import FORMAT, KEYS, header, row_object

ROWS_AT_ONCE = 8192
_METADATA = FORMAT.encode()


def pyarrow_parquet() -> Any:
    """The library, imported only here. Raises TraceError saying how to get it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise TraceError("Parquet needs pyarrow: pip install 'loadgen[parquet]'") from None
    return pyarrow.parquet


def opened(path: Path) -> Any:
    """The file. Raises TraceError for a damaged one."""
    library = pyarrow_parquet()
    try:
        return library.ParquetFile(path)
    except Exception as error:
        raise TraceError(f"{path}: not a readable Parquet file: {error}") from None


def matches(head: Head) -> int:
    """Parquet's magic, and our header among its metadata."""
    return 100 if head.data.startswith(MAGIC) and own_header(head.path) is not None else 0


def own_header(path: Path) -> Mapping[str, Any] | None:
    """The header of a file that we wrote, else None."""
    raw = (opened(path).schema_arrow.metadata or {}).get(_METADATA)
    return None if raw is None else dict(orjson.loads(raw))


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows of our own form, or of any by the options ``columns`` and ``time_unit``."""
    if own_header(intake.source.path) is not None and "columns" not in intake.options:
        return _batches(intake, list(KEYS), parse)
    mapped = map_of(intake)
    clock, iso = mapped.clock()
    make = rows_maker(mapped, clock)
    names = mapped.columns

    def mapped_row(seq: int, obj: dict[str, Any]) -> TraceRow:
        return make(seq, {field: (obj.get(name),) for field, name in names.items()})[0]

    return with_origin(intake, iso, _batches(intake, list(names.values()), mapped_row))


def _batches(intake: Intake, names: list[str], make: Any) -> Iterator[list[TraceRow]]:
    file, seq = opened(intake.source.path), -1
    has = set(file.schema_arrow.names)
    missing = [name for name in names if name not in has]
    if missing:
        raise TraceError(f"{intake.source.path}: no column {', '.join(missing)}; it has {', '.join(has)}")
    for block in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=names):
        batch: list[TraceRow] = []
        for obj in block.to_pylist():
            seq += 1
            intake.accounting.rows_read += 1
            try:
                batch.append(make(seq, obj))
            except BadRow as error:
                intake.bad(seq + 1, error)
        yield batch


def write_parquet(
    path: Path, rows: Iterable[TraceRow], *, source: str, provenance: Sequence[Mapping[str, Any]] = ()
) -> int:
    """Write our own form, whole or not at all; returns the rows. Raises TraceError without pyarrow."""
    library = pyarrow_parquet()
    import pyarrow as pa

    kinds = {name: pa.int64() for name in KEYS} | {
        name: pa.string() for name in ("class", "session", "model", "status")
    }
    # Block ids of some sources are unsigned 64-bit hashes.
    kinds["hash_ids"] = pa.list_(pa.uint64())
    metadata = {_METADATA: orjson.dumps(header(source, provenance))}
    schema = pa.schema([(name, kinds[name]) for name in KEYS], metadata=metadata)
    partial = path.with_name(f".{path.name}.partial")
    written, stream = 0, iter(rows)
    try:
        with library.ParquetWriter(partial, schema, compression="zstd") as out:
            while batch := [row_object(row) for row in islice(stream, ROWS_AT_ONCE)]:
                out.write_table(pa.Table.from_pylist(batch, schema=schema))
                written += len(batch)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return written


def _header(head: Head) -> Mapping[str, Any]:
    return own_header(head.path) or {}


PARQUET = Reader("Parquet: loadgen's own, or any by columns and time_unit", matches, read, OPTIONS, _header)
