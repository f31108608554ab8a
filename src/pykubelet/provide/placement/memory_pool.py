"""The memory of a pod as a whole, and how its containers divide it. Pure.

Source: KEP-5526 (pod level resource managers), "Pod Scope Allocation and Partitioning Algorithm".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pykubelet.base.api.core import Container, Pod, ResourceRequirements
from pykubelet.base.api.quantity import NANO, parse
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.base.model.restart import is_sidecar
from pykubelet.provide.placement.memory_hints import Sizes
from pykubelet.provide.placement.memory_reserved import MEMORY, is_memory_type
from pykubelet.provide.placement.pod_level import empty_pool_problem, is_guaranteed, staying

#: Blocks by container name.
Blocks = Mapping[str, tuple[MemoryBlock, ...]]


def sizes_of(resources: ResourceRequirements | None) -> Sizes | None:
    """Bytes by memory type that are requested, sorted by type; None if an amount is not a number of bytes."""
    requests = resources.requests if resources else {}
    amounts = {name: parse(requests[name]).nano for name in sorted(requests) if is_memory_type(name)}
    return (
        None
        if any(nano % NANO for nano in amounts.values())
        else {name: nano // NANO for name, nano in amounts.items()}
    )


def pool_sizes(pod: Pod) -> Sizes:
    """Bytes by memory type of the pod as a whole; empty if it has none, or an amount is not a number of bytes."""
    return {name: size for name, size in (sizes_of(pod.spec.resources) or {}).items() if size}


def own_sizes(container: Container) -> Sizes:
    """What a container of a pod with a pool has to itself; empty: it shares."""
    return (sizes_of(container.resources) or {}) if is_guaranteed(container) else {}


def pool_problem(pod: Pod) -> str | None:
    """Why the pod's containers cannot divide its memory: those that share would have none, or the others request more."""
    total = pool_sizes(pod)
    for name, size in total.items():

        def own(container: Container, name: str = name) -> int | None:
            sizes = own_sizes(container)
            return sizes.get(name, 0) if sizes else None

        if (problem := empty_pool_problem(pod, size, own, (name, name, MEMORY))) is not None:
            return problem
    return None


def surplus(pod: Pod) -> str | None:
    """The memory type of which containers have more to themselves at one time than the pod; None if there is none."""
    total = pool_sizes(pod)
    for needed in _needed(pod):
        for name, size in needed.items():
            if size > total.get(name, 0):
                return name
    return None


def _needed(pod: Pod) -> Iterator[Sizes]:
    """What containers have to themselves while each init container starts, and while the pod runs."""
    beside: dict[str, int] = {}
    for container in pod.spec.initContainers:
        own = own_sizes(container)
        yield _sum(beside, own)
        if is_sidecar(container):
            beside = _sum(beside, own)
    for container in pod.spec.containers:
        beside = _sum(beside, own_sizes(container))
    yield beside


def _sum(sizes: Sizes, more: Sizes) -> dict[str, int]:
    return {name: sizes.get(name, 0) + more.get(name, 0) for name in sorted({*sizes, *more})}


def divide_pool(pod: Pod, nodes: tuple[int, ...]) -> Blocks:
    """The blocks of each container of the pod, all on `nodes`. Containers that share have the same ones.

    Containers that are Guaranteed by themselves have what they request. The others have what is left; an init container that
    completes has all that no sidecar before it has.
    """
    total, made = pool_sizes(pod), {}
    beside: Sizes = {}
    for container in pod.spec.initContainers:
        own = own_sizes(container)
        if not is_sidecar(container):
            made[container.name] = _blocks(nodes, own or _left(total, beside))
        beside = _sum(beside, own) if is_sidecar(container) else beside
    left = _blocks(nodes, shared_sizes(pod))
    for container in staying(pod):
        own = own_sizes(container)
        made[container.name] = _blocks(nodes, own) if own else left
    return made


def shared_sizes(pod: Pod) -> Sizes:
    """What is left for the containers that share, once all init containers have run to completion."""
    taken: Sizes = {}
    for container in staying(pod):
        taken = _sum(taken, own_sizes(container))
    return _left(pool_sizes(pod), taken)


def _left(total: Sizes, taken: Sizes) -> Sizes:
    return {name: size - taken.get(name, 0) for name, size in total.items()}


def _blocks(nodes: tuple[int, ...], sizes: Sizes) -> tuple[MemoryBlock, ...]:
    return tuple(MemoryBlock(nodes, name, size) for name, size in sizes.items() if size > 0)
