"""Azure LLM inference traces: 2023 (naive, 7 fraction digits), 2024 (zoned), and LMM 2025 with images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from traces.intake import Intake
from traces.readers.reader import Reader, column_indices, csv_batches, has_columns
from traces.row import TraceRow
from traces.stamps import IsoClock, count

_new = tuple.__new__
LLM_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows of either form; every digit of the fraction is kept."""
    clock = IsoClock()

    def columns(header: list[str]) -> Callable[[int, list[str]], TraceRow]:
        at, n_in, n_out = column_indices(intake, header, LLM_COLUMNS)

        def parse(seq: int, cells: list[str]) -> TraceRow:
            a, b = cells[n_in], cells[n_out]
            if a.isdigit() and b.isdigit() and len(a) < 10 and len(b) < 10 and a.isascii() and b.isascii():
                lengths = (int(a), int(b))
            else:
                lengths = (count(a), count(b))
            return _new(
                TraceRow,
                (seq, clock(cells[at]), *lengths, None, None, None, None, None, None, None, None),
            )

        return parse

    yield from _with_origin(intake, clock, csv_batches(intake, columns))


def _with_origin(
    intake: Intake, clock: IsoClock, batches: Iterator[list[TraceRow]]
) -> Iterator[list[TraceRow]]:
    for batch in batches:
        intake.origin_ns = clock.origin_ns or 0
        yield batch


LLM = Reader(
    summary="Azure LLM inference 2023 and 2024: TIMESTAMP,ContextTokens,GeneratedTokens",
    matches=has_columns(*LLM_COLUMNS),
    read=read,
)
