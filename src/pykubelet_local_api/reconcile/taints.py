"""Eviction by taints with the effect NoExecute, which an administrator sets.

Rules:
- A pod of the node that does not tolerate each of these taints is deleted, with its own grace period.
- Where the tolerations name seconds, it is deleted when the fewest of these are over. The time counts from when this process saw the taint
  and the pod first, so a restart of this process begins it anew.
- A pod that has ended stays, with its log.
The taints that this control plane sets itself have another effect (see `nodes`).
Source: the Kubernetes documentation "Taints and Tolerations"; KEP-3902 (taint eviction); KEP-3329 (DisruptionTarget).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pykubelet.base.api.codec import DecodeError, from_object
from pykubelet.base.api.core import Taint, Toleration
from pykubelet.base.model.tolerations import tolerates
from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of, uid_of
from pykubelet_local_api.reconcile.changes import (
    condition_of,
    deleted,
    event_about,
    reference_to,
    spec_of,
    status_updated,
    with_pod_condition,
)
from pykubelet_local_api.reconcile.pods import has_ended, node_of
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

READS = frozenset({"nodes", "pods"})
COMPONENT = "taint-eviction-controller"
_DISRUPTED, _REASON = "DisruptionTarget", "DeletionByTaintManager"


class TaintEvictions:
    """The pods that go later. `monotonic`: the seconds of the monotonic clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def reconcile(self, view: View) -> list[ObjectChange]:
        """The pods that go now."""
        now = self._monotonic()
        since, self._since, self._due = self._since, {}, {}
        changes: list[ObjectChange] = []
        for pod, taints in _tainted_pods(view):
            left = seconds_left(spec_of(pod).get("tolerations") or (), taints)
            if left is None:
                continue
            uid = uid_of(pod)
            begun = self._since[uid] = since.get(uid, now)
            if now >= begun + left:
                changes += _evicted(view, pod)
            else:
                self._due[uid] = begun + left
        return changes

    def wakes_at(self, view: View) -> float | None:
        """When the next pod goes."""
        return view.now + max(0.0, min(self._due.values()) - self._monotonic()) if self._due else None


def _tainted_pods(view: View) -> Iterator[tuple[Json, tuple[Taint, ...]]]:
    taints = {name_of(node): found for node in view.list("nodes") if (found := _taints(node))}
    if not taints:
        return
    for pod in view.list("pods"):
        found = taints.get(node_of(pod), ())
        if found and not is_deleting(pod) and not has_ended(pod):
            yield pod, found


def _taints(node: Json) -> tuple[Taint, ...]:
    found = spec_of(node).get("taints") or ()
    return tuple(from_object(Taint, taint) for taint in found if taint.get("effect") == "NoExecute")


def seconds_left(tolerations: Iterable[Json], taints: Sequence[Taint]) -> float | None:
    """For how long a pod may stay from the first sight of the taints; None: for good. Pure."""
    try:
        known = [from_object(Toleration, toleration) for toleration in tolerations]
    except DecodeError:
        return None
    used = [next((item for item in known if tolerates(item, taint)), None) for taint in taints]
    if None in used:
        return 0.0
    seconds = [item.tolerationSeconds for item in used if item is not None and item.tolerationSeconds is not None]
    return max(0.0, min(seconds)) if seconds else None


def _evicted(view: View, pod: Json) -> list[ObjectChange]:
    """The next change that removes the pod: its status first, then its deletion."""
    if condition_of(pod, _DISRUPTED).get("reason") == _REASON:
        return [deleted("pods", pod)]
    text = "Taint manager: deleting due to NoExecute taint"
    marked = f"Marking for deletion Pod {namespace_of(pod)}/{name_of(pod)}"
    return [
        status_updated("pods", with_pod_condition(pod, _DISRUPTED, "True", _REASON, text, view.now)),
        *event_about(view, reference_to(pod, "Pod"), "Normal", "TaintManagerEviction", marked, COMPONENT),
    ]


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Nodes; of pods, those of a node with such a taint."""
    if resource == "nodes":
        return True
    pod = view.get("pods", namespace, name)
    node = view.get("nodes", "", node_of(pod)) if pod is not None else None
    return node is not None and bool(_taints(node))


def taint_evictions(monotonic: Callable[[], float]) -> Reconciler:
    """The reconciler. `monotonic`: the seconds of the monotonic clock."""
    evictions = TaintEvictions(monotonic)
    return Reconciler("taint-evictions", READS, evictions.reconcile, concerns, evictions.wakes_at)
