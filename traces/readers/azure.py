"""Azure's inference traces: LLM 2023 (naive, 7 fraction digits), LLM 2024 (zoned), LMM 2025 (images)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from traces.intake import Intake
from traces.readers.reader import Reader, column_indices, csv_batches, has_columns
from traces.row import TraceRow
from traces.stamps import IsoClock, count

_new = tuple.__new__
LLM_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows of any form; every digit of the fraction is kept.

    A request with images is of class ``image``, one without of class ``text``, where the file says.
    """
    clock = IsoClock()

    def columns(header: list[str]) -> Callable[[int, list[str]], TraceRow]:
        at, n_in, n_out = column_indices(intake, header, LLM_COLUMNS)
        images = header.index("NumImages") if "NumImages" in header else None

        def parse(seq: int, cells: list[str]) -> TraceRow:
            a, b = cells[n_in], cells[n_out]
            if a.isdecimal() and b.isdecimal() and len(a) + len(b) < 10 and (a + b).isascii():
                n_input, n_output = int(a), int(b)
            else:
                n_input, n_output = count(a), count(b)
            kind = None if images is None else ("image" if count(cells[images]) else "text")
            t_ns = clock(cells[at])
            return _new(
                TraceRow, (seq, t_ns, n_input, n_output, kind, None, None, None, None, None, None, None)
            )

        return parse

    for batch in csv_batches(intake, columns):
        intake.origin_ns = clock.origin_ns or 0
        yield batch


LLM = Reader(
    summary="Azure LLM inference 2023 and 2024: TIMESTAMP,ContextTokens,GeneratedTokens",
    matches=has_columns(*LLM_COLUMNS),
    read=read,
)
LMM = Reader(
    summary="Azure LMM (multimodal) inference 2025: the same with NumImages",
    matches=has_columns(*LLM_COLUMNS, "NumImages"),
    read=read,
)
