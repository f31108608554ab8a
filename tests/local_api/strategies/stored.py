"""Objects in memory, and writes through strategies as the registry does them, without versions and patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pykubelet.base.manifests.validation.errors import invalids
from pykubelet_local_api.errors import StatusError, invalid
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import BY_PATH
from pykubelet_local_api.objects import Json, copied, timestamp
from pykubelet_local_api.strategies.strategy import Context
from pykubelet_local_api.strategies.table import strategy_of
from pykubelet_local_api.view import RequestUser

NOW = 1_800_000_000.0
ADMIN = RequestUser("admin", ("system:masters", "system:authenticated"))
NODE = RequestUser("system:node:n1", ("system:nodes", "system:authenticated"))


def kind_of(plural: str) -> ResourceKind:
    """The kind of a plural, which may have a group: `leases.coordination.k8s.io`."""
    name, _, group = plural.partition(".")
    return next(kind for (g, _, p), kind in BY_PATH.items() if (g, p) == (group, name))


def merged(old: Any, patch: Any) -> Any:
    """A merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


class StoredObjects:
    """A view of objects, which tests write to directly (`put`) or through strategies."""

    def __init__(self) -> None:
        self.now = NOW
        self.objects: dict[tuple[str, str, str], Json] = {}

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        return self.objects.get((resource, namespace, name))

    def list(self, resource: str, namespace: str = "") -> Iterable[Json]:
        return [item for key, item in sorted(self.objects.items()) if key[0] == resource and namespace in ("", key[1])]

    def put(self, plural: str, name: str, namespace: str = "", **fields: Any) -> Json:
        """Store an object as it is."""
        metadata = {"name": name, "uid": f"uid-of-{name}"} | ({"namespace": namespace} if namespace else {})
        metadata |= fields.pop("metadata", {})
        found = {"metadata": metadata, **fields}
        self.objects[kind_of(plural).storage, namespace, name] = found
        return found

    def namespace(self, name: str, **labels: str) -> None:
        """Store a namespace with its default service account."""
        self.put("namespaces", name, metadata={"labels": labels}, status={"phase": "Active"})
        self.put("serviceaccounts", "default", name)

    def create(self, plural: str, body: Json, namespace: str = "", user: RequestUser = ADMIN) -> Json:
        """The stored object. Raises `StatusError`."""
        kind, new = kind_of(plural), copied(body)
        meta = new.setdefault("metadata", {})
        if kind.is_namespaced:
            meta["namespace"] = namespace
        meta.setdefault("uid", f"uid-of-{meta.get('name')}")
        meta.setdefault("creationTimestamp", timestamp(self.now))
        new.update(kind=kind.name, apiVersion=kind.api_version)
        strategy, context = strategy_of(kind), Context(self, user)
        strategy.prepare_create(new, context)
        named = invalids("metadata.name", meta["name"], strategy.name_errors(meta["name"]))
        if errors := named + strategy.validate_create(new, context):
            raise invalid(kind, str(meta.get("name") or ""), errors)
        if strategy.has_generation:
            meta["generation"] = 1
        self.objects[kind.storage, namespace, str(meta["name"])] = new
        return new

    def update(
        self, plural: str, name: str, patch: Json, namespace: str = "", subresource: str = "", user: RequestUser = ADMIN
    ) -> Json:
        """The object after a merge patch. Raises `StatusError`."""
        kind = kind_of(plural)
        old = self.objects[kind.storage, namespace, name]
        new = copied(merged(old, patch))
        meta = new["metadata"]  # as the registry, which goes on with this dict
        strategy, context = strategy_of(kind), Context(self, user, subresource)
        strategy.prepare_update(new, old, context)
        if errors := strategy.validate_update(new, old, context):
            raise invalid(kind, name, errors)
        if strategy.has_generation and strategy.is_new_generation(new, old):
            meta["generation"] = (old["metadata"].get("generation") or 0) + 1
        self.objects[kind.storage, namespace, name] = new
        return new

    def refusal(self, plural: str, body: Json, namespace: str = "", user: RequestUser = ADMIN) -> str:
        """The message with which a new object is refused; "" if it is not."""
        try:
            self.create(plural, body, namespace, user)
        except StatusError as error:
            return error.message
        return ""

    def change_refusal(
        self, plural: str, name: str, patch: Json, namespace: str = "", subresource: str = "", user: RequestUser = ADMIN
    ) -> str:
        """The message with which a change is refused; "" if it is not."""
        try:
            self.update(plural, name, patch, namespace, subresource, user)
        except StatusError as error:
            return error.message
        return ""
