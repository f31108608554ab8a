"""Pods with resources of their own, in `spec.resources`: which of them are placed as a whole, and which of their containers share. Pure.

Without the feature gate PodLevelResourceManagers, such a pod gets nothing exclusively. With it, and with the Topology Manager's scope
`pod`, a Guaranteed one gets a pool, CPUs and memory for the pod as a whole: containers that are Guaranteed by themselves have a part of it
to themselves, and the others share the rest. An init container that runs to completion takes nothing from those that follow. With
the scope `container`, a container that is Guaranteed by itself is placed as always, and the others use the node's shared pool.
Source: KEP-5526 (pod level resource managers), KEP-2837 (pod-level resources).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.api.quantity import is_pod_level, parse, value
from pykubelet.base.kit.values import remember_last
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.sizing import QOSClass, qos_class
from pykubelet.provide.placement.provider import MetricIncrement

#: The reason of a pod whose containers leave nothing to those that share.
EMPTY_POOL = "EmptyPodSharedPoolError"

ALLOCATIONS = "resource_manager_allocations_total"
ALLOCATION_ERRORS = "resource_manager_allocation_errors_total"
ASSIGNMENTS = "resource_manager_container_assignments"


def has_pod_level_resources(pod: Pod) -> bool:
    """Whether the spec states resources for the pod as a whole (KEP-2837)."""
    stated = pod.spec.resources
    return stated is not None and any(is_pod_level(name) for name in (*stated.requests, *stated.limits))


def is_guaranteed(container: Container) -> bool:
    """Whether the container by itself is Guaranteed: its requests of CPU and memory are its limits."""
    stated = container.resources
    if stated is None:
        return False
    for name in ("cpu", "memory"):
        request, limit = stated.requests.get(name), stated.limits.get(name)
        if request is None or limit is None or not value(request) or parse(request).nano != parse(limit).nano:
            return False
    return True


def may_be_exclusive(pod: Pod, container: Container, *, pod_level: bool) -> bool:
    """Whether the container can have CPUs or memory to itself, if it requests them. `pod_level`: gate PodLevelResourceManagers."""
    if qos_class(pod) is not QOSClass.GUARANTEED:
        return False
    return not has_pod_level_resources(pod) or (pod_level and is_guaranteed(container))


def staying(pod: Pod) -> Iterator[Container]:
    """The containers that run for as long as the pod: sidecars and regular ones."""
    yield from filter(is_sidecar, pod.spec.initContainers)
    yield from pod.spec.containers


@remember_last
def init_places(pod: Pod) -> Mapping[str, int]:
    """The places of the pod's init containers in the spec."""
    return {container.name: place for place, container in enumerate(pod.spec.initContainers)}


@remember_last
def completing(pod: Pod) -> frozenset[str]:
    """The init containers that run to completion: all but sidecars."""
    return frozenset(container.name for container in pod.spec.initContainers if not is_sidecar(container))


def empty_pool_problem(
    pod: Pod, total: int, own: Callable[[Container], int | None], texts: tuple[str, str, str]
) -> str | None:
    """Why the pod is rejected: a container that shares would have nothing.

    `total`: of the pool. `own`: the part that a container has to itself; None: it shares. `texts`: how messages name the resource as
    missing for init containers, as requested, and as left.
    """
    for_init, requested, left = texts
    taken, shares = 0, False
    for container in pod.spec.initContainers:
        amount = own(container)
        if is_sidecar(container):
            taken, shares = taken + (amount or 0), shares or amount is None
        elif amount is None and taken >= total:
            return f"pod rejected, pod has shared init containers but no {for_init} available for them"
    for container in pod.spec.containers:
        amount = own(container)
        taken, shares = taken + (amount or 0), shares or amount is None
    if shares and taken >= total:
        what = f"sum of exclusive container {requested} requests equals pod budget"
        return f"pod rejected, {what}, leaving no {left} for shared containers"
    return None


# metrics


def count_on_node(resource: str, *, allocations: int = 1) -> tuple[MetricIncrement, ...]:
    """A container got something of the node to itself. `resource`: `cpu` or `memory`."""
    name = ("resource_name", resource)
    return (
        *(MetricIncrement(ALLOCATIONS, (name, ("source", "node"))) for _ in range(allocations)),
        MetricIncrement(ASSIGNMENTS, (name, ("assignment_type", "node_exclusive"))),
    )


def count_in_pool(resource: str, exclusive: int, shared: int) -> tuple[MetricIncrement, ...]:
    """The containers of a pod got parts of its pool, so many to themselves."""
    name = ("resource_name", resource)
    types = ["pod_exclusive"] * exclusive + ["pod_shared"] * shared
    return (
        *(MetricIncrement(ALLOCATIONS, (name, ("source", "pod"))) for _ in types),
        *(MetricIncrement(ASSIGNMENTS, (name, ("assignment_type", kind))) for kind in types),
    )


def count_error(resource: str, source: str) -> MetricIncrement:
    """An allocation failed. `source`: `node` or `pod`."""
    return MetricIncrement(ALLOCATION_ERRORS, (("resource_name", resource), ("source", source)))
