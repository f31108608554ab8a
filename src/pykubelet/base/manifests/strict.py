"""Finds fields that a struct does not have. Pure.

Structs ignore unknown fields. In a manifest that a user wrote, an unknown field is usually misspelled, so it is reported.
"""

from __future__ import annotations

import types
from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from pykubelet.base.kit.nearest import nearest

# The API has these fields; the structs leave them out.
_DROPPED = frozenset({"managedFields"})


@cache
def _fields_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The struct type inside each field, by JSON name; None for a field below which nothing can be unknown."""
    hints = get_type_hints(kind)
    names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
    return {name: _inner(hints[attribute]) for name, attribute in names}


def _inner(hint: Any) -> type[msgspec.Struct] | None:
    """The struct type inside an optional, a tuple or a map; None if there is none."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    origin = get_origin(hint)
    if origin in (tuple, dict, Union, types.UnionType):
        return next((found for part in get_args(hint) if (found := _inner(part)) is not None), None)
    return None


class UnknownMember(NamedTuple):
    """A member that a struct does not have. `path`: such as `spec.containers[0].imagez`; `kind`: the struct; `name`: of the member."""

    path: str
    kind: type[msgspec.Struct]
    name: str

    @property
    def near(self) -> str | None:
        """The field of the struct that was probably meant."""
        return nearest(self.name, self.known)

    @property
    def known(self) -> Collection[str]:
        """The fields of the struct."""
        return _fields_of(self.kind).keys()


def unknown_fields(kind: type[msgspec.Struct], value: object, path: str = "") -> list[UnknownMember]:
    """The members of `value` that `kind` does not have, in document order."""
    if not isinstance(value, dict):
        return []
    fields = _fields_of(kind)
    found: list[UnknownMember] = []
    for name, item in value.items():
        at = f"{path}.{name}" if path else str(name)
        if name not in fields:
            if name not in _DROPPED:
                found.append(UnknownMember(at, kind, name))
            continue
        inner = fields[name]
        if inner is None:
            continue
        if isinstance(item, list):
            for i, element in enumerate(item):
                found += unknown_fields(inner, element, f"{at}[{i}]")
        else:
            found += unknown_fields(inner, item, at)
    return found


def without_unknown(kind: type[msgspec.Struct], value: Any) -> Any:
    """A copy of `value` without the members that `kind` does not have."""
    if isinstance(value, list):
        return [without_unknown(kind, item) for item in value]
    if not isinstance(value, dict):
        return value
    fields = _fields_of(kind)
    return {
        name: item if (inner := fields[name]) is None else without_unknown(inner, item)
        for name, item in value.items()
        if name in fields
    }


def huge_numbers(value: object, path: str = "") -> list[str]:
    """The paths of whole numbers of more than 64 bits. No API field can hold them, and the JSON encoder cannot write them."""
    return [path + steps if path else steps.removeprefix(".") for steps in _huge_below(value)]


def _huge_below(value: object) -> list[str]:
    """The paths of the huge numbers. They are built while the recursion returns, so that other values cost nothing."""
    if isinstance(value, int):
        return [] if -(1 << 63) <= value < 1 << 63 else [""]
    if isinstance(value, dict):
        return [f".{name}{steps}" for name, item in value.items() for steps in _huge_below(item)]
    if isinstance(value, list):
        return [f"[{i}]{steps}" for i, item in enumerate(value) for steps in _huge_below(item)]
    return []
