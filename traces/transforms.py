"""Steps from rows to rows: pure iterators in constant memory.

Rows come and go in time order. A session is a whole: it is kept or left out, never cut, unless
the step is told to cut. ``traces.steps`` records them, applies them by name and predicts their effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import repeat
from math import isfinite

import numpy as np

from traces.errors import TraceError
from traces.row import TraceRow

_new = tuple.__new__


def at(row: TraceRow, t_ns: int) -> TraceRow:
    """The row at another instant."""
    return _new(TraceRow, (row[0], t_ns, *row[2:]))


def positive(name: str, value: object) -> float:
    """A finite number above 0. Raises TraceError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value > 0):
        raise TraceError(f"{name} must be above 0, got {value!r}")
    return float(value)


def window(
    rows: Iterable[TraceRow], start_ns: int, end_ns: int | None, *, sessions: str = "whole"
) -> Iterator[TraceRow]:
    """Arrivals in [start, end) of trace time, counted from the window's start.

    A session belongs to the window in which its first turn arrives: all its turns are kept, also
    those after the end, and the later turns of earlier sessions are left out. ``sessions="cut"``
    looks at each row alone.
    """
    if start_ns < 0 or (end_ns is not None and end_ns <= start_ns):
        raise TraceError(f"window needs 0 <= start < end, got {start_ns} ns to {end_ns} ns")
    if sessions not in ("whole", "cut"):
        raise TraceError(f"sessions must be whole or cut, got {sessions!r}")
    begun_before: set[str] = set()
    inside: set[str] = set()
    for row in rows:
        session = row.session if sessions == "whole" else None
        if row.t_ns < start_ns:
            if session is not None:
                begun_before.add(session)
        elif end_ns is not None and row.t_ns >= end_ns:
            if not inside:
                return
            if session in inside:
                yield at(row, row.t_ns - start_ns)
        elif session is None or session not in begun_before:
            if session is not None:
                inside.add(session)
            yield at(row, row.t_ns - start_ns)


def speedup(rows: Iterable[TraceRow], factor: float) -> Iterator[TraceRow]:
    """Every instant divided by ``factor``: gap CV stays, IDC'(w) = IDC(factor * w). Think times too."""
    factor = positive("speedup", factor)
    for row in rows:
        think = None if row.think_ns is None else round(row.think_ns / factor)
        yield row._replace(t_ns=round(row.t_ns / factor), think_ns=think)


def thin(rows: Iterable[TraceRow], keep: float, *, seed: int = 0) -> Iterator[TraceRow]:
    """Each row without a session, and each whole session, kept with probability ``keep``.

    For rows IDC' = 1 + keep (IDC - 1); for sessions there is no closed form. A session's fate is a
    hash of its name, so that no list of sessions is held.
    """
    if not 0 < keep <= 1:
        raise TraceError(f"thin must be in (0, 1], got {keep!r}")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    unit = (u for block in repeat(4096) for u in rng.random(block).tolist())
    limit, salt = int(keep * (1 << 64)), seed.to_bytes(8, "little", signed=True)
    for row in rows:
        if row.session is None:
            kept = next(unit) < keep
        else:
            digest = hashlib.blake2b(row.session.encode(), digest_size=8, salt=salt).digest()
            kept = int.from_bytes(digest) < limit
        if kept:
            yield row


def dequantise(rows: Iterable[TraceRow], quantum_ns: int, *, seed: int = 0) -> Iterator[TraceRow]:
    """Rows of one stamp spread uniformly over the quantum after it, in their order.

    Never past the next stamp, so that order, and a session's order above all, stays.
    """
    if quantum_ns <= 0:
        raise TraceError(f"quantum must be above 0 ns, got {quantum_ns}")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
    group: list[TraceRow] = []

    def spread(room_ns: int) -> Iterator[TraceRow]:
        offsets = np.sort((rng.random(len(group)) * room_ns).astype(np.int64))
        for row, offset in zip(group, offsets.tolist(), strict=True):
            yield at(row, row.t_ns + offset)

    for row in rows:
        if group and row.t_ns != group[0].t_ns:
            yield from spread(min(quantum_ns, row.t_ns - group[0].t_ns))
            group = []
        group.append(row)
    if group:
        yield from spread(quantum_ns)


def cap_gap(rows: Iterable[TraceRow], longest_ns: int) -> Iterator[TraceRow]:
    """Gaps between arrivals longer than ``longest_ns`` shortened to it; later rows move with them."""
    if longest_ns <= 0:
        raise TraceError(f"cap_gap must be above 0 ns, got {longest_ns}")
    previous, cut = 0, 0
    for row in rows:
        cut += max(0, row.t_ns - previous - longest_ns)
        previous = row.t_ns
        yield at(row, row.t_ns - cut)


def scale_lengths(
    rows: Iterable[TraceRow], n_input: float = 1.0, n_output: float = 1.0
) -> Iterator[TraceRow]:
    """Lengths times factors, at least 1 token where there was one.

    Blocks follow the prompt: those beyond a shorter one are left out, a longer one gets new
    ones of its own, so that the shared prefix stays what it was.
    """
    positive("n_input", n_input)
    positive("n_output", n_output)
    for row in rows:
        asked, answered = _scaled(row.n_input, n_input), _scaled(row.n_output, n_output)
        yield row._replace(n_input=asked, n_output=answered, hash_ids=_blocks(row, asked))


def _scaled(tokens: int | None, factor: float) -> int | None:
    return tokens if not tokens else max(1, round(tokens * factor))


def _blocks(row: TraceRow, n_input: int | None) -> tuple[int, ...] | None:
    ids, size = row.hash_ids, row.block_size
    if ids is None or n_input is None or n_input == row.n_input:
        return ids
    if size is None:
        # Parts of unknown length cannot be cut at the right place.
        return None
    number = -(-n_input // size)
    own = [
        int.from_bytes(hashlib.blake2b(f"{row.seq}/{i}".encode(), digest_size=8).digest()) >> 1
        for i in range(len(ids), number)
    ]
    return ids[:number] + tuple(own)
