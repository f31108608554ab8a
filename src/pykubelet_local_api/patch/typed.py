"""Objects with their types: which fields one has, what differs between two, merging, and removal of fields. Pure.

This is structured merge: lists have keys, are sets or are atomic, and maps are atomic or not, as in the schema. Values without a
schema are maps of such values, atomic lists and scalars. All functions leave their arguments unchanged and cost time linear in the
size, times the depth. Source: KEP-555.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec

from pykubelet_local_api.kinds.schema import Schema, Shape
from pykubelet_local_api.patch.fields import SELF, Fields, insert, show
from pykubelet_local_api.patch.strategic import go_text


class _Missing(Enum):
    """The type of `ABSENT`."""

    ABSENT = 0


#: A value that is not there, which is not the same as null.
ABSENT = _Missing.ABSENT

_MAPS = (Shape.STRUCT, Shape.MAP)


class ElementError(ValueError):
    """An element of a list that cannot be identified."""


def element_of(schema: Schema, item: Any) -> str:
    """What identifies an element of a list with keys or a set, as `fieldsV1` writes it. Raises ElementError."""
    if schema.map_keys:
        if not isinstance(item, dict):
            kind = "a null element" if item is None else "non-map elements"
            raise ElementError(f"associative list with keys may not have {kind}")
        keys = {}
        for key in sorted(schema.map_keys):
            if key in item:
                keys[key] = item[key]
            elif (default := schema.key_default(key)) is not None:
                keys[key] = default
        if not keys:
            listed = go_text([msgspec.json.encode(key).decode() for key in schema.map_keys])
            raise ElementError(
                f"associative list with keys has an element that omits all key fields {listed} "
                "(and doesn't have default values for any key fields)"
            )
        return f"k:{_json(keys)}"
    if isinstance(item, dict):
        raise ElementError("associative list without keys has an element that's a map type")
    if isinstance(item, list):
        raise ElementError("not supported: associative list with lists as elements")
    if item is None:
        raise ElementError("associative list without keys has an element that's an explicit null")
    return f"v:{_json(item)}"


def _json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    if "<" in text or ">" in text or "&" in text:  # as Go writes them
        text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return text


def _shape(schema: Schema, value: Any) -> Shape:
    """The shape of a value; one without a schema has that of the value."""
    if schema.shape is not Shape.ANY:
        return schema.shape
    if isinstance(value, dict):
        return Shape.MAP
    return Shape.LIST if isinstance(value, list) else Shape.STRING


def _is_atomic(schema: Schema, shape: Shape) -> bool:
    if schema.shape is Shape.ANY:
        return shape is not Shape.MAP
    return schema.is_atomic or shape not in (*_MAPS, Shape.LIST)


def _is_empty(value: Any) -> bool:
    return value is ABSENT or not value


def _of(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) else kind()


def _keys(schema: Schema, items: list[Any]) -> list[str | None]:
    """What identifies each element; None for one that cannot be identified."""
    found = list[str | None]()
    for item in items:
        try:
            found.append(element_of(schema, item))
        except ElementError:
            found.append(None)
    return found


class FieldComparison:
    """What differs between two objects: the fields that were removed, changed and added."""

    def __init__(self, schema: Schema, left: Any, right: Any) -> None:
        self.removed: Fields = {}
        self.modified: Fields = {}
        self.added: Fields = {}
        self._path = list[str]()
        self._compare(schema, left, right)

    def __bool__(self) -> bool:
        return bool(self.removed or self.modified or self.added)

    def _compare(self, schema: Schema, left: Any, right: Any) -> None:
        if left is right or (left is not ABSENT and right is not ABSENT and left == right):
            return
        shape = _shape(schema, left if right is ABSENT or right is None else right)
        if _is_atomic(schema, shape) or (_is_empty(left) and _is_empty(right)):
            self._note(left, right, leaf=True)
            return
        if shape is Shape.LIST:
            self._compare_lists(schema, _of(left, list), _of(right, list))
        else:
            self._compare_maps(schema, _of(left, dict), _of(right, dict))
        self._note(left, right, leaf=False)

    def _note(self, left: Any, right: Any, leaf: bool) -> None:
        if left is ABSENT:
            insert(self.added, self._path)
        elif right is ABSENT:
            insert(self.removed, self._path)
        elif leaf:
            insert(self.modified, self._path)

    def _compare_maps(self, schema: Schema, left: dict[str, Any], right: dict[str, Any]) -> None:
        for key in (*left, *(key for key in right if key not in left)):
            field = schema.field(key)
            if field is not None:
                self._path.append(f"f:{key}")
                self._compare(field, left.get(key, ABSENT), right.get(key, ABSENT))
                self._path.pop()

    def _compare_lists(self, schema: Schema, left: list[Any], right: list[Any]) -> None:
        old, new = _grouped(schema, left), _grouped(schema, right)
        for key in (*old, *(key for key in new if key not in old)):
            self._path.append(key)
            self._compare_elements(schema.items, old.get(key, []), new.get(key, []))
            self._path.pop()

    def _compare_elements(self, schema: Schema, old: list[Any], new: list[Any]) -> None:
        """Compare the elements with one key. Several of them count as one atomic value."""
        if len(old) <= 1 and len(new) <= 1:
            self._compare(schema, old[0] if old else ABSENT, new[0] if new else ABSENT)
        elif len(old) > 1 and len(new) > 1:
            if old != new:
                insert(self.modified, self._path)
        elif len(old) > 1:
            if new:
                self._compare(schema, ABSENT, new[0])
            insert(self.removed, self._path)
        else:
            if old:
                self._compare(schema, old[0], ABSENT)
            insert(self.added, self._path)


def _grouped(schema: Schema, items: list[Any]) -> dict[str, list[Any]]:
    found = dict[str, list[Any]]()
    for key, item in zip(_keys(schema, items), items, strict=True):
        if key is not None:
            found.setdefault(key, []).append(item)
    return found


def fields_of(schema: Schema, value: Any) -> Fields:
    """The fields that a value has."""
    found: Fields = {}
    _add_fields(schema, value, found)
    found.pop(SELF, None)
    return found


def _add_fields(schema: Schema, value: Any, node: Fields) -> None:
    shape = _shape(schema, value)
    if _is_atomic(schema, shape):
        node[SELF] = {}
    elif shape is Shape.LIST:
        _add_elements(schema, _of(value, list), node)
    else:
        for key, item in _of(value, dict).items():
            field = schema.field(key)
            if field is None:
                continue
            below: Fields = {}
            _add_fields(field, item, below)
            if item is None or item == {} or key not in schema.properties:
                below[SELF] = {}
            if below:
                node[f"f:{key}"] = below


def _add_elements(schema: Schema, items: list[Any], node: Fields) -> None:
    for key, found in _grouped(schema, items).items():
        below: Fields = {}
        if len(found) == 1:
            _add_fields(schema.items, found[0], below)
        below[SELF] = {}
        node[key] = below


def merge(schema: Schema, left: Any, right: Any) -> Any:
    """The value `left` with all that `right` has, which wins. Nothing is removed. ABSENT if nothing is left."""
    if right is ABSENT:
        return left
    if left is ABSENT and (schema.shape is Shape.ANY or not isinstance(right, dict | list)):
        return right
    shape = _shape(schema, left if right is None else right)
    if _is_atomic(schema, shape) or (_is_empty(left) and _is_empty(right)):
        return right
    if shape is Shape.LIST:
        merged: Any = _merge_lists(schema, _of(left, list), _of(right, list))
    else:
        merged = _merge_maps(schema, _of(left, dict), _of(right, dict))
    return merged or ABSENT


def _merge_maps(schema: Schema, left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    found = dict[str, Any]()
    for key in (*left, *(key for key in right if key not in left)):
        field = schema.field(key)
        item = (
            merge(field, left.get(key, ABSENT), right.get(key, ABSENT)) if field is not None else left.get(key, ABSENT)
        )
        if item is not ABSENT:
            found[key] = item
    return found


def _merge_lists(schema: Schema, left: list[Any], right: list[Any]) -> list[Any]:
    """The elements of both lists. Shared ones have the order of `right`; the others stay where they are relative to them."""
    left_keys, right_keys = _keys(schema, left), _keys(schema, right)
    old, new = dict[str | None, Any](), dict(zip(right_keys, right, strict=True))
    for key, item in zip(left_keys, left, strict=True):
        old[key] = None if key in old else item  # duplicates are not merged
    shared = [key for key in right_keys if key in old]
    found, merged, wanted, i, j = list[Any](), set[str | None](), 0, 0, 0

    def put(item: Any) -> None:
        if item is not ABSENT:
            found.append(item)

    while i < len(left) or j < len(right):
        key = left_keys[i] if i < len(left) else None
        if i < len(left) and j < len(right):
            if key == right_keys[j]:
                merged.add(key)
                put(merge(schema.items, old[key], new[key]))
                i, j, wanted = i + 1, j + 1, wanted + 1
                continue
            if key in new and wanted < len(shared) and shared[wanted] != key:
                i += 1
                continue
        if i < len(left):
            if key not in new:
                put(left[i])
                i += 1
                continue
            if key in merged:
                i += 1
        if j < len(right):
            key = right_keys[j]
            merged.add(key)
            put(merge(schema.items, old.get(key, ABSENT), new[key]))
            j += 1
            if wanted < len(shared) and shared[wanted] == key:
                wanted += 1
    return found


def remove(schema: Schema, value: Any, fields: Fields) -> Any:
    """The value without fields. A map or list that had other fields stays, empty if need be; None if nothing was left of it."""
    shape = _shape(schema, value)
    if shape is Shape.LIST:
        return _remove_elements(schema, value, fields) if isinstance(value, list) else None
    if shape not in _MAPS:
        return value
    if not isinstance(value, dict) or schema.is_atomic:
        return None
    found, had_more = dict[str, Any](), False
    for key, item in value.items():
        below = fields.get(f"f:{key}")
        if below is not None:
            if SELF in below:
                continue
            had_more = True
            item = _removed_below(schema.field(key), item, below)
        found[key] = item
    return found if found or had_more else None


def _remove_elements(schema: Schema, value: list[Any], fields: Fields) -> Any:
    if not value or _is_atomic(schema, Shape.LIST):
        return None
    found, had_more = list[Any](), False
    for key, item in zip(_keys(schema, value), value, strict=True):
        below = fields.get(key or "")
        if below is not None:
            if SELF in below:
                continue
            had_more = True
            item = _removed_below(schema.items, item, below)
        found.append(item)
    return found if found or had_more else None


def _removed_below(schema: Schema | None, item: Any, fields: Fields) -> Any:
    left = item if schema is None else remove(schema, item, fields)
    if left is None:
        return {} if isinstance(item, dict) else [] if isinstance(item, list) else None
    return left


def type_errors(schema: Schema, value: Any, path: str = "") -> list[str]:
    """What of an applied value contradicts the schema, in the API server's words."""
    found = list[str]()
    _check(schema, value, path, found)
    return found


def _note(found: list[str], path: str, text: str) -> None:
    found.append(f"{path}: {text}" if path else text)


def _check(schema: Schema, value: Any, path: str, found: list[str]) -> None:
    if value is None or schema.shape is Shape.ANY:
        return
    if schema.shape is Shape.LIST:
        if isinstance(value, list):
            _check_elements(schema, value, path, found)
        else:
            _note(found, path, f"expected list, got &{{{go_text(value)}}}")
    elif schema.shape in _MAPS:
        if not isinstance(value, dict):
            _note(found, path, f"expected map, got &{{{go_text(value)}}}")
            return
        for key, item in value.items():
            field = schema.field(key)
            if field is None:
                _note(found, f"{path}.{key}", "field not declared in schema")
            else:
                _check(field, item, f"{path}.{key}", found)
    else:
        _check_scalar(schema.shape, value, path, found)


def _check_elements(schema: Schema, items: list[Any], path: str, found: list[str]) -> None:
    seen = set[str]()
    for index, item in enumerate(items):
        key = f"i:{index}"
        if not schema.is_atomic:
            try:
                key = element_of(schema, item)
            except ElementError as error:
                _note(found, path, f"element {index}: {error}")
                return
            if key in seen:
                _note(found, path, f"duplicate entries for key {show(key)}")
            seen.add(key)
        _check(schema.items, item, path + show(key), found)


def _check_scalar(shape: Shape, value: Any, path: str, found: list[str]) -> None:
    if shape in (Shape.STRING, Shape.BYTES):
        if not isinstance(value, str):
            _note(found, path, f"expected string, got &value.valueUnstructured{{Value:{_go_syntax(value)}}}")
    elif shape is Shape.BOOLEAN:
        if not isinstance(value, bool):
            _note(found, path, f"expected boolean, got &{{{go_text(value)}}}")
    elif shape in (Shape.INTEGER, Shape.NUMBER):
        if isinstance(value, bool) or not isinstance(value, int | float):
            kinds = {str: "string", bool: "bool", list: "[]interface {}", dict: "map[string]interface {}"}
            _note(found, path, f"expected numeric (int or float), got {kinds[type(value)]}")
    elif isinstance(value, dict | list):
        _note(found, path, f"expected any scalar, got &{{{go_text(value)}}}")


def _go_syntax(value: Any) -> str:
    """A value as Go's `%#v` prints it."""
    match value:
        case None:
            return "interface {}(nil)"
        case bool():
            return "true" if value else "false"
        case str():
            return msgspec.json.encode(value).decode()
        case dict():
            listed = ", ".join(f"{_go_syntax(key)}:{_go_syntax(value[key])}" for key in sorted(value))
            return f"map[string]interface {{}}{{{listed}}}"
        case list():
            return f"[]interface {{}}{{{', '.join(map(_go_syntax, value))}}}"
    return go_text(value)


def error_text(errors: Sequence[str]) -> str:
    """All errors in one message."""
    return errors[0] if len(errors) == 1 else "\n  ".join(("errors:", *errors))
