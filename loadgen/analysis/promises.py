"""A run's promises as shares that may be broken: what a search asks of every run (see `analysis.keeping`).

A gate ``ttft@p99=800ms`` allows 1 % of the class's asked requests to take longer or fail. Bounds without ``@`` are
kept by a class when a stated share of its requests (the attainment) meets them all. The plan's error-rate gate is one
promise more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.analysis.confidence import due_ordered, gap_series
from loadgen.analysis.goodput import meets_bounds
from loadgen.analysis.keeping import Tally, tally, tally_weighted
from loadgen.analysis.load import Run
from loadgen.analysis.metrics import asked_of_endpoint, durations_ns, mean_icl_ns, mean_itl_ns
from loadgen.analysis.rows import Mask
from loadgen.errors import UsageError
from loadgen.record import Outcome
from loadgen.slo import Objective, bounds_of_class

ERRORS = "error rate"
EVERYONE = "attainment"


def check_objectives(objectives: Sequence[Objective], attainment: float, max_error_rate: float) -> None:
    """Raises UsageError where there is nothing to keep, or a share of exactly 0 or 1 that no sample can tell."""
    if not objectives:
        raise UsageError("nothing to keep: state an --slo, as ttft@p95=500ms or interactive:ttft=300ms")
    for objective in objectives:
        if objective.quantile == 1:
            raise UsageError(
                f"SLO {objective.text}: no sample can tell that p100 is kept; ask for p99.9 or less"
            )
    if not 0 < attainment < 1:
        raise UsageError(f"--attainment {attainment:g}: a share between 0 and 1, both excluded, is needed")
    if max_error_rate <= 0:
        raise UsageError(
            "--max-error-rate 0: no sample can tell that nothing ever fails; allow 0.001 or more"
        )


def tallies_of(
    run: Run, objectives: Sequence[Objective], attainment: float, max_error_rate: float
) -> dict[str, Tally]:
    """The tally of every promise in the run, by the objective's own words."""
    rows = run.rows
    asked = run.measured & rows.has("due_ns") & asked_of_endpoint(rows)
    found = {o.text: _gate(run, asked, o) for o in objectives if o.quantile is not None}
    if any(o.quantile is None for o in objectives):
        found |= _attainment(run, asked, objectives, 1 - attainment)
    if max_error_rate < 1:
        places = due_ordered(rows, asked)
        failed = (~rows.outcome(Outcome.OK))[places].astype(np.float64)
        found[ERRORS] = tally(failed, failed, max_error_rate)
    return found


def _gate(run: Run, asked: Mask, objective: Objective) -> Tally:
    rows, allowed = run.rows, 1 - (objective.quantile or 0)
    mine = asked if objective.class_name is None else asked & rows.of_class(objective.class_name)
    ok = rows.outcome(Outcome.OK)
    if objective.metric in ("itl", "icl"):
        per_token = objective.metric == "itl"
        own = mean_itl_ns(rows) if per_token else mean_icl_ns(rows)
        data = gap_series(rows, due_ordered(rows, mine & ok), np.where(ok, own, np.nan), per_token=per_token)
        there, request = np.unique(data.request, return_inverse=True)
        broken = (data.values > objective.bound_ns).astype(np.float64)
        every = max(
            round(len(data.by_request) / max(len(there), 1)), 1
        )  # very many gaps: of every k-th request
        return tally_weighted(
            data.by_request[::every][: len(there)], broken, (request, data.weights), allowed
        )
    values = np.where(ok, durations_ns(rows)[objective.metric], np.inf)
    latency = values[due_ordered(rows, mine & ~np.isnan(values))]
    return tally(latency, (latency > objective.bound_ns).astype(np.float64), allowed)


def _attainment(run: Run, asked: Mask, objectives: Sequence[Objective], allowed: float) -> dict[str, Tally]:
    """One promise a class; requests without a class are one more where a bound is theirs too."""
    rows, met = run.rows, meets_bounds(run.rows, tuple(objectives))
    found = {}
    nameless = rows.texts["class"].codes == -1
    for name in (None, *rows.classes):
        bounds = bounds_of_class(objectives, name)
        mine = asked & (nameless if name is None else rows.of_class(name))
        if not bounds or not mine.any():
            continue
        places = due_ordered(rows, mine)
        slowness = np.where(rows.outcome(Outcome.OK), durations_ns(rows)["e2e_from_due"], np.inf)[places]
        found[EVERYONE if name is None else f"{name}: {EVERYONE}"] = tally(
            np.nan_to_num(slowness, nan=np.inf), (~met)[places].astype(np.float64), allowed
        )
    return found
