"""Namespaces: those that are always there, and the deletion of the contents of others. Pure.

Rules:
- A namespace that is deleted keeps its finalizer `kubernetes` until nothing is in it. Pods go first, so that what they use stays while
  they end; then all other kinds.
- Its conditions state what is left, in the words of the namespace controller.
Source: the Kubernetes documentation "Namespaces"; KEP-5080 (ordered deletion of namespaces).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of
from pykubelet_local_api.reconcile.changes import (
    created,
    deleted,
    finalizers_of,
    spec_of,
    status_updated,
    updated,
    with_condition,
)
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

FINALIZER = "kubernetes"
ALWAYS = ("default", "kube-node-lease", "kube-public", "kube-system")
_PODS = "pods"
_CONTENTS = tuple(sorted(kind.resource for kind in STORED.values() if kind.is_namespaced))
READS = frozenset({"namespaces", *_CONTENTS})


def reconcile(view: View) -> list[ObjectChange]:
    """Create the namespaces that are always there, and empty those that are deleted."""
    changes = []
    for name in ALWAYS:
        if view.get("namespaces", "", name) is None:
            changes.append(created("namespaces", _namespace(name)))
    ending = {name_of(namespace): namespace for namespace in view.list("namespaces") if is_deleting(namespace)}
    contents = _contents(view, ending)
    for name, namespace in ending.items():
        changes += _ending(view.now, namespace, contents[name])
    return changes


def _contents(view: View, names: Collection[str]) -> dict[str, dict[str, list[Json]]]:
    """What is in these namespaces, by namespace and resource, pods first."""
    contents: dict[str, dict[str, list[Json]]] = {name: defaultdict(list) for name in names}
    for resource in (_PODS, *(resource for resource in _CONTENTS if resource != _PODS)) if names else ():
        for found in view.list(resource):
            place = contents.get(namespace_of(found))
            if place is not None:
                place[resource].append(found)
    return contents


def _namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _ending(now: float, namespace: Json, contents: dict[str, list[Json]]) -> list[ObjectChange]:
    held = spec_of(namespace).get("finalizers") or []
    if FINALIZER not in held:
        return [] if held or finalizers_of(namespace) else [deleted("namespaces", namespace)]
    changes: list[ObjectChange] = []
    left: dict[str, int] = {}
    finalizers: Counter[str] = Counter()
    for resource, found in contents.items():
        for content in found:
            if is_deleting(content):
                finalizers.update(finalizers_of(content))
            else:
                changes.append(deleted(resource, content))
        ending = sum(map(is_deleting, found))
        if ending:
            left[resource] = ending
        if resource == _PODS:
            break
    if not contents:
        rest = [name for name in held if name != FINALIZER]
        return [updated("namespaces/finalize", namespace | {"spec": spec_of(namespace) | {"finalizers": rest}})]
    reported = _reported(namespace, left, finalizers, now)
    return changes if reported is namespace else [status_updated("namespaces", reported), *changes]


def _reported(namespace: Json, left: dict[str, int], finalizers: Counter[str], now: float) -> Json:
    listed = sorted(f"{_with_group(resource)} has {count} resource instances" for resource, count in left.items())
    held = sorted(f"{name} in {count} resource instances" for name, count in finalizers.items())
    conditions = (
        (
            "NamespaceDeletionDiscoveryFailure",
            "False",
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            "False",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            "False",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        (
            (
                "NamespaceContentRemaining",
                "True",
                "SomeResourcesRemain",
                f"Some resources are remaining: {', '.join(listed)}",
            )
            if listed
            else ("NamespaceContentRemaining", "False", "ContentRemoved", "All content successfully removed")
        ),
        (
            (
                "NamespaceFinalizersRemaining",
                "True",
                "SomeFinalizersRemain",
                f"Some content in the namespace has finalizers remaining: {', '.join(held)}",
            )
            if held
            else (
                "NamespaceFinalizersRemaining",
                "False",
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            )
        ),
    )
    for kind, status, reason, message in conditions:
        namespace = with_condition(namespace, kind, status, reason, message, now)
    return namespace


def _with_group(resource: str) -> str:
    """A resource as these conditions name it: the core group is empty, but has its dot."""
    return resource if "." in resource else f"{resource}."


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Namespaces, and what is in a namespace that is deleted."""
    if resource == "namespaces":
        return True
    place = view.get("namespaces", "", namespace)
    return place is not None and is_deleting(place)


NAMESPACES = Reconciler("namespaces", READS, reconcile, concerns)
