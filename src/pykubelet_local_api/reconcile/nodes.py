"""The node's lifecycle: whether its agent still reports, and the taints that follow from its conditions.

Rules:
- A node counts as gone when neither its Lease nor the heartbeat of its condition Ready has changed for `GRACE_S`, as this process has
  observed them: dates are not compared with the clock, which may jump, and a restart of this process begins the time anew. Its conditions
  become Unknown, and its pods are not ready.
- Each condition that keeps pods away has its taint. A node that has not reported yet is not ready.
- No pod is evicted from the node, because there is no other one. So the taints have the effect NoSchedule only, as those of a control
  plane that has lost all of its nodes.
Source: the Kubernetes documentation "Node Status", "Taints and Tolerations" (taint nodes by condition).
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.values import Value
from pykubelet_local_api.objects import Json, is_deleting, name_of, timestamp
from pykubelet_local_api.reconcile.changes import (
    condition_of,
    event_about,
    reference_to,
    spec_of,
    status_of,
    status_updated,
    updated,
    with_condition,
    with_status,
)
from pykubelet_local_api.reconcile.pods import has_ended, node_of
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

#: Seconds without a sign of life after which a node counts as gone: the default of `--node-monitor-grace-period`.
GRACE_S = 50.0
#: Seconds after its creation in which the registration of a node is reported.
NEW_S = 60.0
LEASES, LEASE_NAMESPACE = "leases.coordination.k8s.io", "kube-node-lease"
READS = frozenset({"nodes", LEASES})
COMPONENT = "node-controller"
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_REPORTED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_TAINTS = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_OURS = frozenset({NOT_READY, UNREACHABLE, _UNSCHEDULABLE, *_TAINTS.values()})


class _Sign(Value):
    """The last sign of life of a node, and the monotonic second at which it was first seen."""

    mark: str
    seen_at: float


class NodeLifecycle:
    """The signs of life of nodes. `monotonic`: the seconds of the monotonic clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._signs: dict[str, _Sign] = {}

    def reconcile(self, view: View) -> list[ObjectChange]:
        """The conditions and taints that are due."""
        nodes = list(view.list("nodes"))
        self._observe(view, nodes)
        changes: list[ObjectChange] = []
        for node in nodes:
            if not is_deleting(node):
                changes += _changes(view, node, is_gone=self._is_gone(node))
        return changes

    def wakes_at(self, view: View) -> float | None:
        """When the next node counts as gone."""
        now = self._monotonic()
        left = [sign.seen_at + GRACE_S - now for sign in self._signs.values() if sign.seen_at + GRACE_S > now]
        return view.now + min(left) if left else None

    def _observe(self, view: View, nodes: list[Json]) -> None:
        before, self._signs = self._signs, {}
        for node in nodes:
            lease = view.get(LEASES, LEASE_NAMESPACE, name_of(node)) or {}
            mark = f"{spec_of(lease).get('renewTime')} {condition_of(node, 'Ready').get('lastHeartbeatTime')}"
            sign = before.get(name_of(node))
            if sign is None or sign.mark != mark:
                sign = _Sign(mark, self._monotonic())
            self._signs[name_of(node)] = sign

    def _is_gone(self, node: Json) -> bool:
        return self._monotonic() >= self._signs[name_of(node)].seen_at + GRACE_S


def _changes(view: View, node: Json, *, is_gone: bool) -> list[ObjectChange]:
    changes: list[ObjectChange] = []
    if is_gone:
        silent = _silent(node, view.now)
        if silent is not node:
            changes.append(status_updated("nodes", silent))
            node = silent
        changes += _unready_pods(view, node)
    taints = _tainted(node, view.now)
    if taints is not None and not changes:
        changes.append(updated("nodes", node | {"spec": spec_of(node) | {"taints": taints}}))
    if _is_new(node, view.now):
        text = f"Node {name_of(node)} event: Registered Node {name_of(node)} in Controller"
        changes += event_about(view, reference_to(node, "Node"), "Normal", "RegisteredNode", text, COMPONENT)
    return changes


def _is_new(node: Json, now: float) -> bool:
    created = node["metadata"].get("creationTimestamp")
    return bool(created) and now - parse_time(created) < NEW_S


def _silent(node: Json, now: float) -> Json:
    """The node with conditions that are not known; the same object if they are already."""
    for kind in _REPORTED:
        before = condition_of(node, kind)
        if not before:
            text = "Kubelet never posted node status."
            node = with_condition(node, kind, "Unknown", "NodeStatusNeverUpdated", text, now)
        elif before.get("status") != "Unknown":
            node = with_condition(
                node, kind, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", now
            )
    return node


def _unready_pods(view: View, node: Json) -> list[ObjectChange]:
    changes = []
    for pod in view.list("pods"):
        if node_of(pod) != name_of(node) or has_ended(pod):
            continue
        if condition_of(pod, "Ready").get("status") == "True":
            conditions = [
                item | {"status": "False", "lastTransitionTime": timestamp(view.now)}
                if item["type"] == "Ready"
                else item
                for item in status_of(pod)["conditions"]
            ]
            changes.append(status_updated("pods", with_status(pod, conditions=conditions)))
            changes += event_about(
                view, reference_to(pod, "Pod"), "Warning", "NodeNotReady", "Node is not ready", COMPONENT
            )
    return changes


def _tainted(node: Json, now: float) -> list[Json] | None:
    """All taints of the node as they shall be; None: as they are."""
    wanted: set[tuple[str, str]] = set()
    ready = condition_of(node, "Ready").get("status")
    if ready != "True":
        key = UNREACHABLE if ready == "Unknown" else NOT_READY
        wanted.add((key, "NoSchedule"))
    wanted |= {
        (taint, "NoSchedule") for kind, taint in _TAINTS.items() if condition_of(node, kind).get("status") == "True"
    }
    if spec_of(node).get("unschedulable"):
        wanted.add((_UNSCHEDULABLE, "NoSchedule"))
    before: list[Json] = list(spec_of(node).get("taints") or ())
    kept = [taint for taint in before if taint.get("key") not in _OURS or (taint["key"], taint.get("effect")) in wanted]
    have = {(taint.get("key"), taint.get("effect")) for taint in kept}
    added = [{"key": key, "effect": effect, "timeAdded": timestamp(now)} for key, effect in sorted(wanted - have)]
    return None if kept == before and not added else [*kept, *added]


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Nodes, and their Leases."""
    return resource == "nodes" or namespace == LEASE_NAMESPACE


def node_lifecycle(monotonic: Callable[[], float]) -> Reconciler:
    """The reconciler. `monotonic`: the seconds of the monotonic clock."""
    lifecycle = NodeLifecycle(monotonic)
    return Reconciler("nodes", READS, lifecycle.reconcile, concerns, lifecycle.wakes_at)
