"""Removes pods that nothing else will remove.

Rules:
- Of pods that have ended, the newest `MAX_ENDED` stay; the oldest go first, and evicted ones before others.
- A pod whose node has not existed for `QUARANTINE_S` goes at once, marked as failed. As with nodes, the time counts from when this
  process saw it first.
- A pod that is deleted before it had a node goes at once.
Source: the Kubernetes documentation "Pod Lifecycle", garbage collection of Pods; KEP-3329 (DisruptionTarget).
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of
from pykubelet_local_api.reconcile.changes import (
    deleted,
    generation_of,
    status_of,
    status_updated,
    with_pod_condition,
    with_status,
)
from pykubelet_local_api.reconcile.pods import has_ended, node_of
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

#: Pods that have ended and stay. A control plane keeps 12,500, for all of its nodes.
MAX_ENDED = 500
#: Seconds after which the pods of a node that does not exist go.
QUARANTINE_S = 40.0
READS = frozenset({"nodes", "pods"})


class EndedPods:
    """The nodes that pods name and that do not exist. `monotonic`: the seconds of the monotonic clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._missing: dict[str, float] = {}

    def reconcile(self, view: View) -> list[ObjectChange]:
        """The pods that go."""
        now = self._monotonic()
        nodes = {name_of(node) for node in view.list("nodes")}
        pods = list(view.list("pods"))
        missing = {node_of(pod) for pod in pods} - nodes - {""}
        self._missing = {name: self._missing.get(name, now) for name in missing}
        away = {name for name, since in self._missing.items() if now >= since + QUARANTINE_S}
        changes: list[ObjectChange] = []
        for pod in pods:
            if node_of(pod) in away:
                changes.append(_orphaned(pod, view.now))
            elif is_deleting(pod) and not node_of(pod):
                changes.append(deleted("pods", pod, 0))
        gone = {id(change.object) for change in changes}
        ended = [pod for pod in pods if has_ended(pod) and not is_deleting(pod) and id(pod) not in gone]
        if len(ended) > MAX_ENDED:
            ended.sort(key=_age)
            changes += [deleted("pods", pod, 0) for pod in ended[: len(ended) - MAX_ENDED]]
        return changes

    def wakes_at(self, view: View) -> float | None:
        """When the next pods of a missing node go."""
        now = self._monotonic()
        left = [since + QUARANTINE_S - now for since in self._missing.values() if since + QUARANTINE_S > now]
        return view.now + min(left) if left else None


def _orphaned(pod: Json, now: float) -> ObjectChange:
    """The next change that removes a pod without a node: its status first, then its deletion."""
    if has_ended(pod):
        return deleted("pods", pod, 0)
    text = "PodGC: node no longer exists"
    marked = with_pod_condition(pod, "DisruptionTarget", "True", "DeletionByPodGC", text, now)
    return status_updated("pods", with_status(marked, phase="Failed", observedGeneration=generation_of(pod)))


def _age(pod: Json) -> tuple[bool, str, str, str]:
    is_other = status_of(pod).get("reason") != "Evicted"
    return is_other, pod["metadata"].get("creationTimestamp") or "", namespace_of(pod), name_of(pod)


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Nodes; of pods, those that have ended, are deleted without a node, or name a node that does not exist."""
    if resource == "nodes":
        return True
    pod = view.get("pods", namespace, name)
    if pod is None:
        return False
    node = node_of(pod)
    return has_ended(pod) or (is_deleting(pod) if not node else view.get("nodes", "", node) is None)


def ended_pods(monotonic: Callable[[], float]) -> Reconciler:
    """The reconciler. `monotonic`: the seconds of the monotonic clock."""
    ended = EndedPods(monotonic)
    return Reconciler("ended-pods", READS, ended.reconcile, concerns, ended.wakes_at)
