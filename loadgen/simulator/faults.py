"""The named faults of the scripted mode: a table, each entry one small function.

A fault of stage ``answer`` changes the events and the head before anything is encoded, one of stage ``bytes``
rewrites the body's writes before HTTP framing, one of stage ``wire`` after it. Faults apply in the order in
which the script names them, stage by stage. Content chunks are counted from 0; ``at=k`` leaves k of them
before it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.simulator.answer import Answer, Event, Write

NS_PER_S = 1_000_000_000
NS_PER_US = 1_000
ODD_SIZES = (1, 2, 3, 5, 7, 11, 13)

AnswerFault = Callable[..., None]
BytesFault = Callable[..., list[Write]]


class FaultError(ValueError):
    """An unknown fault or argument; the message names the choices."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``apply(answer, **args)`` for stage answer, ``apply(answer, writes, **args) -> writes`` for the
    others.
    """

    stage: str
    apply: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)


# --- stage answer --------


def stall(answer: Answer, at: int, s: float) -> None:
    """Content chunk *at* and everything after it come *s* seconds later."""
    contents = answer.content
    start = answer.events.index(contents[at]) if at < len(contents) else len(answer.events) - 1
    for event in answer.events[start:]:
        event.offset_ns += round(s * NS_PER_S)


def drop(answer: Answer, at: int) -> None:
    """FIN after *at* content chunks, in the middle of the body."""
    _break_off(answer, at, "fin")


def rst(answer: Answer, at: int) -> None:
    """Reset after *at* content chunks."""
    _break_off(answer, at, "rst")


def no_finish(answer: Answer, at: int) -> None:
    """The body ends properly after *at* content chunks, without finish_reason, usage and [DONE]."""
    answer.cut_after(at)


def no_done(answer: Answer) -> None:
    """No [DONE]."""
    answer.events = [event for event in answer.events if event.data != "[DONE]"]


def no_usage(answer: Answer) -> None:
    """The usage chunk that was asked for does not come."""
    answer.events = [event for event in answer.events if '"choices":[]' not in event.data]


def error_event(answer: Answer, at: int, message: str, code: int, done: bool) -> None:
    """An error event in a 200 stream after *at* content chunks, as vLLM words it; then [DONE] if *done*."""
    when = answer.cut_after(at)
    answer.events.append(Event(when, error_json(message, "InternalServerError", code)))
    if done:
        answer.events.append(Event(when, "[DONE]"))


def error_only(answer: Answer, message: str, code: int) -> None:
    """A 200 stream of one error event and nothing else."""
    when = answer.content[0].offset_ns if answer.content else answer.head_ns
    answer.events = [Event(when, error_json(message, "BadRequestError", code))]


def bad_json(answer: Answer, at: int, text: str) -> None:
    """A ``data:`` line that is no JSON, before content chunk *at*; the stream goes on."""
    contents = answer.content
    index = answer.events.index(contents[at]) if at < len(contents) else len(answer.events)
    when = answer.events[index - 1].offset_ns if index else answer.head_ns
    answer.events.insert(index, Event(when, text))


def status(answer: Answer, code: int, message: str, retry_after: float | None, plain: bool) -> None:
    """An error answer instead of the stream: an OpenAI error body (*plain*: text), with Retry-After if
    given.
    """
    body = message.encode() if plain else error_json(message, STATUS_TYPES.get(code, "Error"), code).encode()
    _instead(answer, code, body, "text/plain" if plain else "application/json")
    if retry_after is not None:
        answer.headers.append(("retry-after", f"{retry_after:g}"))


def redirect(answer: Answer, location: str, code: int) -> None:
    """A redirect that nobody should follow: it would carry the key elsewhere."""
    _instead(answer, code, b"", "text/plain")
    answer.headers.append(("location", location))


def json_answer(answer: Answer) -> None:
    """A JSON answer although a stream was asked for, at the instant of the last event."""
    text = "".join(_text_of(event) for event in answer.content)
    tokens = sum(event.tokens for event in answer.content)
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "text": text, "finish_reason": "length"}
    usage = {"prompt_tokens": 0, "total_tokens": tokens, "completion_tokens": tokens}
    body = orjson.dumps({"object": "chat.completion", "choices": [choice], "usage": usage})
    when = answer.events[-1].offset_ns if answer.events else answer.head_ns
    _instead(answer, 200, body, "application/json")
    answer.head_ns = answer.body_ns = when


def comments(answer: Answer, every: int, text: str) -> None:
    """A comment line alone in a write before each *every*-th content chunk, at half of the gap."""
    out: list[Event] = []
    seen, before = 0, answer.head_ns
    for event in answer.events:
        if event.is_content:
            if seen % every == 0:
                raw = f": {text}\n\n".encode()
                out.append(Event(before + (event.offset_ns - before) // 2, raw=raw))
            seen += 1
        out.append(event)
        before = event.offset_ns
    answer.events = out


def hang(answer: Answer, s: float) -> None:
    """No answer for *s* seconds, then FIN without a byte."""
    answer.silent, answer.clean, answer.ending = True, False, "fin"
    answer.events, answer.body, answer.body_ns = [], b"", round(s * NS_PER_S)


def slow_headers(answer: Answer, s: float, parts: int) -> None:
    """The head in *parts* pieces over *s* seconds; what follows is not earlier than its end."""
    step = round(s * NS_PER_S / max(1, parts - 1))
    answer.head_parts_ns = [answer.head_ns + step * i for i in range(1, parts)]


def interim(answer: Answer, code: int) -> None:
    """An interim answer (100, 103) before the real one."""
    answer.interim.append(code)


def _framing(kind: str) -> AnswerFault:
    def apply(answer: Answer) -> None:
        answer.framing = kind
        if kind == "close":
            answer.ending = "fin"

    return apply


def connection_close(answer: Answer) -> None:
    """``connection: close`` and FIN after a complete answer."""
    answer.ending = "fin"


def _encode(**changes: Any) -> AnswerFault:
    def apply(answer: Answer) -> None:
        for name, value in changes.items():
            setattr(answer.encoding, name, value)

    return apply


def multi_line(answer: Answer) -> None:
    """Each event's JSON over several ``data:`` lines."""
    answer.encoding.multi_line = True
    for event in answer.events:
        if event.raw is None and event.data.startswith("{"):
            event.data = orjson.dumps(orjson.loads(event.data), option=orjson.OPT_INDENT_2).decode()


# --- stages bytes and wire --------


def split(answer: Answer, writes: list[Write], size: int, gap_us: float) -> list[Write]:
    """Every write cut into pieces of *size* bytes, *gap_us* apart."""
    return _pieces(writes, (size,), gap_us)


def split_odd(answer: Answer, writes: list[Write], gap_us: float) -> list[Write]:
    """Every write cut into pieces of 1, 2, 3, 5, 7, 11, 13 … bytes, *gap_us* apart."""
    return _pieces(writes, ODD_SIZES, gap_us)


def coalesce(answer: Answer, writes: list[Write], n: int) -> list[Write]:
    """*n* events in one write, at the last one's instant."""
    groups = [writes[i : i + n] for i in range(0, len(writes), n)]
    return [
        Write(group[-1].offset_ns, b"".join(w.data for w in group), [m for w in group for m in w.marks])
        for group in groups
    ]


def misalign(answer: Answer, writes: list[Write], shift: int) -> list[Write]:
    """HTTP chunk borders inside the events: *shift* bytes of each event travel with the one before."""
    out: list[Write] = []
    for i, write in enumerate(writes):
        ahead = writes[i + 1].data[:shift] if i + 1 < len(writes) else b""
        out.append(Write(write.offset_ns, write.data[shift if i else 0 :] + ahead, write.marks))
    return out


def gzip(answer: Answer, writes: list[Write]) -> list[Write]:
    """The body gzip-encoded, flushed at each event."""
    answer.headers.append(("content-encoding", "gzip"))
    packer = zlib.compressobj(wbits=31)
    out = [
        Write(w.offset_ns, packer.compress(w.data) + packer.flush(zlib.Z_SYNC_FLUSH), w.marks) for w in writes
    ]
    if out:
        out[-1].data += packer.flush()
    return out


def _pieces(writes: list[Write], sizes: tuple[int, ...], gap_us: float) -> list[Write]:
    out: list[Write] = []
    turn, earliest = 0, 0
    for write in writes:
        offset, start = max(write.offset_ns, earliest), 0
        while start < len(write.data):
            end = start + sizes[turn % len(sizes)]
            last = end >= len(write.data)
            out.append(Write(offset, write.data[start:end], write.marks if last else []))
            offset, start, turn = offset + round(gap_us * NS_PER_US), end, turn + 1
        earliest = offset
    return out


# --- wording --------

STATUS_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    413: "RequestEntityTooLarge",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


def error_json(message: str, kind: str, code: int, param: str | None = None) -> str:
    """vLLM's error object."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).decode()


def _break_off(answer: Answer, at: int, ending: str) -> None:
    answer.cut_after(at)
    if answer.body is not None:
        answer.body = answer.body[: len(answer.body) // 2]
    answer.clean, answer.ending = False, ending


def _instead(answer: Answer, code: int, body: bytes, content_type: str) -> None:
    answer.status, answer.body, answer.body_ns, answer.framing = code, body, answer.head_ns, "length"
    answer.events = []
    answer.headers = [(n, v) for n, v in answer.headers if n != "content-type"] + [
        ("content-type", content_type)
    ]


def _text_of(event: Event) -> str:
    choice = orjson.loads(event.data)["choices"][0]
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


ENGINE_DIED = "EngineCore encountered an issue. See stack trace (above) for the root cause."

FAULTS: dict[str, Fault] = {
    "stall": Fault("answer", stall, {"at": 1, "s": 1.0}),
    "drop": Fault("answer", drop, {"at": 1}),
    "rst": Fault("answer", rst, {"at": 1}),
    "no_finish": Fault("answer", no_finish, {"at": 1}),
    "no_done": Fault("answer", no_done),
    "no_usage": Fault("answer", no_usage),
    "error_event": Fault("answer", error_event, {"at": 1, "message": ENGINE_DIED, "code": 500, "done": True}),
    "error_only": Fault("answer", error_only, {"message": "out of vocabulary", "code": 400}),
    "bad_json": Fault("answer", bad_json, {"at": 1, "text": "{not json"}),
    "status": Fault(
        "answer", status, {"code": 500, "message": "scripted error", "retry_after": None, "plain": False}
    ),
    "redirect": Fault("answer", redirect, {"location": "http://127.0.0.1:9/", "code": 307}),
    "json_answer": Fault("answer", json_answer),
    "comments": Fault("answer", comments, {"every": 1, "text": "ping"}),
    "hang": Fault("answer", hang, {"s": 3600.0}),
    "slow_headers": Fault("answer", slow_headers, {"s": 0.1, "parts": 2}),
    "interim": Fault("answer", interim, {"code": 103}),
    "close_delimited": Fault("answer", _framing("close")),
    "content_length": Fault("answer", _framing("length")),
    "connection_close": Fault("answer", connection_close),
    "crlf": Fault("answer", _encode(newline="\r\n")),
    "cr": Fault("answer", _encode(newline="\r")),
    "no_space": Fault("answer", _encode(space="")),
    "bom": Fault("answer", _encode(bom=True)),
    "multi_line": Fault("answer", multi_line),
    "fields": Fault("answer", _encode(fields=True)),
    "coalesce": Fault("bytes", coalesce, {"n": 2}),
    "misalign": Fault("bytes", misalign, {"shift": 7}),
    "gzip": Fault("bytes", gzip),
    "split": Fault("wire", split, {"size": 1, "gap_us": 0.0}),
    "split_odd": Fault("wire", split_odd, {"gap_us": 0.0}),
}


def resolve(named: list[str | dict[str, Any]]) -> list[tuple[Fault, dict[str, Any]]]:
    """The faults with their arguments, in order. Raises FaultError for an unknown name or argument."""
    found = []
    for item in named:
        given = {"name": item} if isinstance(item, str) else dict(item)
        name = given.pop("name", None)
        fault = FAULTS.get(str(name))
        if fault is None:
            raise FaultError(f"unknown fault {name!r}; choices: {', '.join(FAULTS)}")
        unknown = given.keys() - fault.defaults.keys()
        if unknown:
            allowed = ", ".join(fault.defaults) or "none"
            raise FaultError(f"fault {name}: unknown argument {min(unknown)!r}; arguments: {allowed}")
        found.append((fault, {**fault.defaults, **given}))
    return found
