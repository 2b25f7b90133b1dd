"""KServe v2, the Open Inference Protocol: ``inference.GRPCInferenceService/ModelStreamInfer``.

Two servers, two answers on the same path: Triton wraps each response in a ModelStreamInferResponse (with in-band
errors, and an empty last one where ``triton_enable_empty_final_response`` asks for it), MLServer sends bare
ModelInferResponses. Each message is read as what it is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from loadgen.clients.grpc_answer import Said
from loadgen.clients.kserve_tensors import MESSAGES, TensorKind, Tensors, choose_tensors, tensor
from loadgen.clients.service import Caller, GrpcDialect, Service
from loadgen.errors import UsageError
from loadgen.plan import Plan

if TYPE_CHECKING:
    from loadgen.schedule import ScheduleRow

SERVICE = "inference.GRPCInferenceService"
STREAM_INFER = f"/{SERVICE}/ModelStreamInfer"
SERVER_METADATA = f"/{SERVICE}/ServerMetadata"
MODEL_METADATA = f"/{SERVICE}/ModelMetadata"
EMPTY_FINAL, IS_FINAL = "triton_enable_empty_final_response", "triton_final_response"

_BARE, _WRAPPED = MESSAGES["ModelInferResponse"], MESSAGES["ModelStreamInferResponse"]
_LENGTH = struct.Struct("<I")


class Requests:
    """Encodes ModelInferRequests. *final*: ask Triton for its empty final response."""

    def __init__(self, model: str, tensors: Tensors, *, final: bool) -> None:
        self._tensors = tensors
        request = MESSAGES["ModelInferRequest"](model_name=model)
        if final:
            request.parameters.add(key=EMPTY_FINAL).value.bool_param = True
        for kind, value in tensors.constants:
            values = value if isinstance(value, list) else [value]
            values = [v.encode() if isinstance(v, str) else v for v in values]
            request.inputs.append(tensor(kind, values))
        self._common: bytes = request.SerializeToString()

    def encode(self, row: ScheduleRow, prompt: bytes, request_id: str) -> bytes:
        """What varies by row, after what does not: joined messages are merged by whoever parses them."""
        kinds = self._tensors
        own = MESSAGES["ModelInferRequest"](id=request_id)
        is_text = kinds.prompt.datatype == "BYTES"
        own.inputs.append(
            tensor(kinds.prompt, [prompt] if is_text else memoryview(prompt).cast("I").tolist())
        )
        if kinds.max_tokens is not None:
            own.inputs.append(tensor(kinds.max_tokens, [row.n_output]))
        own_bytes: bytes = own.SerializeToString()
        return self._common + own_bytes


class Answers:
    """Reads both forms of an answer message."""

    def __init__(self, tensors: Tensors) -> None:
        self._text, self._tokens = tensors.text, tensors.tokens

    def read(self, data: bytes) -> Said:
        """One message of an answer. Raises ValueError."""
        try:
            if _is_bare(data):
                return self._said(_BARE.FromString(data))
            wrapped = _WRAPPED.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from None
        if wrapped.error_message:
            return Said(error=wrapped.error_message)
        return self._said(wrapped.infer_response)

    def _said(self, response: Any) -> Said:
        ends = any(p.key == IS_FINAL and p.value.bool_param for p in response.parameters)
        text, count, seen = "", None, False
        for place, output in enumerate(response.outputs):
            if output.name == self._text:
                seen = True
                text = b"".join(_strings(output, response.raw_output_contents, place)).decode(
                    errors="replace"
                )
            elif output.name == self._tokens:
                seen, count = True, math.prod(output.shape)
        generated = bool(text or count) if seen else bool(response.outputs)
        return Said(generated, count, text, ends=ends)


def _strings(output: Any, raw: Any, place: int) -> Iterator[bytes]:
    """The elements of a BYTES tensor, typed or raw (each with four bytes of length before it)."""
    if place >= len(raw):
        yield from output.contents.bytes_contents
        return
    data, at = raw[place], 0
    while at + _LENGTH.size <= len(data):
        size = _LENGTH.unpack_from(data, at)[0]
        at += _LENGTH.size
        yield data[at : at + size]
        at += size


def _is_bare(data: bytes) -> bool:
    """Whether a message is a ModelInferResponse: its wrapper knows no fields but 1 and 2."""
    at, size = 0, len(data)
    while at < size:
        if data[at] >> 3 > 2:
            return True
        if data[at] & 7 != 2:  # both fields are of bytes
            return False
        at += 1
        length = shift = 0
        while at < size:
            byte = data[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        at += length
    return False


def opened(plan: Plan, caller: Caller) -> Service:
    """The plan's model: its tensors by ModelMetadata, ``--tensor`` and ``--extra-body``."""
    if plan.model is None:
        raise UsageError("kserve: name the model with --model")
    (told,) = caller.call(SERVER_METADATA, b"")
    server = MESSAGES["ServerMetadataResponse"].FromString(told).name
    asked = MESSAGES["ModelMetadataRequest"](name=plan.model)
    (told,) = caller.call(MODEL_METADATA, asked.SerializeToString())
    model = MESSAGES["ModelMetadataResponse"].FromString(told)
    inputs, outputs = ([_kind(k) for k in kinds] for kinds in (model.inputs, model.outputs))
    is_triton = "mlserver" not in server.lower()
    try:
        tensors = choose_tensors(inputs, outputs, plan.tensor, plan.extra_body)
        if (tensors.prompt.datatype == "BYTES") != (plan.prompt_as == "text"):
            raise ValueError(
                f"input {tensors.prompt.name} is of {tensors.prompt.datatype}: give --prompt-as "
                f"{'text' if tensors.prompt.datatype == 'BYTES' else 'ids'}"
            )
        requests = Requests(plan.model, tensors, final=is_triton)
    except ValueError as error:
        raise UsageError(f"kserve: {error}") from None
    notes = [] if tensors.tokens else ["the endpoint reports no usage: token counts are counts of responses"]
    if tensors.max_tokens is None:
        notes.append("no input tensor limits the output: the model decides its length")
    answers = Answers(tensors)
    return Service(
        STREAM_INFER,
        requests.encode,
        answers.read,
        plan.model,
        owned_by=server or None,
        must_end=is_triton,
        notes=notes,
    )


def _kind(declared: Any) -> TensorKind:
    return TensorKind(declared.name, declared.datatype, tuple(declared.shape))


KSERVE = GrpcDialect("kserve", opened)
