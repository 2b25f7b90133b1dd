"""CSV with a header line, a block of lines at a time: what makes it fast and what keeps it exact."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from itertools import chain

from traces.errors import TraceError
from traces.intake import BadRow, Intake
from traces.row import TraceRow

Block = Callable[[int, list[list[str]]], list[TraceRow]]
"""From (seq of the first row, rows of cells, all as wide as the header) to the canonical rows."""


def csv_batches(intake: Intake, columns: Callable[[list[str]], Block]) -> Iterator[list[TraceRow]]:
    """Rows of a CSV file: ``columns(header)`` gives the function that parses a block of rows.

    A block with a bad row is parsed again row by row, so that only the bad one is dropped; the
    function must therefore keep no state but caches. A cell may be quoted but hold no line
    end, so that one stray quote costs one row, not the file.
    """
    blocks = intake.source.text_lines()
    start = _header(intake, blocks)
    if start is None:
        return
    header, rest = start
    parse = columns(header)
    for first, lines in chain([rest], blocks):
        yield _block(intake, first, lines, len(header), parse)


def _header(
    intake: Intake, blocks: Iterator[tuple[int, list[str]]]
) -> tuple[list[str], tuple[int, list[str]]] | None:
    for first, lines in blocks:
        for index, line in enumerate(lines):
            if line.strip():
                header = [cell.strip() for cell in _cells(line)]
                return header, (first + index + 1, lines[index + 1 :])
            intake.accounting.blank_lines += 1
    return None


def _block(intake: Intake, first: int, lines: list[str], width: int, parse: Block) -> list[TraceRow]:
    quoted = any('"' in line for line in lines)
    cells = list(map(_cells, lines)) if quoted else [line.split(",") for line in lines]
    # Where a row has one cell a blank line can only be told from it by its text.
    if cells and width > 1 and set(map(len, cells)) == {width}:
        try:
            rows = parse(intake.accounting.rows_read, cells)
        except BadRow:
            return _row_by_row(intake, first, lines, width, parse)
        intake.accounting.rows_read += len(cells)
        return rows
    return _row_by_row(intake, first, lines, width, parse)


def _row_by_row(intake: Intake, first: int, lines: list[str], width: int, parse: Block) -> list[TraceRow]:
    rows: list[TraceRow] = []
    for number, line in enumerate(lines, first):
        if not line or line.isspace():
            intake.accounting.blank_lines += 1
            continue
        seq = intake.accounting.rows_read
        intake.accounting.rows_read += 1
        cells = _cells(line)
        try:
            if len(cells) != width:
                raise BadRow("wrong_column_count", line)
            rows += parse(seq, [cells])
        except BadRow as error:
            intake.bad(number, error)
    return rows


def _cells(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]))
    except (csv.Error, StopIteration):
        return []


def column_indices(intake: Intake, header: list[str], names: list[str]) -> list[int]:
    """Where the named columns stand. Raises TraceError naming those that the file lacks."""
    missing = [name for name in names if name not in header]
    if missing:
        raise TraceError(f"{intake.place(1)}: no column {', '.join(missing)}; it has {', '.join(header)}")
    return [header.index(name) for name in names]
