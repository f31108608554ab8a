"""Every list, map and text of a kind of the API, found in the generated structs."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

Cls = type[msgspec.Struct]


class Kind(StrEnum):
    LIST = "list"
    MAP = "map"
    TEXT = "text"


@dataclass(frozen=True)
class Field:
    """A field by its path, such as `spec.containers[].env[].name`. `item`: the type of an entry of a list or map."""

    path: str
    kind: Kind
    item: Any = str

    @property
    def parts(self) -> list[str]:
        return self.path.split(".")


def fields_of(cls: Cls, prefix: str = "") -> Iterator[Field]:
    """All fields below a struct, also within lists. No struct of a Pod contains itself."""
    for field in msgspec.structs.fields(cls):
        yield from _fields_in(field.type, f"{prefix}{field.encode_name}")


def _fields_in(type_: Any, path: str) -> Iterator[Field]:
    type_ = _needed(type_)
    origin, args = typing.get_origin(type_), typing.get_args(type_)
    if origin is tuple:
        yield Field(path, Kind.LIST, args[0])
        if is_struct(args[0]):
            yield from fields_of(args[0], f"{path}[].")
    elif origin is dict:
        yield Field(path, Kind.MAP, args[1])
    elif is_struct(type_):
        yield from fields_of(type_, f"{path}.")
    elif type_ is str or origin is typing.Literal:
        yield Field(path, Kind.TEXT)
    elif type_ not in (int, bool, float, bytes):
        raise TypeError(f"{path}: hostile/specs has no pods with a large {type_}")


def structs_of(cls: Cls) -> set[Cls]:
    """The struct, and all structs below it but those of its status."""
    found = {cls}
    for field in msgspec.structs.fields(cls):
        type_ = _needed(field.type)
        inner = typing.get_args(type_)[0] if typing.get_origin(type_) is tuple else type_
        if is_struct(inner) and field.encode_name != "status":
            found |= structs_of(inner)
    return found


def is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def type_of(cls: Cls, name: str) -> Any:
    """The type of a field, without `| None`; of a list, that of its entries."""
    type_ = _needed(next(field.type for field in msgspec.structs.fields(cls) if field.encode_name == name))
    return typing.get_args(type_)[0] if typing.get_origin(type_) is tuple else type_


def _needed(type_: Any) -> Any:
    """The type without `| None`. Of a choice such as `int | str`, the text."""
    if typing.get_origin(type_) not in (typing.Union, types.UnionType):
        return type_
    choices = [choice for choice in typing.get_args(type_) if choice is not types.NoneType]
    return str if str in choices else choices[0]
