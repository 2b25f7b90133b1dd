"""requests.csv: one line a scheduled row, in schedule order, for spreadsheets."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.load import Run
from loadgen.analysis.metrics import durations_ns, lag_ns, mean_itl_ns
from loadgen.analysis.rows import NONE, Floats, Rows

INTS = ("n_input_asked", "n_input", "n_output_asked", "n_output", "n_cached", "status", "retries")
TEXTS = ("finish_reason", "clock", "session", "endpoint", "error")
MS = ("ttft", "ttft_from_due", "ttfo", "tpot", "e2e", "e2e_from_due")
BATCH = 1 << 14


def write_requests_csv(run: Run, path: Path) -> None:
    """Write every scheduled row, also those that left no record; empty cells where nothing is known."""
    columns = _columns(run.rows)
    order = np.argsort(run.rows.instant("index"), kind="stable").tolist()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for lo in range(0, len(order), BATCH):
            writer.writerows(_lines(list(columns.values()), order[lo : lo + BATCH]))


def _lines(columns: list[Callable[[int], Any]], places: list[int]) -> Iterator[list[Any]]:
    for place in places:
        yield [column(place) for column in columns]


def _columns(rows: Rows) -> dict[str, Callable[[int], Any]]:
    durations = durations_ns(rows)
    columns: dict[str, Callable[[int], Any]] = {
        "index": _int(rows, "index"),
        "id": rows.ids.__getitem__,
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


def _decimal(values: Floats, unit: float, digits: int) -> Callable[[int], str]:
    def cell(place: int) -> str:
        value = float(values[place])
        return "" if math.isnan(value) else f"{value / unit:.{digits}f}"

    return cell


def _int(rows: Rows, name: str) -> Callable[[int], str]:
    column = rows.instant(name)
    return lambda place: "" if column[place] == NONE else str(column[place])


def _text(rows: Rows, name: str) -> Callable[[int], str]:
    return lambda place: _safe(rows.texts[name].at(place) or "")


def _safe(text: str) -> str:
    """A spreadsheet runs a cell that begins like a formula; a quote keeps it text."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
