"""The schedule: every request's due instant and lengths, determined before the first byte is sent.

A schedule is kept as the recipe that regenerates its rows, so that a day's worth needs no memory; one pass over
it (`survey`) gives its size, its peak rate and its digest. The digest is of the rows alone: neither salt nor
target enter it, so that equal digests mean that the same load was asked.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import orjson

from loadgen.prompt_reuse import Reuse, ReuseCount

NS_PER_S = 1_000_000_000


class ScheduleRow(NamedTuple):
    """One request to come. ``due_ns`` counts from the run's start instant; lengths are tokens.

    In a closed loop ``due_ns`` is 0: the release of a slot decides.
    """

    index: int  # type: ignore[assignment]  # shadows tuple.index, which rows do not use
    due_ns: int
    n_input: int
    n_output: int
    class_name: str | None = None
    session: str | None = None
    turn: int | None = None
    think_ns: int | None = None
    hash_ids: tuple[int, ...] | None = None
    block_size: int | None = None
    last: bool = False
    """No later turn of the session follows (said where sessions stand together or answers are carried)."""
    endpoint: str | None = None
    """The target that it goes to, where a run has several."""
    priority: int | None = None
    """The class's, for engines in virtual time; how a real one is told is the class's own matter."""
    cancel_ns: int | None = None
    """The client leaves so long after sending."""
    cancel_tokens: int | None = None
    """The client leaves when it has so many output tokens."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What one pass over the rows tells. Rates are requests per second; the peak is over one second.

    Turns that only the answer before them times count in the sizes, not in span, rates and peak.
    """

    requests: int
    input_tokens: int
    output_tokens: int
    span_ns: int
    rate_per_s: float | None
    peak_rate_per_s: int
    digest: str
    prompts: Reuse | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A recipe for rows in due order. ``closed``: slots instead of instants; ``limit_ns`` ends a closed loop."""

    source: str
    steps: tuple[dict[str, Any], ...]
    make_rows: Callable[[], Iterable[ScheduleRow]]
    closed: bool = False
    limit_ns: int | None = None
    open_ended: bool = False
    together: bool = False
    """The turns of a session stand together, at their first turn's instant."""

    def rows(self, shard: int = 0, of: int = 1) -> Iterator[ScheduleRow]:
        """The rows of one shard: row i, or the whole session, belongs to shard i mod *of*."""
        for row in self.make_rows():
            if of == 1 or _shard_key(row) % of == shard:
                yield row

    def survey(self) -> Survey | None:
        """Size, peak and digest; None for an open-ended closed loop, whose size its answers decide."""
        if self.open_ended:
            return None
        return survey(self.make_rows(), together=self.together)

    def describe(self, found: Survey | None) -> dict[str, Any]:
        """The recipe and its survey as plan.json keeps them."""
        size = asdict(found) if found else {}
        kind = "closed" if self.closed else "open"
        return {"kind": kind, "source": self.source, "steps": list(self.steps), **size}


def _shard_key(row: ScheduleRow) -> int:
    if row.session is None:
        return row.index
    return int.from_bytes(hashlib.blake2b(row.session.encode(), digest_size=8).digest())


def survey(rows: Iterable[ScheduleRow], *, together: bool = False) -> Survey:
    """One pass, constant memory but for the arrivals of one second."""
    digest = hashlib.blake2b(digest_size=16)
    count = timed = n_input = n_output = peak = 0
    first = last = 0
    session: str | None = None
    recent: deque[int] = deque()
    reuse = ReuseCount()
    for row in rows:
        reuse.take(row)
        if count == 0:
            first = row.due_ns
        last = row.due_ns
        count += 1
        n_input += row.n_input
        n_output += row.n_output
        leaves = row.cancel_ns is not None or row.cancel_tokens is not None
        digest.update(orjson.dumps((*row[1:10], row.cancel_ns, row.cancel_tokens) if leaves else row[1:10]))
        if together and session is not None and row.session == session:
            continue
        session = row.session
        timed += 1
        recent.append(last)
        while last - recent[0] >= NS_PER_S:
            recent.popleft()
        peak = max(peak, len(recent))
    span = last - first
    rate = (timed - 1) * NS_PER_S / span if span else None
    return Survey(count, n_input, n_output, span, rate, peak, digest.hexdigest(), reuse.result())


def chance(*keys: object) -> float:
    """A number in [0, 1) that the keys alone decide, evenly spread over keys."""
    digest = hashlib.blake2b("/".join(map(str, keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
