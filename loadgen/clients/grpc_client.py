"""gRPC as the engine asks it: request frames ahead of their instant, answers read when the loop is idle."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from loadgen.clients.dialect import Finished
from loadgen.clients.grpc_answer import GrpcReader, ReadMessage, frames_for, settle_not_grpc, settle_stream
from loadgen.clients.prompt_fields import prompt_fields
from loadgen.net.exchange import Exchange
from loadgen.net.stream import StreamExchange, StreamRequest
from loadgen.record import Outcome, Record
from loadgen.wire.grpc_frames import NO_LIMIT, MessageTooLargeError, message_frame
from loadgen.wire.http2_headers import Field, encode_fields, list_size

if TYPE_CHECKING:
    from loadgen.prompts import Prompts
    from loadgen.schedule import ScheduleRow

OWN_HOP = "this client"


@dataclass(frozen=True, slots=True)
class GrpcClient:
    """Reads the answers of one method. *must_end*: see `GrpcReader`; *limit_bytes*: of one answer message."""

    read_message: ReadMessage
    must_end: bool = False
    limit_bytes: int = NO_LIMIT

    def exchange(self, record: Record, payload: Sized, finished: Finished) -> StreamExchange:
        """A stream to be."""
        return StreamExchange(record, cast(StreamRequest, payload), finished)

    def read(self, exchange: Exchange, *, keep_text: bool) -> int:
        """Read what has come; a message beyond the limit ends the stream."""
        assert isinstance(exchange, StreamExchange)
        try:
            return self._read(exchange, keep_text).progress
        except MessageTooLargeError as error:
            exchange.abort(Outcome.TOO_LARGE, too_large_words(error))
            return 0

    def _read(self, exchange: StreamExchange, keep_text: bool) -> GrpcReader:
        reader = cast("GrpcReader | None", exchange.reader)
        if reader is None:
            frames = frames_for(exchange, self.limit_bytes)
            reader = exchange.reader = GrpcReader(
                self.read_message, frames, must_end=self.must_end, keep_text=keep_text
            )
        for stamp_ns, piece in exchange.take_pieces():
            reader.feed(stamp_ns, piece)
        return reader

    def settle(self, exchange: Exchange, *, keep_text: bool) -> str:
        """Instants and counts of what came, and the outcome by status, reset or cut."""
        assert isinstance(exchange, StreamExchange)
        if settle_not_grpc(exchange):
            return ""
        try:
            reader = self._read(exchange, keep_text)
        except MessageTooLargeError as error:
            reader = cast(GrpcReader, exchange.reader)
            reader.settle(exchange.record)
            exchange.record.outcome, exchange.record.error = Outcome.TOO_LARGE, too_large_words(error)
            return reader.text
        settle_stream(exchange, reader)
        return reader.text


def too_large_words(error: MessageTooLargeError) -> str:
    """The error with hop and limit, as other hops' refusals have them."""
    return f"{error} [hop: {OWN_HOP}; limit of a message: {error.limit} bytes]"


Encode = Callable[["ScheduleRow", bytes, str], bytes]
"""(row, prompt, request id) to one message's bytes; the prompt is text, or ids as packed native uint32."""


class GrpcWriter:
    """Rows to streams. Everything that does not vary by row is encoded once.

    *fields* go before each request's own ids. The prompt travels in the message, in one metadata value, or in
    *parts* of about equal length (``x-prompt-0`` …); then the message's own prompt is empty.
    """

    def __init__(
        self,
        fields: list[Field],
        encode: Encode,
        prompts: Prompts,
        *,
        parts: int = 0,
        compressed: bool = False,
    ) -> None:
        self._head, self._encode, self._prompts = encode_fields(fields), encode, prompts
        self._parts, self._compressed = parts, compressed
        self._list_bytes, self._list_fields = list_size(fields), len(fields)
        self._largest = max((len(value) for _, value in fields), default=0)

    def write_ahead(self, row: ScheduleRow) -> bool:
        """Make a small part of what `write` needs for the row; False: there is no more of it."""
        return self._prompts.text_ahead(row)

    def write(self, row: ScheduleRow, request_id: str) -> StreamRequest:
        """The request's header block and body."""
        prompt = self._prompts.text(row)
        name = request_id.encode()
        own: list[Field] = [(b"x-request-id", name), (b"x-loadgen-id", name)]
        if self._parts:
            own += prompt_fields(prompt, self._parts)
            prompt = b""
        message = self._encode(row, prompt, request_id)
        measures = (
            self._list_bytes + list_size(own),
            self._list_fields + len(own),
            max(self._largest, *(len(value) for _, value in own)),
        )
        body = message_frame(message, compressed=self._compressed)
        return StreamRequest(self._head + encode_fields(own), body, measures)
