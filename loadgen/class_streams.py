"""Classes in a schedule: each class's stream of arrivals superposed with the others', or classes given to rows that
a trace or a closed loop brings; and who leaves early.

Every draw comes from the plan's seed, the class's name and the row, so that the rows are the same whoever reads
them, in whatever order, in however many shards.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from zlib import crc32

import numpy as np

from loadgen.classes import OWN_LOAD, ClassPlan, parse_cancel, shares_of
from loadgen.plan import Plan
from loadgen.schedule import Schedule, ScheduleRow, chance
from traces.lengths import parse_length
from traces.row import TraceRow

CLASS_SEEDS, CLASS_INPUT, CLASS_OUTPUT = 18, 19, 20
"""Purposes of the seed's children, following those of `loadgen.workload`."""
DRAWN_AT_ONCE = 1024
Dress = Callable[[ScheduleRow], ScheduleRow]


def class_plans(plan: Plan) -> dict[str, Plan]:
    """For each class the plan of its own stream: its arrivals, rate, lengths, bounds and seed."""
    shares = shares_of(plan)
    return {one.name: _own_plan(plan, one, shares.get(one.name)) for one in plan.classes}


def _own_plan(plan: Plan, one: ClassPlan, share: float | None) -> Plan:
    names = (*(name for name in OWN_LOAD if name != "start"), "input_len", "output_len")
    own = {name: value for name in names if (value := getattr(one, name)) is not None}
    if share is not None:
        own["request_rate"] = share * (plan.request_rate or 0)
    if one.arrival is not None and one.arrival != plan.arrival:  # the plan's shape belongs to its own model
        own = {"burstiness": None, "correlation_time": None, **own}
    if one.duration is None and plan.duration is not None:
        own["duration"] = max(1, plan.duration - (one.start or 0))
    own["seed"] = _own_seed(plan.seed, one.name)
    return plan.model_copy(update={**own, "classes": [], "class_share": None})


def _own_seed(seed: int, name: str) -> int:
    children = np.random.SeedSequence(seed, spawn_key=(CLASS_SEEDS, crc32(name.encode())))
    return int(children.generate_state(1, np.uint64)[0] >> 1)


def superposed(streams: Mapping[str, Iterable[TraceRow]], starts: Mapping[str, int]) -> Iterator[TraceRow]:
    """All streams' rows in time order, each under its class's name; sessions keep apart by it.

    Rows of one instant stand in the order of the classes. *starts*: ns by which a stream is delayed.
    """

    def named(name: str, rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
        for row in rows:
            session = None if row.session is None else f"{name}/{row.session}"
            yield row._replace(t_ns=row.t_ns + starts.get(name, 0), class_name=name, session=session)

    return heapq.merge(*(named(*one) for one in streams.items()), key=lambda row: row.t_ns)


def dressed(plan: Plan, schedule: Schedule) -> Schedule:
    """The schedule with what classes and cancellations add to its rows; itself where there are none."""
    if not plan.classes and plan.cancel is None:
        return schedule
    marks = plan.classes and plan.arrival is None
    make_rows = schedule.make_rows

    def rows() -> Iterator[ScheduleRow]:
        steps: list[Dress] = [_marking(plan)] if marks else []
        steps += [_ranking(plan), _leaving(plan)]
        for row in make_rows():
            for step in steps:
                row = step(row)  # noqa: PLW2901
            yield row

    told = [{"step": "classes", "shares": shares_of(plan)}] if marks else []
    leaves = {one.name: one.cancel for one in plan.classes if one.cancel} | (
        {"": plan.cancel} if plan.cancel else {}
    )
    if leaves:
        told.append({"step": "cancel", **{name or "others": text for name, text in leaves.items()}})
    return replace(schedule, steps=(*schedule.steps, *told), make_rows=rows)


def _marking(plan: Plan) -> Dress:
    """Gives rows without a class one by the shares, a whole session the same; and a class's own lengths."""
    shares = shares_of(plan)
    names, upto = list(shares), list(accumulate(shares.values()))
    lengths = {
        one.name: (_lengths(plan, one, CLASS_INPUT), _lengths(plan, one, CLASS_OUTPUT))
        for one in plan.classes
    }

    def mark(row: ScheduleRow) -> ScheduleRow:
        name = row.class_name
        if name is None:
            at = chance(plan.seed, "class", row.session if row.session is not None else row.index)
            name = next((names[k] for k, end in enumerate(upto) if at < end), names[-1])
        asked, answered = lengths.get(name, (None, None))
        row = row._replace(class_name=name)
        if asked is not None:
            row = row._replace(n_input=next(asked), hash_ids=None)
        return row if answered is None else row._replace(n_output=next(answered))

    return mark


def _lengths(plan: Plan, one: ClassPlan, purpose: int) -> Iterator[int] | None:
    model = one.input_len if purpose == CLASS_INPUT else one.output_len
    if model is None:
        return None
    sampler = parse_length(model)
    rng = np.random.default_rng(np.random.SeedSequence(_own_seed(plan.seed, one.name), spawn_key=(purpose,)))

    def drawn() -> Iterator[int]:
        while True:
            yield from sampler(rng, DRAWN_AT_ONCE).tolist()

    return drawn()


def _ranking(plan: Plan) -> Dress:
    priorities = {one.name: one.priority for one in plan.classes}
    return lambda row: row._replace(priority=priorities.get(row.class_name or ""))


def _leaving(plan: Plan) -> Dress:
    """Marks the rows whose client leaves before the answer's end."""
    own = {one.name: parse_cancel(one.cancel) for one in plan.classes if one.cancel is not None}
    general = parse_cancel(plan.cancel) if plan.cancel is not None else None

    def leave(row: ScheduleRow) -> ScheduleRow:
        rule = own.get(row.class_name or "", general)
        if rule is None or chance(plan.seed, "cancel", row.index) >= rule[0]:
            return row
        return row._replace(cancel_ns=rule[1], cancel_tokens=rule[2])

    return leave
