"""Applies patches to plain objects, for the fake API server. Pure.

Owns: merge patches (RFC 7386), JSON patches (RFC 6902), and the parts of strategic merge patches that pods and nodes need:
lists merged by key, `$patch`, `$retainKeys`, `$setElementOrder`, `$deleteFromPrimitiveList`. The agent computes its patches
in `base/api/patch.py`.
"""

from __future__ import annotations

import copy
from typing import Any

from pykubelet.base.api.patch import DIRECTIVE, ORDER

Json = dict[str, Any]

#: Merge keys of lists, by the field's name. Other lists are replaced.
_KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "addresses": "type",
    "podIPs": "ip",
    "hostIPs": "ip",
    "ownerReferences": "uid",
    "hostAliases": "ip",
    "volumeMounts": "mountPath",
    "resourceClaimStatuses": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
}
_SETS = frozenset({"finalizers", "podCIDRs"})
_DELETE_FROM, _RETAIN = "$deleteFromPrimitiveList/", "$retainKeys"


class PatchError(ValueError):
    """The patch does not fit the object."""


def merge(old: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merge(new.get(key), value)
    return new


def strategic(old: Any, patch: Any) -> Any:
    """Apply a strategic merge patch to one object. Raises PatchError for a malformed patch."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    match patch.get(DIRECTIVE, "merge"):
        case "replace":
            return {key: copy.deepcopy(value) for key, value in patch.items() if key != DIRECTIVE}
        case "delete":
            return {}
        case "merge":
            new = dict(old) if isinstance(old, dict) else {}
        case other:
            raise PatchError(f"unknown directive {other!r}")
    if _RETAIN in patch:
        new = {key: value for key, value in new.items() if key in patch[_RETAIN]}
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            name = key.removeprefix(_DELETE_FROM)
            new[name] = [item for item in new.get(name, []) if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            new.pop(key, None)
        elif isinstance(value, list):
            new[key] = _merged_list(key, new.get(key) or [], value)
        else:
            new[key] = strategic(new.get(key), value)
    for key, value in patch.items():
        if key.startswith(ORDER):
            name = key.removeprefix(ORDER)
            new[name] = _ordered(name, new.get(name, []), value)
    return new


def _merged_list(field: str, old: list[Any], patch: list[Any]) -> list[Any]:
    if field in _SETS:
        return old + [item for item in patch if item not in old]
    key = "containerPort" if field == "ports" else _KEYS.get(field)
    plain = [item for item in patch if not (isinstance(item, dict) and item.get(DIRECTIVE) == "replace")]
    if key is None or len(plain) < len(patch):
        return copy.deepcopy(plain)
    found = list(old)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise PatchError(f"an element of {field} has no {key}")
        place = next((i for i, known in enumerate(found) if known.get(key) == item[key]), None)
        if item.get(DIRECTIVE) == "delete":
            found = [known for known in found if known.get(key) != item[key]]
        elif place is None:
            found.append(strategic({}, item))
        else:
            found[place] = strategic(found[place], item)
    return found


def _ordered(field: str, items: list[Any], order: object) -> list[Any]:
    """Sort elements by `order`. Elements that it does not name keep their positions."""
    if not isinstance(order, list):
        raise PatchError(f"the order of {field} is not a list")
    key = _KEYS.get(field)
    if key is None:
        return items
    rank = {item[key]: place for place, item in enumerate(order) if isinstance(item, dict) and key in item}
    named = iter(sorted((item for item in items if item[key] in rank), key=lambda item: rank[item[key]]))
    return [next(named) if item[key] in rank else item for item in items]


def json_patch(old: Json, operations: list[Json]) -> Json:
    """Apply a JSON patch (RFC 6902, without `move` and `copy`)."""
    new = copy.deepcopy(old)
    for step in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at: Any = new
        try:
            for part in way:
                at = at[int(part)] if isinstance(at, list) else at[part]
            _apply(at, last, step)
        except (KeyError, IndexError, ValueError) as error:
            raise PatchError(f"{step['path']}: no such place") from error
    return new


def _apply(at: Any, last: str, step: Json) -> None:
    match step["op"], at:
        case "add", list():
            at.insert(len(at) if last == "-" else int(last), step["value"])
        case "remove", list():
            del at[int(last)]
        case "remove", dict():
            del at[last]
        case "test", _:
            if (at[int(last)] if isinstance(at, list) else at.get(last)) != step["value"]:
                raise PatchError(f"{step['path']}: the test failed")
        case "replace", list():
            at[int(last)] = step["value"]
        case _:
            at[last] = step["value"]
