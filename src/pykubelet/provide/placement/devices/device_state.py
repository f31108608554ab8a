"""Who has which devices: the Device Manager's allocations by pod, container and resource. Pure.

Source: the Kubernetes documentation "Device Plugins".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.placement import AssignedDevices

NO_DEVICES: frozenset[str] = frozenset()


class DeviceEntry(Value):
    """Devices of one resource that one container has. `by_node`: their ids by NUMA node; -1: without a node.

    `response`: the plugin's `ContainerAllocateResponse` as it was sent; None: the plugin has not allocated them yet.
    """

    by_node: Mapping[int, frozenset[str]]
    response: bytes | None = None

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all of them."""
        return NO_DEVICES.union(*self.by_node.values())


#: Entries by pod UID, container name and resource.
Entries = Mapping[str, Mapping[str, Mapping[str, DeviceEntry]]]


class DeviceAllocations(Value):
    """All entries, and the ids in use by resource, which follow from them."""

    entries: Entries = field(default_factory=dict)
    in_use: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def container(self, pod_uid: str, container: str) -> Mapping[str, DeviceEntry]:
        """A container's entries by resource."""
        return self.entries.get(pod_uid, {}).get(container, {})

    def entry(self, pod_uid: str, container: str, resource: str) -> DeviceEntry | None:
        """One entry; None if the container has no devices of the resource."""
        return self.container(pod_uid, container).get(resource)

    def pod_ids(self, pod_uid: str, resource: str) -> frozenset[str]:
        """The devices of one resource that any container of the pod has."""
        containers = self.entries.get(pod_uid, {}).values()
        return NO_DEVICES.union(*(entries[resource].ids for entries in containers if resource in entries))

    def assigned(self, pod_uid: str, container: str) -> tuple[AssignedDevices, ...]:
        """A container's devices as other components read them."""
        entries = self.container(pod_uid, container)
        return tuple(AssignedDevices(resource, entry.by_node) for resource, entry in sorted(entries.items()))

    def with_entry(self, pod_uid: str, container: str, resource: str, entry: DeviceEntry) -> DeviceAllocations:
        """The state in which the container has this entry."""
        pod = self.entries.get(pod_uid, {})
        changed = {**pod, container: {**pod.get(container, {}), resource: entry}}
        in_use = {**self.in_use, resource: self.in_use.get(resource, NO_DEVICES) | entry.ids}
        return replace(self, entries={**self.entries, pod_uid: changed}, in_use=in_use)

    def without_pods(self, pod_uids: frozenset[str]) -> DeviceAllocations:
        """The state without the pods' entries."""
        gone = pod_uids & self.entries.keys()
        return state_of({uid: pod for uid, pod in self.entries.items() if uid not in gone}) if gone else self


def state_of(entries: Entries) -> DeviceAllocations:
    """The state with these entries."""
    in_use: dict[str, set[str]] = {}
    for _, _, resource, entry in each(entries):
        in_use.setdefault(resource, set()).update(entry.ids)
    return DeviceAllocations(entries, {resource: frozenset(ids) for resource, ids in in_use.items()})


def each(entries: Entries) -> Iterator[tuple[str, str, str, DeviceEntry]]:
    """All entries: pod UID, container, resource, entry; in the order in which they were made."""
    for uid, containers in entries.items():
        for name, resources in containers.items():
            for resource, entry in resources.items():
                yield uid, name, resource, entry
