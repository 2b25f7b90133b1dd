"""What each worker saw of itself, in sentences: how busy its core was, how late its loop and its sends."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from loadgen.analysis.load import Run
from loadgen.analysis.metrics import lag_ns
from loadgen.analysis.outcomes import generator_cost

LATE_NS = 1_000_000
BUSY = 0.8
"""Of a core, in one second: beyond it a worker's lateness grows faster than its load."""


def busiest_second(watch: list[dict[str, Any]]) -> float | None:
    """The largest CPU share between two looks."""
    known = [e for e in watch if isinstance(e.get("cpu_ns"), int) and isinstance(e.get("t_ns"), int)]
    shares = [
        (b["cpu_ns"] - a["cpu_ns"]) / (b["t_ns"] - a["t_ns"])
        for a, b in pairwise(known)
        if b["t_ns"] > a["t_ns"]
    ]
    return max(shares, default=None)


def self_watch_notes(run: Run) -> list[str]:
    """A sentence a worker, one on late sends, and the warnings that were given before the run."""
    found = [str(event["text"]) for event in run.events("warning") if event.get("text")]
    for file, cost in zip(run.files, generator_cost(run), strict=True):
        most = busiest_second(file.named("watch"))
        if cost["cpu_ratio"] is None or most is None:
            continue
        words = f"worker {file.worker}: core {cost['cpu_ratio']:.0%} busy, {most:.0%} in its busiest second"
        if cost["loop_lag_max_ms"] is not None:
            words += f", loop at most {cost['loop_lag_max_ms']:.3g} ms late"
        if most > BUSY:
            words += f" (beyond {BUSY:.0%} its sends come late: spread the load over more workers)"
        found.append(words)
    lag = lag_ns(run.rows)
    late = int(np.sum(lag > LATE_NS))
    if late:
        found.append(f"{late} of {run.scheduled} sends were more than 1 ms late")
    found += prompt_notes(run)
    return found


def prompt_notes(run: Run) -> list[str]:
    """How far the planned prompts repeat what came before: a prefix cache answers that part."""
    prompts = (run.document.get("schedule") or {}).get("prompts")
    if not isinstance(prompts, dict) or not {"prompts", "distinct", "shared_prefix_ratio"} <= prompts.keys():
        return []
    return [
        f"{prompts['distinct']} of {prompts['prompts']} prompts are distinct; {prompts['shared_prefix_ratio']:.1%} of"
        " the input tokens are a prefix that came before, as planned"
    ]
