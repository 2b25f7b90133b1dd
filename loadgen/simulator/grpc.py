"""The gRPC side of the simulator: vLLM's and KServe's services, answered by a script or by the engine model.

A script is that of the HTTP side (`scripted`), in the metadata ``x-sim-script``, without its HTTP faults. ``faults``
here are objects with a ``name`` of `GRPC_FAULTS` and ``at``, the number of chunks sent before. The truth of each
request stands beside the HTTP ones in GET /truth, its ``t_head_ns`` where initial metadata went out by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from pydantic import ValidationError

from loadgen.clients import kserve, vllm_grpc
from loadgen.errors import UsageError
from loadgen.simulator.grpc_forms import Form, GrpcAsk, KserveForm, KserveModel, NotARequestError, VllmForm
from loadgen.simulator.http import Endpoint
from loadgen.simulator.player import sleep_until_ns
from loadgen.simulator.request import End, EngineRequest
from loadgen.simulator.scripted import Script, chunk_offsets_ns, chunk_sizes
from loadgen.simulator.serve import GrpcOptions
from loadgen.simulator.truth import Truth

NS_PER_MS = 1_000_000
MESSAGE_LIMIT_BYTES = 1 << 30
GRPC_FAULTS = ("status", "in_band", "no_final", "large_message", "hang")
"""status: end with ``code`` (gRPC's word) and ``message``; in_band: an error inside the stream; no_final: leave the
last message out; large_message: one of ``bytes``; hang: nothing more for ``s`` seconds."""


class Refusal(Exception):
    """Ends a call with a status."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code = code


def parse_grpc_script(text: str) -> Script:
    """A script from its JSON. Raises Refusal for one that cannot be followed."""
    try:
        script = Script.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"script field {where}: {first['msg']}") from None
    for fault in script.faults:
        if isinstance(fault, str) or fault.get("name") not in GRPC_FAULTS:
            words = f"unknown gRPC fault {fault!r} (objects with a name of {', '.join(GRPC_FAULTS)})"
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, words)
    return script


class GrpcServices(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """Both services behind one endpoint's engine, key and truth."""

    def __init__(self, endpoint: Endpoint, server: KserveForm) -> None:
        self._endpoint = endpoint
        vllm, model = VllmForm(), KserveModel(server)
        options = endpoint.options
        answers: dict[str, Callable[[bytes], bytes]] = {
            vllm_grpc.MODEL_INFO: lambda _: vllm.info(options.model, options.max_model_len),
            kserve.SERVER_METADATA: lambda _: model.server_metadata(),
            kserve.MODEL_METADATA: lambda _: model.model_metadata(options.model),
        }
        self._handlers = {path: grpc.unary_unary_rpc_method_handler(_fixed(a)) for path, a in answers.items()}
        self._handlers[vllm_grpc.GENERATE] = grpc.unary_stream_rpc_method_handler(self._unary_stream(vllm))
        self._handlers[kserve.STREAM_INFER] = grpc.stream_stream_rpc_method_handler(
            self._stream_stream(model)
        )

    def service(self, details: Any) -> Any:
        """The handler of a method; None: unimplemented."""
        return self._handlers.get(details.method)

    def _unary_stream(self, form: Form) -> Any:
        async def handle(data: bytes, context: Any) -> None:
            await self._call(data, context, form)

        return handle

    def _stream_stream(self, form: Form) -> Any:
        async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
            async for data in requests:
                await self._call(data, context, form)

        return handle

    async def _call(self, data: bytes, context: Any, form: Form) -> None:
        received = time.monotonic_ns()
        metadata = dict(context.invocation_metadata())
        truth = Truth(metadata.get("x-loadgen-id", "grpc"), form.name, received)
        truth.t_body_ns = received
        try:
            self._check_key(metadata)
            ask = form.parse(data)
            truth.n_input = ask.n_input
            if "x-sim-script" in metadata:
                await _scripted(parse_grpc_script(metadata["x-sim-script"]), ask, context, form, truth)
            else:
                await self._simulated(ask, context, form, truth)
            truth.status = 0
        except NotARequestError as error:
            truth.status, truth.outcome = grpc.StatusCode.INVALID_ARGUMENT.value[0], "refused"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Refusal as refusal:
            truth.status = refusal.code.value[0]
            truth.outcome = "cut" if truth.chunk_ns else "refused"
            await context.abort(refusal.code, str(refusal))
        except asyncio.CancelledError:
            truth.outcome = "client_left"
            raise
        finally:
            truth.t_done_ns = time.monotonic_ns()
            self._endpoint.truth.add(truth)

    def _check_key(self, metadata: dict[str, Any]) -> None:
        key = self._endpoint.options.api_key
        if key is not None and metadata.get("authorization") != f"Bearer {key}":
            raise Refusal(grpc.StatusCode.UNAUTHENTICATED, "Unauthorized")

    async def _simulated(self, ask: GrpcAsk, context: Any, form: Form, truth: Truth) -> None:
        """Tokens as the engine model makes them."""
        limit = self._endpoint.options.max_model_len
        if ask.n_input + ask.max_tokens > limit:
            words = f"The decoder prompt (length {ask.n_input}) is longer than the maximum model length of {limit}."
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, words)
        steps: asyncio.Queue[End | None] = asyncio.Queue()
        request = EngineRequest(
            ask.n_input,
            ask.max_tokens,
            truth.t_recv_ns,
            on_token=lambda _request, _last: steps.put_nowait(None),
            on_end=lambda _request, end: steps.put_nowait(end),
        )
        driver = self._endpoint.driver
        if not driver.submit(request):
            raise Refusal(
                grpc.StatusCode.UNAVAILABLE, "The engine is currently busy and cannot accept new requests."
            )
        try:
            while truth.n_output < ask.max_tokens:
                if (end := await steps.get()) not in (None, End.DONE):
                    raise Refusal(grpc.StatusCode.INTERNAL, f"the engine has ended the request: {end}")
                if end is None:
                    await _send_chunk(context, form, truth, 1)
        except asyncio.CancelledError:
            driver.abort(request)
            raise
        driver.metrics.ended(request, is_stop=False)
        await _send_final(context, form, truth, "length")


def _fixed(answer: Callable[[bytes], bytes]) -> Any:
    async def handle(data: bytes, context: Any) -> bytes:
        return answer(data)

    return handle


async def _send_chunk(context: Any, form: Form, truth: Truth, count: int) -> None:
    data = form.chunk(truth.n_output, count, truth.n_input or 0)
    truth.chunk_ns.append(time.monotonic_ns())
    truth.chunk_tokens.append(count)
    truth.n_output += count
    await context.write(data)


async def _send_final(context: Any, form: Form, truth: Truth, reason: str) -> None:
    if (data := form.final(truth.n_output, truth.n_input or 0, reason)) is not None:
        await context.write(data)


async def _scripted(script: Script, ask: GrpcAsk, context: Any, form: Form, truth: Truth) -> None:
    """Chunks at the script's instants, its faults between them."""
    truth.scripted = True
    faults: list[dict[str, Any]] = [fault for fault in script.faults if isinstance(fault, dict)]
    truth.faults = [str(fault["name"]) for fault in faults]
    sizes = chunk_sizes(ask.max_tokens if script.tokens is None else script.tokens, script.tokens_per_chunk)
    if script.head_ms or script.role == "early":
        await sleep_until_ns(truth.t_recv_ns + round(script.head_ms * NS_PER_MS))
        truth.t_head_ns = time.monotonic_ns()
        await context.send_initial_metadata(())
    for place, (size, offset) in enumerate(zip(sizes, chunk_offsets_ns(script, len(sizes)), strict=True)):
        await _fail(faults, place, context, form, truth)
        truth.planned_ns = truth.planned_ns or truth.t_recv_ns + offset
        await sleep_until_ns(truth.t_recv_ns + offset)
        await _send_chunk(context, form, truth, size)
    await _fail(faults, len(sizes), context, form, truth)
    if "no_final" not in truth.faults:
        await _send_final(context, form, truth, script.finish_reason)


async def _fail(faults: list[dict[str, Any]], place: int, context: Any, form: Form, truth: Truth) -> None:
    """What the script wants to go wrong after *place* chunks."""
    for fault in faults:
        if int(fault.get("at", 0)) != place:
            continue
        if fault["name"] == "status":
            code = getattr(grpc.StatusCode, str(fault.get("code", "INTERNAL")))
            raise Refusal(code, str(fault.get("message", "")))
        if fault["name"] == "in_band" and (data := form.in_band(str(fault.get("message", "")))) is not None:
            truth.outcome = "cut"
            await context.write(data)
        elif fault["name"] == "large_message":
            await context.write(b"\x7a" + _varint(int(fault["bytes"])) + bytes(int(fault["bytes"])))
        elif fault["name"] == "hang":
            await asyncio.sleep(float(fault.get("s", 3600)))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


async def start_grpc(endpoint: Endpoint, host: str, asked: GrpcOptions) -> tuple[Any, int]:
    """(the running server, its port). Raises UsageError when the address cannot be bound."""
    options = [("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES), ("grpc.so_reuseport", 0)]
    if asked.max_metadata_bytes is not None:
        options.append(("grpc.max_metadata_size", asked.max_metadata_bytes))
        options.append(("grpc.absolute_max_metadata_size", 2 * asked.max_metadata_bytes))
    made = grpc.aio.server(options=options)
    made.add_generic_rpc_handlers((GrpcServices(endpoint, asked.server),))
    try:
        bound: int = made.add_insecure_port(f"{host}:{asked.port}")
    except RuntimeError as error:
        raise UsageError(f"cannot listen on {host}:{asked.port}: {error}") from None
    await made.start()
    return made, bound
