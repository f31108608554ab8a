"""The Device Manager: which devices of device plugins a container gets. Pure.

Of devices that are equally good, the container gets those with the first names. (The reference takes any.) A plugin that
wants to choose is asked: `allocate` then returns the request, and is called again once `with_answer` has added the answer.
The plugin's `Allocate` follows after the pod's admission; until then the entry has no response.

Each operation returns the manager after it; the caller writes the state file when `state` has changed.
Source: the Kubernetes documentation "Device Plugins", KEP-753 (sidecars).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from heapq import nsmallest

from pykubelet.base.api.core import Container, Pod, PodSpec, ResourceRequirements
from pykubelet.base.api.quantity import sum_container_limits, value
from pykubelet.base.kit.values import Value, field, remember_last, replace
from pykubelet.base.model.machine import ResourceHints, TopologyHint
from pykubelet.base.model.placement import NO_NODE, AssignedDevices, DeviceResource, Devices
from pykubelet.edges.plugins.device_messages import merged, read_allocation
from pykubelet.provide.placement.devices.device_hints import device_hints, hints_of_free, near
from pykubelet.provide.placement.devices.device_state import NO_DEVICES, DeviceAllocations, DeviceEntry
from pykubelet.provide.placement.devices.device_supply import DeviceSupply, first_of, supply_of
from pykubelet.provide.placement.pod_level import completing
from pykubelet.provide.placement.provider import (
    Allocation,
    AllocationError,
    NeedsPluginAnswer,
    PreferenceKey,
    PreferredAllocationRequest,
)


class AllocateCall(Value):
    """A call of `Allocate` that a plugin must answer before the container may start."""

    container: str
    resource: str
    ids: frozenset[str]


class DeviceManager(Value):
    """The resources of all plugins, and who has their devices.

    `nodes`: the machine's NUMA nodes. `removed`: resources that the Node had and that no plugin offers any more. `running`: pod
    UID and name of containers that ran when the agent started; they keep their devices whatever the plugins do. None: these
    containers are not known yet; all that have devices may be running. `reusable_pod`: the pod whose init containers left
    `reusable`, by resource. `answers`: the devices that plugins have chosen for the pod that is being admitted.
    `supplies`: what is free for that pod, by resource; a missing or outdated one is made anew.
    """

    nodes: tuple[int, ...] = ()
    resources: Mapping[str, DeviceResource] = field(default_factory=dict)
    state: DeviceAllocations = DeviceAllocations()
    removed: frozenset[str] = frozenset()
    running: frozenset[tuple[str, str]] | None = frozenset()
    reusable_pod: str = ""
    reusable: Mapping[str, frozenset[str]] = field(default_factory=dict)
    answers: Mapping[PreferenceKey, frozenset[str]] = field(default_factory=dict)
    supplies: Mapping[str, DeviceSupply] = field(default_factory=dict)

    # the interface to the Topology Manager

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """The nodes on which the container's devices can be allocated, or were."""
        uid = pod.metadata.uid
        hints = {}
        for resource, count in self.wanted(pod, container).items():
            entry = self.state.entry(uid, container.name, resource)
            reusable = self._reusable(uid).get(resource, NO_DEVICES)
            hints[resource] = self._hints(resource, count, entry.ids if entry else NO_DEVICES, reusable)
        return hints

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """The same for all containers of the pod."""
        limits = {resource: amount.value() for resource, amount in sum_container_limits(self._requests(pod)).items()}
        return {
            resource: self._hints(resource, count, self.state.pod_ids(pod.metadata.uid, resource), NO_DEVICES)
            for resource, count in limits.items()
        }

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Allocation[DeviceManager]:
        """Choose the container's devices, unless it has them."""
        manager, uid = self, pod.metadata.uid
        keeps = self._runs_already(pod, container)
        for resource, count in self.wanted(pod, container).items():
            chosen = manager._kept_by(uid, container.name, resource, count, keeps=keeps)
            if chosen is None:
                manager = manager._with_supply(pod, resource, count)
                chosen = manager._choose(uid, container.name, resource, count, hint) if count else NO_DEVICES
            if isinstance(chosen, AllocationError):
                return Allocation(chosen)
            if chosen:
                entry = DeviceEntry(_by_node(self.resources.get(resource, DeviceResource()), chosen))
                state = manager.state.with_entry(uid, container.name, resource, entry)
                supply = manager.supplies[resource].taken(chosen, state.in_use[resource])
                manager = replace(manager, state=state, supplies={**manager.supplies, resource: supply})
        return Allocation(manager._with_reusable(pod, container))

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> Allocation[DeviceManager]:
        """Choose the devices of each of the pod's containers: a pod as a whole has none."""
        manager = self
        for container in (*pod.spec.initContainers, *pod.spec.containers):
            after = manager.allocate(pod, container, hint).after
            if isinstance(after, AllocationError):
                return Allocation(after)
            manager = after
        return Allocation(manager)

    # what the loop does around it

    @property
    def holders(self) -> Collection[str]:
        """The UIDs of the pods that have devices."""
        return self.state.entries.keys()

    @property
    def in_use(self) -> frozenset[str]:
        """The resources that pods have devices of."""
        return frozenset(self.state.in_use)

    def assigned(self, pod_uid: str, container: str) -> tuple[AssignedDevices, ...]:
        """The devices of one container."""
        return self.state.assigned(pod_uid, container)

    def options(self, pod_uid: str, container: str) -> Devices:
        """What its plugins add to one container."""
        entries = self.state.container(pod_uid, container)
        return merged([read_allocation(entries[name].response or b"") for name in sorted(entries)])

    def is_known(self, resource: str) -> bool:
        """Whether the resource is one of a device plugin: registered now, or allocated by one."""
        return resource in self.resources or resource in self.state.in_use

    def wanted(self, pod: Pod, container: Container) -> Mapping[str, int]:
        """How many devices the container requests, by resource. Extended resources have equal requests and limits.

        Those that a resource claim stands for are not requested from a device plugin (KEP-5004).
        """
        limits = container.resources.limits if container.resources else {}
        claims = pod.status.extendedResourceClaimStatus
        claimed = {(row.containerName, row.resourceName) for row in claims.requestMappings} if claims else ()
        return {
            resource: value(limits[resource])
            for resource in sorted(limits)
            if self.is_known(resource) and (container.name, resource) not in claimed
        }

    def with_answer(self, request: PreferredAllocationRequest, ids: Collection[str]) -> DeviceManager:
        """The manager that knows which devices the plugin prefers."""
        must = request.must_include
        chosen = _first(request.available.intersection(ids) - must, request.size - len(must))
        return replace(self, answers={**self.answers, request.key: chosen})

    def unanswered(self, pod_uid: str) -> tuple[AllocateCall, ...]:
        """The calls of `Allocate` that are still to be made for the pod, in the order of allocation."""
        return tuple(
            AllocateCall(container, resource, entry.ids)
            for container, entries in self.state.entries.get(pod_uid, {}).items()
            for resource, entry in entries.items()
            if entry.response is None
        )

    def with_response(self, pod_uid: str, call: AllocateCall, response: bytes) -> DeviceManager:
        """The manager after a plugin's `Allocate`. An entry that has changed since stays as it is."""
        entry = self.state.entry(pod_uid, call.container, call.resource)
        if entry is None or entry.ids != call.ids:
            return self
        answered = replace(entry, response=response)
        return replace(self, state=self.state.with_entry(pod_uid, call.container, call.resource, answered))

    def release(self, pod_uids: Collection[str]) -> DeviceManager:
        """The pods are gone for good: their devices are free again."""
        gone = frozenset(pod_uids)
        manager = self
        for uid in gone:
            manager = manager.settled(uid)
        manager = replace(manager, state=self.state.without_pods(gone), supplies={})
        return replace(manager, reusable_pod="", reusable={}) if self.reusable_pod in gone else manager

    def settled(self, pod_uid: str) -> DeviceManager:
        """The pod's admission is over: answers about it are of no more use."""
        answers = {request: ids for request, ids in self.answers.items() if request.pod_uid != pod_uid}
        running = frozenset(container for container in self.running or () if container[0] != pod_uid)
        if self.running is None or len(running) == len(self.running):
            is_same = len(answers) == len(self.answers) and not self.supplies
            return self if is_same else replace(self, answers=answers, supplies={})
        return replace(self, answers=answers, running=running, supplies={})

    # decisions

    def _requests(self, pod: Pod) -> PodSpec:
        """The pod's containers with the devices that they request, and nothing else."""

        def only_devices(container: Container) -> Container:
            return replace(container, resources=ResourceRequirements(limits={**self.wanted(pod, container)}))

        spec = pod.spec
        return PodSpec(
            initContainers=tuple(map(only_devices, spec.initContainers)),
            containers=tuple(map(only_devices, spec.containers)),
        )

    def _reusable(self, pod_uid: str) -> Mapping[str, frozenset[str]]:
        return self.reusable if self.reusable_pod == pod_uid else {}

    def _hints(
        self, name: str, count: int, allocated: frozenset[str], reusable: frozenset[str]
    ) -> tuple[TopologyHint, ...] | None:
        resource = self.resources.get(name)
        if resource is None or not resource.groups:
            return None
        if allocated:
            if len(allocated) != count:
                return ()
            own = {nodes: len(ids & allocated) for nodes, ids in resource.groups.items()}
            return hints_of_free(self.nodes, resource, own, NO_DEVICES, count)
        supply = self.supplies.get(name)
        if supply is not None and supply.is_of(resource, self._in_use(name)):
            if supply.free.count + len(reusable) < count:
                return ()
            free = {nodes: part.count for nodes, part in supply.groups.items()}
            return hints_of_free(self.nodes, resource, free, reusable, count)
        if len(resource.healthy) - len(resource.healthy & self._in_use(name)) + len(reusable) < count:
            return ()
        return device_hints(self.nodes, resource, self._busy(name), reusable, count)

    def _in_use(self, resource: str) -> frozenset[str]:
        return self.state.in_use.get(resource, NO_DEVICES)

    def _busy(self, resource: str) -> frozenset[str]:
        """The devices that are in use or not healthy."""
        in_use, unhealthy = self._in_use(resource), self.resources[resource].unhealthy
        return in_use | unhealthy if unhealthy else in_use

    def _kept_by(
        self, pod_uid: str, container: str, resource: str, count: int, *, keeps: bool
    ) -> frozenset[str] | AllocationError | None:
        """No devices if the container gets none in addition to those that it has; or why it cannot have what it requests. None: it gets
        devices, or requests none.

        `keeps`: whether the container keeps what it has, whatever the plugin reports.
        """
        entry = self.state.entry(pod_uid, container, resource)
        if entry is not None and len(entry.ids) != count:
            changed = f'changed request for resource "{resource}" from {len(entry.ids)} to {count}'
            return AllocationError(f'pod "{pod_uid}" container "{container}" {changed}')
        if keeps and (entry is not None or self.running is not None):
            return NO_DEVICES
        known = self.resources.get(resource)
        if known is None:
            return AllocationError(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            return AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if entry is not None and not entry.ids <= known.healthy:
            unhealthy = f"cannot allocate unhealthy devices {resource}"
            return AllocationError(f"previously allocated devices are no longer healthy; {unhealthy}")
        return None if entry is None else NO_DEVICES

    def _with_supply(self, pod: Pod, resource: str, count: int) -> DeviceManager:
        """The manager that knows what is free of a resource, for this container and the others of the pod."""
        known, in_use, supply = self.resources[resource], self._in_use(resource), self.supplies.get(resource)
        if supply is not None and supply.is_of(known, in_use) and supply.has_first(count):
            return self
        containers = (*pod.spec.initContainers, *pod.spec.containers)
        limit = sum(self.wanted(pod, container).get(resource, 0) for container in containers)
        return replace(self, supplies={**self.supplies, resource: supply_of(known, in_use, limit)})

    def _choose(
        self, pod_uid: str, container: str, resource: str, count: int, hint: TopologyHint
    ) -> frozenset[str] | AllocationError:
        """The devices that the container gets."""
        taken = _first(self._reusable(pod_uid).get(resource, NO_DEVICES), count)
        if len(taken) == count:
            return taken
        known, in_use = self.resources[resource], self._in_use(resource)
        reused, missing = taken, count - len(taken)
        supply = (
            self.supplies[resource].taken(taken, in_use | taken) if not taken <= in_use else self.supplies[resource]
        )
        if supply.free.count < missing:
            available = f"Requested: {missing}, Available: {supply.free.count}"
            return AllocationError(f"requested number of devices unavailable for {resource}. {available}")
        aligned = supply.near(hint)
        # If the aligned devices are more than enough, the plugin chooses among them. Otherwise all of them are taken, and it
        # chooses among the others.
        is_enough = missing < sum(part.count for part in aligned)
        choices = aligned if is_enough else [supply.free]
        taken = taken if is_enough else taken.union(first_of(aligned, missing))
        if len(taken) < count and known.prefers:
            offered = len(reused) + sum(part.count for part in choices)
            key = PreferenceKey(pod_uid, container, resource, taken, count, offered)
            preferred = self.answers.get(key, self.answers.get(replace(key, offered=None)))
            if preferred is None:
                busy = self._busy(resource) | reused
                among = near(known, busy, hint) if is_enough else known.healthy - in_use - reused
                request = PreferredAllocationRequest(pod_uid, container, resource, among | taken, taken, count)
                return NeedsPluginAnswer("the device plugin has not answered yet", request=request)
            is_choice = partial(supply.is_near, hint=hint) if is_enough else supply.is_free
            taken |= _first(frozenset(filter(is_choice, preferred)) - taken, count - len(taken))
        for rank in (choices,) if is_enough else (supply.far(hint), choices):
            taken = taken.union(first_of(rank, count - len(taken), taken))
        return taken

    def _runs_already(self, pod: Pod, container: Container) -> bool:
        """Whether the container ran when the agent started, or is an init container that has completed.

        (The reference ends a pod that runs, if an init container had devices and their plugin is not there yet.)
        """
        if self.running is None:
            return True
        uid = pod.metadata.uid
        return (uid, container.name) in self.running or (
            container.name in completing(pod) and not self.running.isdisjoint(_regular(pod))
        )

    def _with_reusable(self, pod: Pod, container: Container) -> DeviceManager:
        """After a plain init container, its devices can be reused; what any other container has cannot."""
        uid = pod.metadata.uid
        reusable = dict(self._reusable(uid))
        completes = container.name in completing(pod)
        for resource, entry in self.state.container(uid, container.name).items():
            before = reusable.get(resource, NO_DEVICES)
            reusable[resource] = before | entry.ids if completes else before - entry.ids
        return replace(self, reusable_pod=uid, reusable=reusable)


@remember_last
def _regular(pod: Pod) -> frozenset[tuple[str, str]]:
    """The UID and name of each regular container, as in `running`."""
    return frozenset((pod.metadata.uid, container.name) for container in pod.spec.containers)


def _first(ids: frozenset[str], count: int) -> frozenset[str]:
    """At most `count` of the devices, those with the first names."""
    return ids if len(ids) <= count else frozenset(nsmallest(count, ids))


def _by_node(resource: DeviceResource, ids: frozenset[str]) -> Mapping[int, frozenset[str]]:
    nodes: dict[int, set[str]] = {}
    for device in sorted(ids):
        for node in resource.nodes.get(device) or (NO_NODE,):
            nodes.setdefault(node, set()).add(device)
    return {node: frozenset(nodes[node]) for node in sorted(nodes)}
