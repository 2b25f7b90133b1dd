"""How much of the planned prompts a prefix cache may know already: told of the schedule, before anything is sent.

A prompt shares what stands at its beginning: the leading blocks whose ids have come before, or, for a later turn of a
session, all that was said in it. Everything else is the row's own. A load of few distinct prompts is mostly cache
hits, and its figures are those of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.schedule import ScheduleRow


@dataclass(frozen=True, slots=True)
class Reuse:
    """``distinct``: different prompts among ``prompts``; ``shared_prefix_ratio``: of all input tokens, 0..1."""

    prompts: int
    distinct: int
    shared_prefix_ratio: float


class ReuseCount:
    """Takes rows in due order. Remembers block ids and open sessions, nothing of other rows."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()
        self._whole: set[int] = set()
        self._said: dict[str, int] = {}
        self._rows = self._repeated = self._tokens = self._shared = 0

    def take(self, row: ScheduleRow) -> None:
        """Count *row*."""
        self._rows += 1
        self._tokens += row.n_input
        if row.hash_ids and row.block_size:
            self._take_blocks(row, row.hash_ids, row.block_size)
        elif row.session is not None:
            said = self._said.get(row.session, 0)
            self._shared += said if said <= row.n_input else 0
            if row.last:
                self._said.pop(row.session, None)
            else:
                self._said[row.session] = row.n_input + row.n_output

    def _take_blocks(self, row: ScheduleRow, ids: tuple[int, ...], size: int) -> None:
        known = 0
        for block in ids:
            if block not in self._blocks:
                break
            known += 1
        self._blocks.update(ids[known:])
        self._shared += min(known * size, row.n_input)
        if len(ids) * size >= row.n_input:  # nothing of it is its own
            key = hash((ids, row.n_input))
            self._repeated += key in self._whole
            self._whole.add(key)

    def result(self) -> Reuse:
        """What has been counted."""
        ratio = self._shared / self._tokens if self._tokens else 0.0
        return Reuse(self._rows, self._rows - self._repeated, ratio)
