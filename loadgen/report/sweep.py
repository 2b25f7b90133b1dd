"""A sweep of simulated runs: one line a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from loadgen.errors import ExitCode
from loadgen.report.summary import exit_code
from loadgen.report.terminal import SIMULATED, console_for, number, show, table_of

Json = dict[str, Any]
FIGURES = (
    ("median_ttft_ms", "TTFT p50"),
    ("p99_ttft_ms", "TTFT p99"),
    ("p99_tpot_ms", "TPOT p99"),
    ("output_throughput", "tokens/s"),
    ("attainment", "attained"),
)
WIDE = 200
KEPT = (
    "scheduled",
    "completed",
    "failed",
    "request_throughput",
    "request_goodput",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "gates",
)


def point_of(settings: Mapping[str, str], directory: Path, summary: Json) -> Json:
    """One point: what was set, where its run lies, its main figures, whether every gate was kept."""
    figures = {key: summary[key] for key in (*KEPT, *(key for key, _ in FIGURES))}
    good = exit_code(summary) == ExitCode.GOOD
    return {"set": dict(settings), "directory": str(directory), "good": good, **figures}


def sweep_to_json(points: Sequence[Json]) -> Json:
    """The sweep as sweep.json keeps it."""
    return {"format": "loadgen.sweep", "version": 1, "simulated": True, "points": list(points)}


def print_sweep(points: Sequence[Json], file: TextIO) -> None:
    """The table; nothing is computed here."""
    console = console_for(file)
    console.width = max(console.width, WIDE)  # a point's settings must not be squeezed away
    console.print(f"SIMULATED {SIMULATED}", markup=False, soft_wrap=True)
    names = list(points[0]["set"])
    table = table_of((*names, "good/all", *(words for _, words in FIGURES), "gates"))
    for point in points:
        figures = [number(point[key]) for key, _ in FIGURES]
        done = f"{number(point['completed'])}/{number(point['scheduled'])}"
        kept = "kept" if point["good"] else "broken"
        table.add_row(*(point["set"][name] for name in names), done, *figures, kept)
    show(console, "Sweep; latencies in ms", table)
