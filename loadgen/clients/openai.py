"""What an OpenAI-style answer says, and when: from stamped pieces of the body to instants, counts and an outcome.

Definitions (DESIGN of the record): *first* is the first chunk that carries content, reasoning or a tool call, or
at least one more completion token where the server reports usage continuously; never the role chunk, never a
usage-only chunk. Chunks are not tokens: tokens per chunk are known only from continuous usage.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from loadgen.clients.likeness import TRIES, Likeness, likeness_of
from loadgen.clients.marks import Marks
from loadgen.net.exchange import REJECTED_STATUS
from loadgen.record import Outcome, Record
from loadgen.wire.sse import SseParser

DONE = b"[DONE]"
ERROR_TEXT_LIMIT = 500
TOO_LARGE_STATUS = frozenset({413, 414, 431})


class Carried(NamedTuple):
    """What one choice of a chunk carries: anything generated, visible output, and its text."""

    generated: bool
    output: bool
    text: str


Carrier = Callable[[dict[str, Any]], Carried]
NOTHING = Carried(False, False, "")


def chat_carrier(choice: dict[str, Any]) -> Carried:
    """A chat chunk's choice: ``delta`` with content, reasoning or tool calls (``message`` when not streamed)."""
    delta = choice.get("delta") or choice.get("message")
    if not delta:
        return NOTHING
    content = delta.get("content")
    if content:
        return Carried(True, True, content if isinstance(content, str) else "")
    if delta.get("tool_calls") or delta.get("function_call"):
        return Carried(True, True, "")
    return Carried(bool(delta.get("reasoning_content") or delta.get("reasoning")), False, "")


def completion_carrier(choice: dict[str, Any]) -> Carried:
    """A completion chunk's choice: ``text``."""
    text = choice.get("text")
    return Carried(True, True, text if isinstance(text, str) else "") if text else NOTHING


def error_text(body: Any) -> str:
    """The endpoint's own words out of an error body: OpenAI's object, a bare string, FastAPI's ``detail``."""
    if isinstance(body, dict):
        error = body.get("error", body.get("detail", body.get("message", body)))
        if isinstance(error, dict):
            message = error.get("message")
            code = error.get("code") or error.get("type")
            error = f"{message} ({code})" if message and code else message or orjson.dumps(error).decode()
        return str(error)[:ERROR_TEXT_LIMIT]
    return str(body)[:ERROR_TEXT_LIMIT]


class AnswerReader:
    """Reads one streamed answer. `feed` takes decoded body pieces with their stamps; `settle` fills the record."""

    __slots__ = (
        "_alike", "_carrier", "_continuous", "_done", "_error", "_finish_reason", "_keep_text", "_marks", "_parser",
        "_queue_ns", "_said", "_text", "_tokens_seen", "_tries", "_usage",
    )  # fmt: skip

    def __init__(self, carrier: Carrier, *, keep_text: bool = False) -> None:
        self._carrier = carrier
        self._parser = SseParser()
        self._marks = Marks()
        self._tokens_seen = 0
        self._continuous = False
        self._usage: dict[str, Any] | None = None
        self._queue_ns: int | None = None
        self._finish_reason: str | None = None
        self._done = False
        self._error: str | None = None
        self._keep_text = keep_text
        self._text: list[str] = []
        self._alike: Likeness | None = None
        self._said: tuple[str, Any] | None = None
        self._tries = 0

    @property
    def text(self) -> str:
        """The answer's visible text, when it was asked to be kept."""
        return "".join(self._text)

    @property
    def progress(self) -> int:
        """Output tokens so far: the server's continuous count, else content chunks."""
        return max(self._tokens_seen, len(self._marks.tokens))

    def feed(self, stamp_ns: int, piece: bytes) -> None:
        """Take what one read brought; all events that it completed share its instant."""
        alike, between = self._alike, self._parser.between
        if alike is not None and between and piece.startswith(alike.head):
            found = alike.tail.fullmatch(piece, len(alike.head))
            if found is not None and self._take_like(stamp_ns, found, alike.counts):
                return
        self._said = None
        events = self._parser.feed(piece)
        for event in events:
            self._take(stamp_ns, event.data, event.event)
        if (
            between
            and self._said is not None
            and self._tries < TRIES
            and len(events) == 1
            and self._parser.between
        ):
            self._tries += 1
            self._alike = likeness_of(piece, *self._said)

    def _take_like(self, stamp_ns: int, found: re.Match[bytes], counts: bool) -> bool:
        """A chunk that differs from a parsed one in its text (and its count) alone; False for broken text."""
        text = found[1]
        if not text.isascii() or self._keep_text:
            try:
                words = text.decode()
            except UnicodeDecodeError:
                return False
            if self._keep_text:
                self._text.append(words)
        tokens = (
            self._take_usage({**(self._usage or {}), "completion_tokens": int(found[2])}, True)
            if counts
            else 0
        )
        self._marks.mark(stamp_ns, True, tokens)
        return True

    def _take(self, stamp_ns: int, data: bytes, event_type: bytes) -> None:
        if data == DONE:
            self._done = True
            return
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._error = self._error or f"not JSON: {data[:100].decode(errors='replace')}"
            return
        if not isinstance(chunk, dict):
            self._error = self._error or f"not an object: {data[:100].decode(errors='replace')}"
            return
        if chunk.get("error") is not None or event_type == b"error":
            self._error = self._error or error_text(chunk)
            return
        try:
            self._take_chunk(stamp_ns, chunk)
        except (AttributeError, TypeError):
            self._error = self._error or f"not a chunk: {data[:100].decode(errors='replace')}"

    def _take_chunk(self, stamp_ns: int, chunk: dict[str, Any]) -> None:
        generated = output = finished = False
        choices = chunk.get("choices")
        for choice in choices or ():
            carried = self._carrier(choice)
            generated = generated or carried.generated
            output = output or carried.output
            if self._keep_text:
                self._text.append(carried.text)
            if carried.output and carried.text and len(choices or ()) == 1:
                self._said = carried.text, chunk.get("usage")
            reason = choice.get("finish_reason")
            if reason:
                self._finish_reason = str(reason)
                finished, self._said = True, None
        if "metrics" in chunk:
            self._queue_ns = queue_ns_of(chunk["metrics"])
        usage = chunk.get("usage")
        carried_tokens = self._take_usage(usage, bool(choices) and not finished) if usage else 0
        if generated or (carried_tokens > 0 and choices):
            self._marks.mark(stamp_ns, output or not generated, carried_tokens)

    def _take_usage(self, usage: dict[str, Any], in_mid_stream: bool) -> int:
        """How many tokens this chunk brought, by continuous usage (0 where only the final total is known)."""
        total = usage.get("completion_tokens") or 0
        self._usage = usage
        self._continuous = self._continuous or in_mid_stream
        brought = total - self._tokens_seen if self._continuous else 0
        self._tokens_seen = max(total, self._tokens_seen)
        return max(brought, 0)

    def settle(self, record: Record, *, ended_whole: bool) -> None:
        """Write instants, counts and the outcome into *record*; *ended_whole*: HTTP's own framing was complete."""
        self._marks.write(record, tokens_known=self._continuous)
        record.finish_reason, record.queue_ns = self._finish_reason, self._queue_ns
        take_usage(record, self._usage)
        if record.n_output is None:
            record.n_output, record.n_output_source = len(self._marks.tokens), "chunks"
        if self._error is not None:
            record.outcome, record.error = Outcome.ERROR_IN_STREAM, self._error
        elif self._done or (ended_whole and self._finish_reason):
            record.outcome = Outcome.OK
        else:
            record.outcome = Outcome.TRUNCATED
            how = (
                "ended without finish_reason or [DONE]" if ended_whole else "connection closed in mid-answer"
            )
            record.error = record.error or how


def take_usage(record: Record, usage: Any) -> None:
    """Copy the server's token counts into *record*."""
    if not isinstance(usage, dict):
        return
    record.n_input = _count(usage.get("prompt_tokens"))
    n_output = _count(usage.get("completion_tokens"))
    if n_output is not None:
        record.n_output, record.n_output_source = n_output, "usage"
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        record.n_cached = _count(details.get("cached_tokens"))


def queue_ns_of(metrics: Any) -> int | None:
    """The server's queue time in vLLM's ``metrics`` object (``--enable-per-request-metrics``), ns; else None."""
    value = metrics.get("queue_time_ms") if isinstance(metrics, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return round(value * 1e6)


def _count(value: Any) -> int | None:
    """A count of tokens as a server states it; whatever is none counts as not stated."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def settle_whole(record: Record, body: bytes, stamp_ns: int, carrier: Carrier) -> str:
    """An answer that came as one JSON object: its only instant is its last byte's. Returns its text."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        record.outcome = Outcome.PROTOCOL
        record.error = f"not JSON: {body[:100].decode(errors='replace')}"
        return ""
    if not isinstance(answer, dict) or answer.get("error") is not None or not answer.get("choices"):
        record.outcome, record.error = Outcome.ERROR_IN_STREAM, error_text(answer)
        return ""
    try:
        text = "".join(carrier(choice).text for choice in answer["choices"])
        reason = answer["choices"][0].get("finish_reason")
    except (AttributeError, TypeError, KeyError):
        record.outcome, record.error = Outcome.ERROR_IN_STREAM, f"not an answer: {error_text(answer)}"
        return ""
    take_usage(record, answer.get("usage"))
    record.queue_ns = queue_ns_of(answer.get("metrics"))
    record.first_ns = record.last_ns = stamp_ns
    record.finish_reason = str(reason) if reason else None
    if record.n_output is None:
        record.n_output, record.n_output_source = 1, "chunks"
    record.outcome = Outcome.OK
    record.note = "not streamed: the answer came whole"
    return text


def settle_refusal(record: Record, status: int, body: bytes, hints: dict[str, str]) -> None:
    """A status that is no success: outcome, and the endpoint's own words with Retry-After or Location."""
    if status in REJECTED_STATUS:
        record.outcome = Outcome.REJECTED
    elif status in TOO_LARGE_STATUS:
        record.outcome = Outcome.TOO_LARGE
    else:
        record.outcome = Outcome.STATUS_ERROR
    try:
        words = error_text(orjson.loads(body)) if body else ""
    except orjson.JSONDecodeError:
        words = body[:ERROR_TEXT_LIMIT].decode(errors="replace").strip()
    extra = "".join(f" [{name}: {value}]" for name, value in hints.items())
    if 300 <= status < 400:
        extra += " (redirects are not followed: they would carry the key elsewhere)"
    record.error = f"{status} {words}{extra}".strip()
