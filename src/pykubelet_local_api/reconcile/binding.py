"""Binds pods to a node, as the default scheduler does, or reports why none takes them.

Rules:
- Pods with a higher priority come first, then older ones. A pod of another scheduler is left alone, and so is one with scheduling gates.
- A pod that no node takes gets the condition `PodScheduled` with the scheduler's message, and an Event.
- If pods of lower priority can make way, the least important ones are deleted, and the node is nominated (`preemption`).
- Before a pod is bound, its claims are bound to volumes that the node reaches, and its resource claims have devices.
Source: the Kubernetes documentation "Scheduling, Preemption and Eviction".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of, uid_of
from pykubelet_local_api.reconcile.changes import (
    condition_of,
    created,
    event_about,
    reference_to,
    spec_of,
    status_of,
    status_updated,
    with_pod_condition,
    with_status,
)
from pykubelet_local_api.reconcile.devices import DeviceUse
from pykubelet_local_api.reconcile.fit import NodeLoad, PodToPlace, Refusal, refuse_by_node, remember_only, to_place
from pykubelet_local_api.reconcile.fit_affinity import refuse_by_affinity, refuse_by_spread
from pykubelet_local_api.reconcile.fit_volumes import (
    bindings,
    refuse_anywhere,
    refuse_by_limits,
    refuse_by_volumes,
    refuse_shared,
)
from pykubelet_local_api.reconcile.matching import VolumeIndex
from pykubelet_local_api.reconcile.pods import has_ended, node_of, priority_of
from pykubelet_local_api.reconcile.preemption import Victims, is_preempted, removal, select_victims
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

SCHEDULER = "default-scheduler"
SCHEDULED = "PodScheduled"
GATED = "Scheduling is blocked due to non-empty scheduling gates"
NO_NODES = "no nodes available to schedule pods"
_NOT_HELPFUL = "Preemption is not helpful for scheduling"
READS = frozenset(
    {
        "csidrivers.storage.k8s.io",
        "csinodes.storage.k8s.io",
        "csistoragecapacities.storage.k8s.io",
        "deviceclasses.resource.k8s.io",
        "namespaces",
        "nodes",
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "resourceclaims.resource.k8s.io",
        "resourceslices.resource.k8s.io",
        "storageclasses.storage.k8s.io",
    }
)


class _Binding:
    """The decision, and which pods with a node it has last looked at: None if no pod waited."""

    def __init__(self) -> None:
        self._seen: dict[str, Json] | None = None

    def reconcile(self, view: View) -> list[ObjectChange]:
        """Bind the pods that fit, and report the others."""
        waiting: list[Json] = []
        bound: list[Json] = []
        for pod in view.list("pods"):
            if node_of(pod):
                if not has_ended(pod):
                    bound.append(pod)
            elif is_waiting(pod):
                waiting.append(pod)
        remember_only(bound, waiting)
        self._seen = {uid_of(pod): pod for pod in bound} if waiting else None
        return _Pass(view, bound).schedule(sorted(waiting, key=_rank)) if waiting else []

    def concerns(self, view: View, resource: str, namespace: str, name: str) -> bool:
        """Any object while pods wait, except pods that use the node as before; else pods without a node."""
        pod = view.get("pods", namespace, name) if resource == "pods" else None
        if pod is not None and not node_of(pod):
            return True
        if self._seen is None:
            return False
        if pod is None:
            return True
        before = self._seen.get(uid_of(pod))
        if before is None:
            return not has_ended(pod)
        return _use(before) != _use(pod)


def _use(pod: Json) -> tuple[object, ...]:
    """What other pods may depend on."""
    meta, status = pod["metadata"], status_of(pod)
    allocated = [item.get("allocatedResources") for item in status.get("containerStatuses") or ()]
    allocated += [item.get("allocatedResources") for item in status.get("initContainerStatuses") or ()]
    claimed = status.get("nodeAllocatableResourceClaimStatuses")
    return spec_of(pod), meta.get("labels"), has_ended(pod), is_deleting(pod), is_preempted(pod), allocated, claimed


def is_waiting(pod: Json) -> bool:
    """Whether the pod waits for this scheduler."""
    is_ours = spec_of(pod).get("schedulerName") in (None, "", SCHEDULER)
    return is_ours and not node_of(pod) and not is_deleting(pod) and not has_ended(pod)


def _rank(pod: Json) -> tuple[int, str, str, str]:
    return -priority_of(pod), pod["metadata"].get("creationTimestamp") or "", namespace_of(pod), name_of(pod)


class _Pass:
    """One look at all pods that wait. What is chosen for a pod counts for the next ones."""

    def __init__(self, view: View, bound: Sequence[Json]) -> None:
        self._view = view
        self._loads = [NodeLoad(node) for node in view.list("nodes") if not is_deleting(node)]
        by_name = {load.name: load for load in self._loads}
        for pod in bound:
            if (load := by_name.get(node_of(pod))) is not None:
                load.add(pod)
        self._volumes = VolumeIndex(view.list("persistentvolumes"))
        self._taken: set[str] = set()
        self._devices = DeviceUse(view)

    def schedule(self, waiting: Sequence[Json]) -> list[ObjectChange]:
        changes: list[ObjectChange] = []
        for pod in waiting:
            if spec_of(pod).get("schedulingGates"):
                changes += self._report(pod, "SchedulingGated", GATED)
            else:
                changes += self._schedule(pod)
        return changes

    def _schedule(self, pod: Json) -> list[ObjectChange]:
        if not self._loads:
            return self._report(pod, "Unschedulable", NO_NODES)
        wanted = to_place(pod)
        if isinstance(wanted, str):
            return self._report(pod, "SchedulerError", wanted)
        if reason := refuse_anywhere(self._view, pod):
            # the scheduler has no state of the plugins that come after the one that refuses
            return self._report(pod, "Unschedulable", f"{_none_of(len(self._loads))}: {reason}. not found")
        if wanted.pod.spec.resourceClaims and (reason := self._devices.refuse_anywhere(wanted)):
            return self._report(pod, "Unschedulable", f"{_none_of(len(self._loads))}: {reason}.")
        refusals: dict[str, Refusal] = {}
        for load in self._loads:
            refusal = self._refuse(wanted, load, self._loads)
            if refusal is None:
                return self._bind(wanted, load)
            refusals[load.name] = refusal
        return self._refused(wanted, refusals)

    def _refuse(self, wanted: PodToPlace, load: NodeLoad, loads: Sequence[NodeLoad]) -> Refusal | None:
        """The answer of the first filter that refuses the node."""
        return (
            refuse_by_node(wanted, load)
            or refuse_shared(self._view, wanted, [load])
            or refuse_by_limits(self._view, wanted, load)
            or refuse_by_volumes(self._view, wanted, load, self._volumes, self._taken)
            or refuse_by_spread(wanted, load, loads)
            or refuse_by_affinity(self._view, wanted, load, loads)
            or (self._devices.refuse(wanted, load) if wanted.pod.spec.resourceClaims else None)
        )

    def _bind(self, wanted: PodToPlace, load: NodeLoad) -> list[ObjectChange]:
        pod = wanted.object
        load.add(pod)
        of_volumes = bindings(self._view, wanted, load, self._volumes, self._taken)
        of_devices = self._devices.steps(wanted, load) if wanted.pod.spec.resourceClaims else None
        if of_volumes is not None or of_devices is not None:
            return [*(of_volumes or ()), *(of_devices or ())]
        place = f"{namespace_of(pod)}/{name_of(pod)}"
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": namespace_of(pod), "name": name_of(pod), "uid": pod["metadata"].get("uid")},
            "target": {"apiVersion": "v1", "kind": "Node", "name": load.name},
        }
        message = f"Successfully assigned {place} to {load.name}"
        event = event_about(self._view, reference_to(pod, "Pod"), "Normal", "Scheduled", message, SCHEDULER)
        return [created("pods/binding", binding), *event]

    def _refused(self, wanted: PodToPlace, refusals: Mapping[str, Refusal]) -> list[ObjectChange]:
        pod = wanted.object
        message = f"{_none_of(len(self._loads))}: {_counted(list(refusals.values()))}."
        before = "still not schedulable" if wanted.pod.spec.resourceClaims else "no new claims to deallocate"
        if wanted.pod.spec.preemptionPolicy == "Never":
            why = "not eligible due to preemptionPolicy=Never."
            return self._report(pod, "Unschedulable", f"{message} {before}, preemption: {why}")
        nominated = status_of(pod).get("nominatedNodeName") or ""
        load = next((load for load in self._loads if load.name == nominated), None)
        if load is not None and not refusals[nominated].is_final and _awaits_victims(pod, load):
            load.add(pod)  # what the victims leave is for this pod
            why = "not eligible due to a terminating pod on the nominated node."
            return self._report(pod, "Unschedulable", f"{message} {before}, preemption: {why}", nominated)
        failures: list[Refusal] = []
        for load in self._loads:
            if refusals[load.name].is_final:
                failures.append(Refusal((_NOT_HELPFUL,), True))
                continue
            found = select_victims(wanted, load, lambda left: self._refuse(wanted, left, self._with(left)))
            if isinstance(found, Victims):
                load.add(pod)
                return self._preempt(pod, load, found, message)
            failures.append(found)
        why = f"{_none_of(len(self._loads))}: {_counted(failures)}."
        return self._report(pod, "Unschedulable", f"{message} {before}, preemption: {why}", "")

    def _with(self, load: NodeLoad) -> list[NodeLoad]:
        return [load if other.name == load.name else other for other in self._loads]

    def _preempt(self, pod: Json, load: NodeLoad, victims: Victims, message: str) -> list[ObjectChange]:
        changes = self._report(pod, "Unschedulable", message, load.name)
        for victim in victims.pods:
            changes += removal(self._view, victim, pod, load.name, SCHEDULER)
        return changes

    def _report(self, pod: Json, reason: str, message: str, nominated: str | None = None) -> list[ObjectChange]:
        """The condition of a pod that waits. `nominated`: its nominated node; None: as it is."""
        reported = with_pod_condition(pod, SCHEDULED, "False", reason, message, self._view.now)
        if nominated is not None and (status_of(pod).get("nominatedNodeName") or "") != nominated:
            reported = with_status(reported, nominatedNodeName=nominated or None)
        if reported is pod:
            return []
        changes = [status_updated("pods", reported)]
        if reason != "SchedulingGated" and condition_of(pod, SCHEDULED).get("message") != message:
            changes += event_about(
                self._view, reference_to(pod, "Pod"), "Warning", "FailedScheduling", message, SCHEDULER
            )
        return changes


def _awaits_victims(pod: Json, load: NodeLoad) -> bool:
    return any(is_preempted(other) and priority_of(other) < priority_of(pod) for other in load.pods.values())


def _none_of(nodes: int) -> str:
    return f"0/{nodes} nodes are available"


def _counted(refusals: Sequence[Refusal]) -> str:
    counts = Counter(reason for refusal in refusals for reason in refusal.reasons)
    return ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))


def binding() -> Reconciler:
    """The reconciler."""
    decision = _Binding()
    return Reconciler("binding", READS, decision.reconcile, decision.concerns)
