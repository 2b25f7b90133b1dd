"""The master's last duty: every row that no worker left a record of gets one, with the truth about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from loadgen.cluster.ownership import Ownership
from loadgen.cluster.shard import SessionStarts
from loadgen.prompts import new_record
from loadgen.record import Outcome, Record
from loadgen.schedule import ScheduleRow, shard_key

NO_RECORD = "no record"


def recorded_indices(paths: Iterable[Path]) -> bytearray:
    """A flag a row, as long as the greatest index: whether a record of it is in one of the files."""
    flags = bytearray(4096)
    for path in paths:
        with path.open("rb", buffering=1 << 20) as lines:
            for line in lines:
                index = _index_of(line)
                if index is None:
                    continue
                if index >= len(flags):
                    flags.extend(bytes(max(index + 1 - len(flags), len(flags))))
                flags[index] = 1
    return flags


def _index_of(line: bytes) -> int | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    index = row.get("index") if isinstance(row, dict) and "outcome" in row else None
    return index if isinstance(index, int) and 0 <= index < 1 << 40 else None


def missing_records(
    rows: Iterable[ScheduleRow],
    recorded: bytearray,
    verdict: Verdict,
    run_id: str,
) -> Iterator[Record]:
    """A record for each row without one, due instants on the schedule's clock."""
    starts = SessionStarts()
    for row in rows:
        owner, place = verdict.place(row, starts.of(row))
        if row.index < len(recorded) and recorded[row.index]:
            continue
        record = new_record(row, run_id)
        record.outcome, record.error = verdict.of(owner, place, row.due_ns)
        yield record


class Verdict:
    """What became of a row without a record. *stop*: (reason, instant) of what cut the run short.

    *complete*: workers whose file holds a record of every row that they took.
    """

    def __init__(self, ownership: Ownership, complete: set[int], stop: tuple[str, int] | None) -> None:
        self._ownership, self._complete, self._stop = ownership, complete, stop
        self._shard_rows: Counter[int] = Counter()
        self._session_places: dict[str, int] = {}

    def place(self, row: ScheduleRow, start_ns: int) -> tuple[int, int]:
        """The row's last owner, and where it, or its session's first turn, stands: an instant of the schedule.

        In a closed loop its place among its shard's rows; every row is to be asked about, in order.
        """
        owner = self._ownership.owner(shard_key(row), start_ns)
        if self._ownership.slots is None:
            return owner, start_ns
        place = self._shard_rows[owner]
        self._shard_rows[owner] += 1
        if row.session is not None:
            place = self._session_places.setdefault(row.session, place)
        return owner, place

    def of(self, owner: int, place: int, due_ns: int) -> tuple[Outcome, str]:
        """(lost or not_sent, why)."""
        loss = self._ownership.losses.get(owner)
        if loss is not None and place < loss.from_ns and not (loss.left and owner in self._complete):
            return Outcome.LOST, f"in flight or due when worker {owner} was lost ({loss.why})"
        if self._stop is not None:
            reason, stopped_ns = self._stop
            if owner in self._complete or due_ns >= stopped_ns:
                return Outcome.NOT_SENT, reason
        if loss is not None:
            return Outcome.NOT_SENT, f"worker {owner} was lost ({loss.why}); nobody took its rows over"
        return Outcome.LOST, NO_RECORD
