"""CPU, memory, huge pages, swap and the OOM score of containers and sandboxes, in the form of the CRI. Pure.

Source: Kubernetes docs, "Resource Management for Pods and Containers", "Node-pressure Eviction" (oom_score_adj), "Swap memory
management"; KEP-2837 (pod-level resources), KEP-753 (sidecars), KEP-2570 (memory QoS). `provide/cgroups` limits the cgroup of
the pod itself.
"""

from __future__ import annotations

from pykubelet.act.runtime.render.context import (
    LIMITED_SWAP,
    AnyContainer,
    ContainerContext,
    MemoryQos,
    RenderSettings,
    SandboxContext,
)
from pykubelet.base.api.core import Container, Pod, Quantity
from pykubelet.base.api.quantity import in_units, milli_value, page_size, page_size_name, sum_container_requests, value
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import is_critical
from pykubelet.base.model.sizing import (
    MEMORY_HIGH,
    QOSClass,
    claimed_memory,
    cpu_quota_us,
    cpu_shares,
    memory_high,
    pod_limits,
    pod_requests,
    qos_class,
    with_claimed,
)
from pykubelet.edges.cri import cri_pb2

GUARANTEED_OOM_SCORE = -997
BEST_EFFORT_OOM_SCORE = 1000
SYSTEM_NODE_CRITICAL = "system-node-critical"


def container_resources(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
) -> cri_pb2.LinuxContainerResources:
    """The resources of one container. Pod-level limits replace limits that the container lacks."""
    requests, own_limits = _listed(container)
    limits = with_claimed(own_limits, pod, container.name)
    resources = _cpu_and_memory(
        settings,
        milli_value(requests["cpu"]) if "cpu" in requests else None,
        milli_value(limits.get("cpu")) or milli_value(_pod_limit(pod, "cpu")),
        value(limits.get("memory")) or value(_pod_limit(pod, "memory")),
        ctx.cpuset.exclusive,
    )
    resources.oom_score_adj = oom_score_adj(pod, container, settings.memory_capacity)
    whole = pod.spec.resources.limits if pod.spec.resources is not None else {}
    resources.hugepage_limits.extend(_huge_page_limits({**whole, **limits}, settings.page_sizes))
    resources.cpuset_cpus = ctx.cpuset.cpus
    resources.cpuset_mems = ctx.cpuset.mems
    _add_swap(resources, pod, container, settings)
    if settings.cgroup_v2 and settings.memory_qos is not None:
        resources.unified.update(_memory_qos(pod, container, settings.memory_qos))
    elif settings.cgroup_v2:
        resources.unified[MEMORY_HIGH] = "max"  # a container may have a value from when the gate was on
    return resources


def sandbox_resources(
    pod: Pod, settings: RenderSettings, ctx: SandboxContext
) -> tuple[cri_pb2.LinuxContainerResources, cri_pb2.LinuxContainerResources]:
    """The resources of all containers of the pod together, and the overhead of the sandbox itself."""
    requests = in_units(pod_requests(pod, overhead=False))
    limits = in_units(pod_limits(pod, overhead=False))
    together = _cpu_and_memory(
        settings,
        requests.get("cpu"),
        limits.get("cpu", 0),
        limits.get("memory", 0),
        ctx.exclusive_cpus,
    )
    overhead = pod.spec.overhead
    if not overhead:
        return together, cri_pb2.LinuxContainerResources()
    cpu = milli_value(overhead.get("cpu"))
    return together, _cpu_and_memory(settings, cpu, cpu, value(overhead.get("memory")), False)


def _cpu_and_memory(
    settings: RenderSettings, request: int | None, limit: int, memory_limit: int, exclusive: bool
) -> cri_pb2.LinuxContainerResources:
    """CPU and memory in CRI form. `request` and `limit`: CPU in millicores. Without a request, the shares follow the limit."""
    resources = cri_pb2.LinuxContainerResources(
        cpu_shares=cpu_shares(limit if request is None else request), memory_limit_in_bytes=memory_limit
    )
    if settings.cpu_cfs_quota:
        period = settings.cpu_cfs_quota_period_us
        resources.cpu_period = period
        resources.cpu_quota = -1 if exclusive else cpu_quota_us(limit, period)
    if settings.cgroup_v2 and not settings.single_process_oom_kill:
        resources.unified["memory.oom.group"] = "1"
    return resources


def _listed(container: AnyContainer) -> tuple[dict[str, Quantity], dict[str, Quantity]]:
    """Requests and limits."""
    if container.resources is None:
        return {}, {}
    return container.resources.requests, container.resources.limits


def _pod_limit(pod: Pod, resource: str) -> Quantity | None:
    return pod.spec.resources.limits.get(resource) if pod.spec.resources is not None else None


def oom_score_adj(pod: Pod, container: AnyContainer, memory_capacity: int) -> int:
    """The OOM score adjustment of a container: -997 (killed last) to 1000 (killed first). `memory_capacity`: bytes."""
    if is_critical(pod) and pod.spec.priorityClassName == SYSTEM_NODE_CRITICAL:
        return GUARANTEED_OOM_SCORE
    match qos_class(pod):
        case QOSClass.GUARANTEED:
            return GUARANTEED_OOM_SCORE
        case QOSClass.BEST_EFFORT:
            return BEST_EFFORT_OOM_SCORE
        case QOSClass.BURSTABLE:
            pass
    if memory_capacity <= 0:
        return BEST_EFFORT_OOM_SCORE - 1
    # The more of the node's memory a container requests, the lower its score.
    rest = _unassigned_memory_per_container(pod)
    request = _memory_request(pod, container)
    if isinstance(container, Container) and is_sidecar(container) and _is_init(pod, container.name):
        # A sidecar must not be killed before the containers it serves.
        request = max(request, min((_memory_request(pod, c) for c in pod.spec.containers), default=0))
    score = 1000 - 1000 * (request + rest) // memory_capacity
    if score < 1000 + GUARANTEED_OOM_SCORE:
        return 1000 + GUARANTEED_OOM_SCORE
    return score - 1 if score == BEST_EFFORT_OOM_SCORE else score


def _is_init(pod: Pod, name: str) -> bool:
    return any(container.name == name for container in pod.spec.initContainers)


def _memory_request(pod: Pod, container: AnyContainer) -> int:
    """With the container's share of what the pod has through claims."""
    own = value(container.resources.requests.get("memory")) if container.resources is not None else 0
    return own + claimed_memory(pod, container.name)


def _unassigned_memory_per_container(pod: Pod) -> int:
    """Each container's equal share, in bytes, of the pod-level memory request that is not requested by containers."""
    if pod.spec.resources is None or not (whole := value(pod.spec.resources.requests.get("memory"))):
        return 0
    assigned = sum_container_requests(pod.spec).get("memory")
    containers = len(pod.spec.containers) + len(pod.spec.initContainers)
    taken = (assigned.value() if assigned is not None else 0) + sum(
        claimed_memory(pod, container.name) for container in (*pod.spec.initContainers, *pod.spec.containers)
    )
    return max(0, whole - taken) // max(containers, 1)


def _huge_page_limits(limits: dict[str, Quantity], sizes: tuple[int, ...]) -> list[cri_pb2.HugepageLimit]:
    """A limit for every page size of the machine: 0 for sizes without a limit in the spec."""
    wanted: dict[int, int] = {}
    for name, quantity in limits.items():
        if (size := page_size(name)) is not None:
            wanted[size] = value(quantity)
    return [cri_pb2.HugepageLimit(page_size=page_size_name(size), limit=wanted.get(size, 0)) for size in sizes]


def _add_swap(
    resources: cri_pb2.LinuxContainerResources, pod: Pod, container: AnyContainer, settings: RenderSettings
) -> None:
    if not settings.swap_controller:
        return
    if not settings.cgroup_v2:
        # This limits memory plus swap: with the memory limit as its value, no swap is left.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes
        return
    resources.unified["memory.swap.max"] = str(swap_limit(pod, container, settings))


def swap_limit(pod: Pod, container: AnyContainer, settings: RenderSettings) -> int:
    """Bytes of swap on cgroup v2. With LimitedSwap, a Burstable container gets the fraction of swap that it requests of memory."""
    if settings.swap_behavior != LIMITED_SWAP or is_critical(pod) or qos_class(pod) is not QOSClass.BURSTABLE:
        return 0
    requests, limits = _listed(container)
    request, limit = value(requests.get("memory")), value(limits.get("memory"))
    capacity = settings.memory_capacity
    if request == limit or not 0 < request <= capacity:
        return 0
    return int(request / capacity * settings.swap_capacity)


def _memory_qos(pod: Pod, container: AnyContainer, qos: MemoryQos) -> dict[str, str]:
    requests, limits = _listed(container)
    request, limit = value(requests.get("memory")), value(limits.get("memory"))
    protected = request if qos.tiered else 0
    is_guaranteed = qos_class(pod) is QOSClass.GUARANTEED
    unified = {
        "memory.min": str(protected if is_guaranteed else 0),
        "memory.low": str(0 if is_guaranteed else protected),
    }
    if qos.throttling_factor is not None and (request != limit or (qos.best_effort_too and not request)):
        high = memory_high(request, limit, qos.for_pods, qos.throttling_factor, qos.page_size)
        if high is not None:
            unified[MEMORY_HIGH] = str(high)
    return unified
