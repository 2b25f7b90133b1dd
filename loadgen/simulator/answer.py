"""An answer before it is sent: SSE events at exact instants, then the bytes to write and when.

Everything here is pure: an `Answer` (events) is rendered into a list of `Write` (offset, bytes), which the
player puts on the wire. Faults change the one or the other. Offsets are nanoseconds after the request's
receipt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus

Headers = list[tuple[str, str]]


@dataclass(slots=True)
class Event:
    """One SSE event. ``tokens`` counts the output tokens that it carries; 0: no content chunk.

    ``raw`` replaces the SSE encoding by these very bytes (comments, for instance).
    """

    offset_ns: int
    data: str = ""
    tokens: int = 0
    is_content: bool = False
    raw: bytes | None = None


@dataclass(slots=True)
class Encoding:
    """How events become SSE bytes. The defaults are what vLLM sends."""

    newline: str = "\n"
    space: str = " "
    bom: bool = False
    multi_line: bool = False
    fields: bool = False


@dataclass(slots=True)
class Answer:
    """A whole answer. ``body`` (with its instant ``body_ns``) replaces the events where it is not a stream.

    ``framing``: chunked, length (content-length) or close (the connection's end is the body's).
    ``ending``: keep (the connection stays), fin (closed), rst (reset), fin and rst without the body's end;
    ``clean`` says whether the body's own end (the last chunk) is written before.
    """

    status: int = 200
    headers: Headers = field(default_factory=list)
    head_ns: int = 0
    head_parts_ns: list[int] = field(default_factory=list)
    interim: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    body: bytes | None = None
    body_ns: int = 0
    framing: str = "chunked"
    ending: str = "keep"
    clean: bool = True
    silent: bool = False
    encoding: Encoding = field(default_factory=Encoding)

    @property
    def content(self) -> list[Event]:
        """The events that carry output tokens."""
        return [event for event in self.events if event.is_content]

    def cut_after(self, at: int) -> int:
        """Drop what follows content chunk number *at* (0: all of the content); returns the instant of the
        cut.
        """
        contents = self.content
        at = min(at, len(contents))
        keep = self.events.index(contents[at]) if at < len(contents) else _index_after(self.events, contents)
        when = self.events[keep - 1].offset_ns if keep else self.head_ns
        del self.events[keep:]
        return when


@dataclass(slots=True)
class Write:
    """Bytes for one write and its instant; ``marks``: the tokens of each content event that ends in it."""

    offset_ns: int
    data: bytes
    marks: list[int] = field(default_factory=list)


def _index_after(events: list[Event], contents: list[Event]) -> int:
    return events.index(contents[-1]) + 1 if contents else 0


def encode_event(event: Event, encoding: Encoding, number: int) -> bytes:
    """The event's SSE bytes, blank line included."""
    if event.raw is not None:
        return event.raw
    nl, sp = encoding.newline, encoding.space
    lines = event.data.split("\n") if encoding.multi_line else [event.data]
    out = []
    if encoding.fields:
        out += [f"event:{sp}message", f"id:{sp}{number}", f"retry:{sp}3000"]
    out += [f"data:{sp}{line}" for line in lines]
    text = nl.join(out) + nl + nl
    return (b"\xef\xbb\xbf" if encoding.bom and number == 0 else b"") + text.encode()


def body_writes(answer: Answer) -> list[Write]:
    """The body's writes before any HTTP framing: one an event."""
    if answer.body is not None:
        return [Write(answer.body_ns, answer.body)] if answer.body else []
    return [
        Write(
            event.offset_ns,
            encode_event(event, answer.encoding, n),
            [event.tokens] if event.is_content else [],
        )
        for n, event in enumerate(answer.events)
    ]


def status_line(status: int) -> bytes:
    """``HTTP/1.1 200 OK`` and its line end."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


def head_bytes(status: int, headers: Headers) -> bytes:
    """Status line, header fields, blank line."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return status_line(status) + fields.encode("latin-1") + b"\r\n"


def frame(answer: Answer, writes: list[Write]) -> tuple[list[Write], list[Write]]:
    """(head writes, body writes) with HTTP/1.1 framing. The body's own end is part of the last write's
    instant.
    """
    headers = list(answer.headers)
    if answer.framing == "chunked":
        headers.append(("transfer-encoding", "chunked"))
        writes = [Write(w.offset_ns, chunked(w.data), w.marks) for w in writes]
        if answer.clean:
            writes.append(Write(writes[-1].offset_ns if writes else answer.head_ns, b"0\r\n\r\n"))
    elif answer.framing == "length":
        length = sum(len(w.data) for w in writes)
        headers.append(("content-length", str(length if answer.clean else length + 1)))
    if answer.ending != "keep" or answer.framing == "close":
        headers.append(("connection", "close"))
    return _head_writes(answer, head_bytes(answer.status, headers)), writes


def _head_writes(answer: Answer, head: bytes) -> list[Write]:
    interim = [Write(answer.head_ns, head_bytes(status, [])) for status in answer.interim]
    parts = [answer.head_ns, *answer.head_parts_ns]
    size = -(-len(head) // len(parts))
    return interim + [Write(at, head[i * size : (i + 1) * size]) for i, at in enumerate(parts)]


def chunked(data: bytes) -> bytes:
    """One HTTP chunk; empty for no data, because a chunk of size 0 ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
