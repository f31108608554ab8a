"""What each container has of the machine: CPUs, memory, devices. `Placements` is written by provide/placement alone.

Source: the Kubernetes documentation "Control CPU Management Policies on the Node", "Utilizing the NUMA-aware Memory Manager"
and "Device Plugins".
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.cpuset import format_cpuset
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.machine import MachineTopology
from pykubelet.base.model.roster import Rejection
from pykubelet.base.model.waits import Wait

NO_CPUS: frozenset[int] = frozenset()
#: The key of devices without a NUMA node in `AssignedDevices.by_node`.
NO_NODE = -1
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"


class MemoryBlock(Value):
    """`size` bytes of one memory type (`memory` or `hugepages-<size>`) for one container, somewhere on `nodes`."""

    nodes: tuple[int, ...]
    type: str
    size: int


class DeviceNode(Value):
    """A host device for a container. `permissions`: cgroup device access, a subset of `rwm`."""

    host_path: str
    container_path: str
    permissions: str


class DeviceMount(Value):
    """A host path that a device plugin mounts into a container."""

    host_path: str
    container_path: str
    read_only: bool = False


class Devices(Value):
    """What device plugins and resource claims add to one container. `cdi`: fully qualified CDI device names."""

    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[DeviceMount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


class CpuSet(Value):
    """CPUs and memory nodes in the kernel's list format; "": not restricted. `exclusive`: no other container uses the CPUs, so they
    have no quota."""

    cpus: str = ""
    mems: str = ""
    exclusive: bool = False


class AssignedDevices(Value):
    """Devices of one resource that one container has. `by_node`: their ids by NUMA node; node -1 for devices without a node."""

    resource: str
    by_node: Mapping[int, frozenset[str]]

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all of them."""
        return frozenset[str]().union(*self.by_node.values())


class ContainerPlacement(Value):
    """What one container has. `cpus`: exclusive ones; empty: it runs in the shared pool. `shares_cpus`: they are its pod's, and other
    containers of the pod use them too. `mems`: NUMA nodes in the kernel's list format that its memory comes from; "": any. `memory`:
    what no other container has. `options`: what its device plugins add to it."""

    cpus: frozenset[int] = NO_CPUS
    mems: str = ""
    memory: tuple[MemoryBlock, ...] = ()
    devices: tuple[AssignedDevices, ...] = ()
    options: Devices = Devices()
    shares_cpus: bool = False


class PodPlacement(Value):
    """The decision on one pod: what its containers have, by name; or why the node cannot place it.

    `seen_at`: that of the `RosterPod` it was made for; a pod that was away in between is placed anew.
    `explanation`: the rejection in terms of what the node has free and who holds the rest; for `pykubelet explain`.
    `no_quota`: CPU quotas of these containers are left out, because their CPUs are exclusive. `no_pod_quota`: so is that of the pod's
    cgroup. `cpus`, `memory`: what the pod has as a whole, with the parts of its containers (gate PodLevelResourceManagers).
    `shared_cpus`, `shared_memory`: what is left of it for the containers without parts of their own.
    """

    containers: Mapping[str, ContainerPlacement] = field(default_factory=dict)
    seen_at: float = 0.0
    rejection: Rejection | None = None
    explanation: str = ""
    no_quota: frozenset[str] = frozenset()
    no_pod_quota: bool = False
    cpus: frozenset[int] = NO_CPUS
    shared_cpus: frozenset[int] = NO_CPUS
    memory: tuple[MemoryBlock, ...] = ()
    shared_memory: tuple[MemoryBlock, ...] = ()


class DeviceResource(Value):
    """One resource of device plugins. `healthy` and `unhealthy`: ids of its devices. `nodes`: the NUMA nodes of each device whose
    plugin reported a topology, which may have none. `groups`: the devices that have NUMA nodes, by these.

    `is_stopped`: its plugin has ended; its devices are all unhealthy, and count in the capacity for five minutes. `ill`: how
    the plugin's last list described the devices that were not `Healthy`. `prefers`: the plugin wants to choose devices.
    """

    healthy: frozenset[str] = frozenset()
    unhealthy: frozenset[str] = frozenset()
    nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    groups: Mapping[tuple[int, ...], frozenset[str]] = field(default_factory=dict)
    ill: Mapping[str, str] = field(default_factory=dict)
    is_stopped: bool = False
    prefers: bool = False

    def health(self, device: str) -> str:
        """A device's health as it was last heard of; a device that is not known counts as healthy."""
        return self.ill.get(device, HEALTHY)


def group_by_nodes(nodes: Mapping[str, tuple[int, ...]]) -> Mapping[tuple[int, ...], frozenset[str]]:
    """The `groups` of a resource with these `nodes`."""
    groups: dict[tuple[int, ...], set[str]] = {}
    for device, own in nodes.items():
        if own:
            groups.setdefault(own, set()).add(device)
    return {own: frozenset(devices) for own, devices in groups.items()}


class Placements(Value):
    """The placement of every pod that has one, and what there is to place on.

    `machine`: None while it was not read. `shared`: the CPUs of containers without exclusive ones; None: not restricted.
    `allocatable_cpus`, `allocatable_memory`: all that pods can get exclusively, taken or not. `devices`: by resource name.
    `devices_in_use`: resources that pods have devices of, even if no plugin has offered them since the agent started.
    `removed_devices`: resources that the Node had and that no plugin offers any more. `waits`: of pods whose placement is not
    decided yet. `places_all`: every pod is to be placed, because there was no state file: it shows what its containers run on.
    """

    pods: Mapping[PodUID, PodPlacement] = field(default_factory=dict)
    machine: MachineTopology | None = None
    reserved: frozenset[int] = NO_CPUS
    shared: frozenset[int] | None = None
    allocatable_cpus: frozenset[int] = NO_CPUS
    allocatable_memory: tuple[MemoryBlock, ...] = ()
    devices: Mapping[str, DeviceResource] = field(default_factory=dict)
    devices_in_use: frozenset[str] = frozenset()
    removed_devices: frozenset[str] = frozenset()
    waits: Mapping[PodUID, Wait] = field(default_factory=dict)
    places_all: bool = False

    @property
    def placed_resources(self) -> frozenset[str]:
        """The resources whose devices are found by placement: a plugin offers them, or pods have some."""
        return self.devices_in_use.union(self.devices)

    def container(self, uid: PodUID, name: str) -> ContainerPlacement:
        """What a container has; nothing of its own for an unknown one."""
        pod = self.pods.get(uid)
        return pod.containers.get(name, ContainerPlacement()) if pod is not None else ContainerPlacement()

    def cpus_of(self, uid: str, name: str) -> frozenset[int]:
        """The CPUs that a container may run on: its own, or the shared pool; empty if it is not restricted."""
        return self.container(PodUID(uid), name).cpus or self.shared or NO_CPUS

    def cpuset(self, uid: PodUID, name: str) -> CpuSet:
        """The restrictions with which a container is created."""
        pod = self.pods.get(uid)
        exclusive = pod is not None and name in pod.no_quota
        return CpuSet(format_cpuset(self.cpus_of(uid, name)), self.container(uid, name).mems, exclusive)

    def has_quota(self, uid: PodUID) -> bool:
        """Whether the pod's cgroup has a CPU quota, if its limits give one."""
        pod = self.pods.get(uid)
        return pod is None or not pod.no_pod_quota
