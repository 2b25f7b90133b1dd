"""From the plan to its schedule: a trace's rows or a model's arrivals, with lengths and sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from loadgen.class_streams import class_plans, dressed, superposed
from loadgen.errors import UsageError
from loadgen.plan import Plan
from loadgen.quantity import parse_window_ns
from loadgen.schedule import Schedule, ScheduleRow
from loadgen.sessions import Rows, replanned, together, with_last_turns
from loadgen.targets import shared_out, targets_of
from traces.columns import columns
from traces.lengths import independent, joint, parse_length
from traces.prefixes import parse_tree
from traces.profiles import parse_profile
from traces.readers import open_trace
from traces.row import TraceRow
from traces.steps import applied, parse_step
from traces.synth import Pairs, Recipe, Sessions, sessions_by_slot, synth

DEFAULT_INPUT_LEN = 512
DEFAULT_OUTPUT_LEN = 128
DEFAULT_THINK_NS = 10_000_000_000
INPUT_LENGTHS, OUTPUT_LENGTHS = 16, 17
"""Purposes of the seed's children beside those of `traces.synth`: a new one gets the next number."""
DRAWN_AT_ONCE = 1024


def schedule_of(plan: Plan) -> Schedule:
    """The schedule that *plan* asks for. Raises traces.errors.TraceError for a trace that cannot be read."""
    if plan.trace is not None:
        found = _from_trace(plan)
    elif plan.arrival is not None:
        found = _from_classes(plan) if plan.classes else _from_model(plan)
    else:
        found = _from_slots(plan)
    return _shared_out(plan, dressed(plan, found))


def _shared_out(plan: Plan, schedule: Schedule) -> Schedule:
    """The schedule with each row's endpoint, where the plan has several."""
    if not plan.target:
        return schedule
    targets, make_rows = targets_of(plan), schedule.make_rows
    return replace(schedule, make_rows=lambda: shared_out(make_rows(), targets, plan.seed))


def stand_together(plan: Plan) -> bool:
    """Whether a session's turns stand together: where they may be due before their planned instants."""
    may_have = plan.trace is not None or plan.turns is not None
    return may_have and (plan.concurrency is not None or plan.session_mode in ("idle-gap", "think-only"))


def _from_trace(plan: Plan) -> Schedule:
    assert plan.trace is not None
    trace = open_trace(plan.trace, format=plan.trace_format, strict=True)
    steps: list[dict[str, Any]] = []
    if plan.window:
        start_ns, end_ns = parse_window_ns(plan.window)
        steps.append({"step": "window", "start": start_ns, "end": end_ns})
    if plan.speedup != 1:
        steps.append({"step": "speedup", "factor": plan.speedup})
    steps += [parse_step(text) for text in plan.step]
    found = applied(trace.rows, steps)

    def rows() -> Iterator[ScheduleRow]:
        lengths = zip(_drawn(plan, plan.input_len, INPUT_LENGTHS), _drawn(plan, plan.output_len, OUTPUT_LENGTHS),
                      strict=True)  # fmt: skip
        for index, row in enumerate(islice(found(), plan.max_requests)):
            yield _row(index, row, *next(lengths))

    told = [*trace.header.get("provenance", []), *steps]
    if plan.max_requests is not None:
        told.append({"step": "max_requests", "rows": plan.max_requests})
    told += [
        {"step": name, "model": text} for name in ("input_len", "output_len") if (text := getattr(plan, name))
    ]
    return _with_sessions(plan, f"{trace.format}: {plan.trace.name}", told, rows)


def _drawn(plan: Plan, model: str | None, purpose: int) -> Iterator[int | None]:
    """Lengths one by one from a model; None where the row's own counts."""
    if model is None:
        while True:
            yield None
    sampler = parse_length(model)
    rng = np.random.default_rng(np.random.SeedSequence(plan.seed, spawn_key=(purpose,)))
    while True:
        yield from sampler(rng, DRAWN_AT_ONCE).tolist()


def _row(index: int, row: TraceRow, n_input: int | None = None, n_output: int | None = None) -> ScheduleRow:
    """A trace's row as ours; lengths given here win over its own."""
    asked = row.n_input if n_input is None else n_input
    answered = row.n_output if n_output is None else n_output
    return ScheduleRow(
        index=index,
        due_ns=row.t_ns,
        n_input=DEFAULT_INPUT_LEN if asked is None else max(1, asked),
        n_output=DEFAULT_OUTPUT_LEN if answered is None else max(1, answered),
        class_name=row.class_name,
        session=row.session,
        turn=row.turn,
        think_ns=row.think_ns,
        hash_ids=row.hash_ids if n_input is None else None,
        block_size=row.block_size,
    )


def _with_sessions(plan: Plan, source: str, steps: list[dict[str, Any]], rows: Rows) -> Schedule:
    """The schedule with later turns planned as the plan's session mode says."""
    closed, grouped = plan.concurrency is not None, stand_together(plan)
    mode = plan.session_mode or ("think-only" if closed else "timestamp")
    if plan.session_mode is not None or plan.carry_answers:
        steps = [*steps, {"step": "sessions", "mode": mode, "carry_answers": plan.carry_answers}]
    # Sessions of a model's slots stand together as they are made, and may be endless.
    whole = plan.trace is None and closed

    def planned() -> Iterable[ScheduleRow]:
        found: Iterable[ScheduleRow]
        if grouped:
            found = replanned(rows() if whole else together(rows), mode)
        else:
            found = with_last_turns(rows) if plan.carry_answers else rows()
        if plan.session_mode is not None or plan.carry_answers:
            found = _some_session(found)
        return (row._replace(due_ns=0) for row in found) if closed else found

    limit_ns = plan.duration if closed else None
    return Schedule(source, tuple(steps), planned, closed, limit_ns, limit_ns is not None, grouped)


def _some_session(rows: Iterable[ScheduleRow]) -> Iterator[ScheduleRow]:
    """The rows. Raises UsageError at their end when none belonged to a session though that was asked for."""
    seen = empty = False
    for row in rows:
        seen, empty = seen or row.session is not None, True
        yield row
    if empty and not seen:
        raise UsageError("--session-mode and --carry-answers: this trace knows no sessions")


def _from_model(plan: Plan) -> Schedule:
    assert plan.arrival is not None
    recipe = _recipe(plan)

    def rows() -> Iterator[ScheduleRow]:
        return (_row(index, row) for index, row in enumerate(synth(recipe)))

    synth(recipe)
    step = {"step": "arrival", "model": plan.arrival, "rate_per_s": plan.request_rate, "seed": plan.seed}
    return _with_sessions(
        plan, f"model: {plan.arrival}", [{**step, **recipe.parameters, **_shape(plan)}], rows
    )


def _from_classes(plan: Plan) -> Schedule:
    """Each class's own stream of arrivals and lengths, superposed."""
    plans = class_plans(plan)
    recipes = {name: _recipe(one) for name, one in plans.items()}

    def rows() -> Iterator[ScheduleRow]:
        streams = {name: synth(recipe) for name, recipe in recipes.items()}
        starts = {one.name: one.start or 0 for one in plan.classes}
        merged = islice(superposed(streams, starts), plan.num_requests)
        return (_row(index, row) for index, row in enumerate(merged))

    for recipe in recipes.values():
        synth(recipe)
    steps = [
        {"step": "arrival", "class": name, "model": one.arrival, "rate_per_s": one.request_rate, "seed": one.seed,
         **recipes[name].parameters, **_shape(one)}
        for name, one in plans.items()
    ]  # fmt: skip
    return _with_sessions(plan, f"models: {', '.join(plans)}", steps, rows)


def _from_slots(plan: Plan) -> Schedule:
    recipe = _recipe(plan)

    def rows() -> Iterator[ScheduleRow]:
        return (_row(index, row) for index, row in enumerate(sessions_by_slot(recipe)))

    shape = _shape(plan)
    steps = [{"step": "slots", "seed": plan.seed, **shape}] if shape else []
    return _with_sessions(plan, f"closed loop: {plan.concurrency} slots", steps, rows)


def _recipe(plan: Plan) -> Recipe:
    """The plan's load as `traces.synth` makes it. Raises TraceError for what cannot be made."""
    parameters: dict[str, float] = {}
    if plan.burstiness is not None:
        parameters["r" if plan.arrival == "poisson-gamma" else "burstiness"] = plan.burstiness
    if plan.correlation_time is not None:
        parameters["tau_s"] = plan.correlation_time / 1e9
    sessions = None
    if plan.turns is not None:
        sessions = Sessions(plan.turns, (DEFAULT_THINK_NS if plan.think is None else plan.think) / 1e9)
    return Recipe(
        arrival=plan.arrival or "",
        rate_per_s=plan.request_rate or 0,
        lengths=_lengths(plan),
        parameters=parameters,
        profile=parse_profile(plan.profile) if plan.profile else None,
        sessions=sessions,
        prefixes=parse_tree(plan.prefix_tree) if plan.prefix_tree else None,
        requests=plan.num_requests,
        duration_s=None if plan.duration is None or plan.arrival is None else plan.duration / 1e9,
        seed=plan.seed,
    )


def _lengths(plan: Plan) -> Pairs:
    if plan.lengths_from is not None:
        return joint(columns(open_trace(plan.lengths_from).batches()))
    asked = parse_length(plan.input_len or str(DEFAULT_INPUT_LEN))
    return independent(asked, parse_length(plan.output_len or str(DEFAULT_OUTPUT_LEN)))


def _shape(plan: Plan) -> dict[str, Any]:
    """What was asked of lengths, rates and sessions, for the record."""
    names = ("profile", "input_len", "output_len", "lengths_from", "turns", "think", "prefix_tree")
    return {
        ("think_ns" if name == "think" else name): value if isinstance(value, int | float) else str(value)
        for name in names
        if (value := getattr(plan, name)) is not None
    }
