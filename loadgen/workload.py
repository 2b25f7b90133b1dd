"""From the plan to its schedule: a trace's rows or a model's arrivals, with lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from loadgen.plan import Plan
from loadgen.quantity import parse_window_ns
from loadgen.schedule import Schedule, ScheduleRow
from traces.processes import arrivals
from traces.readers import open_trace
from traces.row import TraceRow
from traces.transforms import speedup, window

DEFAULT_INPUT_LEN = 512
DEFAULT_OUTPUT_LEN = 128
ARRIVALS = 0
"""Purposes of the seed's children: a new purpose gets the next number, so that old seeds keep their meaning."""


def schedule_of(plan: Plan) -> Schedule:
    """The schedule that *plan* asks for. Raises traces.errors.TraceError for a trace that cannot be read."""
    if plan.trace is not None:
        return _from_trace(plan)
    if plan.arrival is not None:
        return _from_model(plan)
    return _from_slots(plan)


def _from_trace(plan: Plan) -> Schedule:
    assert plan.trace is not None
    trace = open_trace(plan.trace, format=plan.trace_format, strict=True)
    steps: list[dict[str, Any]] = []
    if plan.window:
        start_ns, end_ns = parse_window_ns(plan.window)
        steps.append({"step": "window", "start_ns": start_ns, "end_ns": end_ns})
    if plan.speedup != 1:
        steps.append({"step": "speedup", "factor": plan.speedup})
    if plan.max_requests is not None:
        steps.append({"step": "max_requests", "rows": plan.max_requests})

    def rows() -> Iterator[ScheduleRow]:
        found: Iterable[TraceRow] = trace.rows()
        if plan.window:
            found = window(found, *parse_window_ns(plan.window))
        if plan.speedup != 1:
            found = speedup(found, plan.speedup)
        for index, row in enumerate(islice(found, plan.max_requests)):
            yield _row_of_trace(index, row, plan)

    closed = plan.concurrency is not None
    return Schedule(f"{trace.format}: {plan.trace.name}", tuple(steps), rows, closed=closed)


def _row_of_trace(index: int, row: TraceRow, plan: Plan) -> ScheduleRow:
    n_input = plan.input_len or row.n_input
    n_output = plan.output_len or row.n_output
    return ScheduleRow(
        index=index,
        due_ns=0 if plan.concurrency is not None else row.t_ns,
        n_input=DEFAULT_INPUT_LEN if n_input is None else max(1, n_input),
        n_output=DEFAULT_OUTPUT_LEN if n_output is None else max(1, n_output),
        class_name=row.class_name,
        session=row.session,
        turn=row.turn,
        think_ns=row.think_ns,
        hash_ids=row.hash_ids if plan.input_len is None else None,
        block_size=row.block_size,
    )


def _from_model(plan: Plan) -> Schedule:
    assert plan.arrival is not None
    assert plan.request_rate is not None
    params: dict[str, float] = {}
    if plan.burstiness is not None:
        params["r" if plan.arrival == "poisson-gamma" else "burstiness"] = plan.burstiness
    if plan.correlation_time is not None:
        params["tau_s"] = plan.correlation_time / 1e9
    rate, name = plan.request_rate, plan.arrival

    def rows() -> Iterator[ScheduleRow]:
        seeds = np.random.SeedSequence(plan.seed, spawn_key=(ARRIVALS,))
        instants = (
            int(t) for block in arrivals(name, rate_per_s=rate, seed_sequence=seeds, **params) for t in block
        )
        for index, due_ns in enumerate(islice(instants, plan.num_requests)):
            if plan.duration is not None and due_ns >= plan.duration:
                return
            yield _synthetic_row(index, due_ns, plan)

    arrivals(name, rate_per_s=rate, seed_sequence=np.random.SeedSequence(0), **params)  # names what is wrong
    step = {"step": "arrival", "model": name, "rate_per_s": rate, "seed": plan.seed, **params}
    return Schedule(f"model: {name}", (step,), rows)


def _from_slots(plan: Plan) -> Schedule:
    def rows() -> Iterator[ScheduleRow]:
        index = 0
        while plan.num_requests is None or index < plan.num_requests:
            yield _synthetic_row(index, 0, plan)
            index += 1

    return Schedule(
        f"closed loop: {plan.concurrency} slots",
        (),
        rows,
        closed=True,
        limit_ns=plan.duration,
        open_ended=plan.num_requests is None,
    )


def _synthetic_row(index: int, due_ns: int, plan: Plan) -> ScheduleRow:
    n_input = plan.input_len or DEFAULT_INPUT_LEN
    return ScheduleRow(index, due_ns, n_input, plan.output_len or DEFAULT_OUTPUT_LEN)
