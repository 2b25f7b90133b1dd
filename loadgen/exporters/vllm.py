"""vLLM's benchmark result file (``vllm bench serve --save-result --save-detailed``), arrays included.

Arrays have one entry a scheduled row, in schedule order, in seconds; a failed row has ttft and latency 0.0, no itls
and its message in ``errors``, as vLLM 0.32.0 writes it. vLLM's itl is the gap between chunks: our icl; its
``queue_times`` run from a request's turn to its sending: held, and taken to sent. We keep no texts, so that
``generated_texts`` is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadgen.analysis.load import Run
from loadgen.analysis.metrics import held_ns
from loadgen.analysis.rows import Rows
from loadgen.record import Outcome
from loadgen.report.summary import summarise

SCALARS = (
    "simulated", "date", "endpoint_type", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency",
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "output_throughput", "total_token_throughput",
)  # fmt: skip
METRICS = {"ttft": "ttft", "tpot": "tpot", "icl": "itl", "e2e": "e2el"}
"""Ours to vLLM's."""
STATISTICS = {"mean": "mean", "p50": "median", "std": "std"}


def write_vllm(run: Run, path: Path) -> None:
    """Write the result; arrays are written row by row, whatever their size."""
    with path.open("wb") as file:
        file.write(orjson.dumps(_scalars(run))[:-1])
        for name, values in _arrays(run).items():
            file.write(b"," + orjson.dumps(name) + b":[")
            for place, value in enumerate(values):
                file.write((b"," if place else b"") + orjson.dumps(value))
            file.write(b"]")
        file.write(b"}\n")


def _scalars(run: Run) -> dict[str, Any]:
    summary = summarise(run)
    scalars = {name: summary[name] for name in SCALARS}
    for ours, theirs in METRICS.items():
        for key, value in summary["metrics"][ours].items():
            statistic = key.removesuffix("_ms")
            if key.endswith("_ms") and (statistic in STATISTICS or statistic.startswith("p")):
                scalars[f"{STATISTICS.get(statistic, statistic)}_{theirs}_ms"] = value
        scalars[f"p50_{theirs}_ms"] = scalars[f"median_{theirs}_ms"]
    return scalars


def _arrays(run: Run) -> dict[str, Iterator[Any]]:
    rows = run.rows
    order = np.argsort(rows.instant("index"), kind="stable").tolist()
    ok = rows.outcome(Outcome.OK)
    ttft_s = np.nan_to_num(np.where(ok, rows.between("sent_ns", "first_ns"), np.nan)) / 1e9
    start_s = rows.number("sent_ns") / 1e9
    latency_s = np.nan_to_num(np.where(ok, rows.between("sent_ns", "last_ns"), np.nan)) / 1e9
    queue_s = np.nan_to_num(rows.between("taken_ns", "sent_ns") + held_ns(rows)) / 1e9
    known = _count(rows, "n_input"), _count(rows, "n_output")
    each: dict[str, Callable[[int], Any]] = {
        "input_lens": lambda place: int(known[0][place]),
        "output_lens": lambda place: int(known[1][place]) if ok[place] else 0,
        "ttfts": lambda place: float(ttft_s[place]),
        "latencies": lambda place: float(latency_s[place]),
        "queue_times": lambda place: float(queue_s[place]),
        "itls": lambda place: (rows.gaps.of_row(place) / 1e9).tolist() if ok[place] else [],
        "start_times": lambda place: None if np.isnan(start_s[place]) else float(start_s[place]),
        "errors": lambda place: "" if ok[place] else _message(rows, place),
    }
    return {name: map(of_row, order) for name, of_row in each.items()}


def _count(rows: Rows, name: str) -> Any:
    return np.where(rows.has(name), rows.instant(name), 0)


def _message(rows: Rows, place: int) -> str:
    return f"{rows.texts['outcome'].at(place)}: {rows.texts['error'].at(place) or 'no message'}"
