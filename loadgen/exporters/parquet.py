"""Every field of every row as one Parquet table; needs pyarrow (``pip install 'loadgen[parquet]'``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.load import Run
from loadgen.analysis.rows import COUNTS, INSTANTS, TEXTS
from loadgen.errors import UsageError

ROWS_A_GROUP = 1 << 15


def write_parquet(run: Run, path: Path) -> None:
    """Write rows in schedule order. Instants: int64 ns from schedule instant 0; ``chunk_ns``: list of gaps.

    Raises UsageError when pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError("--format parquet needs pyarrow: pip install 'loadgen[parquet]'") from None
    order = np.argsort(run.rows.instant("index"), kind="stable")
    writer = None
    for lo in range(0, max(len(order), 1), ROWS_A_GROUP):
        table = pa.table(_columns(run, order[lo : lo + ROWS_A_GROUP], pa))
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _columns(run: Run, places: Any, pa: Any) -> dict[str, Any]:
    rows = run.rows
    columns = {"id": pa.array([rows.ids[place] or None for place in places.tolist()], pa.string())}
    for name in (*COUNTS, *INSTANTS):
        columns[name] = pa.array(rows.instant(name)[places], pa.int64(), mask=~rows.has(name)[places])
    for name in TEXTS:
        texts = rows.texts[name]
        words = [texts.at(place) for place in places.tolist()]
        columns[name] = pa.array(words, pa.string())
    gaps = [rows.gaps.of_row(place) for place in places.tolist()]
    columns["chunk_ns"] = pa.array(gaps, pa.list_(pa.int64()))
    return columns
