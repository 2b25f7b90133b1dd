"""requests.csv: one line a scheduled row, in schedule order, for spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.load import Run
from loadgen.analysis.metrics import durations_ns, lag_ns, mean_itl_ns
from loadgen.analysis.rows import NONE, Floats, Ints, Rows

INTS = ("n_input_asked", "n_input", "n_output_asked", "n_output", "n_cached", "status", "retries")
TEXTS = ("finish_reason", "clock", "session", "endpoint", "error")
MS = ("ttft", "ttft_from_due", "ttfo", "tpot", "e2e", "e2e_from_due")
BATCH = 1 << 14

Cells = Callable[[Ints], list[Any]]
"""The column's cells of the rows at these places."""


def write_requests_csv(run: Run, path: Path) -> None:
    """Write every scheduled row, also those that left no record; empty cells where nothing is known."""
    columns = _columns(run.rows)
    order = np.argsort(run.rows.instant("index"), kind="stable")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for lo in range(0, len(order), BATCH):
            places = order[lo : lo + BATCH]
            writer.writerows(zip(*(cells(places) for cells in columns.values()), strict=True))


def _columns(rows: Rows) -> dict[str, Cells]:
    durations = durations_ns(rows)
    columns: dict[str, Cells] = {
        "index": _int(rows, "index"),
        "id": lambda places: [rows.ids[place] for place in places.tolist()],
        "class": _text(rows, "class"),
        "outcome": _text(rows, "outcome"),
        "due_s": _decimal(rows.number("due_ns"), 1e9, 9),
        "sent_s": _decimal(rows.number("sent_ns"), 1e9, 9),
        "lag_ms": _decimal(lag_ns(rows), 1e6, 6),
        "held_ms": _decimal(rows.number("held_ns"), 1e6, 6),
    }
    columns |= {f"{name}_ms": _decimal(durations[name], 1e6, 6) for name in MS}
    columns["itl_mean_ms"] = _decimal(mean_itl_ns(rows), 1e6, 6)
    columns |= {name: _int(rows, name) for name in INTS}
    columns |= {name: _text(rows, name) for name in TEXTS}
    return columns


def _decimal(values: Floats, unit: float, digits: int) -> Cells:
    form = f"%.{digits}f"

    def cells(places: Ints) -> list[str]:
        # only NaN differs from itself
        return ["" if value != value else form % value for value in (values[places] / unit).tolist()]  # noqa: PLR0124

    return cells


def _int(rows: Rows, name: str) -> Cells:
    column = rows.instant(name)
    return lambda places: ["" if value == NONE else value for value in column[places].tolist()]


def _text(rows: Rows, name: str) -> Cells:
    texts = rows.texts[name]
    words = [*map(_safe, texts.words), ""]  # code -1, not known, is the last
    return lambda places: [words[code] for code in texts.codes[places].tolist()]


def _safe(text: str) -> str:
    """A spreadsheet runs a cell that begins like a formula; a quote keeps it text."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
