"""GPM rows against known loads: latched means, what the load should have given, and how late rows are.

A row's window ends at the poll that found the latch, up to one poll (50 ms) after it, so windows of 50, 100
and 150 ms each hold *one* latch of 100 ms: means count latches, not window widths. Rows are
``gpu_sidecar.samples`` objects; truths are ``tests.bench.gpu_load``'s.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LATCH_NS = 100_000_000
SETTLE_NS = 200_000_000
"""After a phase begins, rows may still hold the phase before: up to a latch and a poll, rounded up."""
PHASES = {"matmul": "matmul", "copy": "copy", "square_matmul_100_100": "matmul",
          "square_copy_100_100": "copy", "square_matmul_500_500": "matmul"}  # fmt: skip
"""Each loaded phase and the steady one whose level its on-time has."""
ACTIVITIES = ("sm_active", "tensor_active", "dram_active", "gr_engine_active", "pcie_rx_bytes_per_s")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """``[start_ns, t_ns]`` and the mean activity in it."""

    start_ns: int
    t_ns: int
    value: float

    @property
    def latches(self) -> int:
        """How many latches it holds."""
        width_ns = self.t_ns - self.start_ns
        return 1 if width_ns < 160_000_000 else round(width_ns / LATCH_NS)


def windows(rows: Iterable[Row], truth: Row, metric: str) -> list[Window]:
    """The phase's settled windows of *metric*."""
    return [
        Window(row["start_ns"], row["t_ns"], row["values"][metric]) for row in rows
        if row.get("type") == "sample" and metric in row["values"]
        and row["start_ns"] >= truth["begin_ns"] + SETTLE_NS and row["t_ns"] <= truth["end_ns"]
    ]  # fmt: skip


def whole_periods(found: Sequence[Window], period_ns: int) -> list[Window]:
    """Of each unbroken run the first whole periods: a square wave cut in the middle has another mean."""
    per_period = max(1, period_ns // LATCH_NS)
    kept: list[Window] = []
    run: list[Window] = []
    for window in [*found, None]:
        if run and (window is None or window.start_ns != run[-1].t_ns):
            total = sum(each.latches for each in run)
            while run and (total % per_period):
                total -= run.pop().latches
            kept += run
            run = []
        if window is not None:
            run.append(window)
    return kept


def period_ns(truth: Row) -> int:
    """Of a square wave; one latch for a steady load."""
    edges = truth["edges"]
    return round((edges[-1][0] - edges[0][0]) / (len(edges) - 1) / LATCH_NS) * LATCH_NS if edges[1:] else 0


def latched_mean(found: Sequence[Window]) -> float | None:
    """The mean over latches, ``None`` for none."""
    latches = sum(window.latches for window in found)
    return sum(window.value * window.latches for window in found) / latches if latches else None


def on_share(edges: Sequence[Sequence[int]], from_ns: int, to_ns: int) -> float:
    """The share of ``[from_ns, to_ns]`` in which the host had work on the device."""
    inside = sum(max(0, min(to_ns, off) - max(from_ns, on)) for on, off in edges)
    return inside / (to_ns - from_ns)


def lag_ms(found: Sequence[Window], edges: Sequence[Sequence[int]], full: float) -> tuple[int, float]:
    """``(lag, rms)``: by how many ms before its own window each value fits the load best, and how well."""
    fits = []
    for lag in range(0, 201, 5):
        shift = lag * 1_000_000
        errors = [full * on_share(edges, w.start_ns - shift, w.t_ns - shift) - w.value for w in found]
        fits.append((statistics.fmean(error * error for error in errors) ** 0.5, lag))
    rms, lag = min(fits)
    return lag, rms


def activity(rows: Sequence[Row], truths: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """``{phase: {metric: mean, sm_expected, sm_seen_to_expected, sm_lag_ms, …}}``; ``None`` where no row
    is."""
    by_name = {truth["name"]: truth for truth in truths}
    result: dict[str, dict[str, Any]] = {}
    for name, truth in by_name.items():
        seen: dict[str, Any] = {}
        for metric in ACTIVITIES:
            found = windows(rows, truth, metric)
            if metric != "gr_engine_active":  # its windows are half a second: no whole number of 200 ms
                found = whole_periods(found, period_ns(truth))
            mean = latched_mean(found)
            seen[metric] = None if mean is None else round(mean, 4)
            if metric == "sm_active":
                seen["latches"] = sum(window.latches for window in found)
        result[name] = seen | _against_truth(rows, by_name, name, seen["sm_active"])
    return result


def _against_truth(
    rows: Sequence[Row], truths: dict[str, Row], name: str, seen: float | None
) -> dict[str, Any]:
    truth = truths[name]
    if seen is None or not truth["edges"][1:] or PHASES.get(name) not in truths:
        return {}
    full = latched_mean(windows(rows, truths[PHASES[name]], "sm_active"))
    if not full:
        return {}
    lag, rms = lag_ms(windows(rows, truth, "sm_active"), truth["edges"], full)
    expected = truth["duty"] * full
    return {
        "sm_expected": round(expected, 4),
        "sm_seen_to_expected": round(seen / expected, 4),
        "sm_lag_ms": lag,
        "sm_lag_fit_rms": round(rms, 4),
    }


def fixture(rows: Sequence[Row], truths: Sequence[Row]) -> str:
    """Truths and GPM rows of the loaded phases as JSONL: what a test needs, without the device's identity."""
    kept = [truth for truth in truths if truth["name"] in PHASES or truth["name"] == "h2d"]
    lines = [json.dumps({"type": "truth", **truth}, separators=(",", ":")) for truth in kept]
    for row in rows:
        wanted = row.get("type") == "sample" and row["source"] == "nvml.gpm"
        if wanted and any(t["begin_ns"] <= row["t_ns"] <= t["end_ns"] for t in kept):
            values = {name: row["values"][name] for name in ACTIVITIES if name in row["values"]}
            small = {"type": "sample", "start_ns": row["start_ns"], "t_ns": row["t_ns"], "values": values}
            lines.append(json.dumps(small, separators=(",", ":")))
    return "\n".join(lines) + "\n"
