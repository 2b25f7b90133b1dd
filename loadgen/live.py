"""Live figures that workers can add up: counts in buckets of a stated relative width.

A value v falls into bucket ceil(log(v) / log(g)), g = (1 + e) / (1 - e), and is read back as 2 g^i / (g + 1): off by at
most the relative error e (the rule of DDSketch, Masson et al., VLDB 2019). Adding two histograms adds their
counts, so that many workers' quantiles are as exact as one's. They steer and show; no figure of a report
comes from here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

RELATIVE_ERROR = 0.01


class Histogram:
    """Counts of positive values. Quantiles are within *relative_error* of a value that was counted."""

    def __init__(
        self, relative_error: float = RELATIVE_ERROR, counts: Mapping[int, int] | None = None
    ) -> None:
        self.relative_error = relative_error
        self._growth = (1 + relative_error) / (1 - relative_error)
        self._log_growth = math.log(self._growth)
        self.counts: Counter[int] = Counter(counts or {})

    def add(self, value: float) -> None:
        """Count a value; one that is not positive counts as the smallest."""
        self.counts[math.ceil(math.log(value) / self._log_growth) if value > 0 else 0] += 1

    def merge(self, other: Histogram) -> None:
        """Add another's counts. Raises ValueError where the errors differ."""
        if other.relative_error != self.relative_error:
            raise ValueError("histograms of different relative errors cannot be added")
        self.counts.update(other.counts)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return self.counts.total()

    def quantile(self, q: float) -> float | None:
        """The value of rank ceil(q n), 0 <= q <= 1; None while nothing was counted."""
        rank, seen = max(1, math.ceil(q * self.total)), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                return float(2 * self._growth**bucket / (self._growth + 1))
        return None
