"""The free devices of one resource, counted once and then taken from: for a pod with many containers, on a node with many devices. Pure.

A set of all free devices for each container would cost the product of both. This keeps the number of free devices, and those with the first
names: as many as one pod requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import merge, nsmallest
from itertools import islice

from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.machine import TopologyHint
from pykubelet.base.model.placement import DeviceResource
from pykubelet.provide.placement.devices.device_state import NO_DEVICES


class SupplyPart(Value):
    """Free devices. `first`: those with the first names, in order."""

    count: int
    first: tuple[str, ...]

    def has_first(self, count: int) -> bool:
        """Whether `first` has as many devices, or all of them."""
        return len(self.first) >= min(count, self.count)

    def without(self, ids: frozenset[str]) -> SupplyPart:
        """The part after these devices of it are taken."""
        size = len(ids)
        if ids.issuperset(self.first[:size]):
            first = self.first[size:]
        else:
            rest = list(self.first)
            for device in ids:
                place = bisect_left(rest, device)
                if rest[place : place + 1] == [device]:
                    del rest[place]
            first = tuple(rest)
        return SupplyPart(self.count - size, first)


class DeviceSupply(Value):
    """The devices of `resource` that are not `in_use`. `free`: the healthy ones. `groups`: those that are not unhealthy, by NUMA nodes."""

    resource: DeviceResource
    in_use: frozenset[str]
    free: SupplyPart
    groups: Mapping[tuple[int, ...], SupplyPart]

    def is_of(self, resource: DeviceResource, in_use: frozenset[str]) -> bool:
        """Whether it was made for these very sets."""
        return self.resource is resource and self.in_use is in_use

    def has_first(self, count: int) -> bool:
        """Whether so many devices can be taken from it."""
        return self.free.has_first(count) and all(part.has_first(count) for part in self.groups.values())

    def taken(self, ids: frozenset[str], in_use: frozenset[str]) -> DeviceSupply:
        """The supply without these devices. `in_use`: the set that has them."""
        known = self.resource
        new = [device for device in ids if device not in self.in_use]
        groups: dict[tuple[int, ...], set[str]] = {}
        for device in new:
            own = known.nodes.get(device, ())
            if own in self.groups and device not in known.unhealthy:
                groups.setdefault(own, set()).add(device)
        changed = {own: self.groups[own].without(frozenset(gone)) for own, gone in groups.items()}
        free = self.free.without(frozenset(device for device in new if device in known.healthy))
        return replace(self, in_use=in_use, free=free, groups={**self.groups, **changed} if changed else self.groups)

    def near(self, hint: TopologyHint) -> list[SupplyPart]:
        """The parts on the nodes of the hint; none without a hint."""
        nodes = hint.nodes
        return [] if nodes is None else [part for own, part in self.groups.items() if not nodes.isdisjoint(own)]

    def far(self, hint: TopologyHint) -> list[SupplyPart]:
        """The parts on other nodes only; none without a hint."""
        nodes = hint.nodes
        return [] if nodes is None else [part for own, part in self.groups.items() if nodes.isdisjoint(own)]

    def is_free(self, device: str) -> bool:
        """Whether the device is healthy and not in use."""
        return device in self.resource.healthy and device not in self.in_use

    def is_near(self, device: str, hint: TopologyHint) -> bool:
        """Whether the device is free and on the nodes of the hint."""
        own = self.resource.nodes.get(device, ())
        is_busy = device in self.in_use or device in self.resource.unhealthy
        return not is_busy and hint.nodes is not None and own in self.groups and not hint.nodes.isdisjoint(own)


def supply_of(resource: DeviceResource, in_use: frozenset[str], limit: int) -> DeviceSupply:
    """The supply of which `limit` devices can be taken."""
    busy = in_use | resource.unhealthy if resource.unhealthy else in_use
    sets = {own: ids - busy if busy else ids for own, ids in resource.groups.items()}
    groups = {own: _part(ids, limit) for own, ids in sets.items()}
    free = resource.healthy - in_use if in_use else resource.healthy
    parts = [*groups.values()]
    if len(free) == sum(part.count for part in parts) and all(ids <= free for ids in sets.values()):
        first = tuple(first_of(parts, limit))  # all have NUMA nodes
        return DeviceSupply(resource, in_use, SupplyPart(len(free), first), groups)
    return DeviceSupply(resource, in_use, _part(free, limit), groups)


def _part(ids: frozenset[str], limit: int) -> SupplyPart:
    """The part of these devices."""
    first = sorted(ids) if len(ids) <= limit else nsmallest(limit, ids)
    return SupplyPart(len(ids), tuple(first))


def first_of(parts: Iterable[SupplyPart], count: int, taken: Collection[str] = NO_DEVICES) -> Iterator[str]:
    """The first `count` devices of the parts that are not `taken`."""
    merged = merge(*(part.first for part in parts))
    return islice((device for device in merged if device not in taken), count)
