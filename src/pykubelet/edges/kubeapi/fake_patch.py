"""How the fake API server applies patches to plain objects. Pure.

Owns: merge patches (RFC 7386), JSON patches (RFC 6902) and strategic merge patches as far as pods and nodes need them:
lists merged by key, `$patch`, `$retainKeys`, `$deleteFromPrimitiveList`.
"""

from __future__ import annotations

import copy
from typing import Any

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
_DELETE_FROM = "$deleteFromPrimitiveList/"


class PatchError(ValueError):
    """The patch does not fit the object."""


def merge(old: Any, patch: Any) -> Any:
    """RFC 7386."""
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
    """A strategic merge patch of one object."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    new = dict(old) if isinstance(old, dict) else {}
    if "$retainKeys" in patch:
        new = {key: value for key, value in new.items() if key in patch["$retainKeys"]}
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
        if key.startswith("$setElementOrder/"):
            name = key.removeprefix("$setElementOrder/")
            new[name] = _ordered(name, new.get(name, []), value)
    return new


def _merged_list(field: str, old: list[Any], patch: list[Any]) -> list[Any]:
    if field in _SETS:
        return old + [item for item in patch if item not in old]
    key = "containerPort" if field == "ports" else _KEYS.get(field)
    if key is None or any(item.get("$patch") == "replace" for item in patch if isinstance(item, dict)):
        return [copy.deepcopy(item) for item in patch if not (isinstance(item, dict) and set(item) == {"$patch"})]
    found = list(old)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise PatchError(f"an element of {field} has no {key}")
        place = next((i for i, known in enumerate(found) if known.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            found = [known for known in found if known.get(key) != item[key]]
        elif place is None:
            found.append(strategic({}, item))
        else:
            found[place] = strategic(found[place], item)
    return found


def _ordered(field: str, items: list[Any], order: list[Any]) -> list[Any]:
    key = _KEYS.get(field)
    if key is None:
        return items
    names = [item[key] for item in order if isinstance(item, dict) and key in item]
    rank = {name: place for place, name in enumerate(names)}
    return sorted(items, key=lambda item: rank.get(item.get(key), len(rank)))


def json_patch(old: Json, operations: list[Json]) -> Json:
    """RFC 6902, without `move` and `copy`."""
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
