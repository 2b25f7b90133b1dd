"""AIPerf's ``profile_export.jsonl`` (schema of AIPerf 0.13.0): one record a request, instants in ns since the epoch.

The wall instants come from the run's one anchor pair of wall and monotonic clock; without an anchor they
count from schedule instant 0. AIPerf's inter_token_latency is our tpot, its inter_chunk_latency our icl. It has no
word for a request that was never sent: such rows are left out.
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

MS_METRICS = {
    "ttft": "time_to_first_token",
    "ttfo": "time_to_first_output_token",
    "e2e": "request_latency",
    "tpot": "inter_token_latency",
}
TOKENS = {"n_input": "input_sequence_length", "n_output": "output_sequence_length"}


def write_aiperf(run: Run, path: Path) -> None:
    """Write a line for every request that was sent, in schedule order."""
    durations = durations_ns(run.rows)
    epoch_ns = _epoch_ns(run)
    ok = run.rows.outcome(Outcome.OK)
    with path.open("wb") as file:
        order = np.argsort(run.rows.instant("index"), kind="stable")
        for number, place in enumerate(order[run.rows.has("sent_ns")[order]].tolist()):
            record: dict[str, Any] = {
                "metadata": _metadata(run, place, epoch_ns) | {"profiling_index": number},
                "metrics": _metrics(run.rows, place, durations) if ok[place] else {},
            }
            if not ok[place]:
                record["error"] = _error(run.rows, place)
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

    phase = "profiling" if run.measured[place] else "warmup"
    ended = next(
        instant(name) for name in ("done_ns", "last_ns", "headers_ns", "sent_ns") if rows.has(name)[place]
    )
    session = rows.texts["session"].at(place)
    found = {
        "session_num": int(rows.instant("index")[place]),
        "x_request_id": rows.ids[place],
        "x_correlation_id": session or rows.ids[place],
        "conversation_id": session or f"request_{int(rows.instant('index')[place]):06d}",
        "turn_index": int(rows.instant("turn")[place]) if rows.has("turn")[place] else 0,
        "credit_issued_ns": instant("taken_ns"),
        "request_start_ns": instant("sent_ns"),
        "request_ack_ns": instant("headers_ns"),
        "request_end_ns": ended,
        "worker_id": "loadgen",
        "record_processor_id": "loadgen",
        "benchmark_phase": phase,
        "phase_name": phase,
        "phase_kind": phase,
        "was_cancelled": rows.texts["outcome"].at(place) == Outcome.CANCELLED,
    }
    return {name: value for name, value in found.items() if value is not None}


def _metrics(rows: Rows, place: int, durations: dict[str, Floats]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ours, theirs in MS_METRICS.items():
        if not np.isnan(durations[ours][place]):
            found[theirs] = {"value": float(durations[ours][place]) / 1e6, "unit": "ms"}
    for ours, theirs in TOKENS.items():
        if rows.has(ours)[place]:
            found[theirs] = {"value": int(rows.instant(ours)[place]), "unit": "tokens"}
    if rows.gaps.count[place]:
        found["inter_chunk_latency"] = {"value": (rows.gaps.of_row(place) / 1e6).tolist(), "unit": "ms"}
    return found


def _error(rows: Rows, place: int) -> dict[str, Any]:
    outcome = rows.texts["outcome"].at(place)
    status = int(rows.instant("status")[place]) if rows.has("status")[place] else None
    code = {} if status is None or status < 400 else {"code": status}
    return {**code, "type": outcome, "message": rows.texts["error"].at(place) or outcome}
