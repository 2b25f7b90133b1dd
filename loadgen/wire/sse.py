"""Server-sent events, sans IO: bytes in, events out.

The grammar is the HTML standard's ("9.2.6 Interpreting an event stream"): line ends LF, CRLF and CR, a byte
order mark, comments, ``data:`` with and without a space, multi-line data. U+2028 and U+0085 are no line ends.
"""

from __future__ import annotations

from typing import NamedTuple

BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One dispatched event: its data (lines joined by LF) and its type ("message" unless named)."""

    data: bytes
    event: bytes = b"message"


class SseParser:
    """Feed it reads of any size; each call returns the events that this read completed."""

    __slots__ = ("_after_cr", "_data", "_event", "_line", "_started")

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._event = b""
        self._after_cr = False
        self._started = False

    @property
    def pending(self) -> bool:
        """Whether bytes of an unfinished event are held: at the stream's end they are discarded."""
        return bool(self._line or self._data)

    @property
    def between(self) -> bool:
        """Whether the next byte begins an event: nothing of one has been seen."""
        return self._started and not (self._line or self._data or self._after_cr or self._event)

    def feed(self, read: bytes) -> list[SseEvent]:
        """The events completed by *read*, in order."""
        if self.between:
            fast = _whole_events(read)
            if fast is not None:
                return fast
        return self._feed_lines(read)

    def _feed_lines(self, read: bytes) -> list[SseEvent]:
        if not self._started:
            read = b"".join([*self._line, read])
            self._line.clear()
            if len(read) < len(BOM) and BOM.startswith(read):
                self._line.append(read)
                return []
            read = read.removeprefix(BOM)
            self._started = True
        events: list[SseEvent] = []
        if self._after_cr and read:
            read = read.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in read:
            self._after_cr = read.endswith(b"\r")
            read = read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = read.split(b"\n")
        for line in lines:
            if self._line:
                self._line.append(line)
                line = b"".join(self._line)  # noqa: PLW2901
                self._line.clear()
            event = self._take_line(line)
            if event is not None:
                events.append(event)
        if rest:
            self._line.append(rest)
        return events

    def _take_line(self, line: bytes) -> SseEvent | None:
        if not line:
            event = SseEvent(b"\n".join(self._data), self._event or b"message") if self._data else None
            self._data.clear()
            self._event = b""
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value
        return None


def _whole_events(read: bytes) -> list[SseEvent] | None:
    """The events of a read that holds only whole ``data: …`` blocks with LF line ends (nearly all do), else None."""
    if not read.startswith(b"data: ") or not read.endswith(b"\n\n") or b"\r" in read:
        return None
    blocks = read[:-2].split(b"\n\n")
    for block in blocks:
        if b"\n" in block or not block.startswith(b"data: "):
            return None
    return [SseEvent(block[6:]) for block in blocks]
