"""vLLM's gRPC engine: ``vllm.grpc.engine.VllmEngine/Generate`` (protocol package smg-grpc-proto).

Token ids come out, a chunk's count is of that message alone, and the final message repeats the last tokens: they
count only where no chunk brought them (an answer that is not streamed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from loadgen.clients.grpc_answer import Said
from loadgen.clients.protobuf import message_classes
from loadgen.clients.service import Caller, GrpcDialect, Service
from loadgen.errors import UsageError
from loadgen.plan import Plan

if TYPE_CHECKING:
    from loadgen.schedule import ScheduleRow

SERVICE = "vllm.grpc.engine.VllmEngine"
GENERATE = f"/{SERVICE}/Generate"
MODEL_INFO = f"/{SERVICE}/GetModelInfo"

MESSAGES = message_classes(
    "vllm.grpc.engine",
    {
        "SamplingParams": (
            "float temperature=1; float top_p=2; uint32 top_k=3; float min_p=4; float frequency_penalty=5; "
            "float presence_penalty=6; float repetition_penalty=7; uint32 max_tokens=8; uint32 min_tokens=9; "
            "repeated string stop=10; repeated uint32 stop_token_ids=11; bool skip_special_tokens=12; "
            "bool ignore_eos=14; uint32 n=15; int32 seed=24"
        ),
        "TokenizedInput": "string original_text=1; repeated uint32 input_ids=2",
        "GenerateRequest": (
            "string request_id=1; TokenizedInput tokenized=2; string text=3; SamplingParams sampling_params=4; "
            "bool stream=5"
        ),
        "GenerateStreamChunk": (
            "repeated uint32 token_ids=1; uint32 prompt_tokens=2; uint32 completion_tokens=3; "
            "uint32 cached_tokens=4; uint32 index=7"
        ),
        "GenerateComplete": (
            "repeated uint32 output_ids=1; string finish_reason=2; uint32 prompt_tokens=3; "
            "uint32 completion_tokens=4; uint32 cached_tokens=5; uint32 index=8"
        ),
        "GenerateResponse": "GenerateStreamChunk chunk=1; GenerateComplete complete=2",
        "GetModelInfoRequest": "",
        "GetModelInfoResponse": (
            "string model_path=1; bool is_generation=2; uint32 max_context_length=3; uint32 vocab_size=4; "
            "string served_model_name=6; string model_type=8"
        ),
    },
)
"""The part of the protocol that is used here; field numbers of smg-grpc-proto 0.4's vllm_engine.proto."""

DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "n": 1, "skip_special_tokens": True}
"""Where nothing else is asked, as the HTTP endpoint has it; the service takes a field that is missing as zero."""

_RESPONSE = MESSAGES["GenerateResponse"]


def read_message(data: bytes) -> Said:
    """One GenerateResponse of a stream. Raises ValueError."""
    try:
        response = _RESPONSE.FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    if response.HasField("chunk"):
        chunk = response.chunk
        tokens = len(chunk.token_ids) or chunk.completion_tokens
        return Said(tokens > 0, tokens, n_input=chunk.prompt_tokens or None)
    complete = response.complete
    reason = complete.finish_reason
    return Said(
        len(complete.output_ids) > 0,
        len(complete.output_ids),
        repeats=True,
        finish_reason=reason or None,
        error=f"finish_reason {reason!r}" if reason in ("error", "abort") else None,
        ends=True,
        n_input=complete.prompt_tokens or None,
        n_cached=complete.cached_tokens,
    )


class Requests:
    """Encodes Generate requests. *sampling* are fields of SamplingParams beside the lengths.

    Raises ValueError for a field that SamplingParams does not have.
    """

    def __init__(self, sampling: dict[str, Any], *, ignore_eos: bool, ids: bool) -> None:
        self._ids, self._ignore_eos = ids, ignore_eos
        params = MESSAGES["SamplingParams"](**{**DEFAULTS, **sampling})
        if ignore_eos:
            params.ignore_eos = True
        request = MESSAGES["GenerateRequest"](stream=True, sampling_params=params)
        self._common: bytes = request.SerializeToString()

    def encode(self, row: ScheduleRow, prompt: bytes, request_id: str) -> bytes:
        """What varies by row, after what does not: joined messages are merged by whoever parses them."""
        own = MESSAGES["GenerateRequest"](request_id=request_id)
        own.sampling_params.max_tokens = row.n_output
        if self._ignore_eos:
            own.sampling_params.min_tokens = row.n_output
        if self._ids:
            own.tokenized.input_ids.extend(memoryview(prompt).cast("I"))
        else:
            own.text = prompt.decode()
        own_bytes: bytes = own.SerializeToString()
        return self._common + own_bytes


def opened(plan: Plan, caller: Caller) -> Service:
    """The engine behind *caller*; ``--extra-body`` holds fields of its SamplingParams."""
    (answer,) = caller.call(MODEL_INFO, MESSAGES["GetModelInfoRequest"]().SerializeToString())
    info = MESSAGES["GetModelInfoResponse"].FromString(answer)
    try:
        requests = Requests(plan.extra_body, ignore_eos=plan.ignore_eos, ids=plan.prompt_as == "ids")
    except (ValueError, TypeError) as error:
        raise UsageError(f"--extra-body: {error} (vllm-grpc takes fields of SamplingParams)") from None
    return Service(
        GENERATE,
        requests.encode,
        read_message,
        model=info.served_model_name or info.model_path,
        owned_by="vllm",
        must_end=True,
        vocab_size=info.vocab_size or None,
        counts_prompts=True,
    )


VLLM_GRPC = GrpcDialect("vllm-grpc", opened)
