"""Whose row is it? A row's key in mixed radix: its lowest digit names the worker, the next one whoever takes over.

Row i, or the whole session by a hash of its name, belongs to shard ``key mod n``. When a worker is lost, its rows
from an instant on are split among m others by the next digit, and so on: at every instant each row has exactly one
owner, and every worker can tell without a list of rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from loadgen.cluster.lease import LATE_CLAIM_NS
from loadgen.schedule import ScheduleRow, shard_key


class Step(NamedTuple):
    """Of the rows due at or after ``from_ns`` those whose digit (key mod ``width``) falls to ``part`` mod ``of``."""

    part: int
    of: int
    from_ns: int = 0
    width: int = 0
    """0: as wide as ``of``. A closed loop's shards are as wide as its slots, so that each slot has equal rows."""


Claim = tuple[Step, ...]


def claim_of(shard: int, of: int, slots: int | None = None) -> Claim:
    """The claim of one worker at the start."""
    return (Step(shard, of, width=slots or 0),)


def claim_from(steps: Iterable[Iterable[int]]) -> Claim:
    """A claim out of a message. Raises TypeError for what is none."""
    return tuple(Step(*step) for step in steps)


def split(claim: Claim, among: int, from_ns: int) -> list[Claim]:
    """The claim's rows from an instant on, among so many others."""
    return [(*claim, Step(part, among, from_ns)) for part in range(among)]


def holds(claim: Claim, key: int, start_ns: int) -> bool:
    """Whether a row of that key is the claim's; *start_ns*: when it, or its session's first turn, is due."""
    for part, of, from_ns, width in claim:
        if start_ns < from_ns:
            return False
        key, digit = divmod(key, width or of)
        if digit % of != part:
            return False
    return True


def even_share(total: int, part: int, of: int) -> int:
    """*total* split exactly: shares differ by at most one."""
    return total // of + (part < total % of)


class SessionStarts:
    """When each row's session began. Memory: the sessions whose last turn is not marked."""

    def __init__(self) -> None:
        self._starts: dict[str, int] = {}

    def of(self, row: ScheduleRow) -> int:
        """The due instant of the row's session's first turn; of the row itself where it is alone."""
        if row.session is None:
            return row.due_ns
        start = self._starts.setdefault(row.session, row.due_ns)
        if row.last:
            del self._starts[row.session]
        return start


class ClaimedRows:
    """The rows of a worker's claims out of the whole schedule, in one pass that later claims can join.

    Rows of others between now and the place of the pass (the render-ahead) are remembered: a claim takes effect at
    once and no row is generated twice.
    """

    def __init__(self, rows: Iterable[ScheduleRow], claim: Claim, now_ns: Callable[[], int]) -> None:
        self._rows, self._now_ns = iter(rows), now_ns
        self.claims = [claim]
        self._starts = SessionStarts()
        self._passed: deque[tuple[ScheduleRow, int, int]] = deque()

    def __iter__(self) -> Iterator[ScheduleRow]:
        return self

    def __next__(self) -> ScheduleRow:
        for row in self._rows:
            key, start_ns = shard_key(row), self._starts.of(row)
            if any(holds(claim, key, start_ns) for claim in self.claims):
                return row
            self._passed.append((row, key, start_ns))
            self._forget()
        raise StopIteration

    def _forget(self) -> None:
        oldest_ns = self._now_ns() - LATE_CLAIM_NS
        while self._passed and self._passed[0][0].due_ns < oldest_ns:
            self._passed.popleft()

    def claim(self, claim: Claim) -> list[ScheduleRow]:
        """Add a claim; the rows of it that the pass is beyond already, in due order."""
        self.claims.append(claim)
        ours = [row for row, key, start_ns in self._passed if holds(claim, key, start_ns)]
        indices = {row.index for row in ours}
        self._passed = deque(item for item in self._passed if item[0].index not in indices)
        return ours
