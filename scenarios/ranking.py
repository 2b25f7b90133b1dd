"""How the ranking of endpoints goes from cell to cell: the judgement that E7 and E10 share.

Differences to the first endpoint are those of `loadgen compare`, pooled over the passes; one Holm correction goes over
all cells, endpoints and metrics. A ranking turns over only between two cells whose differences are both significant
and of opposite sign: that a difference is found in one cell and not in another is no turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from loadgen.analysis.compare import Difference, differences, with_verdicts
from loadgen.analysis.load import load_run
from loadgen.analysis.pairing import Pair
from loadgen.analysis.passes import disagree, mean_half, pooled
from loadgen.errors import ExitCode
from scenarios.alternating import Pass
from scenarios.finding import Finding, Number

Json = dict[str, Any]
TURNS, HOLDS, EQUAL, UNTOLD = "turns over", "same ranking", "no difference", "cannot tell"
"""Answers; the last is a verdict's word too."""
TOLD = ("better", "worse")
TITLES = {
    "output_throughput": "output tokens/s",
    "ttft_p50": "TTFT p50",
    "ttft_p95": "TTFT p95",
    "tpot_p50": "TPOT p50",
    "tpot_p95": "TPOT p95",
}


@dataclass(frozen=True)
class Matrix:
    """What was to be asked: cells in ascending order (each is so many *unit*), endpoints, metrics."""

    cells: Sequence[str]
    unit: str
    names: Sequence[str]
    metrics: Sequence[str]
    margin: float


@dataclass(frozen=True)
class Ranking:
    """How one endpoint stands to the first: the verdict of each cell, and the cells between which the sign changes."""

    answer: str
    between: tuple[tuple[str, str], ...]
    verdicts: Mapping[str, str]


@dataclass(frozen=True)
class Judged:
    """All differences by ``metric@cell/endpoint``; the finding has everything but its answer and its words."""

    changes: Mapping[str, Difference]
    finding: Finding


def judge(matrix: Matrix, passes: Sequence[Pass]) -> Judged:
    """The matrix' figures and differences out of the runs."""
    usable = whole(passes, matrix.names)
    changes, notes = changes_of(matrix, usable)
    each = [(f"{s.directory.parent.name}/{s.directory.name}", s) for one in passes for s in one.runs.values()]
    why_not = [f"{run}: {reason}" for run, s in each for reason in s.summary["validity"]["reasons"]]
    if len(usable) < len(passes) or {one.cell for one in usable} < set(matrix.cells):
        why_not.append("interrupted before all were asked everywhere")
    notes += [
        f"{run}: {s.summary['failed']} of {s.summary['scheduled']} requests failed, and are in no latency here"
        for run, s in each
        if s.summary["failed"]
    ]
    if len(usable) <= len(matrix.cells):
        notes.append("each was asked once, the first first: what drifted in between looks like a difference")
    finding = Finding(
        None, "", numbers_of(matrix, usable, changes), tuple(why_not), tuple(notes),
        tuple(run for run, _ in each), tuple(s.code for _, s in each),
    )  # fmt: skip
    return Judged(changes, finding)


def changes_of(matrix: Matrix, passes: Sequence[Pass]) -> tuple[dict[str, Difference], list[str]]:
    """(differences to the first by ``metric@cell/endpoint``, verdicts included; passes that disagree, in words)."""
    names, metrics = matrix.names, matrix.metrics
    found: dict[str, list[Difference]] = {}
    for one in passes:
        runs = {name: load_run(one.runs[name].directory) for name in names}
        for other in names[1:]:
            for d in differences(Pair(runs[names[0]], runs[other]), metrics):
                found.setdefault(f"{d.name}@{one.cell}/{other}", []).append(d)
    together = [replace(pooled(each), name=name, stated_margin=matrix.margin) for name, each in found.items()]
    apart = [
        f"the passes of {name} disagree ({', '.join(f'{d.change:+.1%}' for d in each)}): "
        "something changed from run to run"
        for name, each in found.items()
        if disagree(each)
    ]
    return {d.name: d for d in with_verdicts(together)}, apart


def whole(passes: Sequence[Pass], names: Sequence[str]) -> list[Pass]:
    """Those passes in which every endpoint was asked to the end."""
    return [
        one
        for one in passes
        if one.runs.keys() >= set(names)
        and not any(sent.code == ExitCode.INTERRUPTED for sent in one.runs.values())
    ]


def ranking_of(verdicts: Mapping[str, str]) -> Ranking:
    """The ranking over the cells, in their order.

    It holds where two cells or more tell it, or one does and nothing is untold: a cell that tells nothing may hide a
    turn, so that one alone is no answer.
    """
    told = [(cell, verdict) for cell, verdict in verdicts.items() if verdict in TOLD]
    between = tuple((a, b) for (a, x), (b, y) in pairwise(told) if x != y)
    untold = UNTOLD in verdicts.values()
    if between:
        return Ranking(TURNS, between, verdicts)
    if len(told) > 1 or (told and not untold):
        return Ranking(HOLDS, (), verdicts)
    return Ranking(UNTOLD if untold or not verdicts else EQUAL, (), verdicts)


def rankings(matrix: Matrix, changes: Mapping[str, Difference], other: str) -> dict[str, Ranking]:
    """Of one endpoint against the first, by metric; a cell without a figure cannot tell."""
    found = {}
    for metric in matrix.metrics:
        of = {cell: changes.get(f"{metric}@{cell}/{other}") for cell in matrix.cells}
        found[metric] = ranking_of({c: UNTOLD if d is None else d.verdict for c, d in of.items()})
    return found


def ranking_json(ranking: Ranking) -> Json:
    """The ranking as the finding's answer keeps it."""
    between = [list(pair) for pair in ranking.between]
    return {"answer": ranking.answer, "between": between, "verdicts": dict(ranking.verdicts)}


def in_words(matrix: Matrix, judged: Judged, other: str, metric: str) -> str:
    """The answer for one metric, with what it rests on in each cell."""
    found = rankings(replace(matrix, metrics=[metric]), judged.changes, other)[metric]
    turns = " and ".join(f"between {low} and {high} {matrix.unit}" for low, high in found.between)
    said = {
        TURNS: f"the ranking turns over {turns}",
        HOLDS: "the same ranking" + (" wherever it can be told" if UNTOLD in found.verdicts.values() else ""),
        EQUAL: f"no difference beyond {matrix.margin:.0%}",
        UNTOLD: "whether the ranking turns over cannot be told",
    }[found.answer]
    parts = [
        f"at {cell} {verdict}{_span(judged.changes.get(f'{metric}@{cell}/{other}'))}"
        for cell, verdict in found.verdicts.items()
    ]
    return f"{TITLES[metric]}, {other} against {matrix.names[0]}: {said} ({'; '.join(parts)})."


def _span(d: Difference | None) -> str:
    if d is None:
        return ", no figure"
    if d.interval is None:
        return f", {d.why}"
    return f", {d.change:+.1%} [{d.interval[0]:+.1%}, {d.interval[1]:+.1%}]"


def numbers_of(
    matrix: Matrix, passes: Sequence[Pass], changes: Mapping[str, Difference]
) -> dict[str, Number]:
    """Each endpoint's figures in each cell, and the changes against the first."""
    found: dict[str, Number] = {}
    for metric in matrix.metrics:
        for cell in matrix.cells:
            here = [one for one in passes if one.cell == cell]
            for name in matrix.names if here else ():
                own = [figure(one.runs[name].summary, metric) for one in here]
                found[f"{metric}_{name}_at_{cell}"] = mean_number(own)
            for other in matrix.names[1:]:
                if d := changes.get(f"{metric}@{cell}/{other}"):
                    found[f"{metric}_{other}_change_at_{cell}"] = change_number(d, matrix.names[0])
    return found


def figure(summary: Json, metric: str) -> Number:
    """One run's figure with its interval."""
    if metric == "output_throughput":
        words, unit, value = "output tokens a second", "tokens/s", summary[metric]
        interval = summary["rate_intervals"].get(metric) or {}
    else:
        name, quantile = metric.rsplit("_", 1)
        words, unit, value = TITLES[metric], "ms", summary["metrics"][name][f"{quantile}_ms"]
        interval = summary["metrics"][name].get("intervals", {}).get(f"{quantile}_ms") or {}
    why = None if "low" in interval else "too few requests for an interval"
    return Number(value, unit, words, interval.get("low"), interval.get("high"), why)


def mean_number(passes: Sequence[Number]) -> Number:
    """The passes' mean with its interval, if all have one; no value where one has none."""
    first, n = passes[0], len(passes)
    values = [p.value for p in passes if p.value is not None]
    if len(values) < n:
        return replace(first, value=None, low=None, high=None, why="no request has this figure")
    words = first.meaning if n == 1 else f"{first.meaning}, mean of {n} passes"
    below = [p.value - p.low for p in passes if p.value is not None and p.low is not None]
    above = [p.high - p.value for p in passes if p.value is not None and p.high is not None]
    mean = sum(values) / n
    if len(below) < n or len(above) < n:
        return Number(mean, first.unit, words, why=next(p.why for p in passes if p.low is None))
    return Number(mean, first.unit, words, mean - mean_half(values, below), mean + mean_half(values, above))


def change_number(d: Difference, first: str) -> Number:
    """B/A - 1 with its interval."""
    low, high = d.interval or (None, None)
    return Number(d.change, "ratio", f"change against {first}: {d.verdict}", low, high, d.why or None)
