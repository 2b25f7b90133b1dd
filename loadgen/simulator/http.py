"""The OpenAI-compatible endpoint: routes, key, refusals; answers come from a script or from the engine
model.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from aiohttp import web

from loadgen.simulator.answer import head_bytes
from loadgen.simulator.ask import ApiError, Ask, check_length, parse_ask
from loadgen.simulator.blocks import Key
from loadgen.simulator.chunks import Dialect
from loadgen.simulator.driver import Driver
from loadgen.simulator.faults import ENGINE_DIED
from loadgen.simulator.player import OwnBytes, Wire, play, sleep_until_ns
from loadgen.simulator.prefix import prompt_keys
from loadgen.simulator.request import End, EngineRequest
from loadgen.simulator.scripted import (
    Script,
    ScriptBook,
    ScriptError,
    parse_script,
    render,
    stream_answer,
    whole_answer,
)
from loadgen.simulator.stream import Extras, TokenStream
from loadgen.simulator.truth import Truth, TruthLog

MAX_BODY_BYTES = 1 << 30
MAX_HEADER_BYTES = 1 << 20
MAX_HEADERS = 20_000
"""A prompt may come in 10,000 of them."""
DEFAULT_COMPLETION_TOKENS = 16
STREAM_TYPE = "text/event-stream; charset=utf-8"
FLUSH_S = 1.0
NS_PER_MS = 1_000_000
BUSY_TYPE = "Service Unavailable"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the endpoint is called and how it answers. ``eos_mean``: mean output length without ignore_eos."""

    model: str = "sim"
    api_key: str | None = None
    max_model_len: int = 32_768
    template_tokens: int = 4
    default_output: int = 128
    eos_mean: float | None = None
    seed: int = 0
    truth_log: Path | None = None
    extras: Extras = field(default_factory=Extras)


class Endpoint:
    """The handlers. One engine behind it; scripts have precedence."""

    def __init__(self, options: ServerOptions, driver: Driver, book: ScriptBook) -> None:
        self.options, self.driver, self._book = options, driver, book
        self.truth = TruthLog(options.truth_log)
        self._rng = np.random.default_rng(options.seed)
        self._count = itertools.count()

    def app(self) -> web.Application:
        """The aiohttp application; starts and stops the engine's driver."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.post("/tokenize", self._tokenize),
                web.get("/metrics", self._metrics),
                web.get("/telemetry", self._telemetry),
                web.get("/truth", self._truth),
                web.post("/truth/reset", self._truth_reset),
            ]
        )
        app.cleanup_ctx.append(self._life)
        return app

    async def _life(self, app: web.Application):  # type: ignore[no-untyped-def]  # noqa: ANN202
        self.driver.start()
        flusher = asyncio.create_task(self._flush())
        yield
        flusher.cancel()
        await self.driver.stop()
        self.truth.close()

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            self.truth.flush()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.driver.is_down else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.driver.metrics.render(), content_type="text/plain")

    async def _telemetry(self, request: web.Request) -> web.Response:
        return json_response(self.driver.telemetry.read(time.monotonic_ns()))

    async def _tokenize(self, request: web.Request) -> web.Response:
        """A word is a token; ids are places in the text, for want of a vocabulary."""
        options = self.options
        try:
            row = orjson.loads(await request.read())
            chat = isinstance(row, dict) and "messages" in row
            body = orjson.dumps({k: v for k, v in row.items() if k != "max_tokens"})
            ask = parse_ask(body, chat=chat, model=options.model, template_tokens=options.template_tokens)
        except (orjson.JSONDecodeError, AttributeError) as err:
            raise web.HTTPBadRequest(text=str(err)) from err
        except ApiError as err:
            return error_response(err, {})
        found = {"count": ask.n_input, "max_model_len": options.max_model_len, "token_strs": None}
        return json_response(found | {"tokens": list(range(ask.n_input))})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if (refused := self._refuse_key(request)) is not None:
            return refused
        card = {
            "id": self.options.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "loadgen",
        }
        card |= {"root": self.options.model, "parent": None, "max_model_len": self.options.max_model_len}
        return json_response({"object": "list", "data": [card]})

    async def _truth(self, request: web.Request) -> web.Response:
        return web.Response(body=self.truth.to_json(), content_type="application/json")

    async def _truth_reset(self, request: web.Request) -> web.Response:
        self.truth.reset()
        return web.Response(status=204)

    def _refuse_key(self, request: web.Request) -> web.Response | None:
        """vLLM's 401: the error is a string, not an object."""
        key = self.options.api_key
        given = request.headers.get("authorization", "")
        if key is None or hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            return None
        return json_response({"error": "Unauthorized"}, status=401)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        received = time.monotonic_ns()
        asked_id = request.headers.get("x-request-id")
        request_id = asked_id or f"sim-{next(self._count)}"
        truth = Truth(request_id, "chat" if chat else "completions", received)
        echo = {"x-request-id": request_id}
        try:
            if (refused := self._refuse_key(request)) is not None:
                truth.status, truth.outcome = 401, "refused"
                refused.headers.update(echo)
                return refused
            return await self._answer(request, truth, asked_id, chat=chat)
        except ApiError as err:
            truth.status, truth.outcome = err.status, "refused"
            return error_response(err, echo)
        except asyncio.CancelledError:
            truth.outcome = "client_left"
            raise
        finally:
            if truth.t_done_ns is None:
                truth.t_done_ns = time.monotonic_ns()
            self.truth.add(truth)

    async def _answer(
        self, request: web.Request, truth: Truth, asked_id: str | None, *, chat: bool
    ) -> web.StreamResponse:
        script = self._script(request, asked_id)
        body = await request.read()
        truth.t_body_ns = time.monotonic_ns()
        options = self.options
        ask = parse_ask(
            body,
            chat=chat,
            model=options.model,
            template_tokens=options.template_tokens,
        )
        check_length(ask, options.max_model_len)
        truth.n_input = ask.n_input
        dialect = Dialect(
            chat, f"{'chatcmpl' if chat else 'cmpl'}-{truth.id}", options.model, int(time.time())
        )
        if script is not None:
            return await self._scripted(request, script, ask, dialect, truth)
        return await self._simulated(request, ask, dialect, truth)

    def _script(self, request: web.Request, asked_id: str | None) -> Script | None:
        text = request.headers.get("x-sim-script")
        if text is None:
            return self._book.take(asked_id)
        try:
            return parse_script(text)
        except ScriptError as err:
            raise ApiError(400, str(err), "BadRequestError", "x-sim-script") from err

    async def _scripted(
        self, request: web.Request, script: Script, ask: Ask, dialect: Dialect, truth: Truth
    ) -> web.StreamResponse:
        tokens = script.tokens if script.tokens is not None else self._length(ask)[0]
        if ask.stream:
            asked = (ask.include_usage, ask.continuous_usage)
            answer = stream_answer(script, dialect, ask.n_input, tokens, asked)
        else:
            answer = whole_answer(script, dialect, ask.n_input, tokens)
        answer.headers.insert(0, ("x-request-id", truth.id))
        parts = render(answer, script.faults)
        truth.scripted, truth.status = True, None if answer.silent else answer.status
        truth.faults = [fault if isinstance(fault, str) else str(fault["name"]) for fault in script.faults]
        truth.outcome = "refused" if answer.status >= 300 else "ok" if answer.clean else "cut"
        response = await play(Wire(request), parts, answer.ending, truth)
        if answer.body is not None and answer.status == 200 and answer.clean:
            truth.n_output = tokens
        return response

    def _length(self, ask: Ask) -> tuple[int, str]:
        """(tokens this answer will have, finish_reason)."""
        options = self.options
        default = options.default_output if ask.chat else DEFAULT_COMPLETION_TOKENS
        limit = ask.max_tokens or min(default, max(1, options.max_model_len - ask.n_input))
        if ask.ignore_eos or options.eos_mean is None:
            return limit, "length"
        natural = max(ask.min_tokens, int(self._rng.geometric(1 / max(1.0, options.eos_mean))))
        return (natural, "stop") if natural < limit else (limit, "length")

    def _engine_request(self, ask: Ask, tokens: int, truth: Truth, stream: TokenStream) -> EngineRequest:
        config = self.driver.engine.config
        keys: tuple[Key, ...] = ()
        keyed = 0
        if config.prefix_caching and ask.text is not None:
            template = self.options.template_tokens if ask.chat else 0
            keys, keyed = prompt_keys(ask.text, template, tokens, config.block_size)
        return EngineRequest(
            ask.n_input,
            tokens,
            truth.t_recv_ns,
            priority=ask.priority,
            keys=keys,
            n_keyed_input=keyed,
            on_token=stream.on_token,
            on_end=stream.on_end,
        )

    async def _simulated(
        self, request: web.Request, ask: Ask, dialect: Dialect, truth: Truth
    ) -> web.StreamResponse:
        tokens, finish = self._length(ask)
        wire = Wire(request)
        stream = TokenStream(ask, dialect, wire, truth, self.options.extras)
        stream.finish_reason = finish
        engine_request = self._engine_request(ask, tokens, truth, stream)
        intake_ms = self.driver.engine.config.intake_ms
        if intake_ms:
            await sleep_until_ns(truth.t_recv_ns + round(intake_ms * NS_PER_MS))
        if not self.driver.submit(engine_request):
            raise busy(self.driver.engine.config.faults.reject_status)
        truth.status = 200
        if ask.stream:
            headers = [
                ("x-request-id", truth.id),
                ("content-type", STREAM_TYPE),
                ("transfer-encoding", "chunked"),
            ]
            truth.t_head_ns = wire.send(head_bytes(200, headers))
        try:
            await stream.finished
        except asyncio.CancelledError:
            self.driver.abort(engine_request)
            raise
        if truth.outcome == "client_left":
            self.driver.abort(engine_request)
            return OwnBytes(keep=False)
        self.driver.metrics.ended(engine_request, is_stop=finish == "stop")
        if ask.stream:
            await wire.drained()
            return OwnBytes(keep=True)
        truth.t_head_ns = time.monotonic_ns()
        if engine_request.end is not End.DONE:
            truth.status = 500
            return error_response(
                ApiError(500, ENGINE_DIED, "InternalServerError"), {"x-request-id": truth.id}
            )
        return web.Response(
            body=stream.whole(), content_type="application/json", headers={"x-request-id": truth.id}
        )


def error_response(error: ApiError, headers: dict[str, str]) -> web.Response:
    """A refusal as an answer."""
    headers = {**headers, **error.headers}
    return web.Response(
        body=error.body(), status=error.status, content_type="application/json", headers=headers
    )


def busy(status: int) -> ApiError:
    """vLLM's words for a full queue (503), or a rate limit's (429); with Retry-After."""
    if status == 429:
        error = ApiError(429, "Too many requests. Please try again later.", "RateLimitError")
    else:
        text = "The engine is currently busy and cannot accept new requests. "
        error = ApiError(status, text + "Please try again later or on a different instance.", BUSY_TYPE)
    error.headers["retry-after"] = "1"
    return error


def json_response(row: object, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(row), status=status, content_type="application/json")
