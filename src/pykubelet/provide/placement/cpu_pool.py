"""The CPUs of a pod as a whole, and how its containers divide them. Pure.

Source: KEP-5526 (pod level resource managers), "Pod Scope Allocation and Partitioning Algorithm".
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.model.placement import NO_CPUS
from pykubelet.base.model.restart import is_sidecar
from pykubelet.provide.placement.cpu_pick import NotEnough, pick_cpus
from pykubelet.provide.placement.cpu_policy import StaticPolicy, exclusive_count, exclusive_counts, pool_size
from pykubelet.provide.placement.cpu_topology import cpus_in, mask_of
from pykubelet.provide.placement.pod_level import empty_pool_problem, staying

#: CPU sets by container name.
Parts = Mapping[str, frozenset[int]]


def pool_problem(pod: Pod) -> str | None:
    """Why the pod's containers cannot divide its CPUs: those that share would have none."""

    def own(container: Container) -> int | None:
        return exclusive_count(pod, container, pod_level=True) or None

    return empty_pool_problem(pod, pool_size(pod), own, ("cpus", "cpu", "cpus"))


def kept_parts(pod: Pod, parts: Parts) -> Parts:
    """The exclusive CPUs of containers that run for as long as the pod, as far as they are what the pod requests."""
    counts = exclusive_counts(pod, pod_level=True)
    names = [container.name for container in staying(pod)]
    kept = {name: parts[name] for name in names if name in counts and len(parts.get(name, ())) == counts[name]}
    return kept if len(NO_CPUS.union(*kept.values())) == sum(map(len, kept.values())) else {}


def shared_part(pod: Pod, pool: frozenset[int], parts: Parts) -> frozenset[int]:
    """What is left of the pool for the containers that share it, once all init containers have run to completion."""
    counts = exclusive_counts(pod, pod_level=True)
    return pool.difference(*(parts.get(c.name, NO_CPUS) for c in staying(pod) if c.name in counts))


def divide_pool(policy: StaticPolicy, pod: Pod, pool: frozenset[int], parts: Parts) -> Parts | NotEnough:
    """The CPUs of each container of the pod. `parts`: those that containers have already; they keep what is right.

    Containers that are Guaranteed by themselves get exclusive CPUs: sidecars and regular ones for as long as the pod runs, the other
    init containers until they have completed. The others share what is left; an init container that completes has all that no
    sidecar before it has.
    """
    division = _Division(policy, pod, pool, kept_parts(pod, parts))
    problem = division.make(parts)
    return division.made if problem is None else problem


class _Division:
    """`made`: the CPUs of the containers so far. `taken`: those that a container has for as long as the pod runs."""

    def __init__(self, policy: StaticPolicy, pod: Pod, pool: frozenset[int], kept: Parts) -> None:
        self.policy, self.pod, self.pool = policy, pod, pool
        self.counts = exclusive_counts(pod, pod_level=True)
        self.kept = {name: cpus for name, cpus in kept.items() if cpus <= pool}
        self.taken = NO_CPUS
        self.made: dict[str, frozenset[int]] = {}

    def make(self, parts: Parts) -> NotEnough | None:
        for container in self.pod.spec.initContainers:
            if is_sidecar(container):
                problem = self._give(container)
            else:
                problem = self._lend(container, parts.get(container.name, NO_CPUS))
            if problem is not None:
                return problem
        for container in self.pod.spec.containers:
            if (problem := self._give(container)) is not None:
                return problem
        left = self.pool - self.taken
        self.made |= {c.name: left for c in staying(self.pod) if c.name not in self.counts}
        return None

    def _give(self, container: Container) -> NotEnough | None:
        """CPUs for as long as the pod runs, which no other such container has."""
        name = container.name
        if name not in self.counts:
            return None
        cpus = self.kept.get(name)
        if cpus is None:
            picked = self._pick(self.pool.difference(self.taken, *self.kept.values()), self.counts[name])
            if isinstance(picked, NotEnough):
                return picked
            cpus = picked
        self.made[name] = cpus
        self.taken |= cpus
        return None

    def _lend(self, container: Container, before: frozenset[int]) -> NotEnough | None:
        """CPUs until the init container has completed, which no sidecar before it has. `before`: those it has."""
        name, free = container.name, self.pool - self.taken
        count = self.counts.get(name)
        if count is None:
            picked: frozenset[int] | NotEnough = free
        else:
            picked = before if len(before) == count and before <= free else self._pick(free, count)
        if isinstance(picked, NotEnough):
            return picked
        self.made[name] = picked
        return None

    def _pick(self, free: frozenset[int], count: int) -> frozenset[int] | NotEnough:
        picked = pick_cpus(self.policy.topology, mask_of(free), count, self.policy.options)
        return picked if isinstance(picked, NotEnough) else cpus_in(picked)
