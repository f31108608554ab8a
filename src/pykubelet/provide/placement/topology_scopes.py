"""Allocates all resources of a pod that belong together, or rejects the pod: the Topology Manager's scopes. Pure.

Init containers come first, then regular ones, each in the order of the spec. For each container, providers allocate in the
order they are given in: devices, CPUs, memory. With policy `none` they get no hint. With scope `container`, the hints of a
container are merged after everything before it is allocated; with scope `pod`, one merged hint serves all containers.

A rejected pod leaves no trace: the result has no new providers. (The reference keeps what the pod got until its next
clean-up of pods that are not active, which precedes each use.) With the gate PodLevelResourceManagers and scope `pod`, each provider
allocates once for a pod with pod-level resources, and divides that among the containers. Not here: how long admission takes, which
the caller measures.
Source: KEP-693 (Topology Manager), "Topology Manager Scopes"; KEP-5526 (pod level resource managers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model.machine import TopologyHint
from pykubelet.base.model.reasons import TOPOLOGY_AFFINITY
from pykubelet.provide.placement.pod_level import has_pod_level_resources
from pykubelet.provide.placement.provider import (
    Allocation,
    AllocationError,
    MetricIncrement,
    NeedsPluginAnswer,
    PreferredAllocationRequest,
    Provider,
)
from pykubelet.provide.placement.topology_manager import merge
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology

AFFINITY_MESSAGE = "Resources cannot be allocated with Topology locality"
POD_LEVEL_MESSAGES = {
    Scope.CONTAINER: "Pod Scope pod with pod-level resources failed admission with a container-level topology manager",
    Scope.POD: "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
}

REQUESTS = "kubelet_topology_manager_admission_requests_total"
ERRORS = "kubelet_topology_manager_admission_errors_total"
ALIGNED = "kubelet_container_aligned_compute_resources_count"
ALIGNED_FAILURE = "kubelet_container_aligned_compute_resources_failure_count"

#: The hint with which providers allocate under policy `none`.
NO_HINT = TopologyHint(None, False)


class Admitted(Value):
    """The pod has its resources. `providers`: after the allocations, in the order given. `hints`: by container name."""

    providers: tuple[Provider, ...]
    hints: Mapping[str, TopologyHint]
    increments: tuple[MetricIncrement, ...]


class PlacementRejection(Value):
    """The pod is rejected: the reason and message of its status, and what to count."""

    reason: str
    message: str
    increments: tuple[MetricIncrement, ...]


def initial_increments(topology: Topology) -> tuple[MetricIncrement, ...]:
    """The counters with labels that exist from the start, with value 0."""
    if topology.policy is Policy.NONE:
        return ()
    return tuple(_aligned(metric, scope) for metric in (ALIGNED, ALIGNED_FAILURE) for scope in Scope)


def is_placed_whole(topology: Topology, pod: Pod) -> bool:
    """Whether the pod gets CPUs and memory as a whole, if it gets some."""
    by_pod = topology.policy is not Policy.NONE and topology.scope is Scope.POD
    return by_pod and topology.pod_level and has_pod_level_resources(pod)


def admit(
    topology: Topology, providers: Sequence[Provider], pod: Pod
) -> Admitted | PlacementRejection | PreferredAllocationRequest:
    """Allocate the pod's resources. The caller must first release what the providers hold for pods that are not active.

    A request means that the decision depends on a device plugin. The caller gives the answer to the provider and admits again.
    """
    admission = Admission(topology, providers, pod)
    for _ in admission.containers():
        pass
    return admission.result()


def _aligned(metric: str, scope: Scope) -> MetricIncrement:
    return MetricIncrement(metric, (("scope", scope), ("boundary", "numa_node")))


class Admission:
    """An `admit` that is made container by container, since one of hundreds takes long: `result` once `containers` is exhausted.
    `providers`: after the allocations so far; no one else may allocate meanwhile."""

    def __init__(self, topology: Topology, providers: Sequence[Provider], pod: Pod) -> None:
        self.topology, self.providers, self.pod = topology, tuple(providers), pod
        self.hints: dict[str, TopologyHint] = {}
        self.increments = [MetricIncrement(REQUESTS)]
        self.request: PreferredAllocationRequest | None = None
        self.rejection: PlacementRejection | None = None

    def containers(self) -> Iterator[Container]:
        """Allocate for one container after the other, up to the first that cannot be; each is yielded once it has what it needs."""
        if self.topology.policy is Policy.NONE:
            yield from self._without_hints()
        elif self.topology.scope is Scope.POD:
            yield from self._by_pod()
        else:
            yield from self._by_container()

    def result(self) -> Admitted | PlacementRejection | PreferredAllocationRequest:
        if self.request is not None:
            return self.request
        return self.rejection or Admitted(self.providers, self.hints, tuple(self.increments))

    def _containers(self) -> Iterator[Container]:
        yield from self.pod.spec.initContainers
        yield from self.pod.spec.containers

    def _without_hints(self) -> Iterator[Container]:
        for container in self._containers():
            error = self._allocate(container, NO_HINT)
            if error is not None:
                return self._reject(error)
            yield container

    def _by_container(self) -> Iterator[Container]:
        for container in self._containers():
            decision = merge(self.topology, [provider.hints(self.pod, container) for provider in self.providers])
            if not decision.admit:
                return self._reject_affinity()
            error = self._allocate(container, decision.hint)
            if error is not None:
                return self._reject(error, MetricIncrement(ERRORS))
            self._count_aligned(ALIGNED)
            yield container

    def _by_pod(self) -> Iterator[Container]:
        decision = merge(self.topology, [provider.pod_hints(self.pod) for provider in self.providers])
        if not decision.admit:
            return self._reject_affinity()
        is_whole = is_placed_whole(self.topology, self.pod)
        error = self._allocate_whole(decision.hint) if is_whole else None
        for container in self._containers():
            error = error if is_whole else self._allocate(container, decision.hint)
            if error is not None:
                return self._reject(error, MetricIncrement(ERRORS))
            yield container
        self._count_aligned(ALIGNED)

    def _allocate(self, container: Container, hint: TopologyHint) -> AllocationError | None:
        self.hints[container.name] = hint
        return self._take(lambda provider: provider.allocate(self.pod, container, hint))

    def _allocate_whole(self, hint: TopologyHint) -> AllocationError | None:
        self.hints.update((container.name, hint) for container in self._containers())
        return self._take(lambda provider: provider.allocate_pod(self.pod, hint))

    def _take(self, allocate: Callable[[Provider], Allocation[Provider]]) -> AllocationError | None:
        for number, provider in enumerate(self.providers):
            allocation = allocate(provider)
            self.increments.extend(allocation.increments)
            if isinstance(allocation.after, AllocationError):
                self.request = allocation.after.request if isinstance(allocation.after, NeedsPluginAnswer) else None
                return allocation.after
            self.providers = (*self.providers[:number], allocation.after, *self.providers[number + 1 :])
        return None

    def _count_aligned(self, metric: str) -> None:
        """Only single-numa-node guarantees that resources are aligned."""
        if self.topology.policy is Policy.SINGLE_NUMA_NODE:
            self.increments.append(_aligned(metric, self.topology.scope))

    def _reject_affinity(self) -> None:
        self._count_aligned(ALIGNED_FAILURE)
        is_pod_level = self.topology.pod_level and has_pod_level_resources(self.pod)
        message = POD_LEVEL_MESSAGES[self.topology.scope] if is_pod_level else AFFINITY_MESSAGE
        increments = (*self.increments, MetricIncrement(ERRORS))
        self.rejection = PlacementRejection(TOPOLOGY_AFFINITY, message, increments)

    def _reject(self, error: AllocationError, *more: MetricIncrement) -> None:
        self.rejection = PlacementRejection(error.reason, error.message(), (*self.increments, *more))
