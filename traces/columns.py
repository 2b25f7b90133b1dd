"""A trace's numbers as arrays, for statistics and models that need all of them at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from traces.row import TraceRow
from traces.stats import Ints


@dataclass
class PrefixCache:
    """Block hits at an infinite cache: a block hits while every block before it in its prompt was seen."""

    hits: int = 0
    blocks: int = 0
    seen: set[int] = field(default_factory=set)

    def add(self, ids: tuple[int, ...]) -> None:
        """One prompt's blocks."""
        seen = self.seen
        self.blocks += len(ids)
        for position, block in enumerate(ids):
            if block not in seen:
                self.hits += position
                seen.update(ids[position:])
                return
        self.hits += len(ids)


@dataclass
class Columns:
    """What of a trace is kept: 24 bytes a row, and one entry for each session and distinct block."""

    t_ns: Ints
    n_input: Ints
    n_output: Ints
    turns: dict[str, int]
    classes: dict[str, int]
    statuses: dict[str, int]
    cache: PrefixCache

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.t_ns.size)


def columns(batches: Iterable[list[TraceRow]]) -> Columns:
    """One pass over batches of rows; -1 stands for an unknown length."""
    t_ns, n_input, n_output = array("q"), array("q"), array("q")
    turns: dict[str, int] = {}
    classes: dict[str, int] = {}
    statuses: dict[str, int] = {}
    cache = PrefixCache()
    for batch in batches:
        t_ns.extend([row[1] for row in batch])
        n_input.extend([-1 if row[2] is None else row[2] for row in batch])
        n_output.extend([-1 if row[3] is None else row[3] for row in batch])
        for row in batch:
            if row[4] is not None:
                classes[row[4]] = classes.get(row[4], 0) + 1
            if row[5] is not None:
                turns[row[5]] = turns.get(row[5], 0) + 1
            if row[8] is not None:
                cache.add(row[8])
            if row[11] is not None:
                statuses[row[11]] = statuses.get(row[11], 0) + 1
    arrays = [
        np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64)
        for column in (t_ns, n_input, n_output)
    ]
    return Columns(arrays[0], arrays[1], arrays[2], turns, classes, statuses, cache)
