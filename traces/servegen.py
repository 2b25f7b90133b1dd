"""ServeGen's clients as a model: each with a rate and burstiness that change by window, lengths by 6 hours.

``chunk-N-trace.csv``: window start (s), rate (1/s), cv, Gamma or Weibull, shape, scale, no header.
``chunk-N-dataset.json``: {start: {"input_tokens": "{172: 7.4e-05, …}", …}}, probabilities as text of a
dict, parsed as a literal and never evaluated. The rate and cv are trusted, shape = 1/cv² for Gamma.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from math import isfinite
from pathlib import Path

import numpy as np
import orjson

from traces.errors import TraceError
from traces.row import TraceRow
from traces.stats import NS_PER_S, Floats, Ints

INPUT_KEYS = ("input_tokens", "text_tokens")
"""A multimodal client's prompt is its text here: other modalities have no tokens of text to send."""


@dataclass(frozen=True)
class Window:
    """One window of one client: seconds, 1/s, the gaps' family and shape."""

    start_s: float
    end_s: float
    rate_per_s: float
    family: str
    shape: float


@dataclass(frozen=True)
class Client:
    """One client: windows in order, and (from s, prompt values, their share, output values, their share)."""

    name: str
    windows: list[Window]
    lengths: list[tuple[float, tuple[Ints, Floats], tuple[Ints, Floats]]]


def clients(folder: Path) -> list[Client]:
    """The clients of a folder. Raises TraceError where there are none or a file is not as it should be."""
    traces = sorted(folder.glob("chunk-*-trace.csv"), key=lambda path: int(path.name.split("-")[1]))
    if not traces:
        raise TraceError(f"{folder}: no chunk-*-trace.csv of ServeGen's")
    return [client(path) for path in traces]


def client(path: Path) -> Client:
    """One client by its trace file; the dataset lies beside it."""
    name = path.name.removesuffix("-trace.csv")
    dataset = path.with_name(f"{name}-dataset.json")
    if not dataset.exists():
        raise TraceError(f"{dataset}: no such file")
    try:
        found = orjson.loads(dataset.read_bytes())
        lengths = [(float(t), pmf(_prompts(d)), pmf(d["output_tokens"])) for t, d in found.items()]
    except (ValueError, KeyError, TypeError, SyntaxError, AttributeError) as error:
        raise TraceError(f"{dataset}: not a ServeGen data set: {error}") from None
    return Client(name, windows(path), sorted(lengths, key=lambda item: item[0]))


def _prompts(entry: dict[str, str]) -> str:
    return next(entry[key] for key in INPUT_KEYS if key in entry)


def pmf(text: str) -> tuple[Ints, Floats]:
    """Values and their cumulative share of ``"{172: 0.5, 173: 0.5}"``; empty for ``"{}"``."""
    found = ast.literal_eval(text)
    if not isinstance(found, dict):
        raise ValueError("a distribution is no dict")
    values = np.array(list(found), np.int64)
    weights = np.array(list(found.values()), np.float64)
    return values, np.cumsum(weights) / weights.sum() if values.size else weights


def windows(path: Path) -> list[Window]:
    """Windows with a rate; a window ends where the next one starts. Raises TraceError at file:line."""
    rows: list[tuple[float, float, float, str, float]] = []
    with path.open(newline="") as lines:
        for number, cells in enumerate(csv.reader(lines), 1):
            try:
                row = float(cells[0]), float(cells[1]), float(cells[2]), cells[3], float(cells[4])
            except (ValueError, IndexError):
                raise TraceError(f"{path}:{number}: not start,rate,cv,family,shape,scale: {cells}") from None
            if not all(isfinite(v) and v >= 0 for v in (row[0], row[1], row[2], row[4])):
                raise TraceError(f"{path}:{number}: negative or not finite: {cells}")
            rows.append(row)
    ends = [row[0] for row in rows[1:]]
    ends.append(rows[-1][0] + (rows[-1][0] - rows[-2][0] if len(rows) > 1 else 600.0) if rows else 0.0)
    made = []
    for (start, rate, cv, family, shape), end in zip(rows, ends, strict=True):
        if rate > 0 and cv > 0:
            made.append(
                Window(start, end, rate, family or "Gamma", 1 / cv**2 if family != "Weibull" else shape)
            )
    return made


def rows(
    folder: Path, *, seed: int = 0, start_s: float = 0.0, end_s: float | None = None
) -> Iterator[TraceRow]:
    """All clients superposed over [start, end), counted from its start; the class is the client."""
    found = clients(folder)
    seeds = np.random.SeedSequence(seed).spawn(len(found))
    streams = [_client_rows(c, s, start_s, end_s) for c, s in zip(found, seeds, strict=True)]
    for seq, row in enumerate(merge(*streams, key=lambda row: row.t_ns)):
        yield row._replace(seq=seq)


def _client_rows(
    one: Client, seeds: np.random.SeedSequence, start_s: float, end_s: float | None
) -> Iterator[TraceRow]:
    rng = np.random.default_rng(seeds)
    for window in one.windows:
        begin = max(window.start_s, start_s)
        end = window.end_s if end_s is None else min(window.end_s, end_s)
        lengths = [
            item for item in one.lengths if item[0] <= window.start_s and item[1][0].size and item[2][0].size
        ]
        if begin >= end or not lengths:
            continue
        _, prompts, answers = lengths[-1]
        t_s = _gaps_until(window, end - begin, rng)
        asked = prompts[0][np.minimum(np.searchsorted(prompts[1], rng.random(t_s.size)), prompts[0].size - 1)]
        answered = answers[0][
            np.minimum(np.searchsorted(answers[1], rng.random(t_s.size)), answers[0].size - 1)
        ]
        instants = ((begin - start_s + t_s) * NS_PER_S).astype(np.int64)
        for t_ns, n_input, n_output in zip(instants.tolist(), asked.tolist(), answered.tolist(), strict=True):
            yield TraceRow(0, t_ns, n_input, n_output, class_name=one.name)


def _gaps_until(window: Window, span_s: float, rng: np.random.Generator) -> Floats:
    """Renewal instants in [0, span), the first one at a random phase of the first gap."""
    from math import gamma

    parts: list[Floats] = []
    at = 0.0
    number = int(window.rate_per_s * span_s * 1.2) + 16
    while at < span_s:
        if window.family == "Weibull":
            gaps = rng.weibull(window.shape, number) / gamma(1 + 1 / window.shape) / window.rate_per_s
        else:
            gaps = rng.standard_gamma(window.shape, number) / (window.shape * window.rate_per_s)
        if not parts:
            gaps[0] *= rng.random()
        part = at + np.cumsum(gaps)
        parts.append(part)
        at = float(part[-1])
    joined = np.concatenate(parts)
    return joined[joined < span_s]
