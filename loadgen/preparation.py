"""From a plan to an engine that is ready to start: consent, key, target, probe, schedule, run directory."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gevent.event import Event

from loadgen import __version__, calibration
from loadgen.breaker import Breaker
from loadgen.clients import CLIENTS
from loadgen.clients.dialect import Dialect
from loadgen.clock import measure_anchor
from loadgen.conversation import Conversations
from loadgen.dispatch import Caps
from loadgen.endpoint import EndpointFacts, Prober, probe_endpoint
from loadgen.engine import Engine, EngineOptions
from loadgen.errors import UsageError
from loadgen.keyfile import KeyFile
from loadgen.net.batched import PAUSE_NS, BatchedReads
from loadgen.net.pool import Pool
from loadgen.net.stamps import StampClock
from loadgen.net.target import Target, TlsOptions, resolve_target
from loadgen.plan import Plan, is_loopback, plan_to_json
from loadgen.prompts import Followers, Prompts, PromptWriter, RenderedAhead, RequestWriter, Writer
from loadgen.record import Record
from loadgen.retrying import chance_of, rule_of
from loadgen.rundir import anchor_to_json, host_facts, new_run_directory, versions, write_plan
from loadgen.schedule import Schedule, ScheduleRow, Survey
from loadgen.spool import Spool
from loadgen.telling import ClassPools, Endpoint, class_writer, own_urls
from loadgen.workload import schedule_of

OPEN_AHEAD_MOST = 256
Json = dict[str, Any]
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
    warning: str | None = None
    """What this machine's calibration says against the plan."""
    failure: Exception | None = None
    over: Event = field(default_factory=Event)

    def run(self, on_record: Callable[[Record], None]) -> None:
        """Write the plan, then send. Blocks the greenlet until the last record is on disk."""
        engine = self.engine
        engine.on_record = on_record
        engine.warm_up()
        t0_ns = time.monotonic_ns() + LEAD_NS
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


def api_key(plan: Plan, environ: dict[str, str] | None = None) -> str | None:
    """The key out of its file, else OPENAI_API_KEY. Raises UsageError when the file cannot be read."""
    if plan.api_key_file is None:
        return (os.environ if environ is None else environ).get("OPENAI_API_KEY") or None
    try:
        key = plan.api_key_file.read_text().strip()
    except OSError as error:
        raise UsageError(
            f"cannot read {plan.api_key_file}: {os.strerror(error.errno or 0).lower()}"
        ) from None
    if not key or any(c.isspace() for c in key):
        raise UsageError(f"{plan.api_key_file} must hold one key and nothing else")
    return key


def dialect_of(plan: Plan) -> Dialect:
    """The plan's dialect. Raises UsageError naming the choices."""
    dialect = CLIENTS.get(plan.endpoint)
    if dialect is None:
        raise UsageError(f"unknown endpoint {plan.endpoint!r}: choose one of {', '.join(CLIENTS)}")
    return dialect


def carried_joints(plan: Plan, dialect: Dialect) -> tuple[bytes, bytes] | None:
    """What stands between carried turns; None when none are. Raises UsageError where the dialect cannot."""
    if not plan.carry_answers:
        return None
    if dialect.joints is None:
        able = ", ".join(name for name, known in CLIENTS.items() if known.joints is not None)
        raise UsageError(f"--carry-answers: {dialect.name} cannot carry earlier turns; choose one of {able}")
    return dialect.joints


def check_target(plan: Plan) -> None:
    """Refuse a run without a target, or at a machine that nobody has said is theirs."""
    if plan.base_url is None:
        raise UsageError("no endpoint: name one with --base-url")
    far = [url for url in (plan.base_url, *own_urls(plan)) if not is_loopback(url)]
    if far and not plan.i_own_this_endpoint:
        raise UsageError(
            f"{far[0]} is not on this machine: a load test can take it down. "
            "Say --i-own-this-endpoint if it is yours to test"
        )
    if plan.trace is None and plan.arrival is None and plan.concurrency is None:
        raise UsageError("no load: name a --trace, an --arrival model or a --concurrency")


def request_headers(plan: Plan, key: str | None) -> dict[str, str]:
    """Headers of every request, the plan's own winning over ours."""
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "user-agent": f"loadgen/{__version__}",
    }
    if key:
        headers["authorization"] = f"Bearer {key}"
    headers.update({name.lower(): value for name, value in plan.header.items()})
    for name, value in headers.items():
        if any(c in name + value for c in "\r\n\0"):
            raise UsageError(f"header {name!r} holds a line break")
    return headers


def request_writer(
    plan: Plan, target: Target, facts: EndpointFacts, headers: dict[str, str], prompts: Prompts
) -> RequestWriter:
    """Encode all that the requests share."""
    dialect = dialect_of(plan)
    fields: dict[str, Any] = {"model": facts.model, "stream": True}
    if facts.usage != "none":
        fields["stream_options"] = {"include_usage": True}
        if facts.usage == "continuous":
            fields["stream_options"]["continuous_usage_stats"] = True
    if plan.ignore_eos:
        fields["ignore_eos"] = True
    fields.update(plan.extra_body)
    return RequestWriter(dialect, fields, request_head(target, dialect, headers), prompts)


def request_head(target: Target, dialect: Dialect, headers: dict[str, str]) -> bytes:
    """Request line and headers that all requests share."""
    lines = [f"POST {target.prefix}{dialect.path} HTTP/1.1", f"host: {target.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1", errors="replace") + b"\r\n"


Facts = Mapping[str, EndpointFacts]
"""What the endpoints are: the plan's own under "", those of classes with a base URL of their own under that."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan means before anybody is asked: its schedule, dialect, targets and headers."""

    plan: Plan
    dialect: Dialect
    joints: tuple[bytes, bytes] | None
    schedule: Schedule
    headers: dict[str, str]
    targets: Mapping[str, Target]
    """Keyed as `Facts`."""

    def probe(self) -> Facts:
        """Ask the endpoints what they are. Raises UnreachableError or UsageError with their own words."""
        return {url: self._probe(url) for url in self.targets}

    def _probe(self, url: str) -> EndpointFacts:
        """The model of a class's own endpoint is the class's, or the only one that it lists."""
        plan = self.plan
        if url:
            models = [one.model for one in plan.classes if one.base_url == url and one.model is not None]
            model = models[0] if models else plan.model
            plan = plan.model_copy(update={"base_url": url, "model": model, "classes": []})
        return probe_endpoint(Prober(self.targets[url], self.headers, str(plan.base_url)), plan, self.dialect)


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of a run: its rows, its caps, and where its records go."""

    rows: Iterator[ScheduleRow]
    caps: Caps
    open_ahead: int
    directory: Path
    run_id: str
    salt: str
    worker: str = "0"


def lay_basis(plan: Plan) -> Basis:
    """Resolve the plan. Raises LoadgenError or TraceError for what cannot be."""
    check_target(plan)
    assert plan.base_url is not None
    dialect, key = dialect_of(plan), api_key(plan)
    joints = carried_joints(plan, dialect)
    schedule = schedule_of(plan)
    tls = TlsOptions(plan.tls_ca, plan.tls_cert, plan.tls_key, plan.tls_server_name, not plan.tls_insecure)
    targets = {"": resolve_target(plan.base_url, tls)}
    targets |= {url: resolve_target(url, tls) for url in own_urls(plan)}
    return Basis(plan, dialect, joints, schedule, request_headers(plan, key), targets)


def refuse_empty(survey: Survey | None) -> None:
    """Raises UsageError for a schedule without a row."""
    if survey is not None and survey.requests == 0:
        raise UsageError("the schedule is empty: no row lies in the window")


def make_engine(basis: Basis, facts: Facts, share: Share, stamps: StampClock) -> Engine:
    """The engine of one share."""
    plan = basis.plan
    prompts = {url: PromptWriter(share.salt, one.overhead) for url, one in facts.items()}
    talk = Conversations(prompts[""], basis.joints) if basis.joints is not None else None
    places = {
        url: Endpoint(target, facts[url], talk if talk is not None and not url else prompts[url])
        for url, target in basis.targets.items()
    }

    def writer_with(headers: dict[str, str]) -> Writer:
        return class_writer(plan, headers, places[""], places, request_writer)

    followers: Followers = "settled" if talk else "soon" if basis.schedule.together else "ahead"
    queue = RenderedAhead(share.rows, writer_with(basis.headers), share.run_id, followers=followers)
    options = EngineOptions(
        dialect=basis.dialect,
        caps=share.caps,
        request_timeout_ns=plan.request_timeout,
        drain_timeout_ns=plan.drain_timeout,
        open_ahead=share.open_ahead,
        breaker=Breaker(plan.breaker_error_rate),
        retry=rule_of(plan),
        chance=chance_of(plan),
        on_answer_text=talk.answered if talk else None,
        refresh_key=key_refresher(plan, lambda headers: queue.write_with(writer_with(headers))),
    )
    spool = Spool(share.directory / f"records-{share.worker}.jsonl")
    return Engine(options, queue, pools_of(basis, stamps), stamps, spool)


def pools_of(basis: Basis, stamps: StampClock) -> Pool | ClassPools:
    """One pool, or one for each of several endpoints."""
    plan, reads = basis.plan, BatchedReads(PAUSE_NS)
    pools = {url: Pool(target, stamps, plan.reuse, reads) for url, target in basis.targets.items()}
    if len(pools) == 1:
        return pools[""]
    own = {one.name: (url, pools[url]) for one in plan.classes if (url := one.base_url) is not None}
    return ClassPools(pools[""], str(plan.base_url), own)


def key_refresher(plan: Plan, renew: Callable[[dict[str, str]], None]) -> Callable[[], None]:
    """Looks at the key's file, if there is one; *renew* gets all headers with the new key after a change."""
    if plan.api_key_file is None:
        return lambda: None
    return KeyFile(plan.api_key_file, None, lambda key: renew(request_headers(plan, key))).refresh


def run_content(basis: Basis, survey: Survey | None, facts: Facts, names: tuple[str, str]) -> Json:
    """What plan.json says of any run; *names*: run id and salt."""
    others = {url: one.to_json() for url, one in facts.items() if url}
    return {
        "run_id": names[0],
        "plan": plan_to_json(basis.plan),
        "versions": versions(),
        "host": host_facts(),
        "digest": survey.digest if survey else None,
        "salt": names[1],
        "scheduled": survey.requests if survey else None,
        "schedule": basis.schedule.describe(survey),
        "endpoint": facts[""].to_json(),
        **({"endpoints": others} if others else {}),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def new_names(plan: Plan) -> tuple[str, str]:
    """A new run's id and salt."""
    return secrets.token_hex(4), plan.salt or secrets.token_hex(8)


def prepare(plan: Plan) -> Prepared:
    """Everything before the first byte of load: raises LoadgenError or TraceError, and leaves no half run then."""
    basis = lay_basis(plan)
    schedule = basis.schedule
    survey = schedule.survey()
    refuse_empty(survey)
    facts = basis.probe()
    directory = new_run_directory(plan.out)
    run_id, salt = names = new_names(plan)
    stamps = StampClock(measure_anchor)
    content = {
        **run_content(basis, survey, facts, names),
        "pids": {"master": os.getpid(), "workers": [os.getpid()]},
        "anchors": {"0": anchor_to_json(stamps.anchor)},
    }
    caps = Caps(plan.concurrency, plan.max_concurrency, schedule.limit_ns)
    share = Share(schedule.rows(), caps, open_ahead_of(plan, survey), directory, run_id, salt)
    engine = make_engine(basis, facts, share, stamps)
    warning = beyond_calibration(survey)
    return Prepared(plan, directory, schedule, survey, facts[""], engine, run_id, content, warning)


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
