"""The engine's tokens on their way to one client."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.simulator.answer import chunked
from loadgen.simulator.ask import Ask
from loadgen.simulator.chunks import WORDS, Dialect, text_of, usage, word
from loadgen.simulator.faults import ENGINE_DIED, error_json
from loadgen.simulator.player import Wire
from loadgen.simulator.request import End, EngineRequest
from loadgen.simulator.truth import Truth

WORD_JSON = tuple(orjson.dumps(" " + w) for w in WORDS)
DONE = b"data: [DONE]\n\n"
BODY_END = b"0\r\n\r\n"
NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Extras:
    """What vLLM adds when asked by its options: times of the request, cached prompt tokens, usage unasked."""

    request_metrics: bool = False
    prompt_tokens_details: bool = False
    force_usage: bool = False


def sse(data: str) -> bytes:
    """One event, vLLM's way."""
    return b"data: " + data.encode() + b"\n\n"


def request_metrics(request: EngineRequest) -> dict[str, float | None]:
    """The ``metrics`` object of ``--enable-per-request-metrics``; times in ms."""
    assert request.first_ns is not None
    assert request.end_ns is not None
    scheduled = request.first_scheduled_ns or request.arrival_ns
    total = request.end_ns - request.arrival_ns
    decode = request.end_ns - request.first_ns
    further = request.n_output - 1
    return {
        "time_to_first_token_ms": (request.first_ns - request.arrival_ns) / NS_PER_MS,
        "generation_time_ms": decode / NS_PER_MS,
        "queue_time_ms": (scheduled - request.arrival_ns) / NS_PER_MS,
        "mean_itl_ms": decode / further / NS_PER_MS if further else None,
        "tokens_per_second": request.n_output / (total / 1e9) if total else None,
    }


class TokenStream:
    """Called at the end of each step that gave this request a token; writes the chunk at once."""

    def __init__(self, ask: Ask, dialect: Dialect, wire: Wire, truth: Truth, extras: Extras) -> None:
        self._ask, self._dialect, self._wire, self._truth = ask, dialect, wire, truth
        self._extras = extras
        self._request: EngineRequest | None = None
        self.finish_reason = "length"
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before, after = dialect.token_parts()
        self._before, self._after = b"data: " + before, after + b"\n\n"

    def on_token(self, request: EngineRequest, is_last: bool) -> None:
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

    def on_end(self, request: EngineRequest, end: End) -> None:
        """The engine has done with the request, one way or the other."""
        self._request = request
        self._truth.n_cached = request.n_cached
        if self.finished.done():
            return
        if end is End.DONE:
            if self._ask.stream:
                self._wire.send(self._tail(self._truth.n_output))
            self._end("ok")
        else:
            if self._ask.stream:
                died = sse(error_json(ENGINE_DIED, "InternalServerError", 500))
                self._wire.send(chunked(died) + chunked(DONE) + BODY_END)
            self._end("cut")

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
        if self._ask.include_usage or self._extras.force_usage:
            out += chunked(sse(self._dialect.usage_chunk(self._usage(n), self._more())))
        return out + chunked(DONE) + BODY_END

    def _usage(self, n: int) -> dict[str, Any]:
        use = usage(self._ask.n_input, n)
        if self._extras.prompt_tokens_details and self._request:
            use["prompt_tokens_details"] = {"cached_tokens": self._request.n_cached}
        return use

    def _more(self) -> dict[str, Any]:
        if self._extras.request_metrics and self._request:
            return {"metrics": request_metrics(self._request)}
        return {}

    def whole(self) -> bytes:
        """The answer to a request that asked for no stream."""
        n = self._truth.n_output
        return self._dialect.whole(text_of(0, n), self.finish_reason, self._usage(n), self._more())
