"""Any unary or server-streaming method: a request template, and paths to what matters in its answers.

A template is the request's JSON form; where a value is ``{prompt}``, ``{prompt_ids}``, ``{max_tokens}`` or ``{id}`` the
row's own stands (the first and the last also inside longer strings). Paths name fields by dots and go through lists:
``choices.text``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from loadgen.clients.grpc_answer import Said
from loadgen.clients.protobuf import MessageClass, message_classes
from loadgen.clients.service import Caller, GrpcDialect, Service
from loadgen.errors import UsageError
from loadgen.plan import Plan

if TYPE_CHECKING:
    from loadgen.schedule import ScheduleRow

ROLES = ("text", "tokens", "finish", "error", "n_input", "n_output", "n_cached")
"""What a path may be for. ``tokens``: token ids, or how many the message carries; the last three are totals."""


class Method:
    """A method's path and message classes. Raises ValueError for one that does not fit."""

    def __init__(self, name: str, files: list[FileDescriptorProto]) -> None:
        service, mark, method = name.strip("/").partition("/")
        if not mark:
            raise ValueError(f"not a method: {name!r} (package.Service/Method)")
        pool = DescriptorPool()
        waiting = {file.name: file for file in files}
        for file_name in list(waiting):
            _add(pool, file_name, waiting)
        try:
            found = pool.FindServiceByName(service).FindMethodByName(method)
        except KeyError:
            raise ValueError(f"the descriptors know no method {service}/{method}") from None
        if found is None:
            raise ValueError(f"service {service} has no method {method}")
        self.path = f"/{service}/{method}"
        self.request: MessageClass = GetMessageClass(found.input_type)
        self.response: MessageClass = GetMessageClass(found.output_type)


def _add(pool: DescriptorPool, name: str, waiting: dict[str, FileDescriptorProto]) -> None:
    """Add a file after those that it imports."""
    file = waiting.pop(name, None)
    if file is None:
        return
    for needed in file.dependency:
        _add(pool, needed, waiting)
    pool.Add(file)


def files_of_set(data: bytes) -> list[FileDescriptorProto]:
    """The files of a descriptor set (``protoc --include_imports --descriptor_set_out``). Raises ValueError."""
    try:
        return list(FileDescriptorSet.FromString(data).file)
    except DecodeError as error:
        raise ValueError(f"not a descriptor set: {error}") from None


class Requests:
    """Encodes requests from a template. Raises ValueError when it does not fit the message."""

    def __init__(self, message: MessageClass, template: dict[str, Any]) -> None:
        self._message, self._template = message, template
        self._encoded({"prompt": " a", "prompt_ids": [1], "max_tokens": 1, "id": "a"})

    def encode(self, row: ScheduleRow, prompt: bytes, request_id: str) -> bytes:
        """One request."""
        values: dict[str, Any] = {"max_tokens": row.n_output, "id": request_id}
        return self._encoded({**values, "prompt": prompt, "prompt_ids": prompt})

    def _encoded(self, values: dict[str, Any]) -> bytes:
        try:
            made = json_format.ParseDict(_filled(self._template, values), self._message())
        except json_format.ParseError as error:
            raise ValueError(f"the request template does not fit: {error}") from None
        data: bytes = made.SerializeToString()
        return data


def _filled(part: Any, values: dict[str, Any]) -> Any:
    if isinstance(part, dict):
        return {key: _filled(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if not isinstance(part, str) or "{" not in part:
        return part
    if part == "{max_tokens}":
        return values["max_tokens"]
    if part == "{prompt_ids}":
        ids = values["prompt_ids"]
        return memoryview(ids).cast("I").tolist() if isinstance(ids, bytes) else ids
    if "{prompt}" in part:
        prompt = values["prompt"]
        part = part.replace("{prompt}", prompt.decode() if isinstance(prompt, bytes) else prompt)
    return part.replace("{id}", values["id"])


class Answers:
    """Reads answers by *paths* (role to path). Raises ValueError for a path that leads nowhere."""

    def __init__(self, message: MessageClass, paths: dict[str, str]) -> None:
        self._message = message
        self._tokens_are_ids = False
        for role, path in paths.items():
            if role not in ROLES:
                raise ValueError(f"no field has the role {role!r} (roles: {', '.join(ROLES)})")
            field = _last_field(message.DESCRIPTOR, path)
            if role == "tokens":
                self._tokens_are_ids = _is_list(field)
        self._paths = {role: path.split(".") for role, path in paths.items()}

    def read(self, data: bytes) -> Said:
        """One message of an answer. Without paths for text and tokens every message is a chunk."""
        try:
            message = self._message.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from None
        found = {role: [*_leaves(message, path)] for role, path in self._paths.items()}
        text = "".join(_text(leaf) for leaf in found.get("text", ()))
        tokens = self._count(found["tokens"]) if "tokens" in found else None
        finish = [leaf for leaf in found.get("finish", ()) if leaf]
        failure = [leaf for leaf in found.get("error", ()) if leaf]
        generated = bool(text or tokens) if {"text", "tokens"} & found.keys() else not failure
        return Said(
            generated,
            tokens,
            text,
            finish_reason=None if not finish else "finished" if finish[0] is True else _text(finish[0]),
            error=_text(failure[0]) if failure else None,
            ends=bool(finish),
            n_input=_total(found, "n_input"),
            n_output=_total(found, "n_output"),
            n_cached=_total(found, "n_cached"),
        )

    def _count(self, leaves: list[Any]) -> int:
        return len(leaves) if self._tokens_are_ids else sum(leaves)


def _last_field(descriptor: Any, path: str) -> Any:
    """The descriptor of the field at *path*. Raises ValueError where there is none."""
    names, field = path.split("."), None
    for place, name in enumerate(names):
        if descriptor is None or name not in descriptor.fields_by_name:
            raise ValueError(f"the answer has no field {'.'.join(names[: place + 1])}")
        field = descriptor.fields_by_name[name]
        descriptor = field.message_type
    return field


def _is_list(field: Any) -> bool:
    known = getattr(field, "is_repeated", None)  # younger protobuf libraries have it, and no label
    return bool(field.label == field.LABEL_REPEATED if known is None else known)


def _leaves(message: Any, path: list[str]) -> Iterator[Any]:
    """The values at *path*; lists are gone through, messages that are not set have none."""
    name = path[0]
    found = message.DESCRIPTOR.fields_by_name[name]
    if _is_list(found):
        values = getattr(message, name)
    elif found.message_type is not None and not message.HasField(name):
        return
    else:
        values = (getattr(message, name),)
    if len(path) == 1:
        yield from values
    else:
        for value in values:
            yield from _leaves(value, path[1:])


def _text(leaf: Any) -> str:
    return leaf.decode(errors="replace") if isinstance(leaf, bytes) else str(leaf)


def _total(found: dict[str, list[Any]], role: str) -> int | None:
    """A server's total; zero before the end counts as not told."""
    leaves = found.get(role)
    return leaves[-1] or None if leaves and isinstance(leaves[-1], int) else None


REFLECTION = message_classes(
    "grpc.reflection.v1alpha",
    {
        "ServerReflectionRequest": "string host=1; string file_by_filename=3; string file_containing_symbol=4",
        "FileDescriptorResponse": "repeated bytes file_descriptor_proto=1",
        "ErrorResponse": "int32 error_code=1; string error_message=2",
        "ServerReflectionResponse": (
            "FileDescriptorResponse file_descriptor_response=4; ErrorResponse error_response=7"
        ),
    },
)
"""The part of grpc.reflection that finds a service's files."""

REFLECTION_PATH = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def opened(plan: Plan, caller: Caller) -> Service:
    """The plan's method by its descriptor set, else by the server's reflection."""
    if plan.method is None or not plan.request_template:
        raise UsageError("method: name it with --method package.Service/Method, and give --request-template")
    try:
        if plan.descriptor_set is not None:
            files = files_of_set(plan.descriptor_set.read_bytes())
        else:
            files = _reflected(plan.method.strip("/").partition("/")[0], caller)
        method = Method(plan.method, files)
        requests = Requests(method.request, plan.request_template)
        answers = Answers(method.response, plan.response_field)
    except OSError as error:
        raise UsageError(
            f"cannot read {plan.descriptor_set}: {os.strerror(error.errno or 0).lower()}"
        ) from None
    except (ValueError, TypeError) as error:
        raise UsageError(f"method: {error}") from None
    counts = {"tokens", "n_output"} & plan.response_field.keys()
    return Service(
        method.path,
        requests.encode,
        answers.read,
        plan.model or plan.method,
        must_end="finish" in plan.response_field,
        counts_prompts="n_input" in plan.response_field,
        notes=[] if counts else ["no field tells tokens: token counts are counts of messages"],
    )


def _reflected(service: str, caller: Caller) -> list[FileDescriptorProto]:
    """The files that describe *service*, with all that they import."""
    found: dict[str, FileDescriptorProto] = {}
    wanted: list[dict[str, str]] = [{"file_containing_symbol": service}]
    while wanted:
        asked = REFLECTION["ServerReflectionRequest"](**wanted.pop())
        for data in caller.call(REFLECTION_PATH, asked.SerializeToString()):
            answer = REFLECTION["ServerReflectionResponse"].FromString(data)
            if answer.HasField("error_response"):
                raise ValueError(f"reflection: {answer.error_response.error_message}")
            for text in answer.file_descriptor_response.file_descriptor_proto:
                file = FileDescriptorProto.FromString(text)
                found[file.name] = file
        missing = {name for file in found.values() for name in file.dependency} - found.keys()
        wanted = [{"file_by_filename": name} for name in sorted(missing)[:1]]
    return list(found.values())


METHOD = GrpcDialect("method", opened)
