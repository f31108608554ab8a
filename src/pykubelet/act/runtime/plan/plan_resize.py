"""Finds running containers whose CPU or memory must change, in place or by a restart. Pure.

Source: KEP-1287 (in-place update of pod resources), "resizePolicy"; KEP-5419 (in-place resize of the whole pod).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Container, Pod, ResourceRequirements
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import ObservedState, PodView
from pykubelet.base.model.sizing import NOTHING, RESTART_CONTAINER, Amounts, amounts_of, resizable


class Applied(Value):
    """The resources that were last requested from the runtime, for each container instance and for the pod as a whole."""

    containers: Mapping[ContainerID, ResourceRequirements] = field(default_factory=dict)
    whole: ResourceRequirements | None = None

    def amounts(self, instance: ContainerID) -> Amounts:
        """The resources applied to one instance. Raises KeyError for an instance without a record."""
        return amounts_of(self.containers[instance], self.whole)


class ContainerResize(Value):
    """One running container whose CPU or memory changes."""

    name: str
    instance: ContainerID
    before: Amounts
    after: Amounts


def changes_of(pod: Pod, view: PodView, applied: Applied) -> tuple[ContainerResize, ...]:
    """The running containers whose applied resources differ from the spec, in the order of the spec."""
    found: list[ContainerResize] = []
    same_whole = pod.spec.resources == applied.whole
    for container in resizable(pod):
        newest = view.newest(container.name)
        if newest is None or newest.state is not ObservedState.RUNNING or newest.id not in applied.containers:
            continue
        if same_whole and applied.containers[newest.id] == (container.resources or NOTHING):
            continue
        before, after = applied.amounts(newest.id), amounts_of(container.resources, pod.spec.resources)
        if before != after:
            found.append(ContainerResize(container.name, newest.id, before, after))
    return tuple(found)


def whole_changes(pod: Pod, applied: Applied) -> bool:
    """True if the pod-level resources differ from the applied ones in their amounts. Pure."""
    if pod.spec.resources == applied.whole:
        return False
    return amounts_of(pod.spec.resources, None) != amounts_of(applied.whole, None)


def is_under_way(pod: Pod, view: PodView, applied: Applied) -> bool:
    """Whether a running container or the pod as a whole does not have the size of the spec yet."""
    return bool(view.running) and (whole_changes(pod, applied) or bool(changes_of(pod, view, applied)))


def needs_restart(container: Container, change: ContainerResize) -> bool:
    """Whether the container's resizePolicy requires a restart for this change."""
    before, after = change.before, change.after
    changed = set()
    if (before.cpu_request, before.cpu_limit) != (after.cpu_request, after.cpu_limit):
        changed.add("cpu")
    if (before.memory_request, before.memory_limit) != (after.memory_request, after.memory_limit):
        changed.add("memory")
    return any(p.resourceName in changed and p.restartPolicy == RESTART_CONTAINER for p in container.resizePolicy)
