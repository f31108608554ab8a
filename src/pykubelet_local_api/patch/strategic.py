"""Strategic merge patches: lists are merged by the keys of the schema. Pure.

Directives: `$patch` (replace, delete), `$retainKeys`, `$setElementOrder/FIELD` and `$deleteFromPrimitiveList/FIELD`.
Source: Kubernetes documentation, "Update API Objects in Place Using kubectl patch"; messages are the API server's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pykubelet_local_api.errors import StatusError, bad_request
from pykubelet_local_api.kinds.schema import Schema
from pykubelet_local_api.objects import Json, copied

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_DELETE_FROM = "$deleteFromPrimitiveList"
_ORDER = "$setElementOrder"

_BAD_ORDER = "invalid patch format of setElementOrder list"
_BAD_RETAIN = "invalid patch format of retainKeys"
_BAD_PRIMITIVE_LIST = "invalid patch format of primitive list"


def strategic_patch(old: Json, patch: Any, schema: Schema) -> Json:
    """The object with a strategic merge patch applied. `schema`: that of the object. Neither `old` nor `patch` is changed.

    Raises StatusError 400, 422, or 500 as the API server does where the patch contradicts the schema.
    """
    if not isinstance(patch, dict):
        kinds = {str: "string", bool: "bool", int: "number", float: "number", list: "array"}
        kind = kinds.get(type(patch), "null")
        raise bad_request(f"json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
    return _merge_map(copied(old), copied(patch), schema)


def go_text(value: Any) -> str:
    """A value as Go's `%v` prints it, which messages of the API server have: `map[a:1 b:[x y]]`."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case dict():
            return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
        case list():
            return f"[{' '.join(go_text(item) for item in value)}]"
        case float() if value.is_integer() and abs(value) < 1e21:
            return str(int(value))
    return str(value)


def _server_error(message: str) -> StatusError:
    """What the API server answers to a patch that does not fit the schema: 500 without a reason."""
    return StatusError(500, "", message)


def _merge_map(original: Json, patch: Json, schema: Schema | None) -> Json:
    if _DIRECTIVE in patch:
        return _directed(patch)
    _retain_keys(original, patch)
    _apply_orders(original, patch, schema)
    for key, value in patch.items():
        is_deletion = key.startswith(_DELETE_FROM)
        name = _named(key, _DELETE_FROM, _BAD_PRIMITIVE_LIST) if is_deletion else key
        if value is None:
            original.pop(name, None)
        elif name not in original or _kind(original[name]) != _kind(value):
            if not is_deletion:
                _set_new(original, name, value)
        elif isinstance(value, dict):
            field = _field(schema, name)
            if field is not None and "replace" in field.merge_strategies:
                original[name] = value
            else:
                original[name] = _merge_map(original[name], value, field)
        elif isinstance(value, list):
            original[name] = _merge_list(original[name], value, _field(schema, name), is_deletion)
        else:
            original[name] = value
    return original


def _directed(patch: Json) -> Json:
    directive = patch[_DIRECTIVE]
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    raise _server_error(f"unknown patch type: {go_text(directive)} in map: {go_text(patch)}")


def _kind(value: Any) -> type:
    return type(value)


def _field(schema: Schema | None, name: str) -> Schema | None:
    return None if schema is None else schema.field(name)


def _named(key: str, prefix: str, error: str) -> str:
    found, slash, name = key.partition("/")
    if not slash or found != prefix:
        raise bad_request(error)
    return name


def _set_new(original: Json, name: str, value: Any) -> None:
    kept, found = _without_directives(_without_nulls(value))
    if kept:
        original[name] = found
    else:
        original.pop(name, None)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _without_directives(value: Any) -> tuple[bool, Any]:
    """Whether anything is left, and what."""
    if isinstance(value, dict):
        if _DIRECTIVE in value:
            return False, None
        below = {key: _without_directives(item) for key, item in value.items()}
        return True, {key: found for key, (kept, found) in below.items() if kept}
    if isinstance(value, list):
        return True, [found for kept, found in map(_without_directives, value) if kept]
    return True, value


def _retain_keys(original: Json, patch: Json) -> None:
    if _RETAIN not in patch:
        return
    listed = patch.pop(_RETAIN)
    if not isinstance(listed, list):
        raise bad_request(_BAD_RETAIN)
    kept = {item for item in listed if isinstance(item, str)}
    for key, value in patch.items():
        if value is not None and not key.startswith((_DELETE_FROM, _ORDER)) and key not in kept:
            raise bad_request(_BAD_RETAIN)
    for key in [key for key in original if key not in kept]:
        del original[key]


def _apply_orders(original: Json, patch: Json, schema: Schema | None) -> None:
    """Merge the lists that the patch gives an order for."""
    for key in [key for key in patch if key.startswith(_ORDER)]:
        order = patch.pop(key)
        if not isinstance(order, list):
            raise _wrong_argument("slice", order)
        name = _named(key, _ORDER, _BAD_ORDER)
        field = _field(schema, name)
        old, new = original.get(name), patch.get(name)
        for value in (old, new):
            if value is not None and not isinstance(value, list):
                raise _wrong_argument("slice", value)
        merge_key = field.merge_key if field is not None else ""
        _check_order(new or [], order, merge_key)
        if old is None and new is None:
            continue
        before = list(old or [])
        if new is None:
            merged = before
        elif old is None:
            merged = _without_directives(new)[1]
        else:
            merged = _merge_list(old, new, field, is_deletion=False)
        _element_kind(before, new or [])
        original[name] = _ordered(merged, order, before, _identity(merge_key))
        patch.pop(name, None)


def _wrong_argument(wanted: str, value: Any) -> StatusError:
    kinds = {dict: "map", list: "slice", str: "string", bool: "bool", int: "int64", float: "float64"}
    return _server_error(f"expected a {wanted}, but received a {kinds.get(type(value), 'nil')}")


def _check_order(patch: list[Any], order: list[Any], merge_key: str) -> None:
    """The elements of the patch must be in the order, in that order."""
    if not patch or not order:
        return
    identity = _identity(merge_key)
    waiting = [item for item in patch if not (isinstance(item, dict) and _DIRECTIVE in item)]
    keys = [identity(item) for item in waiting]
    at = 0
    for item in order:
        if at < len(keys) and identity(item) == keys[at]:
            at += 1
    if at < len(keys):
        raise _server_error(
            f"The order in patch list:\n{go_text(patch)}\n doesn't match {_ORDER} list:\n{go_text(order)}\n"
        )


def _identity(merge_key: str) -> Callable[[Any], tuple[type, Any]]:
    """What identifies an element of a list: the value of its key, or the scalar itself. `1` and `true` are different."""

    def of(item: Any) -> tuple[type, Any]:
        if merge_key:
            if not isinstance(item, dict):
                raise _wrong_argument("map", item)
            if merge_key not in item:
                raise _server_error(f"map: {go_text(item)} does not contain declared merge key: {merge_key}")
            item = item[merge_key]
        if isinstance(item, dict | list):
            raise bad_request(_BAD_ORDER)
        return type(item), item

    return of


def _element_kind(*lists: Sequence[Any]) -> type:
    kinds = {type(item) for items in lists for item in items}
    if len(kinds) > 1:
        raise _server_error(f"list element types are not identical: {go_text([list(items) for items in lists])}")
    if not kinds:
        raise _server_error("no elements in any of the given slices")
    kind = kinds.pop()
    if kind is list:
        raise StatusError(422, "Invalid", "the server rejected our request due to an error in our request")
    return kind


def _merge_list(original: list[Any], patch: list[Any], field: Schema | None, is_deletion: bool) -> list[Any]:
    if not is_deletion and (field is None or "merge" not in field.merge_strategies):
        return patch
    if not original and not patch:
        return original
    if _element_kind(original, patch) is not dict:
        return _merge_scalars(original, patch, is_deletion)
    merge_key = field.merge_key if field is not None else ""
    if not merge_key:
        raise _server_error("cannot merge lists without merge key for struct")
    identity = _identity(merge_key)
    before, added = _special_elements(original, patch, identity)
    at = {identity(item): index for index, item in reversed(list(enumerate(before)))}
    merged = list(before)
    for item in added:
        found = at.get(identity(item))
        if found is None:
            at[identity(item)] = len(merged)
            merged.append(item)
        else:
            merged[found] = _merge_map(merged[found], item, field.items if field is not None else None)
    return _ordered(merged, added, before, identity)


def _merge_scalars(original: list[Any], patch: list[Any], is_deletion: bool) -> list[Any]:
    identity = _identity("")
    if is_deletion:
        gone = set(map(identity, patch))
        return [item for item in original if identity(item) not in gone]
    both = dict[tuple[type, Any], Any]()
    for item in (*original, *patch):
        both.setdefault(identity(item), item)
    return _ordered(list(both.values()), patch, original, identity)


def _special_elements(
    original: list[Any], patch: list[Any], identity: Callable[[Any], tuple[type, Any]]
) -> tuple[list[Any], list[Any]]:
    """The elements that are left of the original, and those of the patch without directives."""
    gone, added, is_replaced = set[tuple[type, Any]](), list[Any](), False
    for item in patch:
        directive = item.get(_DIRECTIVE)
        if _DIRECTIVE not in item:
            added.append(item)
        elif directive == "delete":
            gone.add(identity(item))
        elif directive == "replace":
            is_replaced = True
        elif directive == "merge":
            raise _server_error("merging lists cannot yet be specified in the patch")
        else:
            raise _server_error(f"unknown patch type: {go_text(directive)} in map: {go_text(item)}")
    if is_replaced:
        return added, []
    return [item for item in original if not gone or identity(item) not in gone], added


def _ordered(
    merged: list[Any], order: list[Any], server_order: list[Any], identity: Callable[[Any], tuple[type, Any]]
) -> list[Any]:
    """Put the elements that the patch names in its order, and the others where they were before relative to them."""
    wanted = _places(order, identity)
    old = _places(server_order, identity)
    last = len(old)
    patched = sorted((item for item in merged if identity(item) in wanted), key=lambda item: wanted[identity(item)])
    others = sorted(
        (item for item in merged if identity(item) not in wanted), key=lambda item: old.get(identity(item), last)
    )
    found, i = list[Any](), 0
    for item in patched:
        place = old.get(identity(item))
        while i < len(others) and place is not None and old.get(identity(others[i]), last) < place:
            found.append(others[i])
            i += 1
        found.append(item)
    return found + others[i:]


def _places(items: list[Any], identity: Callable[[Any], tuple[type, Any]]) -> dict[tuple[type, Any], int]:
    found = dict[tuple[type, Any], int]()
    for index, item in enumerate(items):
        found.setdefault(identity(item), index)
    return found
