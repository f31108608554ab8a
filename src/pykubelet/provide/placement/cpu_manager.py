"""The CPU manager with the static policy: who has which CPUs, topology hints, allocation, release, cpusets and quotas. Pure.

Every function takes a state and returns another; no CPU is ever in the shared pool and exclusively allocated at once, and no
two pods have the same one. Containers of one pod may: what an init container had is reused by those that follow, and containers
may share the pool of their pod (`cpu_pool.py`).
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
    CpuDemand,
    StaticPolicy,
    exclusive_count,
    exclusive_counts,
    pod_count,
    pool_size,
)
from pykubelet.provide.placement.cpu_pool import divide_pool, kept_parts, pool_problem
from pykubelet.provide.placement.cpu_topology import cpus_in, mask_of
from pykubelet.provide.placement.pod_level import (
    EMPTY_POOL,
    completing,
    count_error,
    count_in_pool,
    count_on_node,
    has_pod_level_resources,
)
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
    """Who has which CPUs. `default`: the shared pool. `assignments`: the CPUs of containers by pod UID and container name: exclusive
    ones, or what the container shares with others of its pod. `pools`: the CPUs of pods as a whole by UID.

    `reusable`: CPUs of finished init containers of the pod `reusing`, the last one that CPUs were allocated for.
    """

    default: frozenset[int] = NO_CPUS
    assignments: Assignments = field(default_factory=dict)
    reusing: str = ""
    reusable: frozenset[int] = NO_CPUS
    pools: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def holders(self) -> frozenset[str]:
        """The UIDs of the pods that have CPUs."""
        return frozenset(self.assignments).union(self.pools)

    def own(self, uid: str, container: str) -> frozenset[int]:
        """The CPUs of a container, exclusive or of its pod's pool; empty if it has none."""
        return self.assignments.get(uid, {}).get(container, NO_CPUS)

    def assigned(self) -> frozenset[int]:
        """All CPUs that some container or pod has exclusively."""
        parts = (cpus for pod in self.assignments.values() for cpus in pod.values())
        return NO_CPUS.union(*parts, *self.pools.values())

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
        return ManagerStartError("default cpuset cannot be empty") if state.holders else replace(state, default=every)
    state = _without_released_pools(state)
    problem = _reservation_problem(policy, state) or _overlap(state)
    if problem is not None:
        return ManagerStartError(problem)
    known = state.default | state.assigned()
    if known != every:
        what = f'"{format_cpuset(every)}" doesn\'t match with CPUs in state "{format_cpuset(known)}"'
        return ManagerStartError(f"current set of available CPUs {what}")
    return state


def _without_released_pools(state: CpuState) -> CpuState:
    """The state without pools that no container uses any more, and that have CPUs which are free again. (The reference writes a release in
    several steps, between which it may end.)"""
    stale = [uid for uid, cpus in state.pools.items() if cpus & state.default and not state.assignments.get(uid)]
    return (
        replace(state, pools={uid: cpus for uid, cpus in state.pools.items() if uid not in stale}) if stale else state
    )


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
    for uid, cpus in sorted(state.pools.items()):
        if cpus & state.default:
            own, default = format_cpuset(cpus), format_cpuset(state.default)
            return f'pod: {uid} cpuset: "{own}" overlaps with default cpuset "{default}"'
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
        count = exclusive_count(pod, container, pod_level=self.policy.pod_level)
        if not count:
            return {}
        uid = pod.metadata.uid
        own = self.state.own(uid, container.name)
        if own:
            return {"cpu": self._hints(own, NO_CPUS, count) if len(own) == count else ()}
        return {"cpu": self._hints(self.available, self.state.reusable_by(uid), count)}

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """On which NUMA nodes all exclusive CPUs of the pod fit, or its pool."""
        if self.policy.pod_level and has_pod_level_resources(pod):
            return self._pool_hints(pod)
        counts = exclusive_counts(pod)
        count = pod_count(pod, counts)
        if not count:
            return {}
        uid = pod.metadata.uid
        assigned = NO_CPUS
        for name in (c.name for c in (*pod.spec.initContainers, *pod.spec.containers)):
            own = self.state.own(uid, name)
            if own and len(own) != counts.get(name, 0):
                return {"cpu": ()}
            assigned |= own
        if len(assigned) == count:
            return {"cpu": self._hints(assigned, NO_CPUS, count)}
        return {"cpu": self._hints(self.available, self.state.reusable_by(uid) | assigned, count)}

    def _pool_hints(self, pod: Pod) -> ResourceHints:
        """On which NUMA nodes the pod's pool fits, or is."""
        count, uid = pool_size(pod), pod.metadata.uid
        if not count:
            return {}
        pool = self.state.pools.get(uid)
        if pool is not None:
            return {"cpu": self._hints(pool, NO_CPUS, count) if len(pool) == count else ()}
        if pool_problem(pod) is not None:
            return {"cpu": ()}
        return {"cpu": self._hints(self._free_for(uid), self._kept(pod), count)}

    def _free_for(self, uid: str) -> frozenset[int]:
        """The CPUs that the pool of a pod can have: what is free, and what its containers have."""
        return self.available.union(*self.state.assignments.get(uid, {}).values())

    def _kept(self, pod: Pod) -> frozenset[int]:
        """The CPUs that containers of a pod without a pool have, and that its pool must contain: all, or else the exclusive ones."""
        parts = self.state.assignments.get(pod.metadata.uid, {})
        every = NO_CPUS.union(*parts.values())
        return every if len(every) == pool_size(pod) else NO_CPUS.union(*kept_parts(pod, parts).values())

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
        count = exclusive_count(pod, container, pod_level=self.policy.pod_level)
        if not count or pod.metadata.uid in self.state.pools:
            return Allocation(self)
        full_cores = self.policy.options.full_pcpus_only
        cpus = self._allocated(pod, container.name, count, hint.nodes)
        if isinstance(cpus, AllocationError):
            failure = (_aligned(ALIGNED_FAILURE, "physical_cpu"),) if full_cores else ()
            more = (count_error("cpu", "node"),) if self.policy.pod_level else ()
            return Allocation(cpus, (MetricIncrement(REQUESTS), MetricIncrement(ERRORS), *failure, *more))
        increments = [MetricIncrement(REQUESTS)]
        if not self.state.own(pod.metadata.uid, container.name):
            increments += self._counts_of_new(cpus)
            increments += count_on_node("cpu") if self.policy.pod_level else ()
        if full_cores:
            increments.append(_aligned(ALIGNED, "physical_cpu"))
        return Allocation(replace(self, state=_with_cpus(self.state, pod, container, cpus)), tuple(increments))

    def _counts_of_new(self, cpus: frozenset[int]) -> list[MetricIncrement]:
        return [_aligned(ALIGNED, "uncore_cache")] if self.policy.topology.share_a_cache(mask_of(cpus)) else []

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> Allocation[CpuManager]:
        """The manager after the pod got its pool, from the hint's NUMA nodes as far as they have enough, and its containers their parts.

        A pod that has all of this keeps it, whatever is free; one that has some of it gets the rest.
        """
        count, uid = pool_size(pod) if self.policy.pod_level else 0, pod.metadata.uid
        if not count or self.has_pool(pod):
            return Allocation(self)
        parts, pool, increments = self.state.assignments.get(uid, {}), self.state.pools.get(uid), []
        if pool is None:
            found = self._chosen_pool(pod, count, hint.nodes)
            if isinstance(found, AllocationError):
                return Allocation(found, (MetricIncrement(ERRORS), count_error("cpu", "pod")))
            pool, increments = found, self._counts_of_new(found)
        divided = divide_pool(self.policy, pod, pool, parts)
        if isinstance(divided, NotEnough):
            return Allocation(AllocationError(divided.message), (MetricIncrement(ERRORS), count_error("cpu", "pod")))
        exclusive = len(exclusive_counts(pod, pod_level=True))
        increments += [MetricIncrement(REQUESTS)] * exclusive
        increments += count_in_pool("cpu", exclusive, len(divided) - exclusive)
        before = self.state
        state = replace(
            before,
            default=before.default.union(*parts.values()) - pool,
            assignments={**before.assignments, uid: divided},
            pools={**before.pools, uid: pool},
        )
        return Allocation(replace(self, state=state), tuple(increments))

    def has_pool(self, pod: Pod) -> bool:
        """Whether the pod has its pool, and each of its containers a part of it."""
        uid, parts = pod.metadata.uid, self.state.assignments.get(pod.metadata.uid, {})
        containers = (*pod.spec.initContainers, *pod.spec.containers)
        return uid in self.state.pools and all(container.name in parts for container in containers)

    def _chosen_pool(self, pod: Pod, count: int, nodes: frozenset[int] | None) -> frozenset[int] | AllocationError:
        """CPUs for the pod as a whole, among them those that its containers have."""
        if (problem := pool_problem(pod)) is not None:
            return AllocationError(problem, EMPTY_POOL)
        kept = self._kept(pod)
        smt = self._smt_problem(count, len(kept))
        if smt is not None:
            return smt
        picked = self._picked(self._free_for(pod.metadata.uid) - kept, count - len(kept), nodes)
        return picked if isinstance(picked, AllocationError) else picked | kept

    def _allocated(
        self, pod: Pod, name: str, count: int, nodes: frozenset[int] | None
    ) -> frozenset[int] | AllocationError:
        """The container's CPUs: those it has, or newly chosen ones. Whole cores are checked even for those it has."""
        problem = self._smt_problem(count)
        if problem is not None:
            return problem
        uid = pod.metadata.uid
        own = self.state.own(uid, name)
        if own:
            return own
        reusable = self.state.reusable_by(uid)
        free = self.available | reusable
        if self.policy.choose is not None and len(free) >= count:
            whole_cores = self.policy.options.full_pcpus_only
            near = cpus_in(self._near(mask_of(free), nodes))
            demand = CpuDemand(pod, name, count, free, reusable & free, nodes, near, whole_cores)
            chosen = self.policy.choose(self.policy, demand)
            if chosen is not None:
                return chosen
        return self._picked(free, count, nodes)

    def _near(self, free: int, nodes: frozenset[int] | None) -> int:
        """The free CPUs that come first: those of the NUMA nodes, or of their sockets with align-by-socket; none without nodes."""
        top = self.policy.topology
        if nodes is None:
            return 0
        return free & (top.in_sockets_of(nodes) if self.policy.options.align_by_socket else top.in_nodes(nodes))

    def _picked(
        self, among: frozenset[int], count: int, nodes: frozenset[int] | None
    ) -> frozenset[int] | AllocationError:
        """`count` CPUs, those of the NUMA nodes first."""
        top, options = self.policy.topology, self.policy.options
        free, near = mask_of(among), 0
        if nodes is not None:
            inside = self._near(free, nodes)
            least_nodes = len(nodes) if options.keep_all_nodes else 0
            picked = pick_cpus(top, inside, min(count, inside.bit_count()), options, least_nodes)
            near = 0 if isinstance(picked, NotEnough) else picked
        rest = pick_cpus(top, free & ~near, count - near.bit_count(), options)
        return AllocationError(rest.message) if isinstance(rest, NotEnough) else cpus_in(near | rest)

    def _smt_problem(self, count: int, held: int = 0) -> AllocationError | None:
        """Why `count` CPUs, of which the pod has `held`, cannot be whole cores, with full-pcpus-only. CPUs that it could reuse do not
        count."""
        if not self.policy.options.full_pcpus_only:
            return None
        threads = self.policy.topology.threads_per_core
        if count % threads:
            text = f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {threads}"
            return AllocationError(text, SMT_REASON)
        available = len(self.state.default - self.policy.reserved_cores)
        if count - held > available:
            figures = f"available physical CPUs = {available}, requested CPUs = {count}, CPUs per core = {threads}"
            return AllocationError(f"SMT Alignment Error: not enough free physical CPUs: {figures}", SMT_REASON)
        return None


def _with_cpus(state: CpuState, pod: Pod, container: Container, cpus: frozenset[int]) -> CpuState:
    """The state in which the container has `cpus`. Those of an init container can be reused, unless it keeps running."""
    uid = pod.metadata.uid
    reusable = state.reusable_by(uid)
    reusable = reusable | cpus if container.name in completing(pod) else reusable - cpus
    assignments = {**state.assignments, uid: {**state.assignments.get(uid, {}), container.name: cpus}}
    return CpuState(state.default - cpus, assignments, uid, reusable, state.pools)


# release


def release(state: CpuState, active: Mapping[str, Collection[str]]) -> CpuState:
    """The state without containers that are not active; their CPUs return to the shared pool, unless the pod still uses them. Those of
    a pod as a whole return with its last container.

    `active`: names of the containers of all active pods by UID. Call it only when all pod sources have been read.
    """
    kept: dict[str, Mapping[str, frozenset[int]]] = {}
    pools: dict[str, frozenset[int]] = {}
    freed, changed = NO_CPUS, False
    for uid in dict.fromkeys((*state.assignments, *state.pools)):
        names, containers = active.get(uid, ()), state.assignments.get(uid, {})
        staying = {name: cpus for name, cpus in containers.items() if name in names}
        is_gone = uid in state.pools and not staying and uid not in active
        if uid in state.pools and not is_gone:
            pools[uid] = state.pools[uid]
        if len(staying) == len(containers) and not is_gone:
            if uid in state.assignments:
                kept[uid] = containers
            continue
        changed = True
        used = NO_CPUS.union(*staying.values(), pools.get(uid, NO_CPUS))
        freed |= NO_CPUS.union(*containers.values(), state.pools.get(uid, NO_CPUS)) - used
        if staying:
            kept[uid] = staying
    return CpuState(state.default | freed, kept, state.reusing, state.reusable - freed, pools) if changed else state


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
    """Containers with exclusive CPUs have no quota. Neither has their pod; one with pod-level resources only if no container shares.

    `gate`: DisableCPUQuotaWithExclusiveCPUs.
    """
    if not gate:
        return NoQuota()
    uid, sharing = pod.metadata.uid, sharers(state, pod)
    names = [c.name for c in (*pod.spec.initContainers, *pod.spec.containers)]
    exclusive = frozenset(name for name in names if name not in sharing and state.own(uid, name))
    is_whole = not has_pod_level_resources(pod) or len(exclusive) == len(names)
    return NoQuota(bool(exclusive) and is_whole, exclusive)


def sharers(state: CpuState, pod: Pod) -> frozenset[str]:
    """The containers whose CPUs are those of their pod, which others use too."""
    if pod.metadata.uid not in state.pools:
        return frozenset()
    names = (c.name for c in (*pod.spec.initContainers, *pod.spec.containers))
    return frozenset(names).difference(exclusive_counts(pod, pod_level=True))


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
