"""The engine's tokens on their way to one client."""

from __future__ import annotations

import asyncio
import time

import orjson

from loadgen.simulator.answer import chunked
from loadgen.simulator.ask import Ask
from loadgen.simulator.chunks import WORDS, Dialect, text_of, usage, word
from loadgen.simulator.core import EngineRequest
from loadgen.simulator.player import Wire
from loadgen.simulator.truth import Truth

WORD_JSON = tuple(orjson.dumps(" " + w) for w in WORDS)
DONE = b"data: [DONE]\n\n"


def sse(data: str) -> bytes:
    """One event, vLLM's way."""
    return b"data: " + data.encode() + b"\n\n"


class TokenStream:
    """Called by the driver at the end of each step that gave this request a token; writes the chunk at
    once.
    """

    def __init__(self, ask: Ask, dialect: Dialect, wire: Wire, truth: Truth) -> None:
        self._ask, self._dialect, self._wire, self._truth = ask, dialect, wire, truth
        self.finish_reason = "length"
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before, after = dialect.token_parts()
        self._before, self._after = b"data: " + before, after + b"\n\n"

    def __call__(self, request: EngineRequest, is_last: bool) -> None:
        """One more token for this request."""
        truth = self._truth
        if self._wire.is_gone:
            self._end("client_left")
            return
        if truth.planned_ns is None:
            truth.planned_ns = request.first_ns
        truth.n_output += 1
        if self._ask.stream:
            truth.chunk_ns.append(self._wire.send(self._chunk(truth.n_output, is_last)))
            truth.chunk_tokens.append(1)
        if is_last:
            if self._ask.stream:
                self._wire.send(self._tail(truth.n_output))
            self._end("ok")

    def _end(self, outcome: str) -> None:
        self._truth.outcome = outcome
        self._truth.t_done_ns = time.monotonic_ns()
        if not self.finished.done():
            self.finished.set_result(None)

    def _chunk(self, n: int, is_last: bool) -> bytes:
        ask, dialect = self._ask, self._dialect
        role = b""
        if n == 1 and ask.chat:
            zero = usage(ask.n_input, 0) if ask.continuous_usage else None
            role = chunked(sse(dialect.chunk({"role": "assistant", "content": ""}, use=zero)))
        if is_last or ask.continuous_usage:
            use = usage(ask.n_input, n) if ask.continuous_usage else None
            return role + chunked(
                sse(dialect.chunk(word(n - 1), self.finish_reason if is_last else None, use))
            )
        return role + chunked(self._before + WORD_JSON[(n - 1) % len(WORD_JSON)] + self._after)

    def _tail(self, n: int) -> bytes:
        out = b""
        if self._ask.include_usage:
            out += chunked(sse(self._dialect.usage_chunk(usage(self._ask.n_input, n))))
        return out + chunked(DONE) + b"0\r\n\r\n"

    def whole(self) -> bytes:
        """The answer to a request that asked for no stream."""
        n = self._truth.n_output
        return self._dialect.whole(text_of(0, n), self.finish_reason, usage(self._ask.n_input, n))
