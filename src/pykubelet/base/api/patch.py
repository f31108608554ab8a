"""Computes strategic merge patches from two versions of an API object. Pure; takes and returns plain objects.

Some lists are merged by a key (`PatchKeys`). Without such keys, the patch is also a JSON merge patch (RFC 7396), in which
every list is one value. In a patch, `null` removes a field; therefore a null in an object counts as an absent field.

For a keyed list, only the changed elements are sent. If keys are missing or duplicate (a node may have two addresses of one
type), the whole list is sent with the directive `replace`. The order is sent only if the merge would result in another one.
The API server applies patches, not this module. Source: the Kubernetes documentation "Update API Objects in Place Using
kubectl patch", and the design document "Strategic Merge Patch".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pykubelet.base.api.codec import without_nulls

#: Maps the path of a list (field names joined by dots, without indexes) to the field that is the key of its elements.
PatchKeys = Mapping[str, str]
POD_STATUS_KEYS: PatchKeys = {"conditions": "type", "hostIPs": "ip", "podIPs": "ip", "resourceClaimStatuses": "name"}

DIRECTIVE = "$patch"
ORDER = "$setElementOrder/"
Object = dict[str, Any]


def strategic_diff(before: Object, after: Object, keys: PatchKeys) -> Object:
    """The strategic merge patch that changes `before` to `after`; empty if they are equal."""
    return _diff(before, after, keys, "")


def _diff(before: Object, after: Object, keys: PatchKeys, path: str) -> Object:
    patch: Object = {name: None for name, old in before.items() if old is not None and after.get(name) is None}
    for name, new in after.items():
        old = before.get(name)
        if new is None or old == new:
            continue
        where = f"{path}.{name}" if path else name
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
    named = [change[key] for change in changes if DIRECTIVE not in change]
    patch: Object = {name: changes} if changes else {}
    if _merged_order(named, list(before), [value for value in before if value in after]) != list(after):
        patch[ORDER + name] = [{key: item[key]} for item in after.values()]
    return patch


def _merged_order(named: list[Any], before: list[Any], kept: list[Any]) -> list[Any]:
    """The order that the API server makes if it is given none. `named`: the elements of the patch. `kept`: those that stay.

    An element that is not named stays before a named one only if both were there before, in that order: new elements come first.
    """
    place = {value: number for number, value in enumerate(before)}
    are_named = set(named)
    others = [value for value in kept if value not in are_named]
    found, at = [], 0
    for value in named:
        while at < len(others) and place[others[at]] < place.get(value, -1):
            found.append(others[at])
            at += 1
        found.append(value)
    return found + others[at:]


def _by_key(items: Sequence[object], key: str) -> dict[object, Object] | None:
    """The elements by their key; None if an element has no key or two have the same."""
    found: dict[object, Object] = {}
    for item in items:
        value = item.get(key) if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(value, (str, int)) or value in found:
            return None
        found[value] = item
    return found
