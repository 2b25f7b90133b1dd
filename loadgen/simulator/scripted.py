"""Scripted answers: exact instants and faults, request by request.

A script is a JSON object, in the request header ``x-sim-script`` or as a line of a script file. All
instants count from the request's receipt. ``first_ms``: the first content chunk. ``itl_ms``: the gap before
each further content chunk, one number or a list (its last entry repeats). ``tokens_per_chunk`` likewise.
``role``: ``first`` (with the first content, as vLLM), ``early`` (with the head, before prefill), ``none``.
``reasoning``/``tool_call``: so many leading content chunks carry reasoning or tool-call deltas. ``empty``:
content chunks whose text is "". ``usage``: ``asked`` (own chunk when the request asked for it),
``in_finish`` (inside the finish chunk), ``none``. ``finish``: ``last`` (on the last content chunk, as
vLLM), ``own`` (a chunk of its own), ``none``. ``queue_ms``: the queue time that the usage states, in vLLM's
``metrics`` object. ``faults``: names of `faults.FAULTS`, or objects ``{"name":
…, arguments}``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loadgen.errors import UsageError
from loadgen.simulator.answer import Answer, Event, Write, body_writes, frame
from loadgen.simulator.chunks import Dialect, text_of, usage
from loadgen.simulator.faults import FaultError, resolve

NS_PER_MS = 1_000_000


class Script(BaseModel):
    """One scripted answer; see the module for the fields' meaning."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    tokens: int | None = Field(default=None, ge=0)
    head_ms: float = Field(default=0, ge=0)
    first_ms: float = Field(default=0, ge=0)
    itl_ms: float | list[float] = 0
    tokens_per_chunk: int | list[int] = 1
    role: Literal["first", "early", "none"] = "first"
    reasoning: int = Field(default=0, ge=0)
    reasoning_field: Literal["reasoning", "reasoning_content"] = "reasoning_content"
    tool_call: int = Field(default=0, ge=0)
    empty: list[int] = []
    texts: list[str] = []
    usage: Literal["asked", "in_finish", "none"] = "asked"
    finish: Literal["last", "own", "none"] = "last"
    finish_reason: str = "length"
    queue_ms: float | None = Field(default=None, ge=0)
    faults: list[str | dict[str, Any]] = []


class ScriptError(ValueError):
    """A script that cannot be followed; the message names the field."""


def parse_script(text: str | bytes) -> Script:
    """A script from its JSON. Raises ScriptError, also for an unknown fault."""
    try:
        script = Script.model_validate_json(text)
        resolve(script.faults)
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ScriptError(f"script field {where or '(whole)'}: {first['msg']}") from err
    except FaultError as err:
        raise ScriptError(str(err)) from err
    return script


class ScriptBook:
    """The scripts of a file: a line with ``id`` answers that x-request-id, the others answer by order of
    arrival.
    """

    def __init__(self, scripts: list[Script] | None = None) -> None:
        scripts = scripts or []
        self._by_id = {script.id: script for script in scripts if script.id is not None}
        self._in_order = iter([script for script in scripts if script.id is None])

    @classmethod
    def load(cls, path: Path) -> ScriptBook:
        """Read a script file. Raises UsageError naming file and line."""
        try:
            lines = path.read_bytes().splitlines()
        except OSError as err:
            raise UsageError(f"{path}: {err.strerror}") from err
        scripts = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    scripts.append(parse_script(line))
                except ScriptError as err:
                    raise UsageError(f"{path}:{number}: {err}") from err
        return cls(scripts)

    def take(self, request_id: str | None) -> Script | None:
        """The script for this request; None: the engine model answers."""
        if request_id is not None and request_id in self._by_id:
            return self._by_id[request_id]
        return next(self._in_order, None)


def chunk_sizes(tokens: int, per_chunk: int | list[int]) -> list[int]:
    """*tokens* split into chunks; the sizes' last entry repeats."""
    sizes = [per_chunk] if isinstance(per_chunk, int) else per_chunk
    out: list[int] = []
    while tokens > 0:
        size = min(tokens, max(1, sizes[min(len(out), len(sizes) - 1)]))
        out.append(size)
        tokens -= size
    return out


def chunk_offsets_ns(script: Script, chunks: int) -> list[int]:
    """The instants of the content chunks, ns after receipt."""
    gaps = script.itl_ms if isinstance(script.itl_ms, list) else [script.itl_ms]
    gaps = gaps or [0]
    at, out = script.first_ms, []
    for i in range(chunks):
        if i:
            at += gaps[min(i - 1, len(gaps) - 1)]
        out.append(round(at * NS_PER_MS))
    return out


def delta_of(script: Script, index: int, text: str) -> dict[str, Any]:
    """The chat delta of content chunk *index*."""
    if index < script.reasoning:
        return {script.reasoning_field: text}
    if index < script.reasoning + script.tool_call:
        call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
        if index == script.reasoning:
            call |= {"id": "call_0", "type": "function"}
            call["function"]["name"] = "simulated"
        return {"tool_calls": [call]}
    return {"content": text}


def stream_answer(
    script: Script, dialect: Dialect, n_input: int, tokens: int, asked: tuple[bool, bool]
) -> Answer:
    """The scripted stream before its faults. *asked*: (include_usage, continuous_usage_stats)."""
    include, continuous = asked
    sizes = chunk_sizes(tokens, script.tokens_per_chunk)
    offsets = chunk_offsets_ns(script, len(sizes))
    head = min([round(script.head_ms * NS_PER_MS), *offsets])
    answer = Answer(head_ns=head, headers=[("content-type", "text/event-stream; charset=utf-8")])
    events = answer.events
    if dialect.chat and script.role != "none":
        role_at = head if script.role == "early" or not offsets else offsets[0]
        role = {"role": "assistant", "content": ""}
        events.append(Event(role_at, dialect.chunk(role, use=usage(n_input, 0) if continuous else None)))
    done = 0
    for i, (size, at) in enumerate(zip(sizes, offsets, strict=True)):
        text = "" if i in script.empty else script.texts[i] if i < len(script.texts) else text_of(done, size)
        done += size
        ends = script.finish == "last" and i == len(sizes) - 1
        use = usage(n_input, done) if continuous or (ends and script.usage == "in_finish") else None
        finish = script.finish_reason if ends else None
        events.append(Event(at, dialect.chunk(delta_of(script, i, text), finish, use), size, True))
    last = offsets[-1] if offsets else head
    if script.finish == "own" or (script.finish == "last" and not sizes):
        use = usage(n_input, done) if continuous or script.usage == "in_finish" else None
        events.append(Event(last, dialect.chunk({} if dialect.chat else "", script.finish_reason, use)))
    if include and script.usage == "asked":
        events.append(Event(last, dialect.usage_chunk(usage(n_input, done), stated_metrics(script))))
    events.append(Event(last, "[DONE]"))
    return answer


def stated_metrics(script: Script) -> dict[str, Any] | None:
    """The ``metrics`` object beside the usage, where the script has one."""
    return None if script.queue_ms is None else {"metrics": {"queue_time_ms": script.queue_ms}}


def whole_answer(script: Script, dialect: Dialect, n_input: int, tokens: int) -> Answer:
    """The scripted answer to a request that asked for no stream: one body at the last token's instant."""
    offsets = chunk_offsets_ns(script, len(chunk_sizes(tokens, script.tokens_per_chunk)))
    when = offsets[-1] if offsets else round(script.first_ms * NS_PER_MS)
    use = usage(n_input, tokens)
    body = dialect.whole(text_of(0, tokens), script.finish_reason, use, stated_metrics(script))
    headers = [("content-type", "application/json")]
    return Answer(head_ns=when, headers=headers, body=body, body_ns=when, framing="length")


def render(answer: Answer, faults: list[str | dict[str, Any]]) -> tuple[list[Write], list[Write]]:
    """(head writes, body writes) after all faults, stage by stage. Raises FaultError."""
    found = resolve(faults)
    for fault, args in found:
        if fault.stage == "answer":
            fault.apply(answer, **args)
    if answer.silent:
        return [], [Write(answer.body_ns, b"")]
    writes = body_writes(answer)
    for fault, args in found:
        if fault.stage == "bytes":
            writes = fault.apply(answer, writes, **args)
    head, body = frame(answer, writes)
    for fault, args in found:
        if fault.stage == "wire":
            body = fault.apply(answer, body, **args)
    return head, body
