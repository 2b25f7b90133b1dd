"""What an endpoint's dialect is: how requests become exchanges, and how their answers are read."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, Protocol, cast

from loadgen.clients.openai import AnswerReader, Carrier, settle_refusal, settle_whole
from loadgen.net.exchange import Ending, Exchange
from loadgen.record import Outcome, Record

PROMPT_MARK = "\x00prompt\x00"
"""Stands for the prompt in a body template; no JSON text contains it unescaped."""

Finished = Callable[[Exchange], None]


class Reader(Protocol):
    """Reads one streamed answer: stamped pieces in, a settled record out."""

    @property
    def text(self) -> str:
        """The answer's visible text, when it was asked to be kept."""
        ...

    def feed(self, stamp_ns: int, piece: bytes) -> None:
        """Take what one read brought. Raises ValueError for what cannot be decoded."""
        ...


class Client(Protocol):
    """One way to ask, as the engine uses it."""

    def exchange(self, record: Record, payload: Sized, finished: Finished) -> Exchange:
        """A request, as its writer made it, as what a pool sends."""
        ...

    def read(self, exchange: Exchange, *, keep_text: bool) -> int:
        """Read what has come of an answer under way; the tokens that it has by now.

        Raises ValueError for what cannot be decoded.
        """
        ...

    def settle(self, exchange: Exchange, *, keep_text: bool) -> str:
        """Fill in the record of an exchange that has ended; the answer's text where it is to be kept.

        Raises ValueError for what cannot be decoded.
        """
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to ask over HTTP/1.1 with JSON. ``prompt_fields(text)`` are the body's fields that hold the prompt."""

    name: str
    path: str
    prompt_fields: Callable[[str], dict[str, Any]]
    carrier: Carrier
    has_template: bool
    joints: tuple[bytes, bytes] | None = None
    """JSON between a question and its answer, and between that and the next question, inside the prompt's
    string; None: earlier turns cannot be carried."""

    def exchange(self, record: Record, payload: Sized, finished: Finished) -> Exchange:
        """A request whose bytes go out as they are."""
        return Exchange(record, cast(bytes, payload), finished)

    def read(self, exchange: Exchange, *, keep_text: bool) -> int:
        """An answer that is no stream waits for its end."""
        return self._read(exchange, keep_text).progress if _is_stream(exchange) else 0

    def _read(self, exchange: Exchange, keep_text: bool) -> AnswerReader:
        reader = cast("AnswerReader | None", exchange.reader)
        if reader is None:
            reader = exchange.reader = AnswerReader(self.carrier, keep_text=keep_text)
        for stamp_ns, piece in exchange.take_pieces():
            reader.feed(stamp_ns, piece)
        return reader

    def settle(self, exchange: Exchange, *, keep_text: bool) -> str:
        """Stream, whole answer or refusal, by the answer's head."""
        record = exchange.record
        if not exchange.status:
            return ""
        record.status = exchange.status
        if _is_stream(exchange):
            reader = self._read(exchange, keep_text)
            reader.settle(record, ended_whole=exchange.ending is Ending.WHOLE)
            return reader.text
        return self._settle_unstreamed(exchange, record)

    def _settle_unstreamed(self, exchange: Exchange, record: Record) -> str:
        if not 200 <= exchange.status < 300:
            settle_refusal(record, exchange.status, _words_of(exchange), exchange.hints)
            return ""
        pieces = exchange.take_pieces()
        body = b"".join(piece for _, piece in pieces)
        if exchange.ending is not Ending.WHOLE:
            record.outcome = Outcome.TRUNCATED
        else:
            stamp_ns = pieces[-1][0] if pieces else record.done_ns or 0
            return settle_whole(record, body, stamp_ns, self.carrier)
        return ""


def _words_of(exchange: Exchange) -> bytes:
    """A refusal's body; the status is its outcome even where the words cannot be decoded."""
    try:
        return b"".join(piece for _, piece in exchange.take_pieces())
    except ValueError as error:
        exchange.record.note = str(error)
        return b""


def _is_stream(exchange: Exchange) -> bool:
    return exchange.is_event_stream and 200 <= exchange.status < 300
