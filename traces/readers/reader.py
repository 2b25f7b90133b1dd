"""What a trace format is: how to tell it, how to read it; and the loops that its readers share."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from traces.errors import TraceError
from traces.intake import BadRow, Intake
from traces.row import TraceRow

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\],]')


@dataclass(frozen=True)
class Head:
    """The start of a file, as much as detection may look at."""

    path: Path
    data: bytes

    @cached_property
    def text(self) -> str:
        """The start, decoded."""
        return self.data.decode("utf-8", "replace")

    @cached_property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line for line in re.split(r"\r\n|\r|\n", self.text) if line.strip()), "")

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The first line as a CSV header; empty where the file is JSON."""
        if self.first_line.lstrip()[:1] in ("{", "["):
            return ()
        return tuple(cell.strip() for cell in next(csv.reader([self.first_line]), []))

    @cached_property
    def keys(self) -> frozenset[str]:
        """Dotted key paths of the first JSON object, as far as the head reaches; lists add ``[]``."""
        return frozenset(json_keys(self.text)) if self.text.lstrip()[:1] in ("{", "[") else frozenset()

    @cached_property
    def first_object(self) -> Mapping[str, Any]:
        """The first line as a JSON object, else empty."""
        try:
            value = orjson.loads(self.first_line)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    def keys_shown(self) -> str:
        """The keys for a message."""
        keys = self.columns or tuple(sorted(key for key in self.keys if "." not in key))
        shown = ", ".join(keys[:12])
        return shown[:200] if shown else "empty file"


def json_keys(text: str) -> Iterator[str]:
    """Key paths of the first JSON value in ``text``, which may be cut anywhere."""
    stack: list[str] = []
    path = ""
    for match in _TOKEN.finditer(text):
        token = match.group(0)
        if match.group(2):
            path = f"{stack[-1]}.{match.group(1)}" if stack and stack[-1] else match.group(1)
            yield path
        elif token == "[":
            path += "[]"
            yield path
            stack.append(path)
        elif token == "{":
            stack.append(path)
        elif token in ("}", "]"):
            if stack:
                stack.pop()
            if not stack:
                return
            path = stack[-1]


def no_header(_: Head) -> Mapping[str, Any]:
    """Most formats carry no header of their own."""
    return {}


@dataclass(frozen=True)
class Reader:
    """One format. ``matches`` gives how many of its own keys the head has, 0 for "not mine".

    ``read`` yields batches of rows in file order, times in ns from ``intake.origin_ns``.
    """

    summary: str
    matches: Callable[[Head], int]
    read: Callable[[Intake], Iterator[list[TraceRow]]]
    options: frozenset[str] = frozenset()
    header: Callable[[Head], Mapping[str, Any]] = field(default=no_header)


def has_columns(*names: str, exact: bool = False) -> Callable[[Head], int]:
    """A CSV whose header has all ``names`` (and, if ``exact``, no others)."""

    def matches(head: Head) -> int:
        columns = set(head.columns)
        fits = columns == set(names) if exact else columns >= set(names)
        return len(names) if fits else 0

    return matches


def has_keys(*names: str) -> Callable[[Head], int]:
    """A JSON file whose first object has all these dotted keys."""

    def matches(head: Head) -> int:
        return len(names) if head.keys >= set(names) else 0

    return matches


def csv_batches(
    intake: Intake, columns: Callable[[list[str]], Callable[[int, list[str]], TraceRow]]
) -> Iterator[list[TraceRow]]:
    """Rows of a CSV file: ``columns(header)`` gives the function from (seq, cells) to a row.

    A cell may be quoted but hold no line end, so that one stray quote costs one row, not the file.
    """
    parse: Callable[[int, list[str]], TraceRow] | None = None
    width, seq, accounting = 0, -1, intake.accounting
    for first, lines in intake.source.text_lines():
        batch: list[TraceRow] = []
        for number, line in enumerate(lines, first):
            if not line or line.isspace():
                accounting.blank_lines += 1
                continue
            cells = line.split(",") if '"' not in line else _quoted(line)
            if parse is None:
                width = len(cells)
                parse = columns([cell.strip() for cell in cells])
                continue
            accounting.rows_read += 1
            seq += 1
            try:
                if len(cells) != width:
                    raise BadRow("wrong_column_count", line)
                batch.append(parse(seq, cells))
            except BadRow as error:
                intake.bad(number, error)
        yield batch


def _quoted(line: str) -> list[str]:
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


def jsonl_batches(
    intake: Intake, parse: Callable[[int, dict[str, Any]], TraceRow], *, skip_first: bool = False
) -> Iterator[list[TraceRow]]:
    """Rows of a JSON-lines file, ``parse(seq, object)`` each; ``skip_first`` leaves out a header line."""
    loads, accounting, seq, skip = orjson.loads, intake.accounting, -1, skip_first
    for first, lines in intake.source.byte_lines():
        batch: list[TraceRow] = []
        for number, line in enumerate(lines, first):
            if not line or line.isspace():
                accounting.blank_lines += 1
                continue
            if skip:
                skip = False
                continue
            accounting.rows_read += 1
            seq += 1
            try:
                batch.append(parse(seq, loads(line)))
            except BadRow as error:
                intake.bad(number, error)
            except orjson.JSONDecodeError:
                intake.bad(number, BadRow("invalid_json", line.decode("utf-8", "replace")))
            except KeyError as error:
                intake.bad(number, BadRow("missing_key", error.args[0]))
            except (TypeError, AttributeError):
                intake.bad(number, BadRow("wrong_type", line.decode("utf-8", "replace")))
        yield batch
