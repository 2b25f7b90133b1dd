"""The plan: everything that was asked for, as one model that the command line and TOML files both fill.

A key of a plan file is the option's name with underscores. What the command line says wins.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loadgen.classes import Class, check_classes, parse_cancel
from loadgen.errors import UsageError
from loadgen.plan_words import check_base_url, check_words
from loadgen.plans import plan_text, shipped_plans
from loadgen.quantity import Duration, Length, parse_duration_ns, parse_window_ns
from loadgen.slo import parse_objectives

SessionMode = Literal["timestamp", "idle-gap", "think-only"]
DURATIONS = ("request_timeout", "correlation_time", "duration", "think", "retry_backoff", "retry_max_wait", "warmup",
             "drain_timeout", "ready_timeout")  # fmt: skip
BURSTY = ("gamma", "weibull", "poisson-gamma")


class Limits(BaseModel):
    """Beyond these the run is called invalid."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lag_p99_ns: Duration = parse_duration_ns("10ms")
    not_sent_ratio: float = Field(default=0.001, ge=0, le=1)


def _option(default: Any, text: str, *flags: str, group: str, **kwargs: Any) -> Any:
    """A field that the command line shows in *group*, with *flags* as further names."""
    extra: dict[str, Any] = {"group": group, "aliases": list(flags)}
    return Field(default=default, description=text, json_schema_extra=extra, **kwargs)


TARGET, GRPC, LOAD, SYNTH, SESSION, CLASSES, LIMIT, RUN = (
    "target",
    "gRPC",
    "load from a trace",
    "load from an arrival model",
    "sessions",
    "classes of requests, cancellations and retries",
    "limits and objectives",
    "the run",
)


class Plan(BaseModel):
    """What `loadgen run` does, resolved. Times are integer nanoseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    base_url: str | None = _option(
        None,
        "the endpoint's root (a trailing /v1 is accepted); several in run: one schedule to all at the same time",
        group=TARGET,
    )
    endpoint: str = _option(
        "chat", "what to ask: chat, completions; with grpc://: kserve, vllm-grpc, method", group=TARGET
    )
    target: list[str] = _option(
        [],
        "one of several endpoints: NAME=URL,endpoint=…,share=…,model=…; may be repeated",
        group=TARGET,
    )
    model: str | None = _option(
        None, "model name (default: the only one that /v1/models lists)", group=TARGET
    )
    api_key_file: Path | None = _option(None, "file with the key (else OPENAI_API_KEY)", group=TARGET)
    header: dict[str, str] = _option({}, "further request header K=V; may be repeated", group=TARGET)
    keep_header: list[str] = _option(
        [], "keep this header of each answer in its record; may be repeated", group=TARGET
    )
    extra_body: dict[str, Any] = _option({}, "JSON object merged into each request's body", group=TARGET)
    ignore_eos: bool = _option(False, "ask the server to generate the full output length", group=TARGET)
    request_timeout: Duration = _option(
        parse_duration_ns("10m"), "give a request up after this long from its sending", group=TARGET, gt=0
    )
    ready_timeout: Duration | None = _option(
        None,
        "an endpoint that is still starting is asked again for so long (default: asked once)",
        group=TARGET,
        gt=0,
    )
    reuse: int | None = _option(
        None, "requests a connection may serve (1: a new one each; default: no limit)", group=TARGET, ge=1
    )
    tls_ca: Path | None = _option(None, "CA certificates to trust instead of the system's", group=TARGET)
    tls_cert: Path | None = _option(None, "client certificate", group=TARGET)
    tls_key: Path | None = _option(None, "its key", group=TARGET)
    tls_server_name: str | None = _option(None, "name to verify, when the URL has another", group=TARGET)
    tls_insecure: bool = _option(False, "do not verify the server's certificate", group=TARGET)
    usage: Literal["auto", "continuous", "final", "none"] = _option(
        "auto", "token counts to ask the server for (continuous: in every chunk)", group=TARGET
    )
    prompt_in: Literal["body", "metadata", "split-metadata"] = _option(
        "body", "where the prompt travels: body, metadata (headers over HTTP), split-metadata", group=TARGET
    )
    prompt_parts: int = _option(16, "split-metadata: into so many values", group=TARGET, ge=1, le=10_000)
    i_own_this_endpoint: bool = _option(
        False, "consent: needed for a target that is not on this machine", group=TARGET
    )

    prompt_as: Literal["text", "ids"] = _option("text", "send words, or token ids", group=GRPC)
    vocab_size: int | None = _option(None, "for ids, where the service does not tell it", group=GRPC, ge=8)
    streams_per_connection: int = _option(
        16,
        "at most so many at once on one connection (what is read together has one instant)",
        group=GRPC,
        ge=1,
    )
    max_message_bytes: int = _option(
        1 << 30, "answer messages may be this long (default 1 GiB)", group=GRPC, ge=1
    )
    grpc_compression: Literal["identity", "gzip"] = _option(
        "identity", "of the request's message", group=GRPC
    )
    method: str | None = _option(None, "package.Service/Method", group=GRPC)
    descriptor_set: Path | None = _option(
        None, "protoc's descriptor set with imports (default: the server's reflection)", group=GRPC
    )
    request_template: dict[str, Any] = _option(
        {},
        "the request as JSON, or @FILE, with {prompt}, {prompt_ids}, {max_tokens}, {id} for values",
        group=GRPC,
    )
    response_field: dict[str, str] = _option(
        {}, "ROLE=PATH into the answer: text, tokens, finish, error, n_input, n_output, n_cached", group=GRPC
    )
    tensor: dict[str, str] = _option(
        {}, "kserve: ROLE=NAME of a tensor: prompt, max_tokens, text, tokens", group=GRPC
    )

    trace: Path | None = _option(None, "replay this trace file", group=LOAD)
    trace_format: str | None = _option(None, "its format (default: detected)", group=LOAD)
    window: str | None = _option(None, "part of the trace, in trace time: 0:600s", group=LOAD)
    speedup: float = _option(1.0, "replay this many times faster", group=LOAD, gt=0)
    step: list[str] = _option(
        [], "transform, as thin=0.5, superpose=3, loop=2 (see trace convert); may be repeated", group=LOAD
    )
    max_requests: int | None = _option(None, "at most so many rows", group=LOAD, ge=1)

    arrival: str | None = _option(None, "constant, poisson, gamma, poisson-gamma, …", group=SYNTH)
    request_rate: float | None = _option(None, "mean requests per second", group=SYNTH, gt=0)
    burstiness: float | None = _option(
        None, "gamma: shape k = 1/CV² (1 = Poisson, below 1 burstier); poisson-gamma: its shape r",
        group=SYNTH, gt=0,
    )  # fmt: skip
    correlation_time: Duration | None = _option(
        None, "poisson-gamma: how long a burst lasts (tau)", group=SYNTH
    )
    concurrency: int | None = _option(None, "closed loop: keep so many requests in flight", group=SYNTH, ge=1)
    num_requests: int | None = _option(None, "so many requests", "--num-prompts", group=SYNTH, ge=1)
    duration: Duration | None = _option(None, "requests due within this time", group=SYNTH)
    profile: str | None = _option(
        None,
        "what multiplies the rate over time: ramp:1:4:600, steps:0=1,60=3, sinusoid:0.5:3600, trace:FILE:60s",
        group=SYNTH,
    )
    input_len: Length | None = _option(
        None, "prompt tokens: 512 (the default) or a model, as lognormal:1000:1.5", "--isl", group=SYNTH
    )
    output_len: Length | None = _option(
        None, "output tokens: 128 (the default; a trace's own) or a model", "--osl", group=SYNTH
    )
    lengths_from: Path | None = _option(None, "draw pairs of lengths from a trace", group=SYNTH)
    turns: float | None = _option(
        None, "sessions of so many turns in the mean; --num-requests counts sessions", group=SYNTH, ge=1
    )
    think: Duration | None = _option(None, "mean think time before a later turn (default 10s)", group=SYNTH)
    prefix_tree: str | None = _option(
        None, "shared prefixes: 4x32/100x8@1.2:16 (branches x blocks a level, Zipf, block)", group=SYNTH
    )

    session_mode: SessionMode | None = _option(
        None,
        "a later turn is due at: timestamp, its own time or the previous answer's end + think time, the later "
        "(default); idle-gap, that end + the trace's gap of arrivals; think-only, that end + think time "
        "(the default in a closed loop)",
        group=SESSION,
    )
    carry_answers: bool = _option(
        False, "later turns hold the real questions and answers before them", group=SESSION
    )

    classes: list[Class] = _option(
        [], "NAME:share=0.2,priority=0,slo=ttft@p99=800ms,… ([[class]] in a plan file); may be repeated",
        "--class", group=CLASSES, alias="class",
    )  # fmt: skip
    class_share: str | None = _option(
        None, "NAME=SHARE over that class's own share; the others keep their proportions", group=CLASSES
    )
    cancel: str | None = _option(
        None,
        "leave some requests: SHARE@TIME or SHARE@Ntokens, as 0.1@2s (a class's own wins)",
        group=CLASSES,
    )
    retries: int = _option(
        0, "tries after a refusal (429, 503) or a failed connection; the row stays one record",
        group=CLASSES, ge=0,
    )  # fmt: skip
    retry_backoff: Duration = _option(
        parse_duration_ns("1s"), "wait before the first of them, doubled for each further one", group=CLASSES
    )
    retry_max_wait: Duration = _option(
        parse_duration_ns("60s"), "longest of these waits, whatever Retry-After says", group=CLASSES
    )
    retry_jitter: float = _option(
        0.5, "share of a wait that is drawn at random (0: all clients come back together)",
        group=CLASSES, ge=0, le=1,
    )  # fmt: skip
    ignore_retry_after: bool = _option(False, "back off by our own clock alone", group=CLASSES)

    max_concurrency: int | None = _option(
        None, "cap on requests in flight; waiting is 'held'", group=LIMIT, ge=1
    )
    slo: list[str] = _option([], "[class:]metric[@pNN]=bound, as ttft=500ms", "--goodput", group=LIMIT)
    max_error_rate: float = _option(0.05, "gate: a larger share of failures exits 1", group=LIMIT, ge=0, le=1)
    breaker_error_rate: float = _option(
        0.5,
        "stop the run when the last 50 or more answers fail at this rate (1.01: never)",
        group=LIMIT,
        gt=0,
    )
    limits: Limits = Limits()

    sidecar: list[str] = _option([], "agents on the server's hosts, HOST:PORT", group=RUN)
    sidecar_token_file: Path | None = _option(None, "token for agents beyond loopback", group=RUN)
    sidecar_tls_ca: Path | None = _option(None, "CA certificate of those agents", group=RUN)
    warmup: Duration = _option(0, "leave requests due this early out of the figures", group=RUN)
    drain_timeout: Duration = _option(parse_duration_ns("60s"), "wait for the last answers", group=RUN)
    seed: int = _option(0, "seed of arrivals and lengths", group=RUN, ge=0)
    salt: str | None = _option(None, "salt of the prompts (default: new each run)", group=RUN)
    out: Path | None = _option(None, "run directory (default: runs/<time>)", group=RUN)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_base_url(self)
        _check_load(self)
        _check_shape(self)
        check_words(self)
        check_classes(self, arrival=self.arrival is not None, rate=self.request_rate)
        if self.cancel is not None:
            parse_cancel(self.cancel)
        parse_objectives(self.objectives)
        return self

    @property
    def objectives(self) -> list[str]:
        """The service levels of all and of each class, as `loadgen.slo` reads them; each text once."""
        own = [text for one in self.classes for text in one.objectives]
        return list(dict.fromkeys([*self.slo, *own]))


def _check_load(plan: Plan) -> None:
    sources = [n for n in ("trace", "arrival", "concurrency") if getattr(plan, n) is not None]
    if len(sources) > 1 and sources != ["trace", "concurrency"]:
        raise UsageError(f"--{' and --'.join(sources)} exclude each other")
    if plan.window is not None:
        parse_window_ns(plan.window)
    if plan.trace is None and (plan.window or plan.max_requests or plan.speedup != 1 or plan.step):
        raise UsageError("--window, --speedup, --step and --max-requests need --trace")
    if plan.arrival is not None and plan.request_rate is None and not plan.classes:
        raise UsageError("--arrival needs --request-rate")
    if plan.arrival is not None and plan.num_requests is None and plan.duration is None:
        raise UsageError("--arrival needs --num-requests or --duration")
    if plan.burstiness is not None and plan.arrival not in BURSTY:
        raise UsageError(f"--burstiness goes with --arrival {' or '.join(BURSTY)}")
    if plan.concurrency is not None and plan.max_concurrency is not None:
        raise UsageError("--concurrency is itself the cap of a closed loop: leave --max-concurrency out")
    if plan.concurrency is not None and not (plan.trace or plan.num_requests or plan.duration):
        raise UsageError("--concurrency needs --num-requests, --duration or --trace")


def _check_shape(plan: Plan) -> None:
    """What sessions and lengths go with."""
    made = plan.arrival is not None or plan.concurrency is not None
    for name in ("lengths_from", "turns", "prefix_tree"):
        if getattr(plan, name) is not None and (plan.trace is not None or not made):
            raise UsageError(f"--{name.replace('_', '-')} goes with --arrival or --concurrency, not --trace")
    if plan.profile is not None and plan.arrival is None:
        raise UsageError("--profile goes with --arrival")
    if plan.lengths_from is not None and (plan.input_len or plan.output_len):
        raise UsageError("--lengths-from excludes --input-len and --output-len")
    if plan.think is not None and plan.turns is None:
        raise UsageError("--think needs --turns")
    if (plan.session_mode or plan.carry_answers) and plan.trace is None and plan.turns is None:
        raise UsageError(
            "--session-mode and --carry-answers need sessions: a --trace that has them, or --turns"
        )
    if plan.session_mode == "timestamp" and plan.concurrency is not None:
        raise UsageError(
            "--session-mode timestamp: a closed loop has no instants; choose idle-gap or think-only"
        )


def is_loopback(base_url: str) -> bool:
    """Whether the target can only be on this machine: a unix socket, or a loopback address or name."""
    url = urlsplit(base_url)
    host = (url.hostname or "").lower()
    if url.scheme == "unix" or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name: whoever owns it decides where it leads, 127.example.org too
        return False


def build_plan(options: Mapping[str, Any], plan_file: Path | None = None) -> Plan:
    """The plan of a TOML file with *options* over it.

    Raises UsageError naming the key, its value and what is allowed.
    """
    values = {**(read_plan_file(plan_file) if plan_file else {}), **options}
    if "class" in values:  # the file's [[class]]; the command line's --class replaces them all
        values.setdefault("classes", values.pop("class"))
        values.pop("class", None)
    try:
        return Plan.model_validate(values)
    except ValidationError as problems:
        raise UsageError(_first_problem(problems, plan_file)) from None


def read_plan_file(path: Path) -> dict[str, Any]:
    """A TOML plan's keys; of a plan that comes with the program where *path* is its name.

    Raises UsageError when there is no such file or it is no TOML.
    """
    try:
        return tomllib.loads(plan_text(path))
    except OSError as error:
        words, known = os.strerror(error.errno or 0), ", ".join(shipped_plans())
        raise UsageError(
            f"cannot read plan {path}: {words} (plans that come with loadgen: {known})"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def _first_problem(problems: ValidationError, plan_file: Path | None) -> str:
    first = problems.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    where = f"{plan_file}: " if plan_file else ""
    if first["type"] == "extra_forbidden" and len(first["loc"]) > 1:
        return f"{where}unknown plan key {key!r}"
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(Plan.model_fields))
        return f"{where}unknown plan key {key!r} (known: {known})"
    return f"{where}{key} = {first['input']!r}: {first['msg']}"


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The resolved plan as plan.json keeps it: JSON types, ``_ns`` names for durations, no secrets."""
    row: dict[str, Any] = plan.model_dump(mode="json")
    for name in DURATIONS:
        row[f"{name}_ns"] = row.pop(name)
    row["header"] = {name: "***" if is_secret(name) else value for name, value in plan.header.items()}
    row["slo"] = plan.objectives
    for kept, one in zip(row["classes"], plan.classes, strict=True):
        kept["header"] = {name: "***" if is_secret(name) else value for name, value in one.headers.items()}
        for name in ("correlation_time", "start", "duration"):
            kept[f"{name}_ns"] = kept.pop(name)
    orjson.dumps(row)
    return row


def is_secret(header: str) -> bool:
    """Whether a header of that name holds something that no file and no message may."""
    return any(word in header.lower() for word in ("auth", "key", "token", "cookie", "secret"))
