"""A run's rows as columns: one numpy array a field, and every chunk gap of the run in one flat array.

Instants are int64 nanoseconds since the run's schedule instant 0 (each worker's own ``t0_ns`` is taken off,
so that workers of several hosts share the axis). `NONE` marks what never came.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadgen.record import Outcome

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

NONE = int(np.iinfo(np.int64).min)
"""The value of an integer column where nothing is known."""

INSTANTS = (
    "due_ns", "taken_ns", "connect_start_ns", "connect_end_ns", "tls_end_ns", "sent_ns", "sent_end_ns",
    "headers_ns", "first_ns", "first_output_ns", "last_ns", "done_ns",
)  # fmt: skip
COUNTS = (
    "index", "held_ns", "n_input_asked", "n_output_asked", "n_input", "n_output", "n_cached", "status",
    "retries", "turn", "queue_ns",
)  # fmt: skip
TEXTS = ("outcome", "class", "clock", "n_output_source", "finish_reason", "error", "session", "endpoint")

WIDE = int(np.iinfo(np.uint32).max)
"""A gap of this many ns (4.29 s) or more is kept in the side table."""


@dataclass(frozen=True)
class Texts:
    """A column of repeating words: ``codes`` into ``words``; -1 where nothing is known."""

    codes: NDArray[np.int32]
    words: tuple[str, ...]

    def code(self, word: str) -> int:
        """The word's code, -2 (never met) when no row has it."""
        return self.words.index(word) if word in self.words else -2

    def at(self, row: int) -> str | None:
        """The row's word."""
        code = int(self.codes[row])
        return None if code < 0 else self.words[code]


@dataclass(frozen=True)
class Gaps:
    """Chunk gaps of all rows, row after row: 4 bytes a gap, with a side table for those of 4.29 s and more.

    ``start`` and ``count`` (one a row) say where a row's gaps lie. ``tokens`` runs beside the gaps: the
    tokens that the chunk after the gap carried; it is empty when no server reported usage continuously.
    """

    flat: NDArray[np.uint32]
    wide_at: Ints
    wide_ns: Ints
    tokens: NDArray[np.uint32] | NDArray[np.uint16]
    start: Ints
    count: Ints
    has_tokens: Mask

    def ns(self, lo: int, hi: int) -> Ints:
        """Gaps ``lo:hi`` of the flat array, nanoseconds."""
        gaps = self.flat[lo:hi].astype(np.int64)
        first, last = np.searchsorted(self.wide_at, (lo, hi))
        gaps[self.wide_at[first:last] - lo] = self.wide_ns[first:last]
        return gaps

    def of_row(self, row: int) -> Ints:
        """One row's gaps, nanoseconds."""
        lo = int(self.start[row])
        return self.ns(lo, lo + int(self.count[row]))


@dataclass(frozen=True)
class Rows:
    """Every scheduled row exactly once, in no particular order. ``ids`` is "" where no record exists."""

    ids: list[str]
    ints: dict[str, Ints]
    texts: dict[str, Texts]
    gaps: Gaps
    made_up: int = 0
    memo: dict[str, Floats] = field(default_factory=dict, repr=False)
    """Columns that are dear to compute and asked for more than once."""

    def __len__(self) -> int:
        return len(self.ids)

    def instant(self, name: str) -> Ints:
        """An integer column; `NONE` where unknown."""
        return self.ints[name]

    def has(self, name: str) -> Mask:
        """Where the integer column is known."""
        return np.not_equal(self.ints[name], NONE)

    def number(self, name: str) -> Floats:
        """An integer column as floats, NaN where unknown."""
        return np.where(self.has(name), self.ints[name], np.nan)

    def between(self, earlier: str, later: str) -> Floats:
        """``later - earlier`` in ns (exact below 104 days), NaN where either is unknown."""
        known = self.has(earlier) & self.has(later)
        return np.where(known, self.ints[later] - np.where(known, self.ints[earlier], 0), np.nan)

    @property
    def begin_ns(self) -> Ints:
        """Each row's due instant; where nobody wrote that down, the instant of its sending."""
        return np.where(self.has("due_ns"), self.ints["due_ns"], self.ints["sent_ns"])

    def outcome(self, *outcomes: Outcome) -> Mask:
        """Rows that ended in one of the outcomes."""
        texts = self.texts["outcome"]
        return np.isin(texts.codes, [texts.code(str(o)) for o in outcomes])

    def of_class(self, name: str) -> Mask:
        """Rows of the class."""
        texts = self.texts["class"]
        return np.equal(texts.codes, texts.code(name))

    def of_endpoint(self, name: str) -> Mask:
        """Rows that went to the endpoint of that name, in a run with several."""
        texts = self.texts["endpoint"]
        return np.equal(texts.codes, texts.code(name))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names that rows carry, sorted."""
        texts = self.texts["class"]
        return tuple(sorted(texts.words[c] for c in np.unique(texts.codes) if c >= 0))
