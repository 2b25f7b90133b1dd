"""Protobuf messages of public protocols from tables of their fields: no generated code, no compiler at run time.

A table has an entry a message: ``"string name=1; repeated int64 shape=3; Tensor inputs=4"``. Types are protobuf's
scalar ones or messages of the same table. Fields keep presence (proto2 rules), so that what is set is sent even
where it is zero; numbers in lists are packed. A map is a repeated message of ``key=1`` and ``value=2``.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_FIELD = re.compile(r"(?:(repeated) )?(\w+) (\w+)=(\d+)")
_UNPACKED = frozenset({"string", "bytes"})

MessageClass = Any
"""A protobuf message class; its fields are known at run time alone."""


def message_classes(package: str, table: dict[str, str]) -> dict[str, MessageClass]:
    """The classes of *table*, by name. Raises ValueError for a field that cannot be read."""
    file = FileDescriptorProto(name=f"{package}.loadgen.proto", package=package, syntax="proto2")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for text in filter(None, (part.strip() for part in fields.split(";"))):
            message.field.append(_field(text, package, table))
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}


def _field(text: str, package: str, table: dict[str, str]) -> FieldDescriptorProto:
    found = _FIELD.fullmatch(text)
    if found is None:
        raise ValueError(f"not a field: {text!r}")
    repeated, kind, name, number = found.groups()
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    field = FieldDescriptorProto(name=name, number=int(number), label=label)
    if kind in table:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{kind}"
        return field
    field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    if repeated and kind not in _UNPACKED:
        field.options.packed = True
    return field
