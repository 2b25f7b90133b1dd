"""The instants of an answer's chunks as they come: what every streamed dialect keeps the same way."""

from __future__ import annotations

from loadgen.record import Record


class Marks:
    """First, last and the gaps between; ``tokens`` beside each chunk (0 where they are not known)."""

    __slots__ = ("_first", "_first_output", "_gaps", "_last", "tokens")

    def __init__(self) -> None:
        self._first: int | None = None
        self._first_output: int | None = None
        self._last = 0
        self._gaps: list[int] = []
        self.tokens: list[int] = []

    def mark(self, stamp_ns: int, output: bool, tokens: int) -> None:
        """A chunk that carries something generated; *output*: visible output, not only reasoning."""
        if self._first is None:
            self._first = stamp_ns
        else:
            self._gaps.append(stamp_ns - self._last)
        if output and self._first_output is None:
            self._first_output = stamp_ns
        self._last = stamp_ns
        self.tokens.append(tokens)

    def write(self, record: Record, *, tokens_known: bool) -> None:
        """Put the instants into *record*; the tokens of each chunk only where the server told them."""
        if self._first is None:
            return
        record.first_ns, record.last_ns = self._first, self._last
        if self._first_output != self._first:
            record.first_output_ns = self._first_output
        record.chunk_ns = self._gaps
        record.chunk_tokens = self.tokens if tokens_known else None
