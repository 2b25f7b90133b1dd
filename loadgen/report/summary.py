"""summary.json: vLLM's benchmark keys and ours, computed from a run's files alone.

Totals (``completed``, ``failed``, ``outcomes``, token totals, ``duration``) are of the whole run; latencies,
throughputs and goodput are of the measured part, after warm-up. ``*_itl_ms`` is per token (DESIGN's itl);
vLLM's own figure of that name is per chunk, here ``metrics.icl``. A quantile that failures reach is ``null``
in ``with_failures``: it is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadgen.analysis.arrivals import Arrivals, describe, gaps, ks_distance
from loadgen.analysis.confidence import share_interval
from loadgen.analysis.cuts import constant_age, cuts_figures
from loadgen.analysis.goodput import GateResult, judge_gate, meets_bounds
from loadgen.analysis.load import Run, load_run
from loadgen.analysis.machine import machine_of
from loadgen.analysis.metrics import (
    asked_of_endpoint,
    coalesced_ratio,
    held_ns,
    itl_is_estimated,
    lag_ns,
)
from loadgen.analysis.outcomes import (
    clock_sources,
    count_outcomes,
    examples,
    generator_cost,
    length_report,
    unreachable,
)
from loadgen.analysis.plain import plain
from loadgen.analysis.rates import Span, TooShort, rate_interval
from loadgen.analysis.rows import Ints, Mask
from loadgen.analysis.self_watch import self_watch_notes
from loadgen.analysis.spread import spread
from loadgen.analysis.validity import Validity, judge
from loadgen.errors import ExitCode, UsageError
from loadgen.record import Outcome
from loadgen.report.classes import priority_block
from loadgen.report.cluster import cluster_block
from loadgen.report.endpoints import endpoint_blocks
from loadgen.report.figures import (
    figures,
    good,
    interval_figures,
    metric_figures,
    percentile_name,
    steady_state,
)
from loadgen.report.html import write_html
from loadgen.report.requests_csv import write_requests_csv
from loadgen.slo import Objective, parse_objectives

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
VLLM_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
Json = dict[str, Any]


def write_reports(directory: Path, percentiles: Sequence[float] = (), out: Path | None = None) -> Json:
    """Compute the run's summary and write summary.json, requests.csv and report.html (into *out* if given).

    Raises UsageError when the directory is not a run's, or the files cannot be written.
    """
    return write_files(load_run(directory), out or directory, percentiles)


def write_files(run: Run, directory: Path, percentiles: Sequence[float] = ()) -> Json:
    """The run's summary, with its files written into the directory. Raises UsageError where that cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return _write_files(run, directory, percentiles)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or directory}: {error.strerror}") from None


def _write_files(run: Run, directory: Path, percentiles: Sequence[float]) -> Json:
    summary = summarise(run, percentiles)
    machine = machine_of(run)
    if machine is not None:
        summary["memory"], summary["limits"] = machine.memory, machine.limits
    if (cluster := cluster_block(run)) is not None:
        summary["cluster"] = cluster
    (directory / "summary.json").write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    write_requests_csv(run, directory / "requests.csv")
    write_html(run, summary, directory / "report.html", machine)
    return summary


def exit_code(summary: Json) -> ExitCode:
    """The first that applies in the order interrupted, unreachable, invalid, gate failed."""
    if summary["interrupted"]:
        return ExitCode.INTERRUPTED
    if summary["unreachable"]:
        return ExitCode.UNREACHABLE
    if summary["validity"]["valid"] is False:
        return ExitCode.INVALID_RUN
    if not all(gate["passed"] for gate in summary["gates"]):
        return ExitCode.GATE_FAILED
    return ExitCode.GOOD


def summarise(run: Run, percentiles: Sequence[float] = ()) -> Json:
    """Every figure of the report, JSON-ready: no NaN, no infinity, ``None`` where nothing can be said.

    ``percentiles`` (0..100) are added to 50, 90, 95 and 99.
    """
    quantiles = tuple(sorted({p / 100 for p in (*PERCENTILES, *percentiles)}))
    objectives = parse_objectives([str(text) for text in run.options.get("slo") or ()])
    validity = judge(run)
    outcomes = count_outcomes(run.rows)
    metrics = metric_figures(run, run.measured, quantiles)
    met = meets_bounds(run.rows, objectives)
    throughput = _throughput(run, objectives, met)
    cuts = constant_age(run.rows)
    found: Json = plain(
        {
            **_head(run),
            **_totals(run, outcomes),
            **throughput,
            **_vllm_scalars(metrics, quantiles),
            "rate_intervals": _rate_intervals(run, met, throughput),
            "scheduled": run.scheduled,
            "outcomes": outcomes,
            "outcome_examples": examples(run.rows),
            "validity": _validity(validity),
            "interrupted": "interrupted" in run.stops,
            "stops": run.stops,
            "incomplete": bool(run.problems),
            "unreachable": unreachable(run.rows),
            "peer": run.document.get("peer"),
            "notes": [
                *run.notes,
                *_unknown_classes(run, objectives),
                *self_watch_notes(run),
                *([cuts.in_words] if cuts else []),
            ],
            "cut_age": cuts_figures(cuts),
            **_asked_and_sent(run, validity, quantiles),
            "metrics": metrics,
            "itl_estimated": itl_is_estimated(run.rows, good(run, run.measured)),
            "coalesced_ratio": coalesced_ratio(run.rows, good(run, run.measured)),
            "clock_sources": clock_sources(run.rows),
            "lengths": length_report(run.rows),
            "retries": int(np.maximum(run.rows.instant("retries"), 0).sum()),
            "rows_tried_again": int((run.rows.instant("retries") > 0).sum()),
            "prompts": (run.document.get("schedule") or {}).get("prompts"),
            "generator": generator_cost(run),
            "objectives": [o.text for o in objectives],
            "gates": _gates(run, objectives, outcomes),
            "classes": _classes(run, objectives, met, quantiles, throughput["measured"]["duration_s"]),
            "endpoints": endpoint_blocks(run, quantiles, throughput["measured"]["duration_s"]),
            "priority": priority_block(run, met, has_bounds=any(not o.is_gate for o in objectives)),
        }
    )
    return found


def _head(run: Run) -> Json:
    options, document = run.options, run.document
    return {
        "format": "loadgen.summary",
        "version": 1,
        "simulated": document.get("simulated") is True,
        "date": document.get("started_at"),
        "digest": document.get("digest"),
        "salt": document.get("salt"),
        "base_url": options.get("base_url"),
        "endpoint_type": options.get("endpoint"),
        "model_id": options.get("model") or (document.get("endpoint") or {}).get("model"),
        "request_rate": options.get("request_rate"),
        "burstiness": options.get("burstiness"),
        "max_concurrency": options.get("max_concurrency") or options.get("concurrency"),
        "versions": document.get("versions"),
        "schedule": document.get("schedule"),
    }


def _totals(run: Run, outcomes: dict[str, int]) -> Json:
    rows, ok = run.rows, run.rows.outcome(Outcome.OK)
    ends = rows.instant("done_ns")[rows.has("done_ns")]
    completed = outcomes.get(str(Outcome.OK), 0)
    return {
        "duration": max(int(ends.max()), 0) / 1e9 if len(ends) else 0.0,
        "num_prompts": run.scheduled,
        "completed": completed,
        "failed": run.scheduled - completed,
        "total_input_tokens": _tokens(run, "n_input", ok),
        "total_output_tokens": _tokens(run, "n_output", ok),
    }


def _tokens(run: Run, name: str, which: Mask) -> int:
    return int(run.rows.instant(name)[which & run.rows.has(name)].sum())


def _throughput(run: Run, objectives: Sequence[Objective], met: Mask) -> Json:
    """Rates over the measured part: from the end of warm-up to the last measured request's end."""
    rows, measured = run.rows, run.measured
    ends = rows.instant("done_ns")[measured & rows.has("done_ns")]
    duration_s = max(float(ends.max() - run.warmup_ns) / 1e9, 0.0) if len(ends) else 0.0
    ok = good(run, measured)
    asked = measured & asked_of_endpoint(rows)
    n_in, n_out = _tokens(run, "n_input", ok), _tokens(run, "n_output", ok)
    has_bounds = any(not o.is_gate for o in objectives)

    def rate(count: int) -> float | None:
        return count / duration_s if duration_s else None

    return {
        "measured": {
            "rows": int(measured.sum()),
            "completed": int(ok.sum()),
            "warmup_rows": int((~measured).sum()),
            "from_s": run.warmup_ns / 1e9,
            "duration_s": duration_s,
            "drain_s": _drain_s(run, ends),
        },
        "steady_state": steady_state(run, ok),
        "request_throughput": rate(int(ok.sum())),
        "request_goodput": rate(int((met & measured).sum())) if has_bounds else None,
        "attainment": _share(met & asked, asked) if has_bounds else None,
        "attainment_interval": interval_figures(share_interval(rows, met, asked), 1) if has_bounds else None,
        "output_throughput": rate(n_out),
        "total_token_throughput": rate(n_in + n_out),
    }


def _rate_intervals(run: Run, met: Mask, throughput: Json) -> Json:
    """95 % intervals of the rates, over the very stretch that they are counted over."""
    measured = throughput["measured"]
    span = Span(run.warmup_ns, run.warmup_ns + round(measured["duration_s"] * 1e9) + 1)
    ok = good(run, run.measured)
    chosen: dict[str, tuple[Mask, str | None]] = {
        "request_throughput": (ok, None),
        "output_throughput": (ok, "n_output"),
    }
    if throughput["request_goodput"] is not None:
        chosen["request_goodput"] = (met & run.measured, None)
    found: Json = {}
    for name, (which, weights) in chosen.items() if measured["duration_s"] else ():
        interval = rate_interval(run.rows, which, span, weights)
        if isinstance(interval, TooShort):
            found[name] = {"too_few": True, "have_s": interval.have_s, "need_s": interval.need_s}
        else:
            found[name] = {"low": interval.low, "high": interval.high}
    return found


def _drain_s(run: Run, ends: Ints) -> float | None:
    """From the last due instant to the last end: the load was running out."""
    due = run.rows.instant("due_ns")[run.rows.has("due_ns")]
    return float(ends.max() - due.max()) / 1e9 if len(ends) and len(due) else None


def _vllm_scalars(metrics: Json, quantiles: Sequence[float]) -> Json:
    scalars: Json = {}
    for ours, theirs in VLLM_NAMES.items():
        mine = metrics[ours]
        scalars[f"mean_{theirs}_ms"] = mine["mean_ms"]
        scalars[f"median_{theirs}_ms"] = mine["p50_ms"]
        scalars[f"std_{theirs}_ms"] = mine["std_ms"]
        for q in quantiles:
            scalars[f"{percentile_name(q)}_{theirs}_ms"] = mine[f"{percentile_name(q)}_ms"]
    return scalars


def _asked_and_sent(run: Run, validity: Validity, quantiles: Sequence[float]) -> Json:
    rows = run.rows
    due, sent = rows.instant("due_ns")[rows.has("due_ns")], rows.instant("sent_ns")[rows.has("sent_ns")]
    lag = lag_ns(rows)
    held = held_ns(rows)
    return {
        "arrivals": {
            "asked": _arrivals(describe(due)),
            "sent": _arrivals(describe(sent)),
            "gap_ks": ks_distance(gaps(due), gaps(sent)),
        },
        "lag_ms": figures(spread(lag, quantiles)),
        "late": int((lag > validity.limits.lag_p99_ns).sum()),
        "late_beyond_ms": validity.limits.lag_p99_ns / 1e6,
        "held": int((held > 0).sum()),
        "held_ms": figures(spread(held[held > 0], quantiles)),
        "not_sent": int(rows.outcome(Outcome.NOT_SENT).sum()),
        "lost_by_generator": validity.generator_lost_rows,
    }


def _arrivals(found: Arrivals) -> Json:
    idc = {f"{window:g}": value for window, value in found.idc.items()}
    return {
        "n": found.n,
        "span_s": found.span_s,
        "rate_per_s": found.rate_per_s,
        "gap_cv": found.gap_cv,
        "idc": idc,
        "idc_windows": {f"{window:g}": found.windows(window) for window in found.idc},
    }


def _validity(validity: Validity) -> Json:
    limits = validity.limits
    return {
        "valid": validity.valid,
        "reasons": list(validity.reasons),
        "limits": {"lag_p99_ms": limits.lag_p99_ns / 1e6, "not_sent_ratio": limits.not_sent_ratio},
    }


def _unknown_classes(run: Run, objectives: Sequence[Objective]) -> list[str]:
    named = [o for o in objectives if o.class_name is not None and o.class_name not in run.rows.classes]
    return [f"SLO {o.text}: no request is of class {o.class_name!r}" for o in named]


def _gates(run: Run, objectives: Sequence[Objective], outcomes: dict[str, int]) -> list[Json]:
    gates = [_gate(judge_gate(run.rows, run.measured, o)) for o in objectives if o.is_gate]
    limit = run.options.get("max_error_rate")
    asked = int(asked_of_endpoint(run.rows).sum())
    if limit is not None:
        rate = (asked - outcomes.get(str(Outcome.OK), 0)) / asked if asked else None
        passed = rate is not None and rate <= limit
        gates.append({"gate": f"error_rate<={limit:g}", "value": rate, "bound": limit, "passed": passed})
    if "breaker" in run.stops:
        gates.append(
            {"gate": "breaker", "value": None, "bound": None, "passed": False, "why": run.stops["breaker"]}
        )
    return gates


def _gate(result: GateResult) -> Json:
    value = result.value_ns
    return {
        "gate": result.objective.text,
        "value_ms": None if value is None else value / 1e6,
        "bound_ms": result.objective.bound_ns / 1e6,
        "failures": result.failures,
        "passed": result.passed,
    }


def _classes(
    run: Run, objectives: Sequence[Objective], met: Mask, quantiles: Sequence[float], duration_s: float
) -> Json:
    blocks: Json = {}
    for name in run.rows.classes:
        mine = run.rows.of_class(name)
        which = mine & run.measured
        asked = which & asked_of_endpoint(run.rows)
        bound = any(not o.is_gate and o.class_name in (None, name) for o in objectives)
        blocks[name] = {
            "scheduled": int(mine.sum()),
            "outcomes": count_outcomes(run.rows, mine),
            "attainment": _share(met & asked, asked) if bound else None,
            "attainment_interval": interval_figures(share_interval(run.rows, met, asked), 1)
            if bound
            else None,
            "met": int((met & which).sum()) if bound else None,
            "request_throughput": int(good(run, which).sum()) / duration_s if duration_s else None,
            "request_goodput": int((met & which).sum()) / duration_s if bound and duration_s else None,
            "output_throughput": _tokens(run, "n_output", good(run, which)) / duration_s
            if duration_s
            else None,
            "metrics": metric_figures(run, which, quantiles),
        }
    return blocks


def _share(part: Mask, whole: Mask) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None
