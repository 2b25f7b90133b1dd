"""What was asked, what was sent: the schedule's arrivals beside the real ones.

Conventions: CV with ddof 0 over gaps; rate = (n - 1) / span; IDC(w) = variance (ddof 1) / mean of counts in
whole windows of w from the first arrival's instant, the partial last window dropped; KS = largest distance
between the two empirical distributions of gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadgen.analysis.rows import Floats, Ints

IDC_WINDOWS_S = (0.1, 1.0, 10.0, 60.0)
MIN_WINDOWS = 2
"""A variance of counts needs two of them."""


@dataclass(frozen=True)
class Arrivals:
    """Figures of one sequence of instants; ``None``: too few arrivals or windows to say."""

    n: int
    span_s: float
    rate_per_s: float | None = None
    gap_cv: float | None = None
    idc: dict[float, float | None] = field(default_factory=dict)

    def windows(self, window_s: float) -> int:
        """Whole windows of that length: how much an IDC rests on."""
        return int(self.span_s * 1e9 // round(window_s * 1e9))


def describe(instants_ns: Ints) -> Arrivals:
    """Figures of the instants (ns, any order)."""
    instants = np.sort(instants_ns)
    n = len(instants)
    span_s = float(instants[-1] - instants[0]) / 1e9 if n else 0.0
    idc = {w: index_of_dispersion(instants, w) for w in IDC_WINDOWS_S}
    if n < 2 or span_s == 0:
        return Arrivals(n=n, span_s=span_s, idc=idc)
    between = gaps(instants)
    return Arrivals(n, span_s, (n - 1) / span_s, float(between.std() / between.mean()), idc)


def gaps(instants_ns: Ints) -> Ints:
    """Times between successive instants, ns."""
    instants = np.sort(instants_ns)
    return instants[1:] - instants[:-1]


def index_of_dispersion(sorted_ns: Ints, window_s: float) -> float | None:
    """Variance over mean of the counts in windows of ``window_s``; 1 for a Poisson process."""
    if not len(sorted_ns):
        return None
    window_ns = round(window_s * 1e9)
    windows = int((sorted_ns[-1] - sorted_ns[0]) // window_ns)
    if windows < MIN_WINDOWS:
        return None
    places = (sorted_ns - sorted_ns[0]) // window_ns
    # only windows that hold anything are visited: a day has 864,000 of a tenth of a second, most may be empty
    counts = np.unique(places[places < windows], return_counts=True)[1].astype(np.float64)
    mean = float(counts.sum()) / windows
    return (float((counts**2).sum()) - windows * mean**2) / (windows - 1) / mean


def ks_distance(one: Floats | Ints, other: Floats | Ints) -> float | None:
    """Two-sample Kolmogorov-Smirnov distance, in [0, 1]; ``None`` when a sample is empty."""
    if not len(one) or not len(other):
        return None
    a, b = np.sort(one), np.sort(other)
    at = np.concatenate([a, b])
    cdf_a = np.searchsorted(a, at, side="right") / len(a)
    cdf_b = np.searchsorted(b, at, side="right") / len(b)
    return float(np.abs(cdf_a - cdf_b).max())
