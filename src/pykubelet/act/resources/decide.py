"""How much each group gets. Pure.

Rules:
- Allocatable = capacity - systemReserved - kubeReserved - hard eviction reservation, never below 0; memory also
  without what is set aside as huge pages.
- The group of all pods is limited to capacity - reservations, without the eviction part, so that eviction comes before
  the kernel's OOM killer. Not enforced: it gets shares and memory of the whole machine.
- A pod: shares of its CPU requests; quota and memory limit when every container has one (a Guaranteed pod always); least
  shares for BestEffort; every huge page size limited, to 0 where none was asked for; pids as configured. Resources of
  the whole pod take the place of the sums; overhead comes on top.
- Burstable gets shares of the sum of its pods' CPU requests, BestEffort the least.
Source: KEP "Pod level resource management" (cgroups), the documentation "Reserve Compute Resources for System Daemons",
"Pod Overhead", KEP-2837 (pod-level resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pykubelet.act.resources.model import Enforce, NodeResources, ResourceSettings
from pykubelet.base.api.core import Container, Pod, Quantity
from pykubelet.base.api.quantity import QuantityError, milli_value, parse_text, value
from pykubelet.base.api.resources import sum_container_limits, sum_container_requests
from pykubelet.base.model.qos import QOSClass, qos_class
from pykubelet.edges.host.cgroup_values import UNLIMITED, CgroupLimits

MIN_SHARES = 2
MAX_SHARES = 262_144
MIN_QUOTA_US = 1000
HUGE_PAGES = "hugepages-"
ALL_HUGE_PAGES = 1 << 62
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def cpu_shares(milli: int) -> int:
    """The weight of `milli` thousandths of a CPU, within the kernel's bounds."""
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def cpu_quota_us(milli: int, period_us: int) -> int:
    """Microseconds in each period; 0 (unset) when there is no limit."""
    return max(milli * period_us // 1000, MIN_QUOTA_US) if milli else 0


def page_size_name(size: int) -> str:
    """Bytes as the kernel's control files spell them: `2MB`, `1GB`."""
    unit = 0
    while size and size % 1024 == 0 and unit < len(_UNITS) - 1:
        size //= 1024
        unit += 1
    return f"{size}{_UNITS[unit]}"


def page_size_of(resource: str) -> int | None:
    """Bytes of `hugepages-2Mi`; None for other resources."""
    if not resource.startswith(HUGE_PAGES):
        return None
    try:
        return parse_text(resource.removeprefix(HUGE_PAGES)).value()
    except QuantityError:
        return None


# The node


def reservation(settings: ResourceSettings, *, eviction: bool = True) -> dict[str, int]:
    """What pods may not have, by resource."""
    total: dict[str, int] = {}
    parts = [settings.system_reserved, settings.kube_reserved]
    if eviction:
        parts.append(settings.eviction_reserved)
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def node_allocatable(capacity: Mapping[str, int], settings: ResourceSettings) -> dict[str, int]:
    """What pods may have, as the node's status shows it. `capacity` as in `NodeView`; `pid` is left out."""
    kept = reservation(settings)
    allocatable = {name: max(0, amount - kept.get(name, 0)) for name, amount in capacity.items() if name != "pid"}
    if "memory" in allocatable:
        huge = sum(amount for name, amount in capacity.items() if name.startswith(HUGE_PAGES))
        allocatable["memory"] = max(0, allocatable["memory"] - huge)
    return allocatable


def node_limits(node: NodeResources, settings: ResourceSettings) -> CgroupLimits:
    """The limits of the group of all pods."""
    amounts = dict(node.capacity)
    if Enforce.PODS in settings.enforce and settings.cgroups_per_qos:
        kept = reservation(settings, eviction=False)
        amounts = {name: max(0, amount - kept.get(name, 0)) for name, amount in amounts.items()}
    return group_limits(amounts, node.page_sizes)


def group_limits(
    amounts: Mapping[str, int], page_sizes: tuple[int, ...] = (), *, compressible: bool = False
) -> CgroupLimits:
    """Limits from amounts by resource; `compressible` takes CPU alone."""
    shares = cpu_shares(amounts["cpu"]) if "cpu" in amounts else None
    if compressible:
        return CgroupLimits(cpu_shares=shares)
    huge = {
        page_size_name(size): amounts[name]
        for name in amounts
        if (size := page_size_of(name)) is not None and size in page_sizes
    }
    return CgroupLimits(cpu_shares=shares, memory_bytes=amounts.get("memory"), pids=amounts.get("pid"), huge_pages=huge)


# QoS groups


def qos_limits(pods: Iterable[Pod], node: NodeResources, settings: ResourceSettings) -> dict[QOSClass, CgroupLimits]:
    """Limits of the Burstable and BestEffort groups while `pods` are active."""
    burstable_cpu = 0
    memory = {QOSClass.GUARANTEED: 0, QOSClass.BURSTABLE: 0, QOSClass.BEST_EFFORT: 0}
    for pod in pods:
        qos = qos_class(pod)
        requests = pod_requests(pod)
        memory[qos] += -(-requests.get("memory", 0) // 1000)
        if qos is QOSClass.BURSTABLE:
            burstable_cpu += requests.get("cpu", 0)
    unbounded = {page_size_name(size): ALL_HUGE_PAGES for size in node.page_sizes}
    burstable = CgroupLimits(cpu_shares=cpu_shares(burstable_cpu), huge_pages=unbounded)
    best_effort = CgroupLimits(cpu_shares=MIN_SHARES, huge_pages=unbounded)
    if settings.qos_reserved_memory is not None:
        percent = settings.qos_reserved_memory
        room = node_allocatable(node.capacity, settings).get("memory", 0)
        for_burstable = room - memory[QOSClass.GUARANTEED] * percent // 100
        for_best_effort = for_burstable - memory[QOSClass.BURSTABLE] * percent // 100
        burstable = replace(burstable, memory_bytes=max(0, for_burstable))
        best_effort = replace(best_effort, memory_bytes=max(0, for_best_effort))
    return {QOSClass.BURSTABLE: burstable, QOSClass.BEST_EFFORT: best_effort}


# Pods


def _pod_level(listed: Mapping[str, Quantity]) -> dict[str, int]:
    return {
        name: milli_value(quantity)
        for name, quantity in listed.items()
        if name in ("cpu", "memory") or name.startswith(HUGE_PAGES)
    }


def pod_requests(pod: Pod) -> dict[str, int]:
    """Thousandths of each resource that the pod asks for, overhead included."""
    total = {name: amount.milli_value() for name, amount in sum_container_requests(pod.spec).items()}
    if pod.spec.resources is not None:
        total.update(_pod_level(pod.spec.resources.requests))
    for name, quantity in pod.spec.overhead.items():
        total[name] = total.get(name, 0) + milli_value(quantity)
    return total


def pod_limits(pod: Pod) -> dict[str, int]:
    """Thousandths of each resource that the pod may use; overhead is added to what has a limit."""
    total = {name: amount.milli_value() for name, amount in sum_container_limits(pod.spec).items()}
    if pod.spec.resources is not None:
        total.update(_pod_level(pod.spec.resources.limits))
    for name, quantity in pod.spec.overhead.items():
        if total.get(name):
            total[name] += milli_value(quantity)
    return total


def _all_limited(pod: Pod, resource: str) -> bool:
    """Whether no container is free to take more: each has a limit, or the pod as a whole has."""
    of_pod = pod.spec.resources
    if of_pod is not None and value(of_pod.limits.get(resource)):
        return True
    return all(_limit(container, resource) for container in (*pod.spec.containers, *pod.spec.initContainers))


def _limit(container: Container, resource: str) -> int:
    return milli_value(container.resources.limits.get(resource)) if container.resources is not None else 0


def pod_cgroup_limits(
    pod: Pod, settings: ResourceSettings, page_sizes: tuple[int, ...] = (), *, exclusive_cpus: bool = False
) -> CgroupLimits:
    """The limits of a pod's group. `exclusive_cpus`: it has CPUs of its own, and no quota on them."""
    pids = settings.pod_pids_limit if settings.pod_pids_limit and settings.pod_pids_limit > 0 else None
    requests, limits = pod_requests(pod), pod_limits(pod)
    asked = {size: amount for name, amount in requests.items() if (size := page_size_of(name)) is not None}
    huge = {page_size_name(size): -(-asked.get(size, 0) // 1000) for size in page_sizes}
    qos = qos_class(pod)
    if qos is QOSClass.BEST_EFFORT:
        return CgroupLimits(cpu_shares=MIN_SHARES, pids=pids, huge_pages=huge)
    quota: int | None = None
    period: int | None = None
    if qos is QOSClass.GUARANTEED or _all_limited(pod, "cpu"):
        period = settings.cpu_cfs_quota_period_us
        quota = cpu_quota_us(limits.get("cpu", 0), period)
        if not settings.cpu_cfs_quota or exclusive_cpus:
            quota = UNLIMITED
    memory: int | None = None
    if qos is QOSClass.GUARANTEED or _all_limited(pod, "memory"):
        memory = -(-limits.get("memory", 0) // 1000)
    return CgroupLimits(
        cpu_shares=cpu_shares(requests.get("cpu", 0)),
        cpu_quota_us=quota,
        cpu_period_us=period,
        memory_bytes=memory,
        pids=pids,
        huge_pages=huge,
    )
