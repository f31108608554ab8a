"""Differences of API objects as patches, and what a patch makes of an object. Pure; plain objects in and out.

Two kinds: strategic merge patches, where some lists are maps by a key (`PatchKeys`), and JSON merge patches (RFC 7396),
where every list is one value. In both, `null` takes a field away; so a null in an object counts as an absent field.

A keyed list is sent as its changed elements. It is sent whole, marked to be replaced, when keys are missing or double
(a node may have two addresses of one type). Its order is sent only where the elements would not fall into it.
Source: the Kubernetes documentation "Update API Objects in Place Using kubectl patch", and the design document
"Strategic Merge Patch".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pykubelet.base.api.codec import without_nulls

#: From the path of a list (field names joined by dots, lists counting as their elements) to the key of its elements.
PatchKeys = Mapping[str, str]
POD_STATUS_KEYS: PatchKeys = {"conditions": "type", "hostIPs": "ip", "podIPs": "ip", "resourceClaimStatuses": "name"}
NODE_STATUS_KEYS: PatchKeys = {"conditions": "type", "addresses": "type"}
POD_KEYS: PatchKeys = {f"status.{path}": key for path, key in POD_STATUS_KEYS.items()}
NODE_KEYS: PatchKeys = {
    **{f"status.{path}": key for path, key in NODE_STATUS_KEYS.items()},
    "metadata.ownerReferences": "uid",
    "spec.taints": "key",
}

DIRECTIVE = "$patch"
ORDER = "$setElementOrder/"
Object = dict[str, Any]


class PatchError(ValueError):
    """A patch that cannot be applied."""


def strategic_diff(before: object, after: object, keys: PatchKeys) -> Object:
    """The strategic merge patch that makes `after` of `before`; empty when they are equal."""
    return _diff(_object(before), _object(after), keys, "")


def apply_strategic(patch: object, target: object, keys: PatchKeys) -> Object:
    """What the API server makes of `target`. PatchError for a malformed patch."""
    return _apply(_object(patch), _object(target), keys, "")


def merge_diff(before: object, after: object) -> Object:
    """The JSON merge patch that makes `after` of `before`; empty when they are equal."""
    return strategic_diff(before, after, {})


def apply_merge(patch: object, target: object) -> Object:
    return _apply(_object(patch), _object(target), {}, "", directives=False)


def _object(value: object) -> Object:
    if not isinstance(value, dict):
        raise PatchError(f"expected an object, got {type(value).__name__}")
    return value


def _inner(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# The difference


def _diff(before: Object, after: Object, keys: PatchKeys, path: str) -> Object:
    patch: Object = {name: None for name, old in before.items() if old is not None and after.get(name) is None}
    for name, new in after.items():
        old = before.get(name)
        if new is None or old == new:
            continue
        where = _inner(path, name)
        if isinstance(new, dict):
            patch[name] = _diff(old if isinstance(old, dict) else {}, new, keys, where)
        elif where in keys and isinstance(new, list) and (new or isinstance(old, list)):
            patch.update(_diff_list(name, old if isinstance(old, list) else [], new, keys, where))
        else:
            patch[name] = without_nulls(new)
    return patch


def _diff_list(name: str, old: list[Any], new: list[Any], keys: PatchKeys, path: str) -> Object:
    key = keys[path]
    before, after = _by_key(old, key), _by_key(new, key)
    if before is None or after is None:
        return {name: [*(without_nulls(item) for item in new), {DIRECTIVE: "replace"}]}
    changes: list[Object] = []
    for value, item in after.items():
        if value not in before:
            changes.append({key: item[key], **_diff({}, item, keys, path)})
        elif difference := _diff(before[value], item, keys, path):
            changes.append({key: item[key], **difference})
    changes.extend({DIRECTIVE: "delete", key: item[key]} for value, item in before.items() if value not in after)
    falls_into = [value for value in before if value in after] + [value for value in after if value not in before]
    patch: Object = {name: changes} if changes else {}
    if falls_into != list(after):
        patch[ORDER + name] = [{key: item[key]} for item in after.values()]
    return patch


def _by_key(items: Sequence[object], key: str) -> dict[object, Object] | None:
    """The elements by their key; None when they are no map."""
    found: dict[object, Object] = {}
    for item in items:
        value = item.get(key) if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(value, (str, int)) or value in found:
            return None
        found[value] = item
    return found


# What the API server makes of it


def _apply(patch: Object, target: Object, keys: PatchKeys, path: str, *, directives: bool = True) -> Object:
    if directives and DIRECTIVE in patch:
        return _directed(patch)
    result = dict(target)
    for name, new in patch.items():
        if directives and name.startswith("$"):
            continue
        where, old = _inner(path, name), result.get(name)
        if new is None:
            result.pop(name, None)
        elif isinstance(new, dict):
            base = old if isinstance(old, dict) else {}
            result[name] = _apply(new, base, keys, where, directives=directives)
        elif where in keys and isinstance(new, list):
            result[name] = _apply_list(new, old if isinstance(old, list) else [], keys, where)
        else:
            result[name] = new
    for name, order in patch.items() if directives else ():
        if name.startswith(ORDER):
            field = name.removeprefix(ORDER)
            result[field] = _in_order(result.get(field, []), order, keys.get(_inner(path, field)))
    return result


def _directed(patch: Object) -> Object:
    match patch[DIRECTIVE]:
        case "replace":
            return {name: value for name, value in patch.items() if name != DIRECTIVE}
        case "delete":
            return {}
        case other:
            raise PatchError(f"unknown directive {other!r}")


def _apply_list(patch: list[Any], target: list[Any], keys: PatchKeys, path: str) -> list[Any]:
    if any(isinstance(item, dict) and item.get(DIRECTIVE) == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and item.get(DIRECTIVE) == "replace")]
    key = keys[path]
    result = list(target)
    for change in patch:
        if not isinstance(change, dict) or key not in change:
            raise PatchError(f"{path}: an element has no {key}")
        index = next((i for i, item in enumerate(result) if item.get(key) == change[key]), None)
        if change.get(DIRECTIVE) == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(without_nulls(change))
        else:
            result[index] = _apply(change, result[index], keys, path)
    return result


def _in_order(items: list[Any], order: object, key: str | None) -> list[Any]:
    """Elements that the order does not name stay behind the one they stood behind."""
    if key is None or not isinstance(order, list):
        raise PatchError("an order for a list without keys")
    ranks = {item[key]: number for number, item in enumerate(order)}
    named = sorted((item for item in items if item[key] in ranks), key=lambda item: ranks[item[key]])
    result, rest = [], iter(named)
    for item in items:
        result.append(next(rest) if item[key] in ranks else item)
    return result
