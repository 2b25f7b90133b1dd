"""How requests ended, what they carried, and what measuring them cost the generator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from loadgen.analysis.load import Run
from loadgen.analysis.rows import Mask, Rows
from loadgen.record import Outcome

EXAMPLES = 3
"""Most frequent messages shown for each outcome."""


def count_outcomes(rows: Rows, which: Mask | None = None) -> dict[str, int]:
    """Rows by outcome, the most frequent first; the counts sum up to the rows."""
    texts = rows.texts["outcome"]
    codes = texts.codes if which is None else texts.codes[which]
    counts = np.bincount(codes, minlength=len(texts.words))
    order = np.argsort(-counts, kind="stable")
    return {texts.words[code]: int(counts[code]) for code in order if counts[code]}


def examples(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    """For each outcome that is not ok: its most frequent messages, how often, and one request's id."""
    found: dict[str, list[dict[str, Any]]] = {}
    errors = rows.texts["error"]
    for outcome in count_outcomes(rows):
        if outcome == Outcome.OK:
            continue
        places = np.flatnonzero(rows.outcome(Outcome(outcome)))
        counts = Counter(errors.codes[places].tolist())
        found[outcome] = [
            _example(rows, code, count, places[errors.codes[places] == code])
            for code, count in counts.most_common(EXAMPLES)
        ]
    return found


def _example(rows: Rows, code: int, count: int, places: Any) -> dict[str, Any]:
    first = int(places[0])
    status = int(rows.instant("status")[first])
    return {
        "message": None if code < 0 else rows.texts["error"].words[code],
        "count": count,
        "status": status if rows.has("status")[first] else None,
        "index": int(rows.instant("index")[first]),
        "id": rows.ids[first] or None,
    }


def unreachable(rows: Rows) -> bool:
    """Whether requests were tried and not one of them ever got a connection."""
    tried = ~rows.outcome(Outcome.NOT_SENT, Outcome.LOST)
    return bool(tried.any()) and not bool((tried & ~rows.outcome(Outcome.CONNECT, Outcome.TLS)).any())


def clock_sources(rows: Rows, which: Mask | None = None) -> dict[str, float]:
    """Share of the answered rows (of *which*) whose instants came from each clock."""
    texts = rows.texts["clock"]
    answered = rows.has("first_ns") & (texts.codes >= 0)
    if which is not None:
        answered = answered & which
    total = int(answered.sum())
    counts = np.bincount(texts.codes[answered], minlength=len(texts.words))
    return {word: int(n) / total for word, n in zip(texts.words, counts, strict=True) if n}


def length_report(rows: Rows) -> dict[str, dict[str, Any]]:
    """Asked beside achieved token counts over ok rows that know both; error = achieved - asked."""
    ok = rows.outcome(Outcome.OK)
    found: dict[str, dict[str, Any]] = {}
    for side in ("input", "output"):
        asked_name, got_name = f"n_{side}_asked", f"n_{side}"
        both = ok & rows.has(asked_name) & rows.has(got_name)
        if not both.any():
            found[side] = {"n": 0}
            continue
        asked, got = rows.instant(asked_name)[both], rows.instant(got_name)[both]
        error = got - asked
        found[side] = {
            "n": int(both.sum()),
            "asked_mean": float(asked.mean()),
            "achieved_mean": float(got.mean()),
            "achieved_ratio": float(got.sum() / asked.sum()) if asked.sum() else None,
            "exact_ratio": float((error == 0).mean()),
            "error_min": int(error.min()),
            "error_max": int(error.max()),
        }
    sources = rows.texts["n_output_source"]
    counted = ok & rows.has("n_output") & (sources.codes == sources.code("chunks"))
    found["output"]["counted_by_chunks"] = int(counted.sum())
    return found


def cached_share(rows: Rows) -> float | None:
    """Share of the prompt tokens that servers found in their prefix cache; ``None`` where none said."""
    known = rows.outcome(Outcome.OK) & rows.has("n_cached") & rows.has("n_input")
    total = int(rows.instant("n_input")[known].sum())
    return int(rows.instant("n_cached")[known].sum()) / total if total else None


def generator_cost(run: Run) -> list[dict[str, Any]]:
    """Each worker's own cost from its self-watch: CPU share, peak memory, worst loop lag."""
    found = []
    for file in run.files:
        watch = file.named("watch")
        found.append(
            {
                "worker": file.worker,
                "rows": file.rows,
                "complete": file.complete,
                "cpu_ratio": _rate(watch, "cpu_ns"),
                "rss_max_bytes": _largest(watch, "rss_bytes"),
                "loop_lag_max_ms": _ms(_largest(watch, "loop_lag_ns")),
                "in_flight_max": _largest(watch, "in_flight"),
            }
        )
    return found


def _largest(events: list[dict[str, Any]], name: str) -> int | None:
    return max((e[name] for e in events if isinstance(e.get(name), int)), default=None)


def _ms(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6


def _rate(events: list[dict[str, Any]], name: str) -> float | None:
    known = [e for e in events if isinstance(e.get(name), int) and isinstance(e.get("t_ns"), int)]
    if len(known) < 2 or known[-1]["t_ns"] <= known[0]["t_ns"]:
        return None
    return float((known[-1][name] - known[0][name]) / (known[-1]["t_ns"] - known[0]["t_ns"]))
