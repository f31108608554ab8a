"""Checks configuration values by the types in `kubelet.py`, adds defaults, and converts to and from structs. Pure.

"Plain" means JSON-like: dicts, lists, str, int, float, bool. Merging and flags work on plain values; the frozen structs
are built once at the end. Rules between fields are in `validate.py`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import msgspec

from pykubelet.base.api.quantity import QuantityError
from pykubelet.base.api.quantity import parse as parse_quantity
from pykubelet.base.kit.durations import Duration, format_duration, parse_duration
from pykubelet.base.kit.values import Value
from pykubelet.config.errors import ConfigProblem
from pykubelet.config.kubelet import INERT, NS_TOO, POINTER, QUANTITY, KubeletConfiguration, Range

S = TypeVar("S", bound=msgspec.Struct)

DURATION_ALLOWED = 'must be a duration such as "1h30m", "10s" or "100ms"'
QUANTITY_ALLOWED = 'must be a quantity such as "500Mi", "2" or "100m"'
_ALLOWED = {
    "bool": "must be true or false",
    "float": "must be a number",
    "str": "must be a string",
    "duration": DURATION_ALLOWED,
    "quantity": QUANTITY_ALLOWED,
}
_HEADER = ("apiVersion", "kind")
_ZEROS: dict[str, Any] = {"bool": False, "int": 0, "float": 0.0, "str": "", "duration": "0s", "quantity": "0"}


class Scalar(Value):
    """`kind`: bool, int, float, str, duration or quantity."""

    kind: str
    limits: Range | None = None
    ns_too: bool = False


class ListOf(Value):
    item: Node


class MapOf(Value):
    value: Node


class Field(Value):
    """One field. `default`: a plain value; None: no default. `pointer`: a zero value is not the same as "not given".

    `inert`: the field has no effect.
    """

    name: str
    node: Node
    pointer: bool
    default: Any
    inert: bool = False


@dataclass(frozen=True, slots=True)
class Object:
    cls: type[msgspec.Struct]
    fields: dict[str, Field] = field(hash=False, compare=False)


Node = Scalar | ListOf | MapOf | Object
_PLAIN_DURATION = Scalar("duration")
_SCALARS: dict[Any, str] = {bool: "bool", float: "float", str: "str", int: "int", Duration: "duration"}


@cache
def object_of(cls: type[msgspec.Struct]) -> Object:
    """The fields of a struct class, from its annotations and defaults."""
    empty = cls()
    hints = typing.get_type_hints(cls, include_extras=True)
    return Object(cls, {name: _field(name, hints[name], getattr(empty, name)) for name in cls.__struct_fields__})


def config_shape() -> Object:
    """The fields of KubeletConfiguration."""
    return object_of(KubeletConfiguration)


def _field(name: str, hint: Any, default: Any) -> Field:
    node, pointer = _node(hint)
    return Field(name, node, pointer, to_plain(default), INERT in getattr(hint, "__metadata__", ()))


def _node(hint: Any) -> tuple[Node, bool]:
    marks: tuple[Any, ...] = ()
    optional = False
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            marks += hint.__metadata__
            hint = hint.__origin__
        elif origin in (typing.Union, types.UnionType):
            hint = next(part for part in typing.get_args(hint) if part is not type(None))
            optional = True
        else:
            break
    pointer = optional or POINTER in marks
    if origin is tuple:
        return ListOf(_node(typing.get_args(hint)[0])[0]), True
    if origin is dict:
        return MapOf(_node(typing.get_args(hint)[1])[0]), True
    if hint in _SCALARS:
        kind = "quantity" if QUANTITY in marks else _SCALARS[hint]
        limits = next((mark for mark in marks if isinstance(mark, Range)), None)
        return Scalar(kind, limits, NS_TOO in marks), pointer
    return object_of(hint), pointer


# -- checking -----------------------------------------------------------------------------------------------------


def check(value: Any, *, is_patch: bool = False) -> list[ConfigProblem]:
    """All wrong types of a plain document. A null counts as not given; unknown fields may have any value.

    A duration that has a default must not be null, as in the reference, except in a merge patch (`is_patch`), where null deletes.
    """
    problems: list[ConfigProblem] = []
    shape = config_shape()
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key not in _HEADER}
    _check(shape, value, "", problems)
    if not is_patch:
        problems += _null_durations(shape, value, "")
    return problems


def _null_durations(node: Node, value: Any, path: str) -> Iterator[ConfigProblem]:
    if not isinstance(node, Object) or not isinstance(value, dict):
        return
    for name, entry in node.fields.items():
        here = f"{path}.{name}" if path else name
        if isinstance(entry.node, Object):
            yield from _null_durations(entry.node, value.get(name), here)
        elif entry.node == _PLAIN_DURATION and not entry.pointer and name in value and value[name] is None:
            yield invalid(here, None, DURATION_ALLOWED)


def _check(node: Node, value: Any, path: str, problems: list[ConfigProblem]) -> None:
    if value is None:
        return
    if isinstance(node, Scalar):
        allowed = scalar_problem(node, value)
        if allowed:
            problems.append(invalid(path, value, allowed))
    elif isinstance(node, ListOf):
        if not isinstance(value, list):
            problems.append(invalid(path, value, "must be a list"))
            return
        for index, item in enumerate(value):
            _check(node.item, item, f"{path}[{index}]", problems)
    elif not isinstance(value, dict):
        problems.append(invalid(path, value, "must be a map"))
    elif isinstance(node, MapOf):
        for key, item in value.items():
            _check(node.value, item, f"{path}[{key}]", problems)
    else:
        for key, item in value.items():
            if key in node.fields:
                _check(node.fields[key].node, item, f"{path}.{key}" if path else key, problems)


def scalar_problem(node: Scalar, value: Any) -> str | None:
    """What is allowed, if `value` is not; None if it is."""
    right = True
    match node.kind:
        case "bool":
            right = isinstance(value, bool)
        case "str":
            right = isinstance(value, str)
        case "float":
            right = isinstance(value, (int, float)) and not isinstance(value, bool)
        case "int":
            limits = node.limits or Range(-(2**63), 2**63 - 1)
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            if isinstance(value, bool) or not whole or not limits.low <= value <= limits.high:
                return f"must be an integer from {limits.low} to {limits.high}"
        case "duration":
            right = _is_duration(value) or (node.ns_too and isinstance(value, int) and not isinstance(value, bool))
        case _:
            right = is_quantity(value)
    return None if right else _ALLOWED[node.kind]


def _is_duration(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parse_duration(value)
    except ValueError:
        return False
    return True


def is_quantity(value: Any) -> bool:
    """Whether `value` is a resource quantity (a bare number is one)."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return False
    try:
        parse_quantity(value)
    except QuantityError:
        return False
    return True


def invalid(path: str, value: Any, allowed: str) -> ConfigProblem:
    """The problem of an invalid value. `allowed`: what the field accepts. The value is cut to 200 characters."""
    import json  # only after a mistake

    shown = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    shown = shown if len(shown) <= 200 else shown[:200] + "..."
    return ConfigProblem(path, f"{path}: invalid value {shown}: {allowed}")


@cache
def field_paths() -> tuple[str, ...]:
    """The dotted paths of all fields that hold values. A map or list counts as one field."""
    return tuple(_paths(config_shape(), ""))


def _paths(node: Object, prefix: str) -> Iterator[str]:
    for name, entry in node.fields.items():
        if isinstance(entry.node, Object):
            yield from _paths(entry.node, f"{prefix}{name}.")
        else:
            yield prefix + name


@cache
def inert_paths() -> frozenset[str]:
    """The `field_paths` of the fields without effect."""
    return frozenset(_inert_below(config_shape(), ""))


def _inert_below(node: Object, prefix: str) -> Iterator[str]:
    for name, entry in node.fields.items():
        if isinstance(entry.node, Object):
            yield from _inert_below(entry.node, f"{prefix}{name}.")
        elif entry.inert:
            yield prefix + name


def given_paths(value: dict[str, Any]) -> list[str]:
    """The `field_paths` that a plain document gives. A null counts as not given."""
    return [path for path in field_paths() if get_path(value, path) is not None]


# -- completing ---------------------------------------------------------------------------------------------------


def complete(value: dict[str, Any], node: Object | None = None) -> dict[str, Any]:
    """A checked plain document with every plain default filled in. Unknown fields are left out."""
    shape = node or config_shape()
    full: dict[str, Any] = {}
    for name, entry in shape.fields.items():
        given = value.get(name)
        if isinstance(entry.node, Object):
            if given is not None or not entry.pointer:
                full[name] = complete(given or {}, entry.node)
        elif given is None or (not entry.pointer and entry.default and _is_zero(entry.node, given)):
            if entry.default is not None:
                full[name] = entry.default
        else:
            full[name] = _without_nulls(entry.node, given)
    return full


def _without_nulls(node: Node, value: Any) -> Any:
    """`value` with the zero value for every null in a list or map, as Go reads them."""
    if isinstance(node, ListOf):
        return [_without_nulls(node.item, item) for item in value or ()]
    if isinstance(node, MapOf):
        return {key: _without_nulls(node.value, item) for key, item in (value or {}).items()}
    if isinstance(node, Object):
        items = ((name, (value or {}).get(name)) for name in node.fields)
        return {name: _without_nulls(node.fields[name].node, item) for name, item in items if item is not None}
    return _ZEROS[node.kind] if value is None else value


def _is_zero(node: Node, value: Any) -> bool:
    if isinstance(node, Scalar) and node.kind == "duration" and isinstance(value, str):
        return parse_duration(value) == 0
    return not value


def get_path(value: dict[str, Any], path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    at: Any = value
    for part in path.split("."):
        if not isinstance(at, dict):
            return None
        at = at.get(part)
    return at


def set_path(value: dict[str, Any], path: str, new: Any) -> None:
    """Set the value at a dotted path of a plain document, in place."""
    *parents, last = path.split(".")
    at = value
    for part in parents:
        at = at.setdefault(part, {})
    at[last] = new


def drop_path(value: dict[str, Any], path: str) -> None:
    """Remove the value at a dotted path of a plain document, in place."""
    *parents, last = path.split(".")
    at = value
    for part in parents:
        at = at.get(part, {})
    at.pop(last, None)


# -- building and taking apart --------------------------------------------------------------------------------------


def build(value: dict[str, Any]) -> KubeletConfiguration:
    """Build the frozen configuration from a checked and completed plain document."""
    return _build_object(config_shape(), value, KubeletConfiguration)


def _build_object(node: Object, value: dict[str, Any], cls: Callable[..., S]) -> S:
    return cls(
        **{name: _build(entry.node, value[name]) for name, entry in node.fields.items() if value.get(name) is not None}
    )


def _build(node: Node, value: Any) -> Any:
    if isinstance(node, ListOf):
        return tuple(_build(node.item, item) for item in value)
    if isinstance(node, MapOf):
        return {key: _build(node.value, item) for key, item in value.items()}
    if isinstance(node, Object):
        return _build_object(node, value, node.cls)
    match node.kind:
        case "duration":
            return Duration(value if isinstance(value, int) else parse_duration(value))
        case "int":
            return int(value)
        case "float":
            return float(value)
        case "quantity":
            return str(value)
        case _:
            return value


def to_plain(value: Any) -> Any:
    """Convert a configuration value to plain JSON values: durations become Go strings, unset fields are left out."""
    if isinstance(value, Duration):
        return format_duration(value.ns)
    if isinstance(value, msgspec.Struct):
        items = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: to_plain(item) for name, item in items if item is not None}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value
