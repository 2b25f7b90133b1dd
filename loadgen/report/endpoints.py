"""A block for each endpoint of a run that had several: the same schedule, each row's own endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.analysis.load import Run
from loadgen.analysis.outcomes import clock_sources, count_outcomes
from loadgen.analysis.rows import Mask
from loadgen.report.figures import good, metric_figures

Json = dict[str, Any]


def endpoint_blocks(run: Run, quantiles: Sequence[float], duration_s: float) -> Json:
    """By endpoint's name: what was asked of it, its outcomes, rates and latencies; empty where there is only one."""
    told = run.document.get("endpoints") or {}
    return {name: _block(run, run.rows.of_endpoint(name), told[name], quantiles, duration_s) for name in told}


def _block(run: Run, mine: Mask, told: Json, quantiles: Sequence[float], duration_s: float) -> Json:
    ok = good(run, mine & run.measured)
    tokens = run.rows.instant("n_output")[ok & run.rows.has("n_output")]
    return {
        **{key: told.get(key) for key in ("base_url", "endpoint", "model", "share")},
        "scheduled": int(mine.sum()),
        "scheduled_share": float(mine.mean()) if len(mine) else None,
        "outcomes": count_outcomes(run.rows, mine),
        "clock_sources": clock_sources(run.rows, mine),
        "request_throughput": int(ok.sum()) / duration_s if duration_s else None,
        "output_throughput": int(np.sum(tokens)) / duration_s if duration_s else None,
        "metrics": metric_figures(run, mine & run.measured, quantiles),
    }


def endpoint_titles(summary: Json) -> list[tuple[str, Json]]:
    """(a title, the latencies that belong to it) for each endpoint of *summary*."""
    return [
        (f"Endpoint {name} ({block['endpoint']} at {block['base_url']}): {_counts(block)}", block["metrics"])
        for name, block in summary.get("endpoints", {}).items()
    ]


def _counts(block: Json) -> str:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in block["outcomes"].items())
    return f"{block['scheduled']} scheduled, {outcomes}; ms"
