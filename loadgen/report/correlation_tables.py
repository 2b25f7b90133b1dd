"""The correlation's rows as CSV: one a window, and one an answered request."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from loadgen.analysis.correlate.capture import Capture
from loadgen.analysis.correlate.windows import Windows
from loadgen.analysis.correlate.work import request_columns, request_ids
from loadgen.analysis.rows import Floats

WINDOWS, REQUESTS = "correlate-windows.csv", "correlate-requests.csv"


def write_tables(capture: Capture, windows: Windows, directory: Path) -> None:
    """Both files into the directory. Raises OSError. An empty cell: not known."""
    directory.mkdir(parents=True, exist_ok=True)
    names = [capture.stages[n].name if n >= 0 else "" for n in windows.stage]
    columns = {"start_s": windows.start_s} | windows.columns
    texts = {"stage": names, "used": ["yes" if used else "no" for used in windows.used]}
    _write(directory / WINDOWS, columns, texts)
    _write(directory / REQUESTS, request_columns(capture), {"id": request_ids(capture)})


def _write(path: Path, columns: dict[str, Floats], texts: dict[str, list[str]]) -> None:
    cells = [["" if np.isnan(v) else f"{v:.9g}" for v in values] for values in columns.values()]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*columns, *texts])
        writer.writerows(zip(*cells, *texts.values(), strict=True))
