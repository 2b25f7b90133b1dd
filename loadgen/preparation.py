"""From a plan to an engine that is ready to start: consent, key, target, probe, schedule, run directory."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gevent.event import Event

from loadgen import __version__, calibration
from loadgen.breaker import Breaker
from loadgen.clients import CLIENTS
from loadgen.clients.dialect import Client, Dialect
from loadgen.clients.service import GrpcDialect
from loadgen.clock import measure_anchor
from loadgen.conversation import Conversations
from loadgen.dispatch import Caps
from loadgen.endpoint import EndpointFacts, Prober, probe_endpoint
from loadgen.engine import Engine, EngineOptions
from loadgen.errors import UsageError
from loadgen.grpc_endpoint import open_grpc, parts_of
from loadgen.keyfile import KeyFile
from loadgen.mixed import MixedClient, MixedSender, MixedWriter
from loadgen.net.batched import PAUSE_NS, BatchedReads
from loadgen.net.pool import Pool, Sender
from loadgen.net.stamps import StampClock
from loadgen.net.target import Target, TlsOptions, resolve_target
from loadgen.plan import Plan, is_loopback, plan_to_json
from loadgen.prompts import Followers, Prompts, PromptWriter, RenderedAhead, RequestWriter, Writer
from loadgen.record import Record
from loadgen.retrying import chance_of, rule_of
from loadgen.rundir import anchor_to_json, host_facts, new_run_directory, versions, write_plan
from loadgen.schedule import Schedule, ScheduleRow, Survey
from loadgen.spool import Spool
from loadgen.targets import TargetPlan, shared_out, targets_of
from loadgen.telling import ClassPools, Endpoint, class_writer, own_urls
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


def dialect_of(plan: Plan) -> Dialect | GrpcDialect:
    """The plan's dialect. Raises UsageError naming the choices, or when the URL's scheme is not the dialect's."""
    dialect = CLIENTS.get(plan.endpoint)
    if dialect is None:
        raise UsageError(f"unknown endpoint {plan.endpoint!r}: choose one of {', '.join(CLIENTS)}")
    over_grpc = (plan.base_url or "").startswith("grpc")
    if over_grpc != isinstance(dialect, GrpcDialect):
        able = [name for name, known in CLIENTS.items() if isinstance(known, GrpcDialect) == over_grpc]
        raise UsageError(
            f"--endpoint {dialect.name} does not go with {plan.base_url}: choose {', '.join(able)}"
        )
    return dialect


def http_dialect(plan: Plan) -> Dialect:
    """As `dialect_of`, for what speaks HTTP alone. Raises UsageError for gRPC."""
    dialect = dialect_of(plan)
    if isinstance(dialect, GrpcDialect):
        raise UsageError(f"{plan.base_url}: this command speaks HTTP alone")
    return dialect


def carried_joints(plan: Plan, dialect: Dialect | GrpcDialect) -> tuple[bytes, bytes] | None:
    """What stands between carried turns; None when none are. Raises UsageError where the dialect cannot."""
    if not plan.carry_answers:
        return None
    if dialect.joints is None:
        able = ", ".join(name for name, known in CLIENTS.items() if known.joints is not None)
        raise UsageError(f"--carry-answers: {dialect.name} cannot carry earlier turns; choose one of {able}")
    return dialect.joints


def check_consent(plan: Plan) -> None:
    """Refuse to send without a target, or at a machine that nobody has said is theirs."""
    if plan.base_url is None:
        raise UsageError("no endpoint: name one with --base-url")
    far = [url for url in (plan.base_url, *own_urls(plan)) if not is_loopback(url)]
    if far and not plan.i_own_this_endpoint:
        raise UsageError(
            f"{far[0]} is not on this machine: a load test can take it down. "
            "Say --i-own-this-endpoint if it is yours to test"
        )


def check_targets(plan: Plan, targets: list[TargetPlan]) -> None:
    """Refuse a run that has no target, no consent or no load, or endpoints that do not go together."""
    for target in targets:
        check_consent(target.plan)
        dialect_of(target.plan)
    if plan.carry_answers and len(targets) > 1:
        raise UsageError("--carry-answers goes with one endpoint")
    if own_urls(plan) and (plan.target or str(plan.base_url).startswith("grpc")):
        raise UsageError("a class's base_url goes with an HTTP --base-url, not with --target or gRPC")
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
    dialect = http_dialect(plan)
    fields: dict[str, Any] = {"model": facts.model, "stream": True}
    if facts.usage != "none":
        fields["stream_options"] = {"include_usage": True}
        if facts.usage == "continuous":
            fields["stream_options"]["continuous_usage_stats"] = True
    if plan.ignore_eos:
        fields["ignore_eos"] = True
    fields.update(plan.extra_body)
    lines = [f"POST {target.prefix}{dialect.path} HTTP/1.1", f"host: {target.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines).encode("latin-1", errors="replace") + b"\r\n"
    return RequestWriter(dialect, fields, head, prompts, parts_of(plan))


@dataclass(slots=True)
class Asked:
    """One endpoint, or several as one, ready to be asked.

    ``talk`` writes conversations where answers are carried; ``told``: each endpoint in plan.json, by its name there.
    """

    facts: EndpointFacts
    client: Client
    writer: Writer
    pool: Sender
    talk: Conversations | None = None
    told: dict[str, Any] = field(default_factory=dict)
    rewrite: Callable[[str], Writer] | None = None
    """The same requests with another key; None: the key stays as it was (gRPC)."""


Known = dict[str, EndpointFacts]
"""What is known of HTTP endpoints, by base URL: these are not probed again, and what is found out is added."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What opening endpoints needs beside the plan."""

    key: str | None
    salt: str
    stamps: StampClock
    reads: BatchedReads
    known: Known


def open_endpoint(plan: Plan, by: Opening) -> Asked:
    """Find the plan's endpoint and learn what a run must know of it. Raises LoadgenError."""
    assert plan.base_url is not None
    dialect = dialect_of(plan)
    joints = carried_joints(plan, dialect)
    tls = TlsOptions(plan.tls_ca, plan.tls_cert, plan.tls_key, plan.tls_server_name, not plan.tls_insecure)
    target = resolve_target(plan.base_url, tls)
    if isinstance(dialect, GrpcDialect):
        found = open_grpc(plan, dialect, target, by.stamps, by.key, by.salt)
        return Asked(found.facts, found.client, found.writer, found.pool)
    headers = request_headers(plan, by.key)
    facts = _facts(plan, target, headers, by.known)
    prompts = PromptWriter(by.salt, facts.overhead)
    talk = Conversations(prompts, joints) if joints is not None else None
    others = {url: _endpoint(plan, url, headers, tls, by) for url in own_urls(plan)}

    def written_with(key: str | None) -> Writer:
        own = Endpoint(target, facts, talk or prompts)
        return class_writer(plan, request_headers(plan, key), own, others, request_writer)

    writer = written_with(by.key)
    default = Pool(target, by.stamps, plan.reuse, by.reads)
    if not others:
        return Asked(facts, dialect, writer, default, talk, rewrite=written_with)
    pools = {url: Pool(other.target, by.stamps, plan.reuse, by.reads) for url, other in others.items()}
    own = {one.name: (url, pools[url]) for one in plan.classes if (url := one.base_url) is not None}
    told = {
        url: {"base_url": url, "endpoint": plan.endpoint, **known.to_json()}
        for url, known in ((plan.base_url, facts), *((url, other.facts) for url, other in others.items()))
    }
    return Asked(facts, dialect, writer, ClassPools(default, plan.base_url, own), talk, told, written_with)


def open_endpoints(targets: list[TargetPlan], by: Opening) -> Asked:
    """All of them as one."""
    asked = {target.name: open_endpoint(target.plan, by) for target in targets}
    first = asked[targets[0].name]
    if len(targets) == 1:
        return first
    total = sum(target.share for target in targets)
    shares = {target.name: target.share / total for target in targets}
    told = {
        str(target.name): {
            "base_url": target.plan.base_url, "endpoint": target.plan.endpoint, "share": shares[target.name],
            **asked[target.name].facts.to_json(),
        }
        for target in targets
    }  # fmt: skip
    return Asked(
        first.facts,
        MixedClient({name: one.client for name, one in asked.items()}),
        MixedWriter({name: one.writer for name, one in asked.items()}),
        MixedSender({name: one.pool for name, one in asked.items()}, shares),
        told=told,
    )


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
    targets = targets_of(plan)
    check_targets(plan, targets)
    key = api_key(plan)
    schedule = schedule_of(plan)
    if plan.target:
        make_rows = schedule.make_rows
        schedule = replace(schedule, make_rows=lambda: shared_out(make_rows(), targets, plan.seed))
    return Basis(plan, targets, key, schedule)


def refuse_empty(survey: Survey | None) -> None:
    """Raises UsageError for a schedule without a row."""
    if survey is not None and survey.requests == 0:
        raise UsageError("the schedule is empty: no row lies in the window")


def make_engine(basis: Basis, asked: Asked, share: Share, stamps: StampClock) -> Engine:
    """The engine of one share."""
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
    engine = make_engine(basis, asked, share, stamps)
    warning = beyond_calibration(survey)
    return Prepared(plan, directory, schedule, survey, asked.facts, engine, run_id, content, warning)


def beyond_calibration(survey: Survey | None, workers: int = 1) -> str | None:
    """A warning where the plan asks more than this machine was found to generate; None where nobody knows."""
    if survey is None or survey.requests == 0:
        return None
    known = calibration.load()
    if known is None:
        return None
    return known.warning(survey.peak_rate_per_s, survey.output_tokens / survey.requests, workers)


def _facts(plan: Plan, target: Target, headers: dict[str, str], known: Known) -> EndpointFacts:
    url = str(plan.base_url)
    if url not in known:
        known[url] = probe_endpoint(Prober(target, headers, url), plan, http_dialect(plan))
    return known[url]


def _endpoint(plan: Plan, url: str, headers: dict[str, str], tls: TlsOptions, by: Opening) -> Endpoint:
    """A class's own endpoint, asked what it is. The model is the class's, or the only one it lists."""
    target = resolve_target(url, tls)
    models = [one.model for one in plan.classes if one.base_url == url and one.model is not None]
    asked = plan.model_copy(
        update={"base_url": url, "model": models[0] if models else plan.model, "classes": []}
    )
    facts = _facts(asked, target, headers, by.known)
    return Endpoint(target, facts, PromptWriter(by.salt, facts.overhead))


def open_ahead_of(plan: Plan, survey: Survey | None) -> int:
    """Connections to open before the start: one second's peak, or the cap when that is lower."""
    wanted = plan.concurrency or (survey.peak_rate_per_s if survey else 1)
    return max(1, min(wanted, plan.max_concurrency or wanted, OPEN_AHEAD_MOST))
