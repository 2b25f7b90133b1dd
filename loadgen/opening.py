"""Endpoints before a run: consent, key, dialect, target, what must be known of them, and how each is written to."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loadgen import __version__
from loadgen.answer_counts import Count, counter
from loadgen.clients import CLIENTS
from loadgen.clients.dialect import Client, Dialect
from loadgen.clients.service import GrpcDialect
from loadgen.conversation import Conversations
from loadgen.endpoint import EndpointFacts, Prober, probe_endpoint
from loadgen.errors import UsageError
from loadgen.grpc_endpoint import open_grpc, parts_of
from loadgen.mixed import MixedClient, MixedSender, MixedWriter
from loadgen.net.batched import BatchedReads
from loadgen.net.pool import Pool, Sender
from loadgen.net.stamps import StampClock
from loadgen.net.target import Target, TlsOptions, resolve_target
from loadgen.plan import Plan, is_loopback
from loadgen.prompts import Prompts, PromptWriter, RequestWriter, Writer
from loadgen.readiness import when_ready
from loadgen.targets import TargetPlan
from loadgen.telling import ClassPools, Endpoint, class_writer, own_urls


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
    """The same requests with another key; None: the key stays as it was."""
    count: Count | None = None
    """Counts an answer's tokens, where the endpoint states no usage but can count."""

    def rewritten(self, key: str) -> Writer:
        """The writer with another key, where it can have one."""
        return self.writer if self.rewrite is None else self.rewrite(key)


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
        found = when_ready(
            lambda: open_grpc(plan, dialect, target, by.stamps, by.key, by.salt), plan.ready_timeout
        )
        return Asked(found.facts, found.client, found.writer, found.pool, rewrite=found.rewrite)
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
        prober = Prober(target, headers, plan.base_url)
        count = counter(prober, facts.model) if facts.tokenizes and facts.usage == "none" else None
        return Asked(facts, dialect, writer, default, talk, rewrite=written_with, count=count)
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
        rewrite=lambda key: MixedWriter({name: one.rewritten(key) for name, one in asked.items()}),
    )


def _facts(plan: Plan, target: Target, headers: dict[str, str], known: Known) -> EndpointFacts:
    url = str(plan.base_url)
    if url not in known:
        prober, dialect = Prober(target, headers, url), http_dialect(plan)
        known[url] = when_ready(lambda: probe_endpoint(prober, plan, dialect), plan.ready_timeout)
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
