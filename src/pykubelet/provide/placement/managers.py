"""All resource managers of the node together: who holds what, and what a pod has. Pure.

The order of the providers is the reference's: devices, CPUs, memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, Self, cast

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.machine import MachineTopology
from pykubelet.base.model.placement import (
    NO_CPUS,
    AssignedDevices,
    ContainerPlacement,
    DeviceResource,
    Devices,
    Placements,
    PodPlacement,
)
from pykubelet.base.model.waits import Wait
from pykubelet.provide.placement import cpu_manager
from pykubelet.provide.placement.cpu_manager import CpuManager, CpuState, sharers, without_quota
from pykubelet.provide.placement.cpu_policy import NONE, exclusive_counts, pool_size
from pykubelet.provide.placement.cpu_pool import shared_part
from pykubelet.provide.placement.memory_manager import MemoryManager, MemoryPolicy
from pykubelet.provide.placement.memory_pool import pool_sizes
from pykubelet.provide.placement.memory_state import MemoryState
from pykubelet.provide.placement.provider import PreferredAllocationRequest, Provider
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology
from pykubelet.provide.placement.topology_scopes import Admitted, admit, is_placed_whole

_UNALIGNED = Topology(Policy.NONE, Scope.CONTAINER, ())


class DeviceProvider(Provider, Protocol):
    """The devices of all plugins, with what pods have of them. Implemented in provide/placement/devices."""

    @property
    def holders(self) -> Collection[str]:
        """The UIDs of the pods that have devices."""

    @property
    def resources(self) -> Mapping[str, DeviceResource]:
        """All resources of device plugins by name."""

    @property
    def in_use(self) -> frozenset[str]:
        """The resources that pods have devices of."""

    @property
    def removed(self) -> frozenset[str]:
        """Resources that the Node had and that no plugin offers any more."""

    def with_answer(self, request: PreferredAllocationRequest, ids: Collection[str]) -> Self:
        """The provider that knows which devices the plugin prefers."""

    def unanswered(self, pod_uid: str) -> tuple[Any, ...]:
        """The calls of `Allocate` of device plugins that are still to be made for the pod, in the order of allocation."""

    def with_response(self, pod_uid: str, call: Any, response: bytes) -> Self:
        """The provider after a plugin's `Allocate`."""

    def release(self, pod_uids: Collection[str]) -> Self:
        """The pods are gone for good: their devices are free again."""

    def settled(self, pod_uid: str) -> Self:
        """The pod's admission is over."""

    def assigned(self, pod_uid: str, container: str) -> tuple[AssignedDevices, ...]:
        """The devices of one container."""

    def options(self, pod_uid: str, container: str) -> Devices:
        """What its plugins add to one container."""


class Managers(Value):
    """The managers with their states. `cpus` None: the CPU manager's policy is `none`. `no_quota_gate`: feature gate
    DisableCPUQuotaWithExclusiveCPUs. `machine`: None if it could not be read, which only matters without policies. `is_new`,
    `is_memory_new`: there was no state file of the CPU Manager (of the Memory Manager), so that running containers may have what
    is not in its state.
    """

    topology: Topology = Topology(Policy.NONE, Scope.CONTAINER, ())
    cpus: CpuManager | None = None
    memory: MemoryManager = MemoryManager(MemoryPolicy.NONE, MemoryState())
    devices: DeviceProvider | None = None
    no_quota_gate: bool = True
    machine: MachineTopology | None = None
    is_new: bool = False
    is_memory_new: bool = False

    @property
    def places_memory(self) -> bool:
        """Whether the memory manager's policy is `Static`."""
        return self.memory.policy is MemoryPolicy.STATIC

    @property
    def cpu_policy(self) -> str:
        """The name of the CPU manager's policy."""
        return NONE if self.cpus is None else self.cpus.policy.name

    @property
    def cpu_state(self) -> CpuState:
        """The CPU manager's state; empty with the policy `none`."""
        return CpuState() if self.cpus is None else self.cpus.state

    @property
    def providers(self) -> tuple[Provider, ...]:
        """The providers in the order of allocation."""
        listed: list[Provider | None] = [self.devices, self.cpus, self.memory if self.places_memory else None]
        return tuple(provider for provider in listed if provider is not None)

    def with_providers(self, after: Iterable[Provider]) -> Managers:
        """The managers after an admission. `after`: its providers."""
        managers = self
        for provider in after:
            if isinstance(provider, CpuManager):
                managers = replace(managers, cpus=provider)
            elif isinstance(provider, MemoryManager):
                managers = replace(managers, memory=provider)
            else:
                managers = replace(managers, devices=cast(DeviceProvider, provider))
        return managers

    # who holds what

    def holders(self) -> frozenset[str]:
        """The UIDs of all pods that have something."""
        devices = frozenset(self.devices.holders) if self.devices is not None else frozenset[str]()
        return devices.union(self.cpu_state.holders, self.memory.state.holders)

    def release(self, pod_uids: Collection[str]) -> Managers:
        """The managers after these pods are gone for good."""
        cpu_state, memory_state = self.cpu_state, self.memory.state
        kept = {uid: cpu_state.assignments.get(uid, {}).keys() for uid in cpu_state.holders if uid not in pod_uids}
        memory = {uid: memory_state.entries.get(uid, {}).keys() for uid in memory_state.holders if uid not in pod_uids}
        cpus = self.cpus
        return replace(
            self,
            cpus=cpus and replace(cpus, state=cpu_manager.release(cpus.state, kept)),
            memory=self.memory.release_others(memory) if self.places_memory else self.memory,
            devices=self.devices and self.devices.release(pod_uids),
        )

    def has_all(self, pod: Pod) -> bool:
        """Whether the pod has all the CPUs and memory that it requests, so that nothing needs to be found for it.

        Its devices must be healthy, unless its containers run.
        """
        uid = pod.metadata.uid
        if self.devices is not None and not isinstance(admit(_UNALIGNED, (self.devices,), pod), Admitted):
            return False
        if is_placed_whole(self.topology, pod) and (uid in self.cpu_state.pools or uid in self.memory.state.pools):
            return self._has_pool(pod)
        counts = exclusive_counts(pod, pod_level=self.topology.pod_level) if self.cpus is not None else {}
        if any(len(self.cpu_state.own(uid, name)) != count for name, count in counts.items()):
            return False
        names = [c.name for c in pod.spec.containers if self.memory.serves_container(pod, c)]
        return bool(counts or names) and all(self.memory.state.blocks(uid, name) is not None for name in names)

    def _has_pool(self, pod: Pod) -> bool:
        """Whether the pod has the CPUs and the memory that it gets as a whole, of the size that it requests."""
        cpus, memory, uid = self.cpus, self.memory, pod.metadata.uid
        count = pool_size(pod) if cpus is not None else 0
        sizes = pool_sizes(pod) if memory.serves(pod) else {}
        if cpus is not None and count and (len(cpus.state.pools.get(uid, ())) != count or not cpus.has_pool(pod)):
            return False
        blocks = memory.state.pools.get(uid, ())
        if sizes and ({block.type: block.size for block in blocks} != sizes or not memory.has_pool(pod)):
            return False
        return bool(count or sizes)

    # what others see

    def placement(self, pod: Pod, seen_at: float) -> PodPlacement:
        """What the containers of an admitted pod have."""
        uid, containers = pod.metadata.uid, {}
        sharing, own_memory = sharers(self.cpu_state, pod), self.memory.own_blocks(pod)
        for container in (*pod.spec.initContainers, *pod.spec.containers):
            name, own = container.name, self.cpu_state.own(uid, container.name)
            found = ContainerPlacement(
                cpus=own,
                shares_cpus=bool(own) and name in sharing,
                mems=self.memory.cpuset_mems(uid, name),
                memory=own_memory.get(name, ()),
                devices=self.devices.assigned(uid, name) if self.devices is not None else (),
                options=self.devices.options(uid, name) if self.devices is not None else Devices(),
            )
            if found != ContainerPlacement():
                containers[name] = found
        without = without_quota(self.cpu_state, pod, gate=self.no_quota_gate)
        pool = self.cpu_state.pools.get(uid, NO_CPUS)
        return PodPlacement(
            containers,
            seen_at,
            no_quota=without.containers,
            no_pod_quota=without.pod,
            cpus=pool,
            shared_cpus=shared_part(pod, pool, self.cpu_state.assignments.get(uid, {})),
            memory=self.memory.state.pools.get(uid, ()),
            shared_memory=self.memory.shared_blocks(pod),
        )

    def publish(
        self, pods: Mapping[PodUID, PodPlacement], waits: Mapping[PodUID, Wait], *, places_all: bool = False
    ) -> Placements:
        """The snapshot for other components."""
        cpus, devices = self.cpus, self.devices
        return Placements(
            pods=pods,
            machine=self.machine,
            reserved=cpus.policy.reserved if cpus is not None else NO_CPUS,
            shared=cpus.state.default if cpus is not None else None,
            allocatable_cpus=cpus.policy.allocatable if cpus is not None else NO_CPUS,
            allocatable_memory=self.memory.allocatable,
            devices=devices.resources if devices is not None else {},
            devices_in_use=devices.in_use if devices is not None else frozenset(),
            removed_devices=devices.removed if devices is not None else frozenset(),
            waits=waits,
            places_all=places_all,
        )
