"""From a plan to an engine that is ready to start: consent, key, target, probe, schedule, run directory."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gevent.event import Event

from loadgen import calibration
from loadgen.answer_counts import AnswerTexts, Count
from loadgen.breaker import Breaker
from loadgen.clock import measure_anchor
from loadgen.dispatch import Caps
from loadgen.endpoint import EndpointFacts
from loadgen.engine import Engine, EngineOptions
from loadgen.errors import UsageError
from loadgen.keyfile import KeyFile
from loadgen.net.batched import PAUSE_NS, BatchedReads
from loadgen.net.stamps import StampClock
from loadgen.opening import (
    Asked,
    Known,
    Opening,
    api_key,
    check_targets,
    open_endpoints,
)
from loadgen.plan import Plan, plan_to_json
from loadgen.prompts import Followers, RenderedAhead
from loadgen.record import Record
from loadgen.retrying import chance_of, rule_of
from loadgen.rundir import anchor_to_json, host_facts, new_run_directory, versions, write_plan
from loadgen.schedule import Schedule, ScheduleRow, Survey
from loadgen.spool import Spool
from loadgen.targets import TargetPlan, targets_of
from loadgen.workload import schedule_of

Json = dict[str, Any]
OPEN_AHEAD_MOST = 256
LEAD_NS = 100_000_000
"""From the writing of the plan to the schedule's instant 0."""


@dataclass(slots=True)
class Prepared:
    """A run about to start. ``run_id`` prefixes every request's id; ``content`` is plan.json's."""

    plan: Plan
    directory: Path
    schedule: Schedule
    survey: Survey | None
    facts: EndpointFacts
    engine: Engine
    run_id: str
    content: dict[str, Any]
    count: Count | None = None
    """Counts an answer's tokens after the run, where the server states no usage but can count."""
    warning: str | None = None
    """What this machine's calibration says against the plan."""
    failure: Exception | None = None
    agree_t0: Callable[[], int] | None = None
    """Where several runs start on one instant 0: waits for the others and returns it."""
    over: Event = field(default_factory=Event)

    def run(self, on_record: Callable[[Record], None]) -> None:
        """Write the plan, then send. Blocks the greenlet until the last record is on disk."""
        engine = self.engine
        engine.on_record = on_record
        engine.warm_up()
        t0_ns = time.monotonic_ns() + LEAD_NS if self.agree_t0 is None else self.agree_t0()
        write_plan(self.directory, {**self.content, "t0_ns": t0_ns})
        kept = {name: self.content[name] for name in ("run_id", "digest")}
        anchor = self.content["anchors"]["0"]
        try:
            engine.spool.open({"worker": "0", **kept, "pid": os.getpid(), "t0_ns": t0_ns, "anchor": anchor})
        except OSError as error:
            raise UsageError(f"cannot write {engine.spool.path}: {error.strerror}") from None
        if self.warning is not None:
            engine.spool.event("warning", t_ns=time.monotonic_ns(), text=self.warning)
        engine.run(t0_ns)
        if engine.options.texts is not None and self.count is not None:
            engine.options.texts.count(self.count)


def raise_open_files() -> None:
    """As many descriptors as this process may have: each request in flight is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a hard limit that is more than the kernel lets one have
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan means before anybody is asked: its endpoints, the key, its schedule."""

    plan: Plan
    targets: list[TargetPlan]
    key: str | None
    schedule: Schedule

    def open(self, salt: str, stamps: StampClock, known: Known) -> Asked:
        """Learn what must be known of the endpoints, beyond what is *known*. Raises LoadgenError."""
        opening = Opening(self.key, salt, stamps, BatchedReads(PAUSE_NS), known)
        return open_endpoints(self.targets, opening)


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of a run: its rows, its caps, and where its records go."""

    rows: Iterator[ScheduleRow]
    caps: Caps
    open_ahead: int
    directory: Path
    run_id: str
    worker: str = "0"


def lay_basis(plan: Plan) -> Basis:
    """Resolve the plan. Raises LoadgenError or TraceError for what cannot be."""
    raise_open_files()
    targets = targets_of(plan)
    check_targets(plan, targets)
    key = api_key(plan)
    schedule = schedule_of(plan)
    return Basis(plan, targets, key, schedule)


def refuse_empty(survey: Survey | None) -> None:
    """Raises UsageError for a schedule without a row."""
    if survey is not None and survey.requests == 0:
        raise UsageError("the schedule is empty: no row lies in the window")


def make_engine(
    basis: Basis, asked: Asked, share: Share, stamps: StampClock, texts: AnswerTexts | None = None
) -> Engine:
    """The engine of one share; *texts* keeps answers that are to be counted after the run."""
    plan = basis.plan
    followers: Followers = "settled" if asked.talk else "soon" if basis.schedule.together else "ahead"
    queue = RenderedAhead(share.rows, asked.writer, share.run_id, followers=followers)
    options = EngineOptions(
        dialect=asked.client,
        caps=share.caps,
        request_timeout_ns=plan.request_timeout,
        drain_timeout_ns=plan.drain_timeout,
        open_ahead=share.open_ahead,
        breaker=Breaker(plan.breaker_error_rate),
        retry=rule_of(plan),
        chance=chance_of(plan),
        keep_headers=frozenset(name.lower().encode() for name in plan.keep_header),
        on_answer_text=asked.talk.answered if asked.talk else None,
        refresh_key=key_refresher(basis, asked, queue),
        texts=texts,
    )
    spool = Spool(share.directory / f"records-{share.worker}.jsonl")
    return Engine(options, queue, asked.pool, stamps, spool)


def key_refresher(basis: Basis, asked: Asked, queue: RenderedAhead) -> Callable[[], None]:
    """Looks at the key's file, if there is one; requests rendered after a change carry the new key."""
    path, rewrite = basis.plan.api_key_file, asked.rewrite
    if path is None or rewrite is None:
        return lambda: None
    return KeyFile(path, basis.key, lambda key: queue.write_with(rewrite(key))).refresh


def run_content(basis: Basis, survey: Survey | None, endpoint: Json, names: tuple[str, str]) -> Json:
    """What plan.json says of any run. *endpoint*: its keys ``endpoint`` and ``endpoints``; *names*: run id, salt."""
    return {
        "run_id": names[0],
        "plan": plan_to_json(basis.plan),
        "versions": versions(),
        "host": host_facts(),
        "digest": survey.digest if survey else None,
        "salt": names[1],
        "scheduled": survey.requests if survey else None,
        "schedule": basis.schedule.describe(survey),
        **endpoint,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def endpoint_content(asked: Asked) -> Json:
    """What plan.json says of the endpoints."""
    return {"endpoint": asked.facts.to_json(), **({"endpoints": asked.told} if asked.told else {})}


def new_names(plan: Plan) -> tuple[str, str]:
    """A new run's id and salt."""
    return secrets.token_hex(4), plan.salt or secrets.token_hex(8)


def prepare(plan: Plan) -> Prepared:
    """Everything before the first byte of load: raises LoadgenError or TraceError, and leaves no half run then."""
    basis = lay_basis(plan)
    schedule = basis.schedule
    survey = schedule.survey()
    refuse_empty(survey)
    run_id, salt = names = new_names(plan)
    stamps = StampClock(measure_anchor)
    asked = basis.open(salt, stamps, {})
    directory = new_run_directory(plan.out)
    content = {
        **run_content(basis, survey, endpoint_content(asked), names),
        "pids": {"master": os.getpid(), "workers": [os.getpid()]},
        "anchors": {"0": anchor_to_json(stamps.anchor)},
    }
    caps = Caps(plan.concurrency, plan.max_concurrency, schedule.limit_ns)
    share = Share(schedule.rows(), caps, open_ahead_of(plan, survey), directory, run_id)
    engine = make_engine(basis, asked, share, stamps, AnswerTexts(directory) if asked.count else None)
    warning, count = beyond_calibration(survey), asked.count
    return Prepared(plan, directory, schedule, survey, asked.facts, engine, run_id, content, count, warning)


def beyond_calibration(survey: Survey | None, workers: int = 1) -> str | None:
    """A warning where the plan asks more than this machine was found to generate; None where nobody knows."""
    if survey is None or survey.requests == 0:
        return None
    known = calibration.load()
    if known is None:
        return None
    return known.warning(survey.peak_rate_per_s, survey.output_tokens / survey.requests, workers)


def open_ahead_of(plan: Plan, survey: Survey | None) -> int:
    """Connections to open before the start: one second's peak, or the cap when that is lower."""
    wanted = plan.concurrency or (survey.peak_rate_per_s if survey else 1)
    return max(1, min(wanted, plan.max_concurrency or wanted, OPEN_AHEAD_MOST))
