"""Service levels against the requests: who met every bound, and which gates hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.analysis.metrics import (
    asked_of_endpoint,
    durations_ns,
    icl_blocks,
    itl_blocks,
    mean_icl_ns,
    mean_itl_ns,
)
from loadgen.analysis.rows import Floats, Mask, Rows
from loadgen.analysis.spread import quantile_with_failures, spread_of_blocks
from loadgen.record import Outcome
from loadgen.slo import Objective, bounds_of_class

NEEDS_TWO_CHUNKS = ("tpot", "itl", "icl")
"""Undefined for an answer of one chunk or token; such a request cannot break their bounds."""


@dataclass(frozen=True)
class GateResult:
    """One gate's figure (ns; infinite when failures reach the quantile; ``None``: no request to judge)."""

    objective: Objective
    value_ns: float | None
    failures: int

    @property
    def passed(self) -> bool:
        """Whether the quantile is within the bound. A gate without a request to judge fails."""
        return self.value_ns is not None and self.value_ns <= self.objective.bound_ns


def request_values_ns(rows: Rows, metric: str) -> Floats:
    """One value of the metric a request; itl and icl: the request's own mean."""
    if metric == "itl":
        return mean_itl_ns(rows)
    if metric == "icl":
        return mean_icl_ns(rows)
    return durations_ns(rows)[metric]


def meets_bounds(rows: Rows, objectives: tuple[Objective, ...]) -> Mask:
    """Rows that ended ok and within every bound of their class."""
    met = rows.outcome(Outcome.OK)
    values: dict[str, Floats] = {}
    for class_name in (None, *rows.classes):
        mine = rows.texts["class"].codes == -1 if class_name is None else rows.of_class(class_name)
        for bound in bounds_of_class(objectives, class_name):
            if bound.metric not in values:
                values[bound.metric] = request_values_ns(rows, bound.metric)
            within = values[bound.metric] <= bound.bound_ns
            if bound.metric in NEEDS_TWO_CHUNKS:
                within |= np.isnan(values[bound.metric])
            met &= ~mine | within
    return met


def judge_gate(rows: Rows, measured: Mask, objective: Objective) -> GateResult:
    """The gate's quantile over its class, failures counted as infinitely slow.

    itl and icl are quantiles over all tokens and chunks of successful requests; a failed request has none,
    so that failures do not enter there.
    """
    mine = measured if objective.class_name is None else measured & rows.of_class(objective.class_name)
    asked = mine & asked_of_endpoint(rows)
    ok = asked & rows.outcome(Outcome.OK)
    failures = int((asked & ~ok).sum())
    q = objective.quantile or 1.0
    if objective.metric in ("itl", "icl"):
        blocks = itl_blocks if objective.metric == "itl" else icl_blocks
        value = spread_of_blocks(lambda: blocks(rows, ok), [q]).quantiles[q]
    else:
        value = quantile_with_failures(durations_ns(rows)[objective.metric][ok], failures, q)
    return GateResult(objective, None if np.isnan(value) else value, failures)
