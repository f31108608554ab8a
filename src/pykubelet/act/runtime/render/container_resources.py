"""CPU, memory, huge pages, swap and the OOM score of containers and sandboxes, as the runtime takes them. Pure.

Source: Kubernetes docs, "Resource Management for Pods and Containers", "Node-pressure Eviction" (oom_score_adj), "Swap memory
management"; KEP-2837 (resources of the whole pod), KEP-753 (sidecars), KEP-2570 (memory QoS). The cgroup of the pod itself is
another room's.
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
from pykubelet.base.api.huge_pages import page_size, page_size_name
from pykubelet.base.api.quantity import milli_value, value
from pykubelet.base.api.resources import in_units, sum_container_requests
from pykubelet.base.model.cpu import cpu_quota_us, cpu_shares
from pykubelet.base.model.qos import QOSClass, qos_class
from pykubelet.base.model.requests import pod_limits, pod_requests
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import is_mirror, is_static
from pykubelet.edges.cri import cri_pb2

GUARANTEED_OOM_SCORE = -997
BEST_EFFORT_OOM_SCORE = 1000
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
SYSTEM_NODE_CRITICAL = "system-node-critical"


def is_critical(pod: Pod) -> bool:
    """Static pods, their mirrors, and pods of the system priority classes."""
    priority = pod.spec.priority
    return is_static(pod) or is_mirror(pod) or (priority is not None and priority >= SYSTEM_CRITICAL_PRIORITY)


def container_resources(
    pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
) -> cri_pb2.LinuxContainerResources:
    """What one container may use. Limits of the whole pod stand in for those the container lacks."""
    requests, limits = _listed(container)
    resources = _cpu_and_memory(
        settings,
        milli_value(requests["cpu"]) if "cpu" in requests else None,
        milli_value(limits.get("cpu")) or milli_value(_pod_limit(pod, "cpu")),
        value(limits.get("memory")) or value(_pod_limit(pod, "memory")),
        ctx.cpuset.exclusive,
    )
    resources.oom_score_adj = oom_score_adj(pod, container, settings.memory_capacity)
    resources.hugepage_limits.extend(_huge_page_limits(limits, settings.page_sizes))
    resources.cpuset_cpus = ctx.cpuset.cpus
    resources.cpuset_mems = ctx.cpuset.mems
    _add_swap(resources, pod, container, settings)
    if settings.cgroup_v2 and settings.memory_qos is not None:
        resources.unified.update(_memory_qos(pod, container, settings.memory_qos))
    return resources


def sandbox_resources(
    pod: Pod, settings: RenderSettings, ctx: SandboxContext
) -> tuple[cri_pb2.LinuxContainerResources, cri_pb2.LinuxContainerResources]:
    """What all containers of the pod may use together, and what the sandbox itself needs on top (overhead)."""
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
    """`request` and `limit` in milli; a container without a request is weighted by its limit."""
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
    """How readily the kernel kills the container: -997 (last) to 1000 (first). `memory_capacity`: bytes."""
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
    # The larger the share of the node it asked for, the safer it is.
    rest = _unassigned_memory_per_container(pod)
    request = _memory_request(container)
    if isinstance(container, Container) and is_sidecar(container) and _is_init(pod, container.name):
        # A sidecar must not die before the containers it serves.
        request = max(request, min((_memory_request(c) for c in pod.spec.containers), default=0))
    score = 1000 - 1000 * (request + rest) // memory_capacity
    if score < 1000 + GUARANTEED_OOM_SCORE:
        return 1000 + GUARANTEED_OOM_SCORE
    return score - 1 if score == BEST_EFFORT_OOM_SCORE else score


def _is_init(pod: Pod, name: str) -> bool:
    return any(container.name == name for container in pod.spec.initContainers)


def _memory_request(container: AnyContainer) -> int:
    return value(container.resources.requests.get("memory")) if container.resources is not None else 0


def _unassigned_memory_per_container(pod: Pod) -> int:
    """An equal share of what the pod requests as a whole beyond its containers' requests; bytes."""
    if pod.spec.resources is None or not (whole := value(pod.spec.resources.requests.get("memory"))):
        return 0
    assigned = sum_container_requests(pod.spec).get("memory")
    containers = len(pod.spec.containers) + len(pod.spec.initContainers)
    return (whole - (assigned.value() if assigned is not None else 0)) // max(containers, 1)


def _huge_page_limits(limits: dict[str, Quantity], sizes: tuple[int, ...]) -> list[cri_pb2.HugepageLimit]:
    """Every size of the machine has a limit; none asked for is none allowed."""
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
        # Memory and swap together: as much as memory alone leaves no swap.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes
        return
    resources.unified["memory.swap.max"] = str(swap_limit(pod, container, settings))


def swap_limit(pod: Pod, container: AnyContainer, settings: RenderSettings) -> int:
    """Bytes of swap on cgroup v2: LimitedSwap gives Burstable containers the share that they have of the memory."""
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
    ceiling = limit or qos.for_pods
    if request != limit and ceiling:
        pages = (request + (ceiling - request) * qos.throttling_factor) // qos.page_size
        high = int(pages) * qos.page_size
        if high > request:
            unified["memory.high"] = str(high)
    return unified
