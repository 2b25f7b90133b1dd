"""What a run on several workers adds to its report: clocks, the common start, losses, the master's own cost."""

from __future__ import annotations

from typing import Any

from loadgen.analysis.load import MASTER, Run
from loadgen.analysis.recordsfile import RecordsFile

Json = dict[str, Any]


def cluster_block(run: Run) -> Json | None:
    """The block ``cluster`` of summary.json; None for a run of one process.

    ``skew_bound_ms``: two workers' schedules can differ by no more at the start. ``start_skew_ms``: by how much the
    instants differ at which the workers' loops really woke up for it, each on its own schedule's clock.
    """
    stated = run.document.get("cluster")
    if not isinstance(stated, dict):
        return None
    late = {file.worker: _start_late_ms(file) for file in run.files}
    workers = [
        {
            "worker": str(entry.get("worker")),
            "hostname": entry.get("hostname"),
            "offset_ms": _ms(entry.get("offset_ns")),
            "bound_ms": _ms(entry.get("bound_ns")),
            "exact": entry.get("exact") is True,
            "exchanges": entry.get("exchanges"),
            "start_late_ms": late.get(str(entry.get("worker"))),
        }
        for entry in stated.get("workers") or ()
    ]
    bounds = sorted((w["bound_ms"] for w in workers if w["bound_ms"] is not None), reverse=True)
    known = [w["start_late_ms"] for w in workers if w["start_late_ms"] is not None]
    master = next((file for file in run.files if file.worker == MASTER), None)
    return {
        "on_worker_loss": stated.get("on_worker_loss"),
        "workers": workers,
        "skew_bound_ms": sum(bounds[:2]) if bounds else None,
        "start_skew_ms": max(known) - min(known) if known else None,
        "losses": [_loss(event) for event in run.events("worker_lost")],
        "master": _cost(master, run.scheduled) if master is not None else None,
    }


def _ms(value_ns: Any) -> float | None:
    return value_ns / 1e6 if isinstance(value_ns, int) else None


def _start_late_ms(file: RecordsFile) -> float | None:
    for event in file.named("started"):
        if isinstance(event.get("t_ns"), int) and isinstance(event.get("due_ns"), int):
            return float(event["t_ns"] - event["due_ns"]) / 1e6
    return None


def _loss(event: Json) -> Json:
    names = ("at_ns", "horizon_ns", "from_ns", "silent_ns")
    instants = {name.replace("_ns", "_s"): (event.get(name) or 0) / 1e9 for name in names}
    return {
        "worker": str(event.get("worker")),
        "why": event.get("why"),
        "heirs": event.get("heirs"),
        **instants,
    }


def _cost(master: RecordsFile, rows: int) -> Json:
    """The master's own cost between its first and last look at itself."""
    watch = master.named("watch")
    if len(watch) < 2:
        return {}
    first, last = watch[0], watch[-1]
    span_s = (last["t_ns"] - first["t_ns"]) / 1e9

    def spent(name: str) -> int:
        return int(last[name] - first[name])

    return {
        "cpu_s": spent("cpu_ns") / 1e9,
        "cpu_ratio": spent("cpu_ns") / 1e9 / span_s if span_s else None,
        "rss_max_bytes": last["rss_bytes"],
        "bytes_in": spent("bytes_in"),
        "bytes_out": spent("bytes_out"),
        "messages_in": spent("messages_in"),
        "bytes_in_per_row": spent("bytes_in") / rows if rows else None,
    }


def cluster_words(block: Json) -> list[str]:
    """The block in sentences."""
    count = len(block["workers"])
    lines = [f"{count} workers on one schedule"]
    if block["skew_bound_ms"] is not None:
        exact = all(worker["exact"] for worker in block["workers"])
        clocks = (
            "one clock" if exact else f"clocks known to {_shown(block['skew_bound_ms'])} ms between any two"
        )
        skew = block["start_skew_ms"]
        lines[0] += f": {clocks}" + ("" if skew is None else f", start skew {_shown(skew)} ms")
    for loss in block["losses"]:
        heirs = (
            f"; from {_shown(loss['from_s'])} s on worker {', '.join(map(str, loss['heirs']))} took its rows"
        )
        lines.append(
            f"worker {loss['worker']} was lost at {_shown(loss['at_s'])} s: {loss['why']}"
            + (heirs if loss["heirs"] else "; nobody took its rows")
        )
    return lines


def _shown(value: float) -> str:
    return f"{value:.3g}"
