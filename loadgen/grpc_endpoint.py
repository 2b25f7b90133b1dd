"""From a plan to a gRPC endpoint that is ready to be asked: probe, request writer, connections."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from loadgen import __version__
from loadgen.clients.grpc_client import GrpcClient, GrpcWriter
from loadgen.clients.grpc_status import UNAUTHENTICATED, UNAVAILABLE, UNIMPLEMENTED, status_name, status_of
from loadgen.clients.service import GrpcDialect, Service
from loadgen.endpoint import PROBE_TIMEOUT_S, PROBE_WORDS, EndpointFacts, unreachable
from loadgen.errors import NotReadyError, UnreachableError, UsageError
from loadgen.net.blocking import grpc_call
from loadgen.net.http2_pool import Http2Pool
from loadgen.net.stamps import StampClock
from loadgen.net.target import Target
from loadgen.plan import Plan
from loadgen.prompts import PromptWriter, TokenIds, Writer
from loadgen.schedule import ScheduleRow
from loadgen.telling import ClassWriter, told_to
from loadgen.wire.http2_headers import Field

TIMEOUT_DIGITS = 99_999_999
"""A ``grpc-timeout`` has at most eight digits."""

PERMISSION_DENIED = 7


@dataclass(slots=True)
class GrpcEndpoint:
    """What a run needs of one gRPC endpoint."""

    facts: EndpointFacts
    client: GrpcClient
    writer: Writer
    pool: Http2Pool
    rewrite: Callable[[str], Writer]
    """The same requests with another key."""


def metadata(plan: Plan, key: str | None) -> list[Field]:
    """The metadata of every call that is the user's. Raises UsageError for what metadata cannot hold."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    headers.update({name.lower(): value for name, value in plan.header.items()})
    for name, value in headers.items():
        if any(c in name + value for c in "\r\n\0") or name.startswith((":", "grpc-")):
            raise UsageError(f"header {name!r} cannot be metadata")
    return [(name.encode(), value.encode("latin-1", errors="replace")) for name, value in headers.items()]


def call_fields(target: Target, path: str, own: list[Field]) -> list[Field]:
    """The header list of a call, as gRPC's PROTOCOL-HTTP2 orders it."""
    return [
        (b":method", b"POST"),
        (b":scheme", b"https" if target.tls else b"http"),
        (b":path", (target.prefix + path).encode()),
        (b":authority", target.authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity, deflate, gzip"),
        (b"user-agent", f"loadgen/{__version__}".encode()),
        *own,
    ]


def timeout_field(timeout_ns: int) -> Field:
    """The deadline as the server is told it."""
    milliseconds = max(1, timeout_ns // 1_000_000)
    if milliseconds <= TIMEOUT_DIGITS:
        return b"grpc-timeout", b"%dm" % milliseconds
    return b"grpc-timeout", b"%dS" % min(milliseconds // 1000, TIMEOUT_DIGITS)


class GrpcProber:
    """Asks one target, one short-lived connection a question."""

    def __init__(self, target: Target, own: list[Field], base_url: str) -> None:
        self._target, self._own, self._base_url = target, own, base_url

    def call(self, path: str, *messages: bytes) -> list[bytes]:
        """The answer's messages. Raises UnreachableError, or UsageError in the endpoint's own words."""
        name = f"probe-{uuid.uuid4().hex[:12]}".encode()
        own = [*self._own, (b"x-request-id", name), (b"x-loadgen-id", name)]
        try:
            answered = grpc_call(
                self._target, call_fields(self._target, path, own), list(messages), PROBE_TIMEOUT_S
            )
        except (OSError, ValueError) as error:
            raise unreachable(self._base_url, error) from None
        code, words = status_of(answered.blocks[-1])
        if code is None:
            status = dict(answered.blocks[0]).get(b":status", b"?").decode("latin-1")
            raise UnreachableError(f"{self._base_url} does not speak gRPC: HTTP status {status}")
        if code in (UNAUTHENTICATED, PERMISSION_DENIED):
            raise UnreachableError(f"{self._base_url} refuses the key: {status_name(code)} {words}")
        if code == UNAVAILABLE:
            raise NotReadyError(f"{self._base_url} is not ready: {status_name(code)} {words}")
        if code:
            hint = " (is it the right --endpoint?)" if code == UNIMPLEMENTED else ""
            raise UsageError(f"{self._base_url} refuses {path}: {status_name(code)} {words}{hint}")
        return answered.messages


def open_grpc(
    plan: Plan,
    dialect: GrpcDialect,
    target: Target,
    stamps: StampClock,
    key: str | None,
    salt: str,
) -> GrpcEndpoint:
    """Probe the endpoint and make all that asks it. Raises UnreachableError or UsageError."""
    own = metadata(plan, key)
    prober = GrpcProber(target, own, plan.base_url or "")
    service = dialect.opened(plan, prober)
    facts = EndpointFacts(
        service.model, owned_by=service.owned_by, usage="continuous", notes=[*service.notes]
    )
    words = _token_ids(plan, service)
    if words is None and service.counts_prompts and plan.prompt_in == "body":
        _calibrate(prober, service, facts)
    prompts = PromptWriter(salt, facts.overhead, words)
    by_class = _class_services(plan, dialect, prober)

    def written_with(key: str | None) -> Writer:
        own = metadata(plan, key)
        writer = _writer(plan, service, target, own, prompts)
        told = {
            name: _writer(asked, opened, target, [*own, *also], prompts)
            for name, (asked, opened, also) in by_class.items()
        }
        return ClassWriter(writer, told) if told else writer

    client = GrpcClient(service.read, service.must_end, plan.max_message_bytes)
    pool = Http2Pool(target, stamps, plan.streams_per_connection, plan.reuse)
    return GrpcEndpoint(facts, client, written_with(key), pool, written_with)


def _writer(
    plan: Plan, service: Service, target: Target, own: list[Field], prompts: PromptWriter
) -> GrpcWriter:
    fields = call_fields(target, service.path, [timeout_field(plan.request_timeout), *own])
    compressed = plan.grpc_compression == "gzip"
    if compressed:
        fields.append((b"grpc-encoding", b"gzip"))
    return GrpcWriter(fields, service.encode, prompts, parts=parts_of(plan), compressed=compressed)


def _class_services(
    plan: Plan, dialect: GrpcDialect, prober: GrpcProber
) -> dict[str, tuple[Plan, Service, list[Field]]]:
    """Of each class its plan, its service and its metadata: its body fields are ``--extra-body``, its model its own."""
    found: dict[str, tuple[Plan, Service, list[Field]]] = {}
    for name, told in told_to(plan).items():
        update = {"extra_body": {**plan.extra_body, **told.body}, "model": told.model or plan.model}
        asked = plan.model_copy(update=update)
        also = [
            (key.lower().encode(), value.encode("latin-1", errors="replace"))
            for key, value in told.headers.items()
        ]
        found[name] = (asked, dialect.opened(asked, prober), also)
    return found


def parts_of(plan: Plan) -> int:
    """Into how many headers the prompt goes; 0: into the body."""
    return {"body": 0, "metadata": 1}.get(plan.prompt_in, plan.prompt_parts)


def _token_ids(plan: Plan, service: Service) -> TokenIds | None:
    if plan.prompt_as == "text":
        return None
    if plan.prompt_in != "body":
        raise UsageError("--prompt-as ids: token ids travel in the body alone")
    size = service.vocab_size or plan.vocab_size
    if size is None:
        raise UsageError("--prompt-as ids: this service does not tell its vocabulary: give --vocab-size")
    return TokenIds(size)


def _calibrate(prober: GrpcProber, service: Service, facts: EndpointFacts) -> None:
    """One short answer shows how many tokens a prompt of known words has."""
    words = PROBE_WORDS[1]
    row = ScheduleRow(0, 0, words, 1)
    name = f"probe-{uuid.uuid4().hex}"
    prompt = PromptWriter(name).text(row)
    answers = prober.call(service.path, service.encode(row, prompt, name))
    counted = [said.n_input for said in map(service.read, answers) if said.n_input is not None]
    if counted and counted[-1] - words not in (0, 1):  # SentencePiece adds one
        ratio = counted[-1] / words
        facts.notes.append(
            f"this model's tokenizer makes {ratio:.2f} tokens of a word: prompts differ from what is asked"
        )
