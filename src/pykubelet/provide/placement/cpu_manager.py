"""The CPU manager with the static policy: who has which CPUs, topology hints, allocation, release, cpusets and quotas. Pure.

Every function takes a state and returns another; no CPU is ever in the shared pool and exclusively allocated at once, and no
two pods have the same one. Containers of one pod may: what an init container had is reused by those that follow.
Source: the Kubernetes documentation "Control CPU Management Policies on the Node"; KEP-693 (hints); KEP-753 (sidecars).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.machine import ResourceHints, TopologyHint
from pykubelet.base.model.placement import NO_CPUS
from pykubelet.provide.placement.cpu_pick import NotEnough, pick_cpus
from pykubelet.provide.placement.cpu_policy import (
    StaticPolicy,
    exclusive_count,
    exclusive_counts,
    is_restartable,
    pod_count,
)
from pykubelet.provide.placement.cpu_topology import cpus_in, mask_of
from pykubelet.provide.placement.provider import Allocation, AllocationError, ManagerStartError, MetricIncrement
from pykubelet.provide.placement.subsets import subset_hints, subset_sums, subsets

SMT_REASON = "SMTAlignmentError"

REQUESTS = "kubelet_cpu_manager_pinning_requests_total"
ERRORS = "kubelet_cpu_manager_pinning_errors_total"
ALIGNED = "kubelet_container_aligned_compute_resources_count"
ALIGNED_FAILURE = "kubelet_container_aligned_compute_resources_failure_count"


Assignments = Mapping[str, Mapping[str, frozenset[int]]]


def _aligned(metric: str, boundary: str) -> MetricIncrement:
    return MetricIncrement(metric, (("scope", "container"), ("boundary", boundary)))


#: The counters with labels that exist from the start, with value 0.
INITIAL_INCREMENTS = (
    _aligned(ALIGNED_FAILURE, "physical_cpu"),
    _aligned(ALIGNED, "physical_cpu"),
    _aligned(ALIGNED, "uncore_cache"),
)


class CpuState(Value):
    """Who has which CPUs. `default`: the shared pool. `assignments`: exclusive CPUs by pod UID and container name.

    `reusable`: CPUs of finished init containers of the pod `reusing`, the last one that CPUs were allocated for.
    """

    default: frozenset[int] = NO_CPUS
    assignments: Assignments = field(default_factory=dict)
    reusing: str = ""
    reusable: frozenset[int] = NO_CPUS

    def exclusive(self, uid: str, container: str) -> frozenset[int]:
        """The exclusive CPUs of a container; empty if it has none."""
        return self.assignments.get(uid, {}).get(container, NO_CPUS)

    def cpuset(self, uid: str, container: str) -> frozenset[int]:
        """The CPUs that a container may run on: its own, or the shared pool."""
        return self.exclusive(uid, container) or self.default

    def assigned(self) -> frozenset[int]:
        """All CPUs that some container has exclusively."""
        return NO_CPUS.union(*(cpus for pod in self.assignments.values() for cpus in pod.values()))

    def reusable_by(self, uid: str) -> frozenset[int]:
        """CPUs of finished init containers of this pod."""
        return self.reusable if uid == self.reusing else NO_CPUS


# start


def start(policy: StaticPolicy, state: CpuState) -> CpuState | ManagerStartError:
    """The state to begin with: the restored one if it fits policy and machine, the initial one if nothing was restored."""
    every = cpus_in(policy.topology.all)
    if policy.options.strict_reservation:
        every -= policy.reserved
    if not state.default:
        return (
            ManagerStartError("default cpuset cannot be empty") if state.assignments else replace(state, default=every)
        )
    problem = _reservation_problem(policy, state) or _overlap(state)
    if problem is not None:
        return ManagerStartError(problem)
    known = state.default | state.assigned()
    if known != every:
        what = f'"{format_cpuset(every)}" doesn\'t match with CPUs in state "{format_cpuset(known)}"'
        return ManagerStartError(f"current set of available CPUs {what}")
    return state


def _reservation_problem(policy: StaticPolicy, state: CpuState) -> str | None:
    reserved, default = policy.reserved, f'defaultCpuSet: "{format_cpuset(state.default)}"'
    if policy.options.strict_reservation:
        wrong = reserved & state.default
        return f'some of strictly reserved cpus: "{format_cpuset(wrong)}" are present in {default}' if wrong else None
    missing = not reserved <= state.default
    return f'not all reserved cpus: "{format_cpuset(reserved)}" are present in {default}' if missing else None


def _overlap(state: CpuState) -> str | None:
    for uid, containers in sorted(state.assignments.items()):
        for name, cpus in sorted(containers.items()):
            if cpus & state.default:
                own, default = format_cpuset(cpus), format_cpuset(state.default)
                return f'pod: {uid}, container: {name} cpuset: "{own}" overlaps with default cpuset "{default}"'
    return None


# the provider of the topology manager


class CpuManager(Value):
    """The static policy with its state, as a provider of the topology manager."""

    policy: StaticPolicy
    state: CpuState

    @property
    def available(self) -> frozenset[int]:
        """The CPUs that a container can get exclusively now."""
        return self.state.default - self.policy.reserved

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """On which NUMA nodes the container's exclusive CPUs fit; no preference if it gets none."""
        count = exclusive_count(pod, container)
        if not count:
            return {}
        uid = pod.metadata.uid
        own = self.state.exclusive(uid, container.name)
        if own:
            return {"cpu": self._hints(own, NO_CPUS, count) if len(own) == count else ()}
        return {"cpu": self._hints(self.available, self.state.reusable_by(uid), count)}

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """On which NUMA nodes all exclusive CPUs of the pod fit."""
        counts = exclusive_counts(pod)
        count = pod_count(pod, counts)
        if not count:
            return {}
        uid = pod.metadata.uid
        assigned = NO_CPUS
        for name in (c.name for c in (*pod.spec.initContainers, *pod.spec.containers)):
            own = self.state.exclusive(uid, name)
            if own and len(own) != counts.get(name, 0):
                return {"cpu": ()}
            assigned |= own
        if len(assigned) == count:
            return {"cpu": self._hints(assigned, NO_CPUS, count)}
        return {"cpu": self._hints(self.available, self.state.reusable_by(uid) | assigned, count)}

    def _hints(self, available: frozenset[int], reusable: frozenset[int], count: int) -> tuple[TopologyHint, ...]:
        """A hint for each set of NUMA nodes with enough CPUs that has all reusable ones; the smallest possible are preferred."""
        top = self.policy.topology
        nodes, usable = tuple(top.nodes), mask_of(available | reusable)
        every = subsets(nodes)
        total = subset_sums([mask.bit_count() for mask in top.nodes.values()])
        # The smallest subsets come first.
        smallest = next((len(every[number]) for number, have in enumerate(total) if have >= count), len(nodes))
        free = subset_sums([(mask & usable).bit_count() for mask in top.nodes.values()])
        fitting: Iterable[int] = [number for number, have in enumerate(free) if have >= count]
        required = {top.cpus[cpu].numa_node for cpu in reusable if cpu in top.cpus}
        if required:
            fitting = [number for number in fitting if required <= every[number]]
        if self.policy.options.align_by_socket:
            return tuple(TopologyHint(every[number], self._is_preferred(every[number], smallest)) for number in fitting)
        hints = subset_hints(nodes, smallest)
        return tuple([hints[number] for number in fitting])

    def _is_preferred(self, nodes: frozenset[int], smallest: int) -> bool:
        """With align-by-socket: whether there are as few nodes as possible, or they are on as few sockets."""
        top = self.policy.topology
        per_socket = len(top.nodes) // len(top.sockets)
        if len(nodes) == smallest or not per_socket:
            return len(nodes) == smallest
        return len(top.sockets_of(nodes)) == -(-smallest // per_socket)

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Allocation[CpuManager]:
        """The manager after the container got its exclusive CPUs, from the hint's NUMA nodes as far as they have enough."""
        count = exclusive_count(pod, container)
        if not count:
            return Allocation(self)
        full_cores = self.policy.options.full_pcpus_only
        cpus = self._allocated(pod.metadata.uid, container.name, count, hint.nodes)
        if isinstance(cpus, AllocationError):
            failure = (_aligned(ALIGNED_FAILURE, "physical_cpu"),) if full_cores else ()
            return Allocation(cpus, (MetricIncrement(REQUESTS), MetricIncrement(ERRORS), *failure))
        increments = [MetricIncrement(REQUESTS)]
        if not self.state.exclusive(pod.metadata.uid, container.name) and self.policy.topology.share_a_cache(
            mask_of(cpus)
        ):
            increments.append(_aligned(ALIGNED, "uncore_cache"))
        if full_cores:
            increments.append(_aligned(ALIGNED, "physical_cpu"))
        return Allocation(replace(self, state=_with_cpus(self.state, pod, container, cpus)), tuple(increments))

    def _allocated(
        self, uid: str, name: str, count: int, nodes: frozenset[int] | None
    ) -> frozenset[int] | AllocationError:
        """The container's CPUs: those it has, or newly chosen ones. Whole cores are checked even for those it has."""
        problem = self._smt_problem(count)
        if problem is not None:
            return problem
        own = self.state.exclusive(uid, name)
        if own:
            return own
        top, options = self.policy.topology, self.policy.options
        free = mask_of(self.available | self.state.reusable_by(uid))
        near = 0
        if nodes is not None:
            inside = free & (top.in_sockets_of(nodes) if options.align_by_socket else top.in_nodes(nodes))
            least_nodes = len(nodes) if options.keep_all_nodes else 0
            picked = pick_cpus(top, inside, min(count, inside.bit_count()), options, least_nodes)
            near = 0 if isinstance(picked, NotEnough) else picked
        rest = pick_cpus(top, free & ~near, count - near.bit_count(), options)
        return AllocationError(rest.message) if isinstance(rest, NotEnough) else cpus_in(near | rest)

    def _smt_problem(self, count: int) -> AllocationError | None:
        """Why `count` CPUs cannot be whole cores, with full-pcpus-only. CPUs that the pod could reuse do not count."""
        if not self.policy.options.full_pcpus_only:
            return None
        threads = self.policy.topology.threads_per_core
        if count % threads:
            text = f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {threads}"
            return AllocationError(text, SMT_REASON)
        available = len(self.state.default - self.policy.reserved_cores)
        if count > available:
            figures = f"available physical CPUs = {available}, requested CPUs = {count}, CPUs per core = {threads}"
            return AllocationError(f"SMT Alignment Error: not enough free physical CPUs: {figures}", SMT_REASON)
        return None


def _with_cpus(state: CpuState, pod: Pod, container: Container, cpus: frozenset[int]) -> CpuState:
    """The state in which the container has `cpus`. Those of an init container can be reused, unless it keeps running."""
    uid = pod.metadata.uid
    reusable = state.reusable_by(uid)
    init = next((c for c in pod.spec.initContainers if c.name == container.name), None)
    reusable = reusable - cpus if init is None or is_restartable(init) else reusable | cpus
    assignments = {**state.assignments, uid: {**state.assignments.get(uid, {}), container.name: cpus}}
    return CpuState(state.default - cpus, assignments, uid, reusable)


# release


def containers_of(pods: Iterable[Pod]) -> dict[str, frozenset[str]]:
    """The names of the init and regular containers of pods, by pod UID."""
    return {
        pod.metadata.uid: frozenset(c.name for c in (*pod.spec.initContainers, *pod.spec.containers)) for pod in pods
    }


def release(state: CpuState, active: Mapping[str, Collection[str]]) -> CpuState:
    """The state without containers that are not active; their CPUs return to the shared pool, unless the pod still uses them.

    `active`: names of the containers of all active pods by UID. Call it only when all pod sources have been read.
    """
    kept: dict[str, Mapping[str, frozenset[int]]] = {}
    freed, changed = NO_CPUS, False
    for uid, containers in state.assignments.items():
        names = active.get(uid, ())
        staying = {name: cpus for name, cpus in containers.items() if name in names}
        if len(staying) == len(containers):
            kept[uid] = containers
            continue
        changed = True
        freed |= NO_CPUS.union(*containers.values()) - NO_CPUS.union(*staying.values())
        if staying:
            kept[uid] = staying
    return CpuState(state.default | freed, kept, state.reusing, state.reusable - freed) if changed else state


# what follows from the state


class RunningContainer(Value):
    """A container that neither waits nor has ended. `id`: that of the runtime."""

    id: str
    uid: str
    name: str


class CpusetUpdate(Value):
    """The runtime is to let this container run on `cpus` only."""

    id: str
    cpus: frozenset[int]


def cpuset_updates(
    cpuset: Callable[[str, str], frozenset[int]],
    running: Iterable[RunningContainer],
    applied: Mapping[str, frozenset[int]],
) -> tuple[CpusetUpdate, ...]:
    """The containers with another cpuset than the last one that was applied.

    `cpuset`: by pod UID and container name. `applied`: by container id, from its creation and from updates that succeeded; a
    missing one is updated.
    """
    wanted = ((container.id, cpuset(container.uid, container.name)) for container in running)
    return tuple(CpusetUpdate(id_, cpus) for id_, cpus in wanted if cpus and applied.get(id_) != cpus)


class NoQuota(Value):
    """Where no CPU quota is set because of exclusive CPUs: at the pod's cgroup, and at these containers."""

    pod: bool = False
    containers: frozenset[str] = frozenset()


def without_quota(state: CpuState, pod: Pod, *, gate: bool) -> NoQuota:
    """Containers with exclusive CPUs have no quota, and neither has their pod. `gate`: DisableCPUQuotaWithExclusiveCPUs."""
    if not gate:
        return NoQuota()
    names = (c.name for c in (*pod.spec.initContainers, *pod.spec.containers))
    exclusive = frozenset(name for name in names if state.exclusive(pod.metadata.uid, name))
    return NoQuota(bool(exclusive), exclusive)


class CpuGauges(Value):
    """The values of the CPU manager's gauges. `per_node`: exclusive CPUs on each NUMA node."""

    shared_pool_millicores: int
    exclusive: int
    per_node: Mapping[int, int]


def gauges(policy: StaticPolicy, state: CpuState) -> CpuGauges:
    """What the gauges show in this state; a CPU that several containers of a pod use counts once."""
    assigned = mask_of(state.assigned())
    return CpuGauges(
        shared_pool_millicores=len(state.default - policy.reserved) * 1000,
        exclusive=assigned.bit_count(),
        per_node={node: (mask & assigned).bit_count() for node, mask in policy.topology.nodes.items()},
    )
