"""BurstGPT 1, 2 (whole seconds) and 3 (float seconds, sessions inserted at columns 2-3): read by name."""

from __future__ import annotations

from collections.abc import Iterator

from traces.intake import Intake
from traces.reader import Reader, has_columns
from traces.readers.csv_rows import Block, column_indices, csv_batches
from traces.row import TraceRow
from traces.stamps import NS_PER_S, count, decimal_ns

COLUMNS = ["Timestamp", "Model", "Request tokens", "Response tokens", "Log Type"]


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows; one with 0 response tokens is a request that failed there: status ``failed``."""

    def columns(header: list[str]) -> Block:
        at, model, n_in, n_out, kind = column_indices(intake, header, COLUMNS)
        session = header.index("Session ID") if "Session ID" in header else None

        def parse_row(seq: int, cells: list[str]) -> TraceRow:
            n_output = count(cells[n_out])
            return TraceRow(
                seq,
                decimal_ns(cells[at], NS_PER_S),
                count(cells[n_in]),
                n_output,
                class_name=cells[kind] or None,
                session=None if session is None else cells[session] or None,
                model=cells[model] or None,
                status="ok" if n_output else "failed",
            )

        return lambda seq, rows: [parse_row(i, cells) for i, cells in enumerate(rows, seq)]

    return csv_batches(intake, columns)


BURSTGPT = Reader(
    summary="BurstGPT 1, 2 and 3: Timestamp in s, Request tokens, Response tokens, Log Type, …",
    matches=has_columns(*COLUMNS, "Total tokens"),
    read=read,
)
