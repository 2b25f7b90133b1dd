"""From a plan to an engine that is ready to start: consent, key, target, probe, schedule, run directory."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
from loadgen.schedule import Schedule, Survey
from loadgen.spool import Spool
from loadgen.targets import TargetPlan, targets_of
from loadgen.telling import ClassPools, Endpoint, class_writer, own_urls
from loadgen.workload import schedule_of

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


def open_endpoint(plan: Plan, key: str | None, salt: str, stamps: StampClock, reads: BatchedReads) -> Asked:
    """Find the plan's endpoint and learn what a run must know of it. Raises LoadgenError."""
    assert plan.base_url is not None
    dialect = dialect_of(plan)
    joints = carried_joints(plan, dialect)
    tls = TlsOptions(plan.tls_ca, plan.tls_cert, plan.tls_key, plan.tls_server_name, not plan.tls_insecure)
    target = resolve_target(plan.base_url, tls)
    if isinstance(dialect, GrpcDialect):
        found = open_grpc(plan, dialect, target, stamps, key, salt)
        return Asked(found.facts, found.client, found.writer, found.pool)
    headers = request_headers(plan, key)
    facts = probe_endpoint(Prober(target, headers, plan.base_url), plan, dialect)
    prompts = PromptWriter(salt, facts.overhead)
    talk = Conversations(prompts, joints) if joints is not None else None
    others = {url: _endpoint(plan, url, headers, tls, salt) for url in own_urls(plan)}
    writer = class_writer(plan, headers, Endpoint(target, facts, talk or prompts), others, request_writer)
    default = Pool(target, stamps, plan.reuse, reads)
    if not others:
        return Asked(facts, dialect, writer, default, talk)
    pools = {url: Pool(other.target, stamps, plan.reuse, reads) for url, other in others.items()}
    own = {one.name: (url, pools[url]) for one in plan.classes if (url := one.base_url) is not None}
    told = {
        url: {"base_url": url, "endpoint": plan.endpoint, **known.to_json()}
        for url, known in ((plan.base_url, facts), *((url, other.facts) for url, other in others.items()))
    }
    return Asked(facts, dialect, writer, ClassPools(default, plan.base_url, own), talk, told)


def open_endpoints(
    targets: list[TargetPlan], key: str | None, salt: str, stamps: StampClock, reads: BatchedReads
) -> Asked:
    """All of them as one."""
    asked = {target.name: open_endpoint(target.plan, key, salt, stamps, reads) for target in targets}
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


def prepare(plan: Plan) -> Prepared:
    """Everything before the first byte of load: raises LoadgenError or TraceError, and leaves no half run then."""
    raise_open_files()
    targets = targets_of(plan)
    check_targets(plan, targets)
    key = api_key(plan)
    schedule = schedule_of(plan)
    survey = schedule.survey()
    if survey is not None and survey.requests == 0:
        raise UsageError("the schedule is empty: no row lies in the window")
    run_id, salt = secrets.token_hex(4), plan.salt or secrets.token_hex(8)
    stamps = StampClock(measure_anchor)
    asked = open_endpoints(targets, key, salt, stamps, BatchedReads(PAUSE_NS))
    directory = new_run_directory(plan.out)
    followers: Followers = "settled" if asked.talk else "soon" if schedule.together else "ahead"
    queue = RenderedAhead(schedule.rows(), asked.writer, run_id, followers=followers)
    content = {
        "run_id": run_id,
        "plan": plan_to_json(plan),
        "versions": versions(),
        "host": host_facts(),
        "pids": {"master": os.getpid(), "workers": [os.getpid()]},
        "anchors": {"0": anchor_to_json(stamps.anchor)},
        "digest": survey.digest if survey else None,
        "salt": salt,
        "scheduled": survey.requests if survey else None,
        "schedule": schedule.describe(survey),
        "endpoint": asked.facts.to_json(),
        **({"endpoints": asked.told} if asked.told else {}),
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    spool = Spool(directory / "records-0.jsonl")
    options = EngineOptions(
        dialect=asked.client,
        caps=Caps(plan.concurrency, plan.max_concurrency, schedule.limit_ns),
        request_timeout_ns=plan.request_timeout,
        drain_timeout_ns=plan.drain_timeout,
        open_ahead=_open_ahead(plan, survey),
        breaker=Breaker(plan.breaker_error_rate),
        retry=rule_of(plan),
        chance=chance_of(plan),
        keep_headers=frozenset(name.lower().encode() for name in plan.keep_header),
        on_answer_text=asked.talk.answered if asked.talk else None,
    )
    engine = Engine(options, queue, asked.pool, stamps, spool)
    return Prepared(
        plan, directory, schedule, survey, asked.facts, engine, run_id, content, beyond_calibration(survey)
    )


def beyond_calibration(survey: Survey | None, workers: int = 1) -> str | None:
    """A warning where the plan asks more than this machine was found to generate; None where nobody knows."""
    if survey is None or survey.requests == 0:
        return None
    known = calibration.load()
    if known is None:
        return None
    return known.warning(survey.peak_rate_per_s, survey.output_tokens / survey.requests, workers)


def _endpoint(plan: Plan, url: str, headers: dict[str, str], tls: TlsOptions, salt: str) -> Endpoint:
    """A class's own endpoint, asked what it is. The model is the class's, or the only one it lists."""
    target = resolve_target(url, tls)
    models = [one.model for one in plan.classes if one.base_url == url and one.model is not None]
    asked = plan.model_copy(
        update={"base_url": url, "model": models[0] if models else plan.model, "classes": []}
    )
    facts = probe_endpoint(Prober(target, headers, url), asked, http_dialect(asked))
    return Endpoint(target, facts, PromptWriter(salt, facts.overhead))


def _open_ahead(plan: Plan, survey: Survey | None) -> int:
    """Connections to open before the start: one second's peak, or the cap when that is lower."""
    wanted = plan.concurrency or (survey.peak_rate_per_s if survey else 1)
    return max(1, min(wanted, plan.max_concurrency or wanted, OPEN_AHEAD_MOST))
