"""Sets of fields: which fields of an object a client manages (`fieldsV1` of an entry of `metadata.managedFields`). Pure.

A set is a tree of nested dicts. Its keys are those of `fieldsV1`: `f:NAME` a field or a key of a map, `k:{...}` an element of a list
with keys, `v:...` an element of a list of scalars. A node with the key "." is itself in the set. `fieldsV1` leaves that key out
where a node has nothing below: `decode` adds it, `encode` removes it. No node is empty; the root is in no set.
Source: Kubernetes documentation, "Server-Side Apply"; KEP-555.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from pykubelet_local_api.kinds.schema import Schema, Shape

#: A set of fields, or a node of one.
Fields = dict[str, Any]

SELF = "."
_SELF: Fields = {}


def decode(fields: Any) -> Fields:
    """The set that `fieldsV1` stands for. Elements of unknown types are left out. Raises ValueError if it is none."""
    found: Fields = {}
    for key, below in _pairs(fields):
        if key == SELF:
            continue
        if key[1:2] != ":":
            raise ValueError(f"not a path element: {key[:40]}")
        if key[0] in "kv":
            try:
                msgspec.json.decode(key[2:])
            except (msgspec.DecodeError, UnicodeError) as error:
                raise ValueError(f"not a path element: {key[:40]}") from error
        if key[0] in "fkvi":
            node = decode(below)
            if not node or SELF in below:
                node[SELF] = _SELF
            found[key] = node
    return found


def _pairs(fields: Any) -> Any:
    if not isinstance(fields, dict):
        raise ValueError("not a set of fields")
    return fields.items()


def encode(fields: Fields) -> Fields:
    """The set as `fieldsV1`, in the order of an API server: clients compare its bytes."""
    found: Fields = {}
    for key in sorted(fields):
        below = fields[key]
        found[key] = {} if key == SELF or (len(below) == 1 and SELF in below) else encode(below)
    return found


def insert(fields: Fields, path: Sequence[str]) -> None:
    """Add a field. An empty path is ignored. Changes `fields`."""
    if not path:
        return
    for key in path:
        fields = fields.setdefault(key, {})
    fields[SELF] = _SELF


def union(left: Fields, right: Fields) -> Fields:
    """The fields that are in either set. Parts may be shared."""
    if not left or not right:
        return left or right
    found = dict(left)
    for key, below in right.items():
        found[key] = union(left[key], below) if key in left else below
    return found


def intersection(left: Fields, right: Fields) -> Fields:
    """The fields that are in both sets."""
    found: Fields = {}
    for key, below in left.items():
        if key in right:
            if key == SELF:
                found[key] = _SELF
            elif both := intersection(below, right[key]):
                found[key] = both
    return found


def difference(left: Fields, right: Fields) -> Fields:
    """The fields of `left` that are not in `right`."""
    if not right:
        return left
    found: Fields = {}
    for key, below in left.items():
        if key not in right:
            found[key] = below
        elif key != SELF and (rest := difference(below, right[key])):
            found[key] = rest
    return found


def without(fields: Fields, paths: Sequence[Sequence[str]]) -> Fields:
    """The fields that are neither one of `paths` nor below one."""
    for path in paths:
        fields = _without(fields, path)
    return fields


def _without(fields: Fields, path: Sequence[str]) -> Fields:
    if path[0] not in fields:
        return fields
    found = dict(fields)
    rest = _without(fields[path[0]], path[1:]) if len(path) > 1 else {}
    if rest:
        found[path[0]] = rest
    else:
        del found[path[0]]
    return found


def only(fields: Fields, paths: Sequence[Sequence[str]]) -> Fields:
    """The fields that are on the way to one of `paths`, one of them, or below one. "*" stands for any element."""
    found: Fields = {}
    for key, below in fields.items():
        if key == SELF:
            found[key] = _SELF
            continue
        rest = [path[1:] for path in paths if path[0] in (key, "*")]
        if not all(rest):
            found[key] = below
        elif rest and (kept := only(below, rest)):
            found[key] = kept
    return found


def with_named(fields: Fields, schema: Schema | None) -> Fields:
    """The set with all structs' fields on the way to its fields."""
    found: Fields = {}
    for key, below in fields.items():
        if key == SELF:
            found[key] = _SELF
            continue
        inner: Schema | None = None
        is_named = False
        if schema is not None and key[0] == "f":
            inner = schema.field(key[2:])
            is_named = schema.shape is Shape.STRUCT and key[2:] in schema.properties
        elif schema is not None and key[0] == "k":
            inner = schema.items
        node = with_named(below, inner)
        if is_named and SELF not in node:
            node = {SELF: _SELF} | node
        found[key] = node
    return found


def paths(fields: Fields, before: str = "") -> Iterator[tuple[tuple[str, ...], str]]:
    """The fields, each with its path and as messages show it: `.spec.containers[name="a"].image`. Parents come first."""
    return _paths(fields, (), before)


def _paths(fields: Fields, way: tuple[str, ...], before: str) -> Iterator[tuple[tuple[str, ...], str]]:
    keys = sorted(key for key in fields if key != SELF)
    shown = {key: before + show(key) for key in keys}
    for key in keys:
        if SELF in fields[key]:
            yield (*way, key), shown[key]
    for key in keys:
        yield from _paths(fields[key], (*way, key), shown[key])


def show(element: str) -> str:
    """An element of a path as messages show it."""
    kind, text = element[0], element[2:]
    if kind == "f":
        return f".{text}"
    if kind == "k":
        keys = msgspec.json.decode(text)
        return f"[{','.join(f'{key}={_scalar(keys[key])}' for key in sorted(keys))}]"
    return f"[={_scalar(msgspec.json.decode(text))}]" if kind == "v" else f"[{text}]"


def _scalar(value: Any) -> str:
    return msgspec.json.encode(value).decode()
