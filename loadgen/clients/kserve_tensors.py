"""KServe v2's messages, and which of a model's tensors mean what: by name, by the plan, or by what is usual."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from loadgen.clients.protobuf import message_classes

MESSAGES = message_classes(
    "inference",
    {
        "ServerMetadataRequest": "",
        "ServerMetadataResponse": "string name=1; string version=2; repeated string extensions=3",
        "ModelMetadataRequest": "string name=1; string version=2",
        "TensorMetadata": "string name=1; string datatype=2; repeated int64 shape=3",
        "ModelMetadataResponse": (
            "string name=1; repeated string versions=2; string platform=3; repeated TensorMetadata inputs=4; "
            "repeated TensorMetadata outputs=5"
        ),
        "ParameterValue": "bool bool_param=1; int64 int64_param=2; string string_param=3",
        "Parameter": "string key=1; ParameterValue value=2",
        "Contents": (
            "repeated bool bool_contents=1; repeated int32 int_contents=2; repeated int64 int64_contents=3; "
            "repeated uint32 uint_contents=4; repeated uint64 uint64_contents=5; repeated float fp32_contents=6; "
            "repeated double fp64_contents=7; repeated bytes bytes_contents=8"
        ),
        "Tensor": (
            "string name=1; string datatype=2; repeated int64 shape=3; repeated Parameter parameters=4; "
            "Contents contents=5"
        ),
        "ModelInferRequest": (
            "string model_name=1; string model_version=2; string id=3; repeated Parameter parameters=4; "
            "repeated Tensor inputs=5; repeated bytes raw_input_contents=7"
        ),
        "ModelInferResponse": (
            "string model_name=1; string model_version=2; string id=3; repeated Parameter parameters=4; "
            "repeated Tensor outputs=5; repeated bytes raw_output_contents=6"
        ),
        "ModelStreamInferResponse": "string error_message=1; ModelInferResponse infer_response=2",
    },
)
"""The part of the protocol that is used here; field numbers of its published grpc_service.proto."""

CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""Where a tensor's values stand, by its datatype."""

PROMPT_NAMES = ("text_input", "prompt", "input", "inputs", "query", "input_ids")
LIMIT_NAMES = ("max_tokens", "max_new_tokens", "max_output_tokens", "request_output_len", "output_len")
TEXT_NAMES = ("text_output", "token", "text", "output", "generated_text")
ROLES = ("prompt", "max_tokens", "text", "tokens")
"""What a tensor may be named for: two inputs, two outputs (``tokens``: a tensor of token ids)."""


@dataclass(frozen=True, slots=True)
class TensorKind:
    """A tensor as a model's metadata declares it; -1 in *shape* is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(slots=True)
class Tensors:
    """Which of a model's tensors mean what; *constants* are the values of all other inputs."""

    prompt: TensorKind
    max_tokens: TensorKind | None = None
    text: str | None = None
    tokens: str | None = None
    constants: list[tuple[TensorKind, Any]] = field(default_factory=list)


def choose_tensors(
    inputs: list[TensorKind], outputs: list[TensorKind], named: dict[str, str], values: dict[str, Any]
) -> Tensors:
    """Roles as *named*, else by usual names; inputs beyond them need *values*.

    A model that declares no inputs is asked with those that are named with their types (``NAME:BYTES``, and a shape
    if it is not [1]: ``NAME:INT64:1,-1``) and with *values*. Raises ValueError saying what to give.
    """
    for role in named.keys() - set(ROLES):
        raise ValueError(f"no tensor has the role {role!r} (roles: {', '.join(ROLES)})")
    prompt = _chosen(named.get("prompt"), inputs, PROMPT_NAMES)
    if prompt is None:
        prompt = next((kind for kind in inputs if kind.datatype == "BYTES"), None)
    if prompt is None:
        raise ValueError("which input is the prompt? (--tensor prompt=NAME, or prompt=NAME:BYTES)")
    limit = _chosen(named.get("max_tokens"), inputs, LIMIT_NAMES)
    text = _chosen(named.get("text"), outputs, TEXT_NAMES)
    chosen = Tensors(prompt, limit, text.name if text else None, named.get("tokens"))
    if text is None and chosen.tokens is None:
        chosen.text = next((kind.name for kind in outputs if kind.datatype == "BYTES"), None)
    unknown = values.keys() - {kind.name for kind in inputs}
    if inputs and unknown:
        raise ValueError(f"the model has no input {', '.join(sorted(unknown))}")
    for kind in inputs or [_guessed(name, value) for name, value in values.items()]:
        if kind.name in (prompt.name, limit and limit.name):
            continue
        if kind.name in values:
            chosen.constants.append((kind, values[kind.name]))
        elif kind.name == "stream" and kind.datatype == "BOOL":
            chosen.constants.append((kind, True))
        else:
            raise ValueError(
                f"the model's input {kind.name} ({kind.datatype}) needs a value: "
                f"--extra-body '{{\"{kind.name}\": …}}'"
            )
    return chosen


def _chosen(named: str | None, kinds: list[TensorKind], usual: tuple[str, ...]) -> TensorKind | None:
    if named is None:
        found = {kind.name.lower(): kind for kind in reversed(kinds)}
        return next((found[word] for word in usual if word in found), None)
    name, *declared = named.split(":")
    if declared:
        return _declared(name, *declared)
    for kind in kinds:
        if kind.name == name:
            return kind
    if not kinds:
        raise ValueError(
            f"the model declares no tensors: say {name}'s type (NAME:BYTES, NAME:INT32, NAME:INT64:1,-1)"
        )
    raise ValueError(f"the model has no tensor {name!r} (it has {', '.join(kind.name for kind in kinds)})")


def _declared(name: str, datatype: str, shape: str = "1") -> TensorKind:
    if datatype not in CONTENTS:
        raise ValueError(f"no datatype {datatype!r} (datatypes: {', '.join(CONTENTS)})")
    try:
        return TensorKind(name, datatype, tuple(int(size) for size in shape.split(",")))
    except ValueError:
        raise ValueError(f"tensor {name}: {shape!r} is no shape (1,-1)") from None


def _guessed(name: str, value: Any) -> TensorKind:
    """The kind of an input that the model does not declare, by its value."""
    one = value[0] if isinstance(value, list) and value else value
    kinds = {bool: "BOOL", int: "INT32", float: "FP32", str: "BYTES"}
    return TensorKind(name, kinds.get(type(one), "BYTES"), (-1,))


def tensor(kind: TensorKind, values: list[Any]) -> Any:
    """A Tensor message with *values*: its open dimensions are 1, the last open one has the rest."""
    shape = [max(size, 1) for size in kind.shape] or [1]
    if -1 in kind.shape and len(values) > 1:
        place = len(kind.shape) - 1 - kind.shape[::-1].index(-1)
        shape[place] = len(values) // max(1, math.prod(shape) // shape[place])
    made = MESSAGES["Tensor"](name=kind.name, datatype=kind.datatype, shape=shape)
    try:
        getattr(made.contents, CONTENTS[kind.datatype]).extend(values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"tensor {kind.name} of {kind.datatype} cannot hold the value: {error}") from None
    return made
