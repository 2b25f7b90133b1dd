"""What the charts of the report draw: the run thinned to a few thousand points, whatever its size.

Times are seconds from schedule instant 0, latencies milliseconds. Everything here is drawn from the same
columns as the figures; thinning is by even steps in due order, never at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.analysis.confidence import due_ordered
from loadgen.analysis.load import Run
from loadgen.analysis.metrics import asked_of_endpoint, durations_ns, gaps_with_rows, held_ns, lag_ns
from loadgen.analysis.rows import NONE, Floats, Ints, Mask
from loadgen.record import Outcome

BINS = 120
LEAST_BIN_S = 0.5
ECDF_POINTS = 250
SCATTER_POINTS = 3000
HEAT_GAPS = 1 << 20
HEAT_ROWS = 40
SLOWEST = 15

Json = dict[str, Any]
SHARES = np.linspace(0, 1, ECDF_POINTS)


def chart_data(run: Run) -> Json:
    """Everything that the charts need, JSON-ready."""
    edges = time_edges(run)
    ok = run.rows.outcome(Outcome.OK)
    return {
        "ecdf": {name: _ecdf(run, name) for name in ("ttft", "ttft_from_due", "tpot", "e2e_from_due")},
        "over_time": _over_time(run, ok, edges),
        "load": _load(run, ok, edges),
        "by_prompt": _by_prompt(run, ok),
        "itl_heat": _itl_heat(run, ok, edges),
        "slowest": slowest(run),
        "warmup_s": run.warmup_ns / 1e9,
    }


def time_edges(run: Run) -> Floats:
    """Edges of even time bins over the whole run, seconds."""
    known = [run.rows.instant(name)[run.rows.has(name)] for name in ("due_ns", "done_ns")]
    end_s = max((float(instants.max()) for instants in known if len(instants)), default=0.0) / 1e9
    count = int(np.clip(end_s / LEAST_BIN_S, 1, BINS))
    return np.linspace(0, max(end_s, 1e-9), count + 1)


def _ecdf(run: Run, name: str) -> list[Json]:
    """Share of asked requests answered within x, a series a class; failures keep a curve below 1."""
    rows = run.rows
    values = durations_ns(rows)[name] / 1e6
    groups: list[tuple[str, Mask]] = [("all", np.ones(len(rows), np.bool_))]
    if len(rows.classes) > 1:
        groups += [(f"class {c}", rows.of_class(c)) for c in rows.classes]
    found = []
    for label, mine in groups:
        asked = mine & run.measured & asked_of_endpoint(rows)
        there = values[asked & rows.outcome(Outcome.OK)]
        there = there[~np.isnan(there)]
        if len(there):
            answered = len(there) / int(asked.sum())
            x = np.quantile(there, SHARES)
            found.append({"name": label, "x": rounded(x), "y": rounded(SHARES * answered)})
    return found


def _over_time(run: Run, ok: Mask, edges: Floats) -> Json:
    """TTFT p50, p95 and p99 of the requests due in each bin, and how many there are."""
    places = due_ordered(run.rows, ok & (run.rows.begin_ns != NONE))
    ttft = run.rows.between("sent_ns", "first_ns")[places] / 1e6
    places, ttft = places[~np.isnan(ttft)], ttft[~np.isnan(ttft)]
    cuts = np.searchsorted(run.rows.begin_ns[places] / 1e9, edges[1:-1])
    bins = np.split(ttft, cuts)
    series = {f"p{round(q * 100)}": [_quantile(values, q) for values in bins] for q in (0.5, 0.95, 0.99)}
    return {"t": _middles(edges), "n": [len(values) for values in bins], **series}


def _load(run: Run, ok: Mask, edges: Floats) -> Json:
    """Per second in each bin: asked, completed, failed, output tokens; and requests in flight at its end."""
    rows = run.rows
    width = float(edges[1] - edges[0])

    def per_s(name: str, which: Mask, weights: str | None = None) -> list[float | None]:
        there = which & rows.has(name)
        weight = np.nan_to_num(rows.number(weights)[there]) if weights else None
        counts, _ = np.histogram(rows.instant(name)[there] / 1e9, edges, weights=weight)
        return rounded(counts / width)

    everything = np.ones(len(rows), np.bool_)
    sent = np.sort(rows.instant("sent_ns")[rows.has("sent_ns")]) / 1e9
    ended = np.sort(rows.instant("done_ns")[rows.has("sent_ns") & rows.has("done_ns")]) / 1e9
    in_flight = np.searchsorted(sent, edges[1:], "right") - np.searchsorted(ended, edges[1:], "right")
    return {
        "t": _middles(edges),
        "asked": per_s("due_ns", everything),
        "completed": per_s("done_ns", ok),
        "failed": per_s("done_ns", ~ok),
        "output_tokens": per_s("done_ns", ok, "n_output"),
        "in_flight": in_flight.tolist(),
    }


def _by_prompt(run: Run, ok: Mask) -> Json:
    """TTFT against prompt tokens: thinned points, and the median in bins of equally many requests."""
    rows = run.rows
    ttft = rows.between("sent_ns", "first_ns") / 1e6
    places = due_ordered(rows, ok & rows.has("n_input") & ~np.isnan(ttft))
    thin = places[:: max(len(places) // SCATTER_POINTS, 1)]
    by_length = places[np.argsort(rows.instant("n_input")[places], kind="stable")]
    groups = [g for g in np.array_split(by_length, min(20, max(len(by_length) // 30, 1))) if len(g)]
    return {
        "x": rows.instant("n_input")[thin].tolist(),
        "y": rounded(ttft[thin]),
        "of": len(places),
        "median_x": [float(np.median(rows.instant("n_input")[g])) for g in groups],
        "median_y": [_quantile(ttft[g], 0.5) for g in groups],
    }


def _itl_heat(run: Run, ok: Mask, edges: Floats) -> Json | None:
    """Gaps per token over time: counts by time bin and by logarithmic bins of the gap."""
    rows = run.rows
    places = due_ordered(rows, ok & (rows.gaps.count > 0))
    every = -(-int(rows.gaps.count[places].sum()) // HEAT_GAPS) or 1
    chosen = np.zeros(len(rows), np.bool_)
    chosen[places[::every]] = True
    parts = list(gaps_with_rows(rows, chosen, per_token=True))
    if not parts:
        return None
    values, weights, row = (np.concatenate(column) for column in zip(*parts, strict=True))
    at_s = (rows.instant("first_ns")[row] + _since_first(values * weights, row)) / 1e9
    apart = values > 0
    if not apart.any():
        return None
    levels = np.log10(values[apart] / 1e6)
    low, high = np.quantile(levels, (0.0005, 0.9995))
    level_edges = np.linspace(low, high + 1e-6, HEAT_ROWS + 1)
    levels = np.clip(levels, level_edges[0], level_edges[-1])  # the rare extremes join the outer bins
    counts, _, _ = np.histogram2d(levels, at_s[apart], (level_edges, edges), weights=weights[apart])
    middles = 10 ** ((level_edges[1:] + level_edges[:-1]) / 2)
    return {
        "t": _middles(edges),
        "ms": rounded(middles),
        "z": np.round(counts).astype(int).tolist(),
        "every": every,
    }


def _since_first(gaps: Floats, row: Ints) -> Floats:
    """Time from each request's first chunk to the chunk after each gap, ns."""
    upto = np.cumsum(gaps)
    starts = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
    before = np.repeat(upto[starts] - gaps[starts], np.diff(np.r_[starts, len(row)]))
    return upto - before


def slowest(run: Run) -> list[Json]:
    """The requests whose users waited longest for the end, with where the time went (ms)."""
    rows = run.rows
    begin = rows.begin_ns  # sending, where another tool did not write down when a request was due
    ended = rows.has("done_ns") & (begin != NONE)
    waited = np.where(ended, rows.instant("done_ns") - np.where(ended, begin, 0), -1.0)
    held, lag = held_ns(rows), lag_ns(rows)
    found = []
    for place in np.argsort(-waited, kind="stable")[:SLOWEST].tolist():
        if waited[place] < 0:
            break
        parts = {
            "held": held[place],
            "lag": lag[place],
            "to sent": rows.between("taken_ns", "sent_ns")[place] if rows.has("due_ns")[place] else np.nan,
            "to first": rows.between("sent_ns", "first_ns")[place],
            "streaming": rows.between("first_ns", "last_ns")[place],
        }
        known = {name: round(float(ns) / 1e6, 3) for name, ns in parts.items() if not np.isnan(ns)}
        rest = float(waited[place]) / 1e6 - sum(known.values())
        found.append(
            {
                "index": int(rows.instant("index")[place]),
                "id": rows.ids[place],
                "class": rows.texts["class"].at(place),
                "outcome": rows.texts["outcome"].at(place),
                "due_s": float(begin[place]) / 1e9,
                "n_input": _known(rows.number("n_input")[place]),
                "n_output": _known(rows.number("n_output")[place]),
                "waited_ms": float(waited[place]) / 1e6,
                "parts_ms": {**known, "to the end": round(max(rest, 0.0), 3)},
            }
        )
    return found


def _known(value: float) -> int | None:
    return None if np.isnan(value) else int(value)


def _middles(edges: Floats) -> list[float | None]:
    return rounded((edges[1:] + edges[:-1]) / 2)


def _quantile(values: Floats, q: float) -> float | None:
    return round(float(np.quantile(values, q)), 4) if len(values) else None


def rounded(values: Sequence[float] | Floats) -> list[float | None]:
    """Five significant digits are more than a chart can show; keeps the page small."""
    return [None if np.isnan(v) else float(f"{v:.5g}") for v in np.asarray(values, np.float64).tolist()]
