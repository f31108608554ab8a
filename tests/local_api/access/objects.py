"""Objects and views for tests of access."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json, name_of, namespace_of
from pykubelet_local_api.view import RequestUser

NOW = 1_800_000_000.0


class Objects:
    """A view of given objects."""

    def __init__(self, *objects: Json, now: float = NOW) -> None:
        self.now = now
        self._objects: dict[str, dict[tuple[str, str], Json]] = {}
        for found in objects:
            self.put(found)

    def put(self, found: Json) -> None:
        resource = BY_TYPE[found["apiVersion"], found["kind"]].storage
        self._objects.setdefault(resource, {})[namespace_of(found), name_of(found)] = found

    def remove(self, resource: str, namespace: str, name: str) -> None:
        del self._objects[resource][namespace, name]

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        return self._objects.get(resource, {}).get((namespace, name))

    def list(self, resource: str, namespace: str = "") -> Iterable[Json]:
        for key, found in sorted(self._objects.get(resource, {}).items(), key=lambda item: item[0]):
            if not namespace or key[0] == namespace:
                yield found


def thing(api_version: str, kind: str, name: str, namespace: str = "", **rest: Any) -> Json:
    """An object; its UID is its name with `-uid`."""
    metadata: Json = {"name": name, "uid": f"{name}-uid"} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata | rest.pop("metadata", {}), **rest}


def pod(name: str, namespace: str = "default", node: str = "n1", **spec: Any) -> Json:
    return thing("v1", "Pod", name, namespace, spec={"nodeName": node, "serviceAccountName": "default", **spec})


def rbac(kind: str, name: str, namespace: str = "", **rest: Any) -> Json:
    return thing("rbac.authorization.k8s.io/v1", kind, name, namespace, **rest)


def rule(verbs: str, resources: str = "", groups: str = "", names: str = "", urls: str = "") -> Json:
    """A PolicyRule of words; `core` is the core group."""
    keys = {"verbs": verbs, "resources": resources, "resourceNames": names, "nonResourceURLs": urls}
    found: Json = {key: words.split() for key, words in keys.items() if words}
    if resources:
        found["apiGroups"] = [{"core": ""}.get(group, group) for group in (groups or "core").split()]
    return found


def bound(role: Json, *subjects: str, namespace: str = "", name: str = "") -> Json:
    """A binding of a role to `User:jane`, `Group:a` or `ServiceAccount:namespace/name`."""
    listed = []
    for text in subjects:
        kind, _, who = text.partition(":")
        subject = {"kind": kind, "name": who}
        if kind == "ServiceAccount":
            home, _, subject["name"] = who.rpartition("/")
            subject |= {"namespace": home} if home else {}
        else:
            subject["apiGroup"] = "rbac.authorization.k8s.io"
        listed.append(subject)
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": name_of(role)}
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    return rbac(kind, name or name_of(role), namespace, roleRef=ref, subjects=listed)


def user(name: str, *groups: str) -> RequestUser:
    return RequestUser(name, (*groups, "system:authenticated"))
