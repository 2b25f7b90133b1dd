"""What a trace is like: typed keys that scripts may rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, TypedDict, cast

import numpy as np

from traces.columns import Columns, columns
from traces.row import TraceRow
from traces.stats import (
    NS_PER_S,
    acf,
    counts,
    gap_cv,
    idc,
    length_summary,
    quantum_ns,
    rank_correlation,
    rate_per_s,
    spread,
    windowed_cv,
)
from traces.trace import Trace

IDC_WINDOWS_S = (1, 10, 60, 600, 3600)
CV_WINDOW_S = 60
ACF_WINDOW_S = 1
ACF_LAGS = [1, 2, 5, 10, 30, 60, 120, 300, 600]
Watch = Callable[[Iterator[list[TraceRow]], str], Iterator[list[TraceRow]]]
LEAST_WINDOWS = 30
"""An IDC of fewer windows than this is mostly chance and is not given."""


class Description(TypedDict):
    """``loadgen trace describe``. None = the trace does not say, or has too few rows to tell."""

    format: str
    source: str
    rows: int
    origin_ns: int
    span_s: float
    rate_per_s: float | None
    gap_cv: float | None
    gap_cv_dequantised: float | None
    quantum_s: float | None
    windowed_cv: dict[str, float] | None
    idc: dict[str, float]
    idc_dequantised: dict[str, float]
    acf: dict[str, float]
    input: dict[str, float | int] | None
    output: dict[str, float | int] | None
    rank_correlation: float | None
    prefix_hit_ratio: float | None
    blocks: int
    distinct_blocks: int
    sessions: dict[str, float | int] | None
    classes: dict[str, int]
    statuses: dict[str, int]
    drops: dict[str, Any]


def describe(trace: Trace, watch: Watch | None = None) -> Description:
    """One pass over the trace; ``watch`` sees its batches. Raises TraceError as reading it does."""
    batches = trace.batches()
    found = columns(watch(batches, "reading") if watch else batches)
    head = {"format": trace.format, "source": trace.source, "origin_ns": trace.origin_ns}
    parts = {**head, **arrivals_part(found), **rows_part(found), "drops": asdict(trace.accounting)}
    return cast(Description, parts)


def arrivals_part(found: Columns, seed: int = 0) -> dict[str, Any]:
    """What the instants say; the dequantised figures depend, a little, on ``seed``."""
    t_ns = found.t_ns
    span_s = float(t_ns[-1] - t_ns[0]) / NS_PER_S if t_ns.size else 0.0
    quantum = quantum_ns(t_ns) if t_ns.size > 2 else None
    even = spread(t_ns, quantum, np.random.default_rng(seed)) if quantum else t_ns
    per_second = counts(even, ACF_WINDOW_S) if span_s >= 2 else np.zeros(0, np.int64)
    return {
        "rows": found.rows,
        "span_s": span_s,
        "rate_per_s": rate_per_s(t_ns),
        "gap_cv": gap_cv(t_ns),
        "gap_cv_dequantised": gap_cv(even),
        "quantum_s": quantum / NS_PER_S if quantum else None,
        "windowed_cv": windowed_cv(even, CV_WINDOW_S) if t_ns.size else None,
        "idc": idc_of_windows(t_ns, span_s),
        "idc_dequantised": idc_of_windows(even, span_s),
        "acf": {str(lag): value for lag, value in acf(per_second, ACF_LAGS).items()}
        if per_second.size
        else {},
    }


def idc_of_windows(t_ns: Any, span_s: float) -> dict[str, float]:
    """{window in s: IDC} for the windows that fit often enough."""
    found = {w: idc(t_ns, w) for w in IDC_WINDOWS_S if span_s / w >= LEAST_WINDOWS}
    return {str(w): value for w, value in found.items() if value is not None}


def rows_part(found: Columns) -> dict[str, Any]:
    """What the rows' other fields say."""
    sessions = None
    if found.turns:
        turns = np.fromiter(found.turns.values(), np.int64)
        sessions = {
            "sessions": int(turns.size),
            "rows_in_sessions": int(turns.sum()),
            "turns_mean": float(turns.mean()),
            "turns_p50": float(np.median(turns)),
            "turns_max": int(turns.max()),
            "single_turn_share": float((turns == 1).mean()),
        }
    cache = found.cache
    return {
        "input": length_summary(found.n_input),
        "output": length_summary(found.n_output),
        "rank_correlation": rank_correlation(found.n_input, found.n_output),
        "prefix_hit_ratio": cache.hits / cache.blocks if cache.blocks else None,
        "blocks": cache.blocks,
        "distinct_blocks": len(cache.seen),
        "sessions": sessions,
        "classes": found.classes,
        "statuses": found.statuses,
    }
