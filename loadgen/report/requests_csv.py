"""requests.csv: one line a scheduled row, in schedule order, for spreadsheets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson

from loadgen.analysis.load import Run
from loadgen.analysis.metrics import durations_ns, lag_ns, mean_itl_ns
from loadgen.analysis.rows import NONE, Floats, Ints, Rows

INTS = ("n_input_asked", "n_input", "n_output_asked", "n_output", "n_cached", "status", "retries")
TEXTS = ("finish_reason", "clock", "session", "endpoint", "error")
MS = ("ttft", "ttft_from_due", "ttfo", "tpot", "e2e", "e2e_from_due")
BATCH = 1 << 14

Cells = Callable[[Ints], list[str]]
"""The column's cells of the rows at these places."""


def write_requests_csv(run: Run, path: Path) -> None:
    """Write every scheduled row, also those that left no record; empty cells where nothing is known."""
    columns = _columns(run.rows)
    order = np.argsort(run.rows.instant("index"), kind="stable")
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(",".join(columns) + "\n")
        for lo in range(0, len(order), BATCH):
            places = order[lo : lo + BATCH]
            lines = map(",".join, zip(*(cells(places) for cells in columns.values()), strict=True))
            file.write("\n".join(lines) + "\n")


def _columns(rows: Rows) -> dict[str, Cells]:
    durations = durations_ns(rows)
    columns: dict[str, Cells] = {
        "index": _int(rows, "index"),
        "id": lambda places: [_cell(rows.ids[place]) for place in places.tolist()],
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
    return lambda places: _written(np.round(values[places] / unit, digits), "null")


def _int(rows: Rows, name: str) -> Cells:
    column = rows.instant(name)
    return lambda places: _written(column[places], str(NONE))


def _written(column: Floats | Ints, unknown: str) -> list[str]:
    # orjson writes an array's shortest exact decimals many times faster than one value after another
    text = orjson.dumps(np.ascontiguousarray(column), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return text[1:-1].replace(unknown, "").split(",")


def _text(rows: Rows, name: str) -> Cells:
    texts = rows.texts[name]
    words = [*map(_cell, texts.words), ""]  # code -1, not known, is the last
    return lambda places: [words[code] for code in texts.codes[places].tolist()]


def _cell(text: str) -> str:
    """A text as a cell. A spreadsheet runs one that begins like a formula; a quote keeps it text."""
    if text[:1] in ("=", "+", "-", "@", "\t", "\r"):
        text = "'" + text
    if any(special in text for special in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text
