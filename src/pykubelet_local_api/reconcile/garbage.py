"""Garbage collection by owner references: objects go when their last owner is gone.

Rules:
- An object goes when it has owner references, and each owner is absent (no object of that kind and name has that UID), or waits in the
  foreground for this object. While another owner is there, only those references are removed.
- An owner with the finalizer `foregroundDeletion` stays until no object with `blockOwnerDeletion` refers to it.
- An owner with the finalizer `orphan` stays until no object refers to it; the references are removed.
- The owner of an object of a namespace is in the same namespace, or has no namespace. One in another namespace counts as absent. An
  object without a namespace keeps what names an owner in some namespace.
- An owner of a kind that is not served cannot be looked for, and counts as present.
- Events are not collected by owner; they expire.
Source: the Kubernetes documentation "Garbage Collection", "Owners and Dependents", "Finalizers".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pykubelet_local_api.kinds.table import BY_TYPE, STORED
from pykubelet_local_api.objects import Json, is_deleting, namespace_of, owners_of, uid_of
from pykubelet_local_api.reconcile.changes import (
    deleted,
    finalizers_of,
    updated,
    with_finalizer,
    with_metadata,
    without_finalizer,
)
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
READS = frozenset(resource for resource in STORED if resource != "events")
_RESOURCES = tuple(sorted(READS))
#: Objects that refer to an owner, by the owner's UID: each with its resource and the reference.
Dependents = dict[str, list[tuple[str, Json, Json]]]


class GarbageCollection:
    """The decision, and whether an owner waited for others in the last one: then any write may end its wait."""

    def __init__(self) -> None:
        self._has_waiting = False

    def reconcile(self, view: View) -> list[ObjectChange]:
        """What is due for all objects."""
        dependents: Dependents = defaultdict(list)
        waiting: list[tuple[str, Json]] = []
        owned: list[tuple[str, Json]] = []
        for resource in _RESOURCES:
            for found in view.list(resource):
                meta = found["metadata"]
                if meta.get("ownerReferences"):
                    owned.append((resource, found))
                    for reference in owners_of(found):
                        dependents[reference.get("uid", "")].append((resource, found, reference))
                if meta.get("deletionTimestamp") and _waits(found):
                    waiting.append((resource, found))
        self._has_waiting = bool(waiting)
        # an object is changed once at a time: the changes of one answer do not depend on each other
        changes: dict[tuple[str, str], ObjectChange] = {}
        for resource, owner in waiting:
            for change in _ended(resource, owner, dependents):
                changes.setdefault((change.resource, uid_of(change.object)), change)
        for resource, found in owned:
            if (resource, uid_of(found)) not in changes and (due := _judged(view, resource, found, dependents)):
                changes[resource, uid_of(found)] = due
        return list(changes.values())

    def concerns(self, view: View, resource: str, namespace: str, name: str) -> bool:
        """An object that is gone, an owner that waits, and an object with an owner that is absent or deleted."""
        found = view.get(resource, namespace, name)
        if found is None or self._has_waiting or (is_deleting(found) and _waits(found)):
            return True
        return any(_is_going(view, found, reference) for reference in owners_of(found))


def _waits(found: Json) -> bool:
    return any(name in (FOREGROUND, ORPHAN) for name in finalizers_of(found))


def _ended(resource: str, owner: Json, dependents: Dependents) -> Iterable[ObjectChange]:
    """What ends the wait of an owner that is deleted."""
    mine = dependents.get(uid_of(owner), [])
    if ORPHAN in finalizers_of(owner):
        for place, found, _ in mine:
            yield updated(place, _without_owners(found, {uid_of(owner)}))
        if not mine:
            yield updated(resource, without_finalizer(owner, ORPHAN))
    elif not any(reference.get("blockOwnerDeletion") for _, _, reference in mine):
        yield updated(resource, without_finalizer(owner, FOREGROUND))


def _judged(view: View, resource: str, found: Json, dependents: Dependents) -> ObjectChange | None:
    """What is due for an object with owners."""
    if is_deleting(found):
        return None
    gone: set[str] = set()
    awaiting: set[str] = set()
    is_kept = False
    for reference in owners_of(found):
        match _state(view, found, reference):
            case "absent":
                gone.add(reference.get("uid", ""))
            case "waiting":
                awaiting.add(reference.get("uid", ""))
            case _:
                is_kept = True
    if is_kept:
        return updated(resource, _without_owners(found, gone | awaiting)) if gone or awaiting else None
    if awaiting and dependents.get(uid_of(found)) and FOREGROUND not in finalizers_of(found):
        return updated(resource, with_finalizer(found, FOREGROUND))  # its own dependents go first; then it is deleted
    return deleted(resource, found)


def _state(view: View, found: Json, reference: Json) -> str:
    """Whether the owner is "absent", is "waiting" for this object to go, or is "present"."""
    kind = BY_TYPE.get((reference.get("apiVersion", ""), reference.get("kind", "")))
    if kind is None or kind.is_review or kind.storage == "events":
        return "present"
    namespace = namespace_of(found)
    if kind.is_namespaced and not namespace:
        return "present"
    owner = view.get(kind.storage, namespace if kind.is_namespaced else "", reference.get("name", ""))
    if owner is None or uid_of(owner) != reference.get("uid"):
        return "absent"
    if is_deleting(owner) and FOREGROUND in finalizers_of(owner) and reference.get("blockOwnerDeletion"):
        return "waiting"
    return "present"


def _without_owners(found: Json, uids: set[str]) -> Json:
    kept = [reference for reference in owners_of(found) if reference.get("uid", "") not in uids]
    return with_metadata(found, ownerReferences=kept or None)


def _is_going(view: View, found: Json, reference: Json) -> bool:
    if _state(view, found, reference) != "present":
        return True
    kind = BY_TYPE.get((reference.get("apiVersion", ""), reference.get("kind", "")))
    if kind is None:
        return False
    owner = view.get(kind.storage, namespace_of(found) if kind.is_namespaced else "", reference.get("name", ""))
    return owner is not None and is_deleting(owner)


def garbage() -> Reconciler:
    """The reconciler."""
    collection = GarbageCollection()
    return Reconciler("garbage", READS, collection.reconcile, collection.concerns)
