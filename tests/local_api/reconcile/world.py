"""Objects in memory with the parts of the API server's semantics that reconcilers rely on."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from pykubelet_local_api.errors import StatusError, already_exists, not_found, was_modified
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json, copied, name_of, namespace_of, timestamp
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.store.snapshot import ObjectSnapshot
from pykubelet_local_api.view import ObjectChange, Verb

#: More iterations than any reconciler needs to come to an end.
MAX_STEPS = 50


class World:
    """A view, and a writer to it. `log`: each change that was made. `written`: the keys of these, for hints."""

    def __init__(self, *objects: Json, now: float = 1_800_000_000.0) -> None:
        self.now = now
        #: What `bytes_of` answers.
        self.bytes = 0
        self.log: builtins.list[ObjectChange] = []
        self.written: builtins.list[tuple[str, str, str]] = []
        self.ever_written: dict[tuple[str, str, str], None] = {}
        self._objects: dict[str, dict[tuple[str, str], Json]] = {}
        self._versions = itertools.count(1)
        for found in objects:
            self.add(found)

    # the view

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        return self._objects.get(resource, {}).get((namespace, name))

    def list(self, resource: str, namespace: str = "") -> Sequence[Json]:
        found = sorted(self._objects.get(resource, {}).items())
        return [item for (place, _), item in found if not namespace or place == namespace]

    def bytes_of(self, resources: frozenset[str]) -> int:
        return self.bytes

    def snapshot(self) -> ObjectSnapshot:
        return ObjectSnapshot({resource: objects.copy() for resource, objects in self._objects.items()}, self.now)

    # what tests do

    def add(self, found: Json) -> Json:
        """Create or replace an object, as another client would."""
        resource = resource_of(found)
        key = (namespace_of(found), name_of(found))
        before = self.get(resource, *key)
        new = copied(found)
        new["metadata"].setdefault("uid", before["metadata"]["uid"] if before else f"uid-{next(self._versions)}")
        new["metadata"].setdefault("creationTimestamp", timestamp(self.now))
        self._put(resource, key, new)
        return new

    def remove(self, resource: str, namespace: str, name: str) -> None:
        """Remove an object at once."""
        del self._objects[resource][namespace, name]
        self.written.append((resource, namespace, name))

    def delete(self, resource: str, namespace: str, name: str) -> None:
        """Delete an object as a client does: it stays while it has finalizers, and a pod while it runs."""
        found = self.get(resource, namespace, name)
        assert found is not None
        self._delete(resource, found, None)

    def names(self, resource: str, namespace: str = "") -> Sequence[str]:
        return [name_of(found) for found in self.list(resource, namespace)]

    def settle(self, *reconcilers: Reconciler) -> Sequence[ObjectChange]:
        """Make the changes of the reconcilers until there are none. Returns them."""
        made: builtins.list[ObjectChange] = []
        for _ in range(MAX_STEPS):
            before = len(made)
            for reconciler in reconcilers:
                for change in reconciler.reconcile(self):
                    self.make(change)
                    made.append(change)
            if len(made) == before:
                return made
        raise AssertionError(f"no end: {made[-3:]}")

    async def apply(self, change: ObjectChange) -> None:
        self.make(change)

    def make(self, change: ObjectChange) -> None:
        """Make the change as the API server would. Raises StatusError."""
        self.log.append(change)
        resource, _, subresource = change.resource.partition("/")
        wanted = change.object
        key = (namespace_of(wanted), name_of(wanted))
        found = self.get(resource, *key)
        if (resource, subresource) == ("pods", "binding"):
            self._bind(key, wanted)
            return
        if change.verb is Verb.CREATE:
            if found is not None:
                raise already_exists(STORED[resource], key[1])
            self.add(wanted)
            return
        if found is None:
            raise not_found(STORED[resource], key[1])
        version = wanted["metadata"].get("resourceVersion")
        if version not in (None, found["metadata"]["resourceVersion"]):
            raise was_modified(STORED[resource], key[1])
        if change.verb is Verb.DELETE:
            self._delete(resource, found, change.grace_s)
            return
        is_status = change.verb is Verb.STATUS
        new = copied(found | {"status": wanted["status"]} if is_status else wanted)
        if not is_status and "status" in found and STORED[resource].has_status:
            new["status"] = found["status"]
        if new == found:
            return
        self._put(resource, key, new)
        is_ending = new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers")
        holds = resource == "pods" or (resource == "namespaces" and new.get("spec", {}).get("finalizers"))
        if is_ending and not holds:
            self.remove(resource, *key)

    def _bind(self, key: tuple[str, str], binding: Json) -> None:
        pod = self.get("pods", *key)
        if pod is None:
            raise not_found(STORED["pods"], key[1])
        if pod["spec"].get("nodeName"):
            raise StatusError(409, "Conflict", "is already assigned to a node")
        new = copied(pod)
        new["spec"]["nodeName"] = binding["target"]["name"]
        conditions = [c for c in new.setdefault("status", {}).get("conditions", ()) if c["type"] != "PodScheduled"]
        new["status"]["conditions"] = [*conditions, {"type": "PodScheduled", "status": "True"}]
        self._put("pods", key, new)

    def _delete(self, resource: str, found: Json, grace_s: int | None) -> None:
        key = (namespace_of(found), name_of(found))
        runs = resource == "pods" and found.get("spec", {}).get("nodeName") and grace_s != 0
        runs = runs and found.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        holds = resource == "namespaces" and found.get("spec", {}).get("finalizers")
        if not (runs or holds or found["metadata"].get("finalizers")):
            self.remove(resource, *key)
        elif not found["metadata"].get("deletionTimestamp"):
            new = copied(found)
            new["metadata"]["deletionTimestamp"] = timestamp(self.now)
            if resource == "namespaces":
                new.setdefault("status", {})["phase"] = "Terminating"
            self._put(resource, key, new)

    def _put(self, resource: str, key: tuple[str, str], new: Json) -> None:
        new["metadata"]["resourceVersion"] = str(next(self._versions))
        self._objects.setdefault(resource, {})[key] = new
        self.ever_written[resource, *key] = None
        self.written.append((resource, *key))


def resource_of(found: Json) -> str:
    """The resource under which an object is stored."""
    for kind in STORED.values():
        if (kind.api_version, kind.name) == (found["apiVersion"], found["kind"]):
            return kind.resource
    raise AssertionError(found["kind"])


def thing(kind: str, name: str, namespace: str = "", api_version: str = "v1", **fields: Any) -> Json:
    """An object. `metadata` adds to its metadata; other fields are fields of the object."""
    metadata: Json = {"name": name} | ({"namespace": namespace} if namespace else {}) | fields.pop("metadata", {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def kinds_of(changes: Iterable[ObjectChange]) -> list[str]:
    """Each change as `verb resource name`, in their order."""
    return [f"{change.verb} {change.resource} {name_of(change.object)}" for change in changes]
