"""What a gRPC answer says, and when: from stamped pieces of a stream to instants, counts and an outcome.

A message's instant is that of the read which completed it. *first* is the first message that carries something
generated; messages without (acknowledgements, final markers, usage) are no chunks and make no gap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from loadgen.clients.grpc_status import (
    OUTCOMES,
    refusal_by_silence,
    refusal_of,
    status_name,
    status_of,
)
from loadgen.clients.marks import Marks
from loadgen.clients.openai import settle_refusal
from loadgen.net.stream import StreamExchange
from loadgen.record import Outcome, Record
from loadgen.wire.grpc_frames import NO_LIMIT, GrpcFrames, MessageTooLargeError
from loadgen.wire.http2 import ENHANCE_YOUR_CALM, REFUSED_STREAM


class Said(NamedTuple):
    """What one message says.

    ``tokens`` that it carries (None: not told); ``generated``: it is a chunk; ``repeats``: only where none came
    before it; ``ends``: nothing comes after it; ``n_output``: the server's own total.
    """

    generated: bool = False
    tokens: int | None = None
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    ends: bool = False
    n_input: int | None = None
    n_output: int | None = None
    n_cached: int | None = None
    repeats: bool = False


ReadMessage = Callable[[bytes], Said]
"""Reads one message. Raises ValueError for bytes that are none."""


class GrpcReader:
    """Reads one streamed answer. *must_end*: it is whole only after a message that ends it."""

    __slots__ = (
        "_counts", "_ended", "_error", "_finish_reason", "_frames", "_keep_text", "_marks", "_must_end", "_read",
        "_text", "_tokens", "_tokens_known",
    )  # fmt: skip

    def __init__(
        self, read: ReadMessage, frames: GrpcFrames, *, must_end: bool = False, keep_text: bool = False
    ) -> None:
        self._read, self._frames, self._must_end, self._keep_text = read, frames, must_end, keep_text
        self._marks = Marks()
        self._tokens, self._tokens_known = 0, False
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._error: str | None = None
        self._ended = False
        self._counts: tuple[int | None, int | None, int | None] = (None, None, None)

    @property
    def text(self) -> str:
        """The answer's text, when it was asked to be kept."""
        return "".join(self._text)

    @property
    def progress(self) -> int:
        """Output tokens so far: as told, else counted by chunks."""
        return self._tokens if self._tokens_known else len(self._marks.tokens)

    def feed(self, stamp_ns: int, piece: bytes) -> None:
        """Take what one read brought. Raises ValueError for what cannot be unpacked."""
        try:
            messages = self._frames.feed(piece)
        except MessageTooLargeError as error:
            self._take_all(stamp_ns, error.before)
            raise
        self._take_all(stamp_ns, messages)

    def _take_all(self, stamp_ns: int, messages: list[bytes]) -> None:
        for message in messages:
            try:
                said = self._read(message)
            except ValueError as error:
                self._error = self._error or f"not the message that was expected: {error}"
                continue
            self._take(stamp_ns, said)

    def _take(self, stamp_ns: int, said: Said) -> None:
        if said.error is not None:
            self._error = self._error or said.error
        if said.generated and not (said.repeats and self._marks.tokens):
            self._marks.mark(stamp_ns, True, said.tokens or 0)
            self._tokens += said.tokens or 0
            self._tokens_known = self._tokens_known or said.tokens is not None
            if self._keep_text:
                self._text.append(said.text)
        if said.finish_reason:
            self._finish_reason = said.finish_reason
        self._ended = self._ended or said.ends
        if said.n_input is not None or said.n_output is not None:
            self._counts = (said.n_input, said.n_output, said.n_cached)

    def settle(self, record: Record) -> None:
        """Write instants and counts into *record*."""
        self._marks.write(record, tokens_known=self._tokens_known)
        record.finish_reason = self._finish_reason
        record.n_input, total, record.n_cached = self._counts
        if total is not None:
            record.n_output, record.n_output_source = total, "usage"
        elif self._tokens_known:
            record.n_output, record.n_output_source = self._tokens, "usage"
        else:
            record.n_output, record.n_output_source = len(self._marks.tokens), "chunks"

    def judge(self, record: Record) -> None:
        """The outcome of an answer whose status is OK."""
        if self._error is not None:
            record.outcome, record.error = Outcome.ERROR_IN_STREAM, self._error
        elif self._frames.pending:
            record.outcome, record.error = Outcome.TRUNCATED, "ended within a message"
        elif self._must_end and not self._ended:
            record.outcome, record.error = (
                Outcome.TRUNCATED,
                "status OK without the message that ends an answer",
            )
        else:
            record.outcome = Outcome.OK


def settle_stream(exchange: StreamExchange, reader: GrpcReader) -> None:
    """Decide the outcome of a stream that has ended; its pieces are read already."""
    record = exchange.record
    reader.settle(record)
    if exchange.trailers is None:
        _settle_cut(exchange)
        return
    code, message = status_of(exchange.trailers)
    if code is None:
        record.outcome, record.error = Outcome.TRUNCATED, "the stream ended without a grpc-status"
        return
    record.status = code
    if code == 0:
        reader.judge(record)
        return
    record.outcome = OUTCOMES.get(code, Outcome.STATUS_ERROR)
    record.error = f"{status_name(code)} {message}".strip()
    if (refusal := refusal_of(code, message)) is not None:
        record.outcome, record.error = Outcome.TOO_LARGE, f"{record.error} {refusal.words}"


def _settle_cut(exchange: StreamExchange) -> None:
    record = exchange.record
    words, record.note = record.note or "the stream ended without trailers", None
    record.outcome, record.error = Outcome.TRUNCATED if exchange.heard else Outcome.PROTOCOL, words
    if exchange.reset_code is None or exchange.heard:
        return
    if (refusal := refusal_by_silence(exchange.request, exchange.reset_code)) is not None:
        record.outcome, record.error = Outcome.TOO_LARGE, f"{words} {refusal.words}"
    elif exchange.reset_code in BUSY_RESETS:
        record.outcome = Outcome.REJECTED


BUSY_RESETS = frozenset({REFUSED_STREAM, ENHANCE_YOUR_CALM})
"""As gRPC maps them: UNAVAILABLE and RESOURCE_EXHAUSTED."""


def settle_not_grpc(exchange: StreamExchange) -> bool:
    """Whether the answer came from something that speaks HTTP only (a proxy); its outcome is HTTP's then."""
    if not exchange.heard:
        return False
    kind = next((value for name, value in exchange.fields if name == b"content-type"), b"")
    if exchange.status == 200 and kind.startswith(b"application/grpc"):
        return False
    if exchange.trailers is not None and status_of(exchange.trailers)[0] is not None:
        return False
    body = b"".join(piece for _, piece in exchange.take_pieces())
    if exchange.status == 200:
        exchange.record.outcome = Outcome.PROTOCOL
        exchange.record.error = f"not gRPC: content-type {kind.decode('latin-1')!r}"
    else:
        settle_refusal(exchange.record, exchange.status, body, {})
    exchange.record.status = exchange.status
    return True


def frames_for(exchange: StreamExchange, limit_bytes: int = NO_LIMIT) -> GrpcFrames:
    """A splitter for the answer's encoding."""
    encoding = next((value for name, value in exchange.fields if name == b"grpc-encoding"), b"identity")
    return GrpcFrames(encoding, limit_bytes)
