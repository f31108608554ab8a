"""The cgroups of the node and its pods: their names, the resources that are allocatable in them, and their limits. Pure.

Rules of names:
- A name is a path of parts below the cgroup mount: `cgroupRoot`, `kubepods`, the QoS class, `pod<uid>`. Guaranteed pods
  lie directly below `kubepods`.
- The cgroupfs driver joins the parts by slashes.
- systemd nests slices by their names. Dashes within a part become underscores, and the parts are joined by dashes. Every
  slice is in the slice whose name is one part shorter.

Rules of resources:
- Allocatable = capacity - systemReserved - kubeReserved - hard eviction reservation, never below 0. Huge pages are
  subtracted from memory too.
- The group of all pods has all CPUs that are online, and no limit on huge pages: each pod has its own.
- The group of all pods is limited to capacity - systemReserved - kubeReserved. The hard eviction reservation is not
  subtracted, so that eviction acts before the kernel's OOM killer. If `pods` is not enforced, the group gets the CPU
  shares and memory of the whole machine.
- A pod gets CPU shares by its CPU requests (BestEffort: the minimum); a quota and a memory limit if every container has
  one (Guaranteed: always); a limit on every huge page size, 0 for those not requested; and the configured number of pids.
  Pod-level resources replace the sums; overhead is added.
- The Burstable group gets CPU shares by the sum of its pods' CPU requests, the BestEffort group the minimum.
- Memory protection (MemoryQoS with TieredReservation): the memory request is the `memory.min` of a Guaranteed pod and the
  `memory.low` of a Burstable pod. The Burstable group gets the sum for its pods as `memory.low`, and the group of all pods
  gets the sum for both classes as `memory.min`, because the kernel protects a group no better than its parents. Without
  it, the groups of the node have both values reset.
- Memory throttling (MemoryQoS with memoryThrottlingFactor): a pod with memory of its own has `memory.high`; so have
  containers, by the runtime.
Source: the Kubernetes documentation "Container Runtimes" (cgroup drivers), "Reserve Compute Resources for System Daemons", "Pod Overhead";
systemd.slice(5); KEP "Pod level resource management" (cgroups), KEP-2837 (pod-level resources), KEP-2570 (memory QoS).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import HUGE_PAGES, format_units, in_units, page_size, page_size_name
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.sizing import (
    MEMORY_HIGH,
    MIN_SHARES,
    QOSClass,
    cpu_quota_us,
    cpu_shares,
    is_limited,
    memory_high,
    pod_limits,
    pod_requests,
    qos_class,
)
from pykubelet.edges.host.cgroups.cgroup_values import UNLIMITED, CgroupLimits, files_of, with_files
from pykubelet.provide.cgroups.model import CgroupDriver, Enforce, MemoryProtection, NodeResources, ResourceSettings

# Names

NODE_GROUP = "kubepods"
POD_PREFIX = "pod"
_QOS_GROUPS = {QOSClass.BURSTABLE: ("burstable",), QOSClass.BEST_EFFORT: ("besteffort",), QOSClass.GUARANTEED: ()}
_SLICE = ".slice"

GroupName = tuple[str, ...]


def split_root(cgroup_root: str) -> GroupName:
    """The parts of cgroupRoot; none for `/` and an empty text."""
    return tuple(part for part in cgroup_root.split("/") if part)


def parse_group(text: str, driver: CgroupDriver) -> GroupName:
    """A group named in the configuration: a path for cgroupfs, a slice (its path or its name) for systemd."""
    if driver is CgroupDriver.CGROUPFS:
        return split_root(text)
    last = text.rstrip("/").rpartition("/")[2].removesuffix(_SLICE)
    return tuple(part.replace("_", "-") for part in last.split("-") if part)


def quoted(name: GroupName) -> str:
    """The name as in Events: `["a" "kubepods"]`."""
    return "[" + " ".join(f'"{part}"' for part in name) + "]"


def node_group(settings: ResourceSettings) -> GroupName:
    """The group of all pods; cgroupRoot itself when there are no QoS groups."""
    root = split_root(settings.cgroup_root)
    return (*root, NODE_GROUP) if settings.cgroups_per_qos else root


def qos_group(settings: ResourceSettings, qos: QOSClass) -> GroupName:
    """The group of the pods of one class."""
    return (*node_group(settings), *_QOS_GROUPS[qos])


def pod_group(settings: ResourceSettings, qos: QOSClass, uid: PodUID) -> GroupName:
    """The group of one pod."""
    return (*qos_group(settings, qos), f"{POD_PREFIX}{uid}")


def driver_path(name: GroupName, driver: CgroupDriver) -> str:
    """The group's path below the mount."""
    if driver is CgroupDriver.CGROUPFS or not name:
        return "/" + "/".join(name)
    slices = [slice_name(name[:depth]) for depth in range(1, len(name) + 1)]
    return "/" + "/".join(slices)


def slice_name(name: GroupName) -> str:
    """The systemd unit of a group: `kubepods-burstable-pod<uid_>.slice`."""
    return "-".join(part.replace("-", "_") for part in name) + _SLICE


def cgroup_parent(settings: ResourceSettings, qos: QOSClass, uid: PodUID) -> str:
    """The value of the sandbox's `linux.cgroup_parent`: a path for cgroupfs, the name of a slice for systemd."""
    if not settings.cgroups_per_qos:
        return settings.cgroup_root
    name = pod_group(settings, qos, uid)
    return driver_path(name, settings.driver) if settings.driver is CgroupDriver.CGROUPFS else slice_name(name)


def read_pod_uid(entry: str, parent: GroupName, driver: CgroupDriver) -> PodUID | None:
    """The UID of the pod that a directory in a QoS group is the group of; None for other directories."""
    if driver is CgroupDriver.SYSTEMD:
        prefix = slice_name(parent).removesuffix(_SLICE) + "-" if parent else ""
        if not entry.endswith(_SLICE) or not entry.startswith(prefix):
            return None
        entry = entry.removesuffix(_SLICE).removeprefix(prefix).replace("_", "-")
    if not entry.startswith(POD_PREFIX) or entry == POD_PREFIX:
        return None
    return PodUID(entry.removeprefix(POD_PREFIX))


# The node

ALL_HUGE_PAGES = 1 << 62
MEMORY_MIN, MEMORY_LOW = "memory.min", "memory.low"

# The node


def reservation(settings: ResourceSettings, *, eviction: bool = True) -> dict[str, int]:
    """The amounts that are reserved and not available to pods, by resource name."""
    total: dict[str, int] = {}
    parts = [settings.system_reserved, settings.kube_reserved]
    if eviction:
        parts.append(settings.eviction_reserved)
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def node_allocatable(capacity: Mapping[str, int], settings: ResourceSettings) -> dict[str, int]:
    """The node's allocatable resources, as in its status. `capacity` as in `NodeView`; `pid` is left out."""
    kept = reservation(settings)
    allocatable = {name: max(0, amount - kept.get(name, 0)) for name, amount in capacity.items() if name != "pid"}
    if "memory" in allocatable:
        huge = sum(amount for name, amount in capacity.items() if name.startswith(HUGE_PAGES))
        allocatable["memory"] = max(0, allocatable["memory"] - huge)
    return allocatable


def allocatable_problem(capacity: Mapping[str, int], settings: ResourceSettings) -> str | None:
    """The reference kubelet's error text if reservations exceed the capacity; None if they do not."""
    kept = reservation(settings)
    wrong = [
        f'Resource "{name}" has a reservation of {format_units(name, kept[name])} but capacity of '
        f"{format_units(name, amount)}. Expected capacity >= reservation."
        for name, amount in sorted(capacity.items())
        if kept.get(name, 0) > amount
    ]
    return f"invalid Node Allocatable configuration. {' '.join(wrong)}" if wrong else None


def node_limits(node: NodeResources, settings: ResourceSettings) -> CgroupLimits:
    """The limits of the group of all pods."""
    amounts = dict(node.capacity)
    if Enforce.PODS in settings.enforce and settings.cgroups_per_qos:
        kept = reservation(settings, eviction=False)
        amounts = {name: max(0, amount - kept.get(name, 0)) for name, amount in amounts.items()}
    limits = group_limits(amounts)
    return replace(limits, huge_pages=_unbounded(node.page_sizes), cpus=node.cpus)


def _unbounded(page_sizes: tuple[int, ...]) -> dict[str, int]:
    return {page_size_name(size): ALL_HUGE_PAGES for size in page_sizes}


def reserved_limits(
    amounts: Mapping[str, int], node: NodeResources, settings: ResourceSettings, *, compressible: bool
) -> CgroupLimits:
    """Limits of a group of the node's own daemons, for which `amounts` are reserved. They get no huge pages, because these
    cannot be reserved for daemons."""
    limits = replace(group_limits(amounts, compressible=compressible), cpus=node.cpus)
    if not compressible:
        limits = replace(limits, huge_pages={page_size_name(size): 0 for size in node.page_sizes})
    protects = settings.memory_protection in (MemoryProtection.NONE, MemoryProtection.TIERED)
    if protects and limits.memory_bytes is not None:
        limits = replace(limits, unified={MEMORY_MIN: str(limits.memory_bytes)})
    return limits


def group_limits(amounts: Mapping[str, int], *, compressible: bool = False) -> CgroupLimits:
    """Limits from amounts by resource name. `compressible`: only CPU shares."""
    shares = cpu_shares(amounts["cpu"]) if "cpu" in amounts else None
    if compressible:
        return CgroupLimits(cpu_shares=shares)
    return CgroupLimits(cpu_shares=shares, memory_bytes=amounts.get("memory"), pids=amounts.get("pid"))


# QoS groups


class Share(Value):
    """What one pod adds to the group of its QoS class: millicores and bytes.

    `protected`: `memory.low` and `memory.min` of its own cgroup, if extensions may change them.
    """

    qos: QOSClass
    cpu: int
    memory: int
    protected: Mapping[str, int] = field(default_factory=dict)


def share_of(pod: Pod, changed: CgroupLimits | None = None, capacity: int = 0) -> Share:
    """The pod's requests as its QoS group counts them. `changed`: the limits of its cgroup if extensions may change them. `capacity`: bytes
    of memory of the machine, for `max`.
    """
    requests = in_units(pod_requests(pod))
    unified = changed.unified if changed is not None else {}
    protected = {file: _bytes(unified[file], capacity) for file in (MEMORY_LOW, MEMORY_MIN) if file in unified}
    return Share(qos_class(pod), requests.get("cpu", 0), requests.get("memory", 0), protected)


def _bytes(text: str, capacity: int) -> int:
    return capacity if text == "max" else int(text)


#: By QoS class and what it is: an amount of `Share`, or `_BUILT_IN`, the memory requests of the pods whose cgroups protect as much.
Sums = Mapping[tuple[QOSClass, str], int]
_CPU, _MEMORY, _BUILT_IN = "cpu", "memory", "built-in"


def amounts_of(share: Share) -> dict[tuple[QOSClass, str], int]:
    """What one pod adds to `Sums`."""
    built_in = {} if _protecting_file(share.qos) in share.protected else {_BUILT_IN: share.memory}
    amounts = {_CPU: share.cpu, _MEMORY: share.memory, **share.protected, **built_in}
    return {(share.qos, name): amount for name, amount in amounts.items()}


def sums_of(shares: Iterable[Share]) -> Sums:
    """The sums of the shares of all active pods."""
    sums = Counter[tuple[QOSClass, str]]()
    for share in shares:
        sums.update(amounts_of(share))
    return sums


def _protecting_file(qos: QOSClass) -> str:
    """Where a pod's cgroup protects what the pod requests."""
    return MEMORY_MIN if qos is QOSClass.GUARANTEED else MEMORY_LOW


def qos_limits(sums: Sums, node: NodeResources, settings: ResourceSettings) -> dict[QOSClass, CgroupLimits]:
    """The limits of the QoS groups while the shares of the active pods have these sums.

    On cgroup v2, GUARANTEED has the memory protection of the group of all pods, which contains the Guaranteed pods.
    """
    memory = {qos: sums.get((qos, _MEMORY), 0) for qos in QOSClass}
    unbounded = _unbounded(node.page_sizes)
    burstable_cpu = sums.get((QOSClass.BURSTABLE, _CPU), 0)
    burstable = CgroupLimits(cpu_shares=cpu_shares(burstable_cpu), huge_pages=unbounded)
    best_effort = CgroupLimits(cpu_shares=MIN_SHARES, huge_pages=unbounded)
    if settings.qos_reserved_memory is not None:
        percent = settings.qos_reserved_memory
        capacity = max(0, node.capacity.get("memory", 0) - reservation(settings, eviction=False).get("memory", 0))
        for_burstable = capacity - memory[QOSClass.GUARANTEED] * percent // 100
        for_best_effort = for_burstable - memory[QOSClass.BURSTABLE] * percent // 100
        burstable = replace(burstable, memory_bytes=max(0, for_burstable))
        best_effort = replace(best_effort, memory_bytes=max(0, for_best_effort))
    found = {QOSClass.BURSTABLE: burstable, QOSClass.BEST_EFFORT: best_effort}
    if settings.memory_protection is not None:
        tiered = settings.memory_protection is MemoryProtection.TIERED
        low = memory[QOSClass.BURSTABLE] if tiered else 0
        least = low + memory[QOSClass.GUARANTEED] if tiered else 0
        found[QOSClass.BURSTABLE] = replace(burstable, unified={MEMORY_LOW: str(low)})
        softly = {MEMORY_LOW: str(low)} if settings.protects_pods_softly else {}
        found[QOSClass.GUARANTEED] = CgroupLimits(unified={MEMORY_MIN: str(least), **softly})
        if settings.ask_extensions is not None:
            return _protecting(found, sums, tiered=tiered)
    return found


def _protecting(found: dict[QOSClass, CgroupLimits], of_pods: Sums, *, tiered: bool) -> dict[QOSClass, CgroupLimits]:
    """The limits with the sums of what the cgroups of the pods protect, as extensions have changed it."""
    sums = {(qos, file): of_pods.get((qos, file), 0) for qos in QOSClass for file in (MEMORY_LOW, MEMORY_MIN)}
    if tiered:
        for qos in QOSClass:
            sums[qos, _protecting_file(qos)] += of_pods.get((qos, _BUILT_IN), 0)
    for file in (MEMORY_LOW, MEMORY_MIN):  # the group of all pods contains those of the other classes
        sums[QOSClass.GUARANTEED, file] = sum(sums[qos, file] for qos in QOSClass)
    if tiered:  # what is protected softly in a class is protected hard in the group of all pods
        sums[QOSClass.GUARANTEED, MEMORY_MIN] += sums[QOSClass.BURSTABLE, MEMORY_LOW]
    return {
        qos: replace(
            limits,
            unified={**limits.unified, **{file: str(sums[qos, file]) for file in (MEMORY_LOW, MEMORY_MIN)}},
        )
        for qos, limits in found.items()
    }


# Pods


def pod_cgroup_limits(
    pod: Pod, settings: ResourceSettings, page_sizes: tuple[int, ...] = (), *, exclusive_cpus: bool = False
) -> CgroupLimits:
    """The limits of a pod's group. `exclusive_cpus`: the pod has CPUs of its own, so it gets no quota."""
    pids = settings.pod_pids_limit if settings.pod_pids_limit and settings.pod_pids_limit > 0 else None
    requests, limits = in_units(pod_requests(pod)), in_units(pod_limits(pod))
    asked = {size: amount for name, amount in requests.items() if (size := page_size(name)) is not None}
    huge = {page_size_name(size): asked.get(size, 0) for size in page_sizes}
    qos = qos_class(pod)
    if qos is QOSClass.BEST_EFFORT:
        return CgroupLimits(cpu_shares=MIN_SHARES, pids=pids, huge_pages=huge)
    quota: int | None = None
    period: int | None = None
    if qos is QOSClass.GUARANTEED or is_limited(pod, "cpu"):
        period = settings.cpu_cfs_quota_period_us
        quota = cpu_quota_us(limits.get("cpu", 0), period)
        if not settings.cpu_cfs_quota or exclusive_cpus:
            quota = UNLIMITED
    memory: int | None = None
    if qos is QOSClass.GUARANTEED or is_limited(pod, "memory"):
        memory = limits.get("memory", 0)
    return CgroupLimits(
        cpu_shares=cpu_shares(requests.get("cpu", 0)),
        cpu_quota_us=quota,
        cpu_period_us=period,
        memory_bytes=memory,
        pids=pids,
        huge_pages=huge,
        unified={**_protection(qos, requests.get("memory", 0), settings), **_throttle(pod, requests, limits, settings)},
    )


def changed_limits(pod: Pod, limits: CgroupLimits, settings: ResourceSettings) -> CgroupLimits:
    """The limits of a pod's group with what extensions change."""
    if settings.ask_extensions is None:
        return limits
    changed = settings.ask_extensions(pod, "", dict(files_of(limits)), False)
    return with_files(limits, changed) if changed else limits


def _protection(qos: QOSClass, request: int, settings: ResourceSettings) -> dict[str, str]:
    if settings.memory_protection is not MemoryProtection.TIERED or not request:
        return {}
    return {MEMORY_MIN if qos is QOSClass.GUARANTEED else MEMORY_LOW: str(request)}


def _throttle(
    pod: Pod, requests: Mapping[str, int], limits: Mapping[str, int], settings: ResourceSettings
) -> dict[str, str]:
    """`memory.high` of a pod that has memory of its own (KEP-2837), and more of it than it requests."""
    throttle, own = settings.memory_throttle, pod.spec.resources
    if throttle is None or own is None or "memory" not in {**own.requests, **own.limits}:
        return {}
    request, limit = requests.get("memory", 0), limits.get("memory", 0)
    high = memory_high(request, limit, throttle.for_pods, throttle.factor) if request != limit else None
    return {MEMORY_HIGH: str(high)} if high is not None else {}


def wider(limits: CgroupLimits, other: CgroupLimits) -> CgroupLimits:
    """The limits of a pod's group while its containers are resized from one size to the other: the larger of each limit.

    A limit that only one of them has is not changed in the group.
    """

    def larger(a: int | None, b: int | None) -> int | None:
        if a is None or b is None:
            return None
        return UNLIMITED if UNLIMITED in (a, b) else max(a, b)

    quota = larger(limits.cpu_quota_us, other.cpu_quota_us)
    return CgroupLimits(
        cpu_shares=larger(limits.cpu_shares, other.cpu_shares),
        cpu_quota_us=quota,
        cpu_period_us=other.cpu_period_us if quota is not None else None,
        memory_bytes=larger(limits.memory_bytes, other.memory_bytes),
    )
