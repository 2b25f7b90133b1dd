"""A run's records joined with Envoy's time points, request by request, by id."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import UsageError
from loadgen.proxy.access_log import AccessLog
from loadgen.proxy.stages import Split, direct, through_envoy
from loadgen.proxy.time_points import TimePoints, points_from_headers
from loadgen.record import Outcome, Record, record_from_json


@dataclass
class Joined:
    """What the join found: the splits of the answered requests by id in the records' order, and why others have none.

    ``answered``: requests with outcome ok. ``by_log`` / ``by_head``: where Envoy's points came from.
    """

    splits: dict[str, Split] = field(default_factory=dict)
    answered: int = 0
    by_log: int = 0
    by_head: int = 0
    unjoined: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether every answered request was joined, and there was one."""
        return bool(self.splits) and not self.unjoined


def join_proxied(directory: Path, log: AccessLog | None, *, shared_clock: bool) -> Joined:
    """Split every answered request of a run that went through Envoy, by *log*, else by the head it kept.

    Raises UsageError when there is no run to read.
    """
    found = Joined()
    for record, offset in answered_records(directory):
        found.answered += 1
        entry = log.entries.get(record.id) if log else None
        points: TimePoints | None = (
            entry.points if entry else points_from_headers(record.answer_headers or {})
        )
        split = through_envoy(record, points, offset if shared_clock else None) if points else None
        if split is None:
            found.unjoined.append(record.id)
            continue
        found.splits[record.id] = split
        if entry:
            found.by_log += 1
        else:
            found.by_head += 1
    return found


def join_direct(directory: Path) -> Joined:
    """Split every answered request of a run without a proxy, by the client's own instants."""
    found = Joined()
    for record, _ in answered_records(directory):
        found.answered += 1
        split = direct(record)
        if split is None:
            found.unjoined.append(record.id)
        else:
            found.splits[record.id] = split
    return found


def answered_records(directory: Path) -> Iterator[tuple[Record, int]]:
    """(record, its worker's wall minus monotonic ns) of every request with outcome ok, in due order.

    Raises UsageError where there is no run.
    """
    rows: list[tuple[Record, int]] = []
    paths = sorted(directory.glob("records-*.jsonl"))
    if not paths:
        raise UsageError(f"{directory} holds no records")
    for path in paths:
        rows += _file(path)
    rows.sort(key=lambda row: (row[0].due_ns, row[0].index))
    yield from rows


def _file(path: Path) -> Iterator[tuple[Record, int]]:
    offset = 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                row: dict[str, Any] = orjson.loads(line)
                if "anchor" in row:
                    offset = row["anchor"]["wall_ns"] - row["anchor"]["mono_ns"]
                if row.get("outcome") == Outcome.OK:
                    yield record_from_json(row), offset
    except OSError as error:
        raise UsageError(f"cannot read {path}: {os.strerror(error.errno or 0).lower()}") from None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return  # the report of the run itself names damaged files
