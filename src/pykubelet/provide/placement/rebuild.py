"""Rebuilds the CPU and memory assignments from the running containers, when there is no state file. Pure.

The reference starts with an empty state then: CPUs that a running container has exclusively are given to others, and its memory is
booked on any node. Here, what the runtime has applied to a container counts. CPUs without a reserved one, which no container of
another pod has, are taken for exclusive until the pod is known, and given back if it is not entitled to them. Memory is booked on
the container's nodes when its pod is admitted again. Source: the cpuset of the CRI's container status.
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.machine import TopologyHint
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.placement import NO_CPUS
from pykubelet.provide.placement.cpu_manager import CpuState
from pykubelet.provide.placement.cpu_policy import exclusive_counts, pool_size
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.provider import AllocationError
from pykubelet.provide.placement.topology_scopes import is_placed_whole


class _Found(Value):
    """A running container with a cpuset."""

    uid: str
    name: str
    cpus: frozenset[int]


def rebuilt(managers: Managers, observed: Observed) -> Managers:
    """The managers with the exclusive CPUs that running containers have."""
    cpus = managers.cpus
    if cpus is None:
        return managers
    found = list(_running(observed))
    candidates = [
        container
        for container in found
        if not container.cpus & cpus.policy.reserved and container.cpus < cpus.state.default
    ]
    state = cpus.state
    for container in candidates:
        if any(other.cpus & container.cpus for other in found if other.uid != container.uid):
            continue
        pod = {**state.assignments.get(container.uid, {}), container.name: container.cpus}
        assignments = {**state.assignments, container.uid: pod}
        state = CpuState(state.default - container.cpus, assignments, pools=state.pools)
    return replace(managers, cpus=replace(cpus, state=state))


def _running(observed: Observed) -> Iterator[_Found]:
    for uid, view in observed.pods.items():
        for container in view.running:
            text = container.resources.cpuset_cpus if container.resources is not None else ""
            cpus = _parsed(text)
            if cpus:
                yield _Found(uid, container.name, cpus)


def _parsed(text: str) -> frozenset[int]:
    try:
        return parse_cpuset(text)
    except ValueError:
        return NO_CPUS


def as_running(managers: Managers, pod: Pod, view: PodView | None) -> Managers:
    """The managers before the admission of a pod, with what its running containers have and are entitled to."""
    managers = _without_wrong_cpus(managers, pod)
    if not managers.is_memory_new or view is None:
        return managers
    memory = managers.memory
    is_whole = is_placed_whole(managers.topology, pod)
    for container in (*pod.spec.initContainers, *pod.spec.containers):
        newest = view.newest(container.name)
        resources = newest.resources if newest is not None and newest.is_running else None
        nodes = _parsed(resources.cpuset_mems) if resources is not None else NO_CPUS
        if nodes and nodes <= memory.state.machine.keys():
            hint = TopologyHint(nodes, False)
            after = (memory.allocate_pod(pod, hint) if is_whole else memory.allocate(pod, container, hint)).after
            memory = memory if isinstance(after, AllocationError) else after
    return replace(managers, memory=memory)


def _without_wrong_cpus(managers: Managers, pod: Pod) -> Managers:
    """The managers after a pod has become known that cannot have all the CPUs that were taken for its own."""
    cpus, uid = managers.cpus, pod.metadata.uid
    if not managers.is_new or cpus is None or uid not in cpus.state.assignments:
        return managers
    counts = exclusive_counts(pod, pod_level=cpus.policy.pod_level)
    assigned = cpus.state.assignments[uid]
    if is_placed_whole(managers.topology, pod) and len(NO_CPUS.union(*assigned.values())) == pool_size(pod):
        return managers
    right = {name: own for name, own in assigned.items() if len(own) == counts.get(name, 0)}
    if len(right) == len(assigned):
        return managers
    freed = NO_CPUS.union(*assigned.values()) - NO_CPUS.union(*right.values())
    others = {other: pod for other, pod in cpus.state.assignments.items() if other != uid}
    assignments = {**others, uid: right} if right else others
    state = CpuState(cpus.state.default | freed, assignments, pools=cpus.state.pools)
    return replace(managers, cpus=replace(cpus, state=state))
