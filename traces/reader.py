"""What a trace format is: how to tell it and how to read it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from traces.intake import Intake
from traces.order import REORDER_ROWS
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


LOG_REORDER_ROWS = 1 << 16
"""The reach for logs that are written as requests end: a minute of 1,000 requests/s."""


def no_header(_: Head) -> Mapping[str, Any]:
    """Most formats carry no header of their own."""
    return {}


@dataclass(frozen=True)
class Reader:
    """One format. ``matches`` gives how many of its own keys the head has, 0 for "not mine".

    ``read`` yields batches of rows in file order, times in ns from ``intake.origin_ns``;
    ``reorder_rows`` is how far a row may stand from its place in time.
    """

    summary: str
    matches: Callable[[Head], int]
    read: Callable[[Intake], Iterator[list[TraceRow]]]
    options: frozenset[str] = frozenset()
    header: Callable[[Head], Mapping[str, Any]] = field(default=no_header)
    reorder_rows: int = REORDER_ROWS


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
