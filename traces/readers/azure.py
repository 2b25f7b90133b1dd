"""Azure's inference traces: LLM 2023 (naive, 7 fraction digits), LLM 2024 (zoned), LMM 2025 (images)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count as _count
from itertools import repeat

from traces.intake import Intake
from traces.reader import Reader, has_columns
from traces.readers.csv_rows import Block, column_indices, csv_batches
from traces.row import TraceRow
from traces.stamps import Counts, IsoClock

_new = tuple.__new__
_NONE = repeat(None)
LLM_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows of any form; every digit of the fraction is kept.

    A request with images is of class ``image``, one without of class ``text``, where the file says.
    """
    clock, counts = IsoClock(), Counts()

    def columns(header: list[str]) -> Block:
        at, n_in, n_out = column_indices(intake, header, LLM_COLUMNS)
        images = header.index("NumImages") if "NumImages" in header else None
        known = counts.__getitem__

        def parse(seq: int, rows: list[list[str]]) -> list[TraceRow]:
            cells = list(zip(*rows, strict=True))
            kinds: Iterable[str | None] = _NONE
            if images is not None:
                kinds = ["image" if known(cell) else "text" for cell in cells[images]]
            lengths = map(known, cells[n_in]), map(known, cells[n_out])
            fields = zip(_count(seq), clock.many(cells[at]), *lengths, kinds, *[_NONE] * 7, strict=False)
            return list(map(_new, repeat(TraceRow), fields))

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
