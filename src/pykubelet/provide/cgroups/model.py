"""The values of provide/cgroups: its settings, the node's resources, and errors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.api.quantity import in_units
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.extensions import AskForValues
from pykubelet.config.settings import Settings


class CgroupDriver(StrEnum):
    """The cgroup driver: the agent makes groups itself, or systemd makes them. The runtime must use the same driver."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


class Enforce(StrEnum):
    """The values of enforceNodeAllocatable."""

    NONE = "none"
    PODS = "pods"
    SYSTEM_RESERVED = "system-reserved"
    SYSTEM_RESERVED_COMPRESSIBLE = "system-reserved-compressible"
    KUBE_RESERVED = "kube-reserved"
    KUBE_RESERVED_COMPRESSIBLE = "kube-reserved-compressible"


class MemoryProtection(StrEnum):
    """What MemoryQoS protects with memoryReservationPolicy (KEP-2570, cgroup v2 only): nothing (what it protected before is
    reset), only the reservations for the node's daemons, or also the pods' requests with `memory.min` and `memory.low`."""

    OFF = "off"
    NONE = "None"
    TIERED = "TieredReservation"


class MemoryHigh(Value):
    """How far pods with memory of their own may grow before they are throttled: a share of what is between request and limit.

    `for_pods`: bytes of the node that are not reserved, the limit of pods without one.
    """

    factor: float
    for_pods: int


class ResourceSettings(Value):
    """The part of the configuration that concerns cgroups.

    Amounts are by resource name: `cpu` in millicores, `pid` as a number, the others in bytes. `eviction_reserved`: what the
    hard eviction thresholds keep free (`memory`, `ephemeral-storage`), with percentages converted to amounts.
    `pod_pids_limit`: None for no limit. `qos_reserved_memory`: percent, None when the gate is off. `memory_protection`: None on
    cgroup v1. `memory_throttle`: None if pods get no `memory.high`. `protects_pods_softly`: the group of all pods gets `memory.low` too.
    `ask_extensions` None: no extension changes values of cgroups.
    """

    cgroup_root: str = "/"
    cgroups_per_qos: bool = True
    driver: CgroupDriver = CgroupDriver.CGROUPFS
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period_us: int = 100_000
    pod_pids_limit: int | None = None
    system_reserved: Mapping[str, int] = field(default_factory=dict)
    kube_reserved: Mapping[str, int] = field(default_factory=dict)
    eviction_reserved: Mapping[str, int] = field(default_factory=dict)
    enforce: frozenset[Enforce] = frozenset({Enforce.PODS})
    system_reserved_cgroup: str = ""
    kube_reserved_cgroup: str = ""
    qos_reserved_memory: int | None = None
    memory_protection: MemoryProtection | None = None
    memory_throttle: MemoryHigh | None = None
    protects_pods_softly: bool = False
    ask_extensions: AskForValues | None = None


def resource_settings(
    settings: Settings,
    capacity: Mapping[str, int],
    driver: CgroupDriver,
    ask_extensions: AskForValues | None = None,
    *,
    cgroup_v2: bool = False,
) -> ResourceSettings:
    """The cgroup settings from the agent's configuration. `driver`: the runtime's driver if it reports one, else the
    configured one."""
    config = settings.config
    reserved = settings.reserved
    has_qos, behavior = settings.enabled("MemoryQoS") and cgroup_v2, settings.behavior
    protection = MemoryProtection(config.memoryReservationPolicy) if has_qos else MemoryProtection.OFF
    factor = config.memoryThrottlingFactor if has_qos and behavior.throttles_more else None
    system, kube = in_units(reserved.system), in_units(reserved.kube)
    for_pods = max(0, capacity.get("memory", 0) - system.get("memory", 0) - kube.get("memory", 0))
    return ResourceSettings(
        cgroup_root=settings.cgroup_root,
        cgroups_per_qos=config.cgroupsPerQOS,
        driver=driver,
        cpu_cfs_quota=config.cpuCFSQuota,
        cpu_cfs_quota_period_us=settings.cpu_cfs_quota_period_us,
        pod_pids_limit=settings.pod_pids_limit,
        system_reserved=system,
        kube_reserved=kube,
        eviction_reserved=settings.eviction_reserved(capacity),
        enforce=frozenset(Enforce(name) for name in config.enforceNodeAllocatable),
        system_reserved_cgroup=config.systemReservedCgroup,
        kube_reserved_cgroup=config.kubeReservedCgroup,
        qos_reserved_memory=reserved.qos.get("memory"),
        memory_protection=protection if cgroup_v2 else None,
        memory_throttle=MemoryHigh(factor, for_pods) if factor is not None else None,
        protects_pods_softly=behavior.protects_pods_softly,
        ask_extensions=ask_extensions,
    )


class NodeResources(Value):
    """The resources of the machine. `capacity`: as in `NodeView`, with `pid` if known. `page_sizes`: of huge pages, in bytes.
    `cpus`: the CPUs that are online, as the kernel lists them (`0-3`)."""

    capacity: Mapping[str, int]
    page_sizes: tuple[int, ...] = ()
    cpus: str = ""


class CgroupError(Value):
    """The error when a pod's group could not be made or limited; the message names the group or file."""

    message: str


class ResourcesError(Exception):
    """The node cannot run pods as configured; the message is for the administrator."""
