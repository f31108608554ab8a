"""Reads Pods in protobuf, with the library and a description made from the table of fields."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from pykubelet.base.api.protobuf import table
from pykubelet.base.api.protobuf_fields import MESSAGES

_PACKAGE = "test.pods"
_F = FieldDescriptorProto
_SCALARS = {"string": _F.TYPE_STRING, "int": _F.TYPE_INT64, "bool": _F.TYPE_BOOL, "bytes": _F.TYPE_BYTES}
#: The messages that structs have as text or numbers.
_SHORT = {
    "Time": {"seconds": (1, "int"), "nanos": (2, "int")},
    "Quantity": {"string": (1, "string")},
    "IntOrString": {"type": (1, "int"), "intVal": (2, "int"), "strVal": (3, "string")},
}


def read_pod(data: bytes) -> Any:
    """A message with the fields of a Pod. Raises DecodeError."""
    return _pod_class().FromString(data)


def without_defaults(message: Any) -> dict[str, Any]:
    """The fields of a message that have a value other than that of an absent one, which Kubernetes writes for many fields."""
    fields = {field.name: _value(field, value) for field, value in message.ListFields()}
    return {name: value for name, value in fields.items() if value}


def _value(field: Any, value: Any) -> Any:
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {key: _value(inner, value[key]) for key in value}
    return [without_defaults(item) for item in value] if field.is_repeated else without_defaults(value)


@cache
def _pod_class() -> Any:
    file = FileDescriptorProto(name="pods.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _SHORT.items():
        message = file.message_type.add(name=name)
        for field, (number, type_) in fields.items():
            message.field.add(name=field, number=number, type=_SCALARS[type_], label=_F.LABEL_OPTIONAL)
    for name in MESSAGES:
        _describe(file.message_type.add(name=name))
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Pod"))


def _describe(message: DescriptorProto) -> None:
    for row in table(message.name):
        label = _F.LABEL_OPTIONAL if row.form in ("one", "inline") else _F.LABEL_REPEATED
        if row.form != "map":
            _add(message, row.name, row.number, row.type, label)
            continue
        entry = message.nested_type.add(name=f"{row.name[0].upper()}{row.name[1:]}Entry")
        entry.options.map_entry = True
        _add(entry, "key", 1, "string", _F.LABEL_OPTIONAL)
        _add(entry, "value", 2, row.type, _F.LABEL_OPTIONAL)
        type_name = f".{_PACKAGE}.{message.name}.{entry.name}"
        message.field.add(name=row.name, number=row.number, type=_F.TYPE_MESSAGE, label=label, type_name=type_name)


def _add(
    message: DescriptorProto, name: str, number: int, type_: str, label: FieldDescriptorProto.Label.ValueType
) -> None:
    if type_ in _SCALARS:
        message.field.add(name=name, number=number, type=_SCALARS[type_], label=label)
    else:
        message.field.add(name=name, number=number, type=_F.TYPE_MESSAGE, label=label, type_name=f".{_PACKAGE}.{type_}")
