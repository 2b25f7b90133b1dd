"""The figures of one group of requests, JSON-ready: milliseconds, intervals, failures as infinite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.analysis.confidence import Figure, due_ordered, metric_intervals
from loadgen.analysis.intervals import TooFew
from loadgen.analysis.load import Run
from loadgen.analysis.metrics import (
    asked_of_endpoint,
    durations_ns,
    icl_blocks,
    itl_blocks,
    one_token_a_chunk,
)
from loadgen.analysis.rows import Floats, Mask
from loadgen.analysis.spread import Spread, quantile_with_failures, spread, spread_of_blocks
from loadgen.analysis.steady import find_cut, find_drift
from loadgen.record import Outcome

FAILURES_COUNT = ("ttft", "ttft_from_due", "ttfo", "tpot", "e2e", "e2e_from_due")
"""Durations whose failed requests are infinitely slow in the second series."""

Json = dict[str, Any]


def metric_figures(run: Run, which: Mask, quantiles: Sequence[float]) -> Json:
    """Every duration's figures over the chosen rows."""
    rows = run.rows
    ok = good(run, which)
    failures = int((which & ~ok & asked_of_endpoint(rows)).sum())
    found: Json = {}
    durations = durations_ns(rows)
    for name, values in durations.items():
        found[name] = figures(spread(values[ok], quantiles))
        if failures and name in FAILURES_COUNT and (found[name]["n"] or not ok.any()):
            found[name]["with_failures"] = _failing_figures(values[ok], failures, quantiles)
    found["icl"] = figures(spread_of_blocks(lambda: icl_blocks(rows, ok), quantiles))
    if not (same := one_token_a_chunk(rows, ok)):
        found["itl"] = figures(spread_of_blocks(lambda: itl_blocks(rows, ok), quantiles))
    gaps = ("icl",) if same else ("icl", "itl")
    for name, intervals in metric_intervals(rows, ok, gaps, quantiles).items():
        found[name]["intervals"] = {
            "mean_ms" if q is None else f"{percentile_name(q)}_ms": interval_figures(interval, 1e6)
            for q, interval in intervals.items()
        }
    if same:  # a run of a hundred million chunks is not gone through twice
        found["itl"] = found["icl"]
    return found


def interval_figures(interval: Figure, unit: float) -> Json:
    """An interval in the unit, or that there are too few values and how many would do."""
    if isinstance(interval, TooFew):
        return {"too_few": True, "have": interval.have, "need": interval.need}
    return {"low": interval.low / unit, "high": interval.high / unit}


def figures(found: Spread) -> Json:
    """A distribution of ns as milliseconds."""
    quantiles = {f"{percentile_name(q)}_ms": value / 1e6 for q, value in found.quantiles.items()}
    return {
        "n": found.n if found.n % 1 else int(found.n),
        "mean_ms": found.mean / 1e6,
        "std_ms": found.std / 1e6,
        "min_ms": found.min / 1e6,
        **quantiles,
        "max_ms": found.max / 1e6,
    }


def _failing_figures(values: Floats, failures: int, quantiles: Sequence[float]) -> Json:
    figures = {
        f"{percentile_name(q)}_ms": quantile_with_failures(values, failures, q) / 1e6 for q in quantiles
    }
    return {"n": int((~np.isnan(values)).sum()) + failures, "failures": failures, **figures}


def steady_state(run: Run, ok: Mask) -> Json:
    """Transients of TTFT at both ends of the measured part, and drift of all of it: shown, not cut away."""
    places = due_ordered(run.rows, ok)
    ttft = run.rows.between("sent_ns", "first_ns")[places]
    places, ttft = places[~np.isnan(ttft)], ttft[~np.isnan(ttft)]
    due_s = run.rows.instant("due_ns")[places] / 1e9
    found: Json = {}
    for name, step in (("beginning", 1), ("end", -1)):
        cut = find_cut(ttft[::step])
        found[name] = cut and {
            "rows": cut.requests,
            "at_s": float(due_s[::step][cut.requests]),
            "ttft_p50_outside_ms": cut.median_outside / 1e6,
            "ttft_p50_inside_ms": cut.median_inside / 1e6,
            "settled": cut.settled,
        }
    drift = find_drift(ttft)
    found["drift"] = drift and {
        "ttft_p50_first_third_ms": drift.median_first / 1e6,
        "ttft_p50_last_third_ms": drift.median_last / 1e6,
    }
    return found


def good(run: Run, which: Mask) -> Mask:
    """The chosen rows that ended ok."""
    return which & run.rows.outcome(Outcome.OK)


def percentile_name(quantile: float) -> str:
    """p99, p99.9: vLLM's way."""
    return f"p{round(quantile * 100, 6):g}"
