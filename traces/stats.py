"""Statistics of arrivals and lengths, each one line of its definition.

Conventions: CV with ddof 0 over gaps; counts from the first arrival's instant in whole windows, the partial
last one dropped, IDC with ddof 1; rate = (n - 1)/span.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NS_PER_S = 1_000_000_000

ZERO_GAP_SHARE = 0.05
MULTIPLE_SHARE = 0.98
MULTIPLE_TOLERANCE = 0.01


def rate_per_s(t_ns: Ints) -> float | None:
    """(n - 1)/span, or None below two distinct instants."""
    span = int(t_ns[-1] - t_ns[0]) if t_ns.size else 0
    return (t_ns.size - 1) * NS_PER_S / span if span else None


def gap_cv(t_ns: Ints) -> float | None:
    """Standard deviation (ddof 0) over mean of the gaps; None below two gaps or at a zero span."""
    gaps = np.diff(t_ns).astype(np.float64)
    return float(gaps.std() / gaps.mean()) if gaps.size > 1 and gaps.any() else None


def counts(t_ns: Ints, window_s: float) -> Ints:
    """Arrivals in whole windows from the first arrival's instant; the partial last one is dropped."""
    since_s = (t_ns - t_ns[0]) / NS_PER_S
    whole = int(since_s[-1] // window_s) if t_ns.size else 0
    index = (since_s / window_s).astype(np.int64)
    return np.bincount(index[: np.searchsorted(index, whole)], minlength=whole).astype(np.int64)


def idc_of(count: Ints) -> float | None:
    """Variance (ddof 1) over mean of counts; None below two windows or without arrivals."""
    return float(count.var(ddof=1) / count.mean()) if count.size > 1 and count.any() else None


def idc(t_ns: Ints, window_s: float) -> float | None:
    """Index of dispersion of the counts in windows: 1 for Poisson at every window."""
    return idc_of(counts(t_ns, window_s))


def idc_windows(span_s: float, number: int = 25) -> Floats:
    """Windows of the IDC curve: log-spaced in [1 s, span/30], from span/3000 where that is less."""
    last = span_s / 30
    return np.geomspace(min(1.0, last / 100), last, number)


def idc_curve(t_ns: Ints, windows_s: Floats) -> Floats:
    """IDC at each window (NaN where there is none)."""
    found = [idc(t_ns, float(w)) for w in windows_s]
    return np.array([np.nan if value is None else value for value in found])


def windowed_cv(t_ns: Ints, window_s: float, least_gaps: int = 10) -> dict[str, float] | None:
    """Gap CV within each window: median and 90th percentile over the windows with enough gaps.

    Far below the CV of all gaps it says that the burstiness is a changing rate, not the gaps' own.
    """
    index = (t_ns - t_ns[0]) // max(1, round(window_s * NS_PER_S))
    edges = np.flatnonzero(np.diff(index)) + 1
    found = [gap_cv(part) for part in np.split(t_ns, edges) if part.size > least_gaps]
    values = [value for value in found if value is not None]
    if not values:
        return None
    return {"p50": float(np.median(values)), "p90": float(np.percentile(values, 90)), "windows": len(values)}


def acf(count: Ints, lags: list[int]) -> dict[int, float]:
    """Autocorrelation of counts at each lag (in windows) that a tenth of the series covers."""
    centred = count - count.mean()
    power = float(centred @ centred)
    return {
        lag: float(centred[lag:] @ centred[: centred.size - lag]) / power
        for lag in lags
        if power > 0 and 0 < lag <= centred.size // 10
    }


def quantum_ns(t_ns: Ints) -> int | None:
    """The quantum of stamps that come in batches, or None.

    Found when more than 5 % of gaps are zero and 98 % of the gaps between stamps are multiples
    (within 1 %) of their median.
    """
    gaps = np.diff(t_ns)
    steps = gaps[gaps > 0]
    if steps.size < 2 or (gaps == 0).mean() <= ZERO_GAP_SHARE:
        return None
    median = float(np.median(steps))
    ratio = steps / median
    is_multiple = (np.abs(ratio - np.rint(ratio)) <= MULTIPLE_TOLERANCE) & (ratio > 0.5)
    return round(median) if is_multiple.mean() >= MULTIPLE_SHARE else None


def spread(t_ns: Ints, quantum: int, rng: np.random.Generator) -> Ints:
    """Instants of equal stamps spread uniformly over the quantum after the stamp, in their order.

    Never past the next stamp, so that the order of rows stays.
    """
    starts = np.flatnonzero(np.r_[True, np.diff(t_ns) > 0])
    sizes = np.diff(np.r_[starts, t_ns.size])
    stamps = t_ns[starts]
    room = np.minimum(np.diff(np.r_[stamps, stamps[-1] + quantum]), quantum)
    group = np.repeat(np.arange(starts.size), sizes)
    # Sorting (group + u) sorts within each group only.
    unit = np.sort(group + rng.random(t_ns.size)) - group
    return np.asarray(t_ns + np.minimum((unit * room[group]).astype(np.int64), room[group] - 1))


def length_summary(values: Ints) -> dict[str, float | int] | None:
    """Mean, quantiles and maximum of the known lengths (unknown = -1)."""
    known = values[values >= 0]
    if not known.size:
        return None
    p50, p90, p99 = np.percentile(known, [50, 90, 99])
    return {
        "known": int(known.size),
        "mean": float(known.mean()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": int(known.max()),
        "zero": int((known == 0).sum()),
    }


def rank_correlation(a: Ints, b: Ints) -> float | None:
    """Spearman's rho of two length columns over the rows that know both; ties get mean ranks."""
    both = (a >= 0) & (b >= 0)
    if both.sum() < 3:
        return None
    x, y = _ranks(a[both]), _ranks(b[both])
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else None


def _ranks(values: Ints) -> Floats:
    _, inverse, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return np.asarray((last - (sizes - 1) / 2)[inverse])
