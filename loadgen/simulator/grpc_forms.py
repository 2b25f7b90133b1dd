"""The messages of the scripted gRPC services: vLLM's engine, and KServe v2 as Triton and as MLServer word it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from google.protobuf.message import DecodeError

from loadgen.clients import kserve, kserve_tensors, vllm_grpc
from loadgen.simulator.ask import count_words
from loadgen.simulator.chunks import text_of

KserveForm = Literal["triton", "mlserver"]
INPUTS = (("PROMPT", "BYTES"), ("MAX_TOKENS", "INT32"))
OUTPUTS = (("TOKEN", "BYTES"), ("INDEX", "INT32"))
FIRST_ID = 1000
VOCABULARY = 32_000


class NotARequestError(ValueError):
    """A message that asks for nothing that can be answered."""


@dataclass(frozen=True, slots=True)
class GrpcAsk:
    """What a request asks: tokens in its prompt, tokens to answer with."""

    n_input: int
    max_tokens: int


class Form(Protocol):
    """How one service words requests and answers."""

    name: str

    def parse(self, data: bytes) -> GrpcAsk:
        """Read a request. Raises NotARequestError."""
        ...

    def chunk(self, start: int, count: int, n_input: int) -> bytes:
        """The message with tokens *start* … of an answer."""
        ...

    def final(self, done: int, n_input: int, reason: str) -> bytes | None:
        """The message after the last token; None: there is none."""
        ...

    def in_band(self, words: str) -> bytes | None:
        """An error inside an answer; None: the service has none but a status."""
        ...


class VllmForm:
    """``VllmEngine/Generate``: ids; the final message repeats the last token."""

    name = "vllm-grpc"

    def parse(self, data: bytes) -> GrpcAsk:
        """Text counts by its words, ids as they are."""
        request = _parsed(vllm_grpc.MESSAGES["GenerateRequest"], data)
        n_input = len(request.tokenized.input_ids) or count_words(request.text)
        return GrpcAsk(n_input, request.sampling_params.max_tokens or 16)

    def chunk(self, start: int, count: int, n_input: int) -> bytes:
        """As many ids."""
        response = vllm_grpc.MESSAGES["GenerateResponse"]()
        response.chunk.token_ids.extend(range(FIRST_ID + start, FIRST_ID + start + count))
        response.chunk.prompt_tokens, response.chunk.completion_tokens = n_input, count
        return _bytes(response)

    def final(self, done: int, n_input: int, reason: str) -> bytes | None:
        """The complete message."""
        response = vllm_grpc.MESSAGES["GenerateResponse"]()
        if done:
            response.complete.output_ids.append(FIRST_ID + done - 1)
        response.complete.finish_reason, response.complete.completion_tokens = reason, min(done, 1)
        response.complete.prompt_tokens = n_input
        return _bytes(response)

    def in_band(self, words: str) -> bytes | None:
        """A complete message whose reason is an error; it has no room for words."""
        return self.final(0, 0, "error")

    def info(self, model: str, max_model_len: int) -> bytes:
        """GetModelInfo's answer."""
        return _bytes(
            vllm_grpc.MESSAGES["GetModelInfoResponse"](
                model_path=model,
                served_model_name=model,
                is_generation=True,
                max_context_length=max_model_len,
                vocab_size=VOCABULARY,
            )
        )


class KserveModel:
    """``ModelStreamInfer`` of a decoupled model that streams text, one response a chunk."""

    name = "kserve"

    def __init__(self, server: KserveForm) -> None:
        self.server = server

    def parse(self, data: bytes) -> GrpcAsk:
        """PROMPT counts by its words; MAX_TOKENS as it is, typed or raw."""
        request = _parsed(kserve_tensors.MESSAGES["ModelInferRequest"], data)
        inputs = {tensor.name: (place, tensor) for place, tensor in enumerate(request.inputs)}
        if {name for name, _ in INPUTS} != inputs.keys():
            raise NotARequestError(
                f"expected inputs {', '.join(name for name, _ in INPUTS)}; got {', '.join(inputs)}"
            )
        (prompt_at, prompt), (limit_at, limit) = inputs["PROMPT"], inputs["MAX_TOKENS"]
        raw = request.raw_input_contents
        text = raw[prompt_at][4:] if raw else prompt.contents.bytes_contents[0]
        tokens = struct.unpack("<i", raw[limit_at])[0] if raw else limit.contents.int_contents[0]
        return GrpcAsk(count_words(text.decode(errors="replace")), tokens)

    def chunk(self, start: int, count: int, n_input: int) -> bytes:
        """TOKEN and INDEX, raw as Triton sends them, typed as MLServer does."""
        response = self._response()
        index = response.outputs.add(name="INDEX", datatype="INT32", shape=[1])
        token = response.outputs.add(name="TOKEN", datatype="BYTES", shape=[1])
        text = text_of(start, count).encode()
        if self.server == "triton":
            response.raw_output_contents.extend(
                [struct.pack("<i", start), struct.pack("<I", len(text)) + text]
            )
        else:
            index.contents.int_contents.append(start)
            token.contents.bytes_contents.append(text)
        return self._wrapped(response, final=False)

    def final(self, done: int, n_input: int, reason: str) -> bytes | None:
        """Triton's empty final response."""
        return self._wrapped(self._response(), final=True) if self.server == "triton" else None

    def in_band(self, words: str) -> bytes | None:
        """Triton's error_message."""
        if self.server != "triton":
            return None
        return _bytes(kserve_tensors.MESSAGES["ModelStreamInferResponse"](error_message=words))

    def _response(self) -> Any:
        return kserve_tensors.MESSAGES["ModelInferResponse"](model_name="sim", model_version="1")

    def _wrapped(self, response: Any, *, final: bool) -> bytes:
        if self.server != "triton":
            return _bytes(response)
        response.parameters.add(key=kserve.IS_FINAL).value.bool_param = final
        return _bytes(kserve_tensors.MESSAGES["ModelStreamInferResponse"](infer_response=response))

    def server_metadata(self) -> bytes:
        """ServerMetadata's answer."""
        return _bytes(
            kserve_tensors.MESSAGES["ServerMetadataResponse"](name=self.server, version="simulated")
        )

    def model_metadata(self, model: str) -> bytes:
        """ModelMetadata's answer."""
        answer = kserve_tensors.MESSAGES["ModelMetadataResponse"](
            name=model, versions=["1"], platform="simulated"
        )
        for kinds, into in ((INPUTS, answer.inputs), (OUTPUTS, answer.outputs)):
            for name, datatype in kinds:
                into.add(name=name, datatype=datatype, shape=[1])
        return _bytes(answer)


def _parsed(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise NotARequestError(str(error)) from None


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
