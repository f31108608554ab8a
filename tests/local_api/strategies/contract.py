"""Writes the same objects to an API server and through strategies, and lists where the answers differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from local_api.strategies.cases import Case
from local_api.strategies.stored import StoredObjects, kind_of

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json

#: Sends a request (method, path, body) and returns the object of the answer.
Ask = Callable[[str, str, Json], Json]
#: What servers set, and what each makes up for itself.
_OF_SERVER = ("uid", "resourceVersion", "creationTimestamp", "managedFields")
_TOKEN = re.compile(r"kube-api-access-\w{5}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def path_of(kind: ResourceKind, namespace: str) -> str:
    """The path of a kind's objects."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    return f"{root}/namespaces/{namespace}/{kind.plural}" if kind.is_namespaced else f"{root}/{kind.plural}"


def differences(ask: Ask, stored: StoredObjects, namespace: str, cases: Iterable[Case]) -> list[str]:
    """One text for each answer that differs. A case ends with the first one of it, since what follows depends on it."""
    found: list[str] = []
    for case in cases:
        text = msgspec.json.encode([case.body, case.changes]).decode().replace("NS", namespace)
        body, changes = msgspec.json.decode(text)
        kind = kind_of(case.plural)
        place = namespace if kind.is_namespaced else ""
        path, name = path_of(kind, namespace), body["metadata"]["name"]
        real = ask("POST", path, body)
        own = _own(stored.create, case.plural, body, place)
        if comparable(real) != comparable(own):
            found.append(f"POST {path} {text}\n{shown(real, own)}")
            continue
        if real.get("kind") == "Status":
            continue
        for patch, subresource in changes:
            real = ask("PATCH", f"{path}/{name}" + (f"/{subresource}" if subresource else ""), patch)
            own = _own(stored.update, case.plural, name, patch, place, subresource)
            if comparable(real) != comparable(own):
                found.append(f"PATCH {path}/{name}/{subresource} {patch}\n{shown(real, own)}")
                break
    return found


def _own(write: Callable[..., Json], *arguments: object) -> Json:
    try:
        return write(*arguments)
    except StatusError as error:
        return error.status()


def comparable(answer: Json) -> Any:
    """What the answers of both must have alike: the message of an error, or the object without what servers make up."""
    if answer.get("kind") == "Status":
        # the difference of two pods, as text, is left out
        return str(answer["message"]).partition("\n")[0]
    text = _TIME.sub("TIME", _TOKEN.sub("kube-api-access-x", msgspec.json.encode(answer).decode()))
    found = msgspec.json.decode(text)
    for field in _OF_SERVER:
        found["metadata"].pop(field, None)
    conditions = (found.get("status") or {}).get("conditions")
    if isinstance(conditions, list):
        # a scheduler tries pods while they are written
        found["status"]["conditions"] = [item for item in conditions if item.get("reason") != "Unschedulable"] or None
    _without_allocated(found)
    return _without_empty(found)


def _without_allocated(found: Json) -> None:
    spec = found.get("spec") or {}
    if found.get("kind") == "Node":
        # a controller watches nodes
        spec.pop("taints", None)
        found["metadata"].pop("annotations", None)
    for field in ("clusterIP", "clusterIPs"):
        if spec.get(field) not in (None, "None", ["None"]):
            spec[field] = "allocated"
    if found.get("kind") == "PersistentVolume":
        found.pop("status", None)
    for port in spec.get("ports") or ():
        if isinstance(port, dict) and port.get("nodePort"):
            port["nodePort"] = "allocated"
    for volume in spec.get("volumes") or ():
        if volume["name"] == "kube-api-access-x":
            # some distributions add a source of their own
            sources = volume["projected"]["sources"]
            volume["projected"]["sources"] = [item for item in sources if "openshift" not in str(item)]


def _without_empty(value: Any) -> Any:
    """Without members that are null, which mean the same as absent ones."""
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in sorted(value.items()) if item is not None}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def shown(real: Json, own: Json) -> str:
    """What differs, for a message."""
    return "\n".join(_different(comparable(real), comparable(own), ""))


def _different(real: Any, own: Any, path: str) -> list[str]:
    if isinstance(real, dict) and isinstance(own, dict):
        keys = sorted(real.keys() | own.keys())
        return [line for key in keys for line in _different(real.get(key), own.get(key), f"{path}.{key}")]
    return [] if real == own else [f"  {path} real {real}", f"  {path} own  {own}"]
