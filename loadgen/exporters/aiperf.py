"""AIPerf's ``profile_export.jsonl``: one record a request, instants in ns since the epoch.

The wall instants come from the run's one anchor pair of wall and monotonic clock; without an anchor they
count from schedule instant 0. AIPerf's inter_token_latency is our tpot, its inter_chunk_latency our icl.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadgen.analysis.load import Run
from loadgen.analysis.metrics import durations_ns
from loadgen.analysis.rows import Floats, Rows
from loadgen.record import Outcome

MS_METRICS = {"ttft": "time_to_first_token", "e2e": "request_latency", "tpot": "inter_token_latency"}
TOKENS = {"n_input": "input_sequence_length", "n_output": "output_sequence_length"}


def write_aiperf(run: Run, path: Path) -> None:
    """Write a line for every scheduled row, in schedule order."""
    durations = durations_ns(run.rows)
    epoch_ns = _epoch_ns(run)
    ok = run.rows.outcome(Outcome.OK)
    with path.open("wb") as file:
        for place in np.argsort(run.rows.instant("index"), kind="stable").tolist():
            record = {
                "metadata": _metadata(run, place, epoch_ns),
                "metrics": _metrics(run.rows, place, durations) if ok[place] else {},
                "error": None if ok[place] else _error(run.rows, place),
            }
            file.write(orjson.dumps(record) + b"\n")


def _epoch_ns(run: Run) -> int:
    """Wall time of schedule instant 0."""
    anchors = run.document.get("anchors") or {}
    anchor = next(iter(anchors.values()), None) if isinstance(anchors, dict) else None
    t0_ns = run.document.get("t0_ns")
    if not isinstance(anchor, dict) or not isinstance(t0_ns, int):
        return 0
    return int(anchor.get("wall_ns", 0)) + t0_ns - int(anchor.get("mono_ns", t0_ns))


def _metadata(run: Run, place: int, epoch_ns: int) -> dict[str, Any]:
    rows = run.rows

    def instant(name: str) -> int | None:
        return epoch_ns + int(rows.instant(name)[place]) if rows.has(name)[place] else None

    return {
        "session_num": int(rows.instant("index")[place]),
        "x_request_id": rows.ids[place] or None,
        "conversation_id": rows.texts["session"].at(place),
        "turn_index": int(rows.instant("turn")[place]) if rows.has("turn")[place] else 0,
        "request_start_ns": instant("sent_ns"),
        "request_ack_ns": instant("headers_ns"),
        "request_end_ns": instant("done_ns"),
        "benchmark_phase": "profiling" if run.measured[place] else "warmup",
        "was_cancelled": rows.texts["outcome"].at(place) == Outcome.CANCELLED,
    }


def _metrics(rows: Rows, place: int, durations: dict[str, Floats]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ours, theirs in MS_METRICS.items():
        if not np.isnan(durations[ours][place]):
            found[theirs] = {"value": float(durations[ours][place]) / 1e6, "unit": "ms"}
    for ours, theirs in TOKENS.items():
        if rows.has(ours)[place]:
            found[theirs] = {"value": int(rows.instant(ours)[place]), "unit": "tokens"}
    found["inter_chunk_latency"] = {"value": (rows.gaps.of_row(place) / 1e6).tolist(), "unit": "ms"}
    return found


def _error(rows: Rows, place: int) -> dict[str, Any]:
    status = int(rows.instant("status")[place]) if rows.has("status")[place] else None
    outcome = rows.texts["outcome"].at(place)
    return {"code": status, "type": outcome, "message": rows.texts["error"].at(place) or outcome}
