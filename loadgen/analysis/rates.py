"""Counts a second, in equal spans of time: the series that rates and their intervals are taken from.

rate = ends in [start, end) / (end - start) = the mean over the spans. Its 95 % interval is that of the mean of
dependent values (`intervals`): completions of one queue follow each other, and arrivals come in bursts. It says what
another stretch of such traffic would give, not how precisely this one was counted: that count is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.analysis.intervals import Interval, Series, TooFew, mean_interval
from loadgen.analysis.rows import Floats, Mask, Rows

BINS = 600
"""Equal spans of time in which completions are counted."""


@dataclass(frozen=True)
class Span:
    """A stretch of time, ns since schedule instant 0: [start, end)."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return max(self.end_ns - self.start_ns, 0) / 1e9


@dataclass(frozen=True)
class TooShort:
    """No interval: the stretch of ``have_s`` is too short, about ``need_s`` would do."""

    have_s: float
    need_s: float


def counted(rows: Rows, which: Mask, span: Span, weights: str | None = None) -> Series:
    """Ends of the chosen rows a second (of what they carried by the column *weights*), one value a bin."""
    which = which & rows.has("done_ns")
    done = rows.instant("done_ns")[which]
    inside = (done >= span.start_ns) & (done < span.end_ns)
    width_ns = (span.end_ns - span.start_ns) / BINS
    if width_ns <= 0:
        return per_bin(np.zeros(0))
    amounts = None if weights is None else np.nan_to_num(rows.number(weights)[which][inside])
    places = ((done[inside] - span.start_ns) / width_ns).astype(np.int64)
    return per_bin(np.bincount(np.minimum(places, BINS - 1), amounts, BINS) / (width_ns / 1e9))


def rate_interval(rows: Rows, which: Mask, span: Span, weights: str | None = None) -> Interval | TooShort:
    """95 % interval of the rate over the span, 1/s."""
    found = mean_interval(counted(rows, which, span, weights))
    if isinstance(found, TooFew):
        return TooShort(span.seconds, span.seconds * found.need / BINS)
    return found


def per_bin(values: Floats) -> Series:
    """One value a place; a place without one (NaN) keeps its number."""
    places = np.flatnonzero(~np.isnan(values)).astype(np.int64)
    there = values[places]
    return Series(there, places, np.ones(len(there)), len(values), there)
