"""What must be known of an endpoint before a run: is it there, which model, what it counts, what its template adds.

These few requests go outside the schedule; their ids begin with ``probe-``. Where the server can count tokens
without generating any (vLLM's ``/tokenize``) it is asked that, so that its own token counters stay the run's.
"""

from __future__ import annotations

import http.client
import os
import ssl
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from loadgen.clients.dialect import Dialect
from loadgen.clients.openai import error_text
from loadgen.errors import NotReadyError, UnreachableError, UsageError
from loadgen.net.blocking import connected
from loadgen.net.target import Target
from loadgen.plan import Plan
from loadgen.prompts import PromptWriter
from loadgen.schedule import ScheduleRow

PROBE_TIMEOUT_S = 30.0
PROBE_WORDS = (8, 200)
STARTING = frozenset({502, 503, 504})
"""What a server that still loads its model says of its models, or a gateway before one."""
CONTINUOUS_USAGE_SERVERS = frozenset({"vllm", "sglang"})
"""``owned_by`` of servers known to take ``stream_options.continuous_usage_stats``; others are tried once."""


@dataclass(slots=True)
class EndpointFacts:
    """Kept in plan.json. ``overhead``: tokens that the chat template adds (0 and a note where not measurable).

    ``max_model_len``: tokens of a prompt and its answer that the model takes at most, where the listing says so (vLLM).
    """

    model: str
    owned_by: str | None = None
    models: list[str] = field(default_factory=list)
    usage: str = "final"
    overhead: int = 0
    tokenizes: bool = False
    notes: list[str] = field(default_factory=list)
    max_model_len: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        return asdict(self)


class Prober:
    """Asks one target, one short-lived connection a question."""

    def __init__(
        self,
        target: Target,
        headers: dict[str, str],
        base_url: str,
        timeout_s: float = PROBE_TIMEOUT_S,
    ) -> None:
        self._target, self._headers, self._base_url = target, headers, base_url
        self._timeout_s = timeout_s

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """(status, body). Raises UnreachableError when nobody answers."""
        headers = {**self._headers, "x-request-id": f"probe-{uuid.uuid4().hex[:12]}", "connection": "close"}
        headers["x-loadgen-id"] = headers["x-request-id"]
        connection, reached = TargetConnection(self._target, self._timeout_s), False
        payload = None if body is None else orjson.dumps(body)
        try:
            connection.connect()
            reached = True
            connection.request(method, self._target.prefix + path, payload, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            slow = isinstance(error, TimeoutError) and reached
            words = f"connected, but no answer to {path} within {self._timeout_s:g} s" if slow else None
            raise unreachable(self._base_url, error, words) from None
        finally:
            connection.close()

    def ask_json(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """As `ask`, the body parsed (None when it is no JSON)."""
        status, raw = self.ask(method, path, body)
        try:
            return status, orjson.loads(raw)
        except orjson.JSONDecodeError:
            return status, None


def failure_words(error: Exception) -> str:
    """Why nobody answered, as a person says it. An SSLError's errno is OpenSSL's, not the system's."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {str(error).rpartition('] ')[2]}"
    code = getattr(error, "errno", None)
    return os.strerror(code).lower() if isinstance(code, int) else str(error) or "no answer"


def unreachable(base_url: str, error: Exception, words: str | None = None) -> UnreachableError:
    """What to raise: NotReadyError where asking again may help, which it does not for a wrong certificate or a
    server that speaks something else. *words*: why, where they say more than the error's own.
    """
    foreign = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
    again = isinstance(error, OSError) and not foreign
    kind = NotReadyError if again else UnreachableError
    return kind(f"cannot reach {base_url}: {words or failure_words(error)}")


class TargetConnection(http.client.HTTPConnection):
    """http.client over the target's own address and TLS context."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        super().__init__(target.authority or "localhost", timeout=timeout_s)
        self._target, self._timeout_s = target, timeout_s

    def connect(self) -> None:
        """Try the target's addresses in turn."""
        self.sock = connected(self._target, self._timeout_s)


def probe_endpoint(prober: Prober, plan: Plan, dialect: Dialect) -> EndpointFacts:
    """Learn the facts. Raises UnreachableError or UsageError with the endpoint's own words."""
    status, listing = prober.ask_json("GET", "/v1/models")
    if status in (401, 403):
        raise UnreachableError(f"{plan.base_url} refuses the key: {status} {error_text(listing)}")
    if status in STARTING:
        raise NotReadyError(f"{plan.base_url} is not ready: {status} {error_text(listing)}".rstrip())
    entries = [e for e in (listing or {}).get("data") or [] if isinstance(e, dict)] if status == 200 else []
    models = [str(e["id"]) for e in entries if "id" in e]
    facts = EndpointFacts(_choose_model(plan, models), models=models)
    owner = entries[0].get("owned_by") if entries else None
    facts.owned_by = owner if isinstance(owner, str) else None
    limits = [e.get("max_model_len") for e in entries if e.get("id") == facts.model]
    facts.max_model_len = limits[0] if limits and isinstance(limits[0], int) else None
    if models and facts.model not in models:
        _let_it_refuse(prober, plan, facts, dialect)
    if not _count_by_tokenize(prober, plan, facts, dialect):
        _count_by_answers(prober, plan, facts, dialect)
    if facts.owned_by in CONTINUOUS_USAGE_SERVERS:
        facts.usage = "continuous"
    if plan.usage != "auto":
        facts.usage = plan.usage
    return facts


def _choose_model(plan: Plan, models: list[str]) -> str:
    if plan.model is not None:
        return plan.model
    if len(models) == 1:
        return models[0]
    if not models:
        raise UsageError(f"{plan.base_url} lists no models: name one with --model")
    raise UsageError(f"{plan.base_url} serves several models: name one with --model ({', '.join(models)})")


def _generate(
    prober: Prober, facts: EndpointFacts, dialect: Dialect, text: str, **extra: Any
) -> tuple[int, bytes]:
    body = {"model": facts.model, "max_tokens": 2, **dialect.prompt_fields(text), **extra}
    return prober.ask("POST", dialect.path, body)


def _let_it_refuse(prober: Prober, plan: Plan, facts: EndpointFacts, dialect: Dialect) -> None:
    """A model that is not listed may be an alias: the endpoint decides, in its own words."""
    status, raw = _generate(prober, facts, dialect, " hello")
    if status >= 400:
        try:
            words = error_text(orjson.loads(raw))
        except orjson.JSONDecodeError:
            words = raw[:200].decode(errors="replace")
        raise UsageError(f"{plan.base_url} refuses model {facts.model!r}: {status} {words}")


def _probe_text(words: int) -> str:
    row = ScheduleRow(0, 0, words, 1)
    return PromptWriter(f"probe-{uuid.uuid4().hex}").text(row).decode()


def _count_by_tokenize(prober: Prober, plan: Plan, facts: EndpointFacts, dialect: Dialect) -> bool:
    """vLLM's /tokenize counts a prompt and a templated conversation without generating."""
    words = PROBE_WORDS[1]
    text = _probe_text(words)
    status, plain = prober.ask_json("POST", "/tokenize", {"model": facts.model, "prompt": text})
    if status != 200 or not isinstance(plain, dict) or "count" not in plain:
        return False
    templated = plain
    if dialect.has_template:
        messages = dialect.prompt_fields(text)
        status, templated = prober.ask_json("POST", "/tokenize", {"model": facts.model, **messages})
        if status != 200 or not isinstance(templated, dict) or "count" not in templated:
            return False
    _note_overhead(facts, words, plain["count"], templated["count"])
    facts.tokenizes = True
    return True


def _note_overhead(facts: EndpointFacts, words: int, plain: int, templated: int) -> None:
    if plain - words in (0, 1):  # SentencePiece adds one
        facts.overhead = templated - words
    else:
        ratio = plain / words
        facts.notes.append(
            f"this model's tokenizer makes {ratio:.2f} tokens of a word: prompts are longer than asked"
        )


def _count_by_answers(prober: Prober, plan: Plan, facts: EndpointFacts, dialect: Dialect) -> None:
    """Two short answers show what the template adds and whether usage comes continuously."""
    counts: list[int] = []
    options: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True}
    for words in PROBE_WORDS:
        extra = {"stream": True, "stream_options": options, **plan.extra_body}
        status, raw = _generate(prober, facts, dialect, _probe_text(words), **extra)
        if status in (400, 422) and "continuous_usage_stats" in options:
            options = {"include_usage": True}
            extra["stream_options"] = options
            status, raw = _generate(prober, facts, dialect, _probe_text(words), **extra)
        if status in (401, 403):
            raise UnreachableError(
                f"{plan.base_url} refuses the key: {status} {raw[:200].decode(errors='replace')}"
            )
        usage, continuous = _usage_of_stream(raw, dialect)
        if continuous:
            facts.usage = "continuous"
        if status >= 400 or usage is None:
            facts.notes.append("the endpoint reports no usage: token counts are counts of chunks")
            return
        counts.append(usage)
    if counts[1] - counts[0] == PROBE_WORDS[1] - PROBE_WORDS[0]:
        facts.overhead = max(0, counts[0] - PROBE_WORDS[0])
    else:
        facts.notes.append(
            "the endpoint's token counts do not follow the prompt's words: lengths are not calibrated"
        )


def _usage_of_stream(raw: bytes, dialect: Dialect) -> tuple[int | None, bool]:
    """(prompt tokens, whether usage came with a chunk in mid-stream) of a whole streamed answer."""
    from loadgen.clients.openai import AnswerReader
    from loadgen.record import Outcome, Record

    reader = AnswerReader(dialect.carrier)
    reader.feed(0, raw)
    record = Record("probe", -1, Outcome.NOT_SENT, 0)
    reader.settle(record, ended_whole=True)
    return record.n_input, record.chunk_tokens is not None
