"""Explains in terms of the node's devices why a container cannot have those that it requests. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.model.placement import DeviceResource
from pykubelet.provide.placement.devices.device_hints import counts_on
from pykubelet.provide.placement.devices.device_manager import DeviceManager
from pykubelet.provide.placement.devices.device_state import NO_DEVICES
from pykubelet.provide.placement.subsets import subsets

#: Holders beyond these are only counted.
MAX_HOLDERS = 12


class DeviceShortage:
    """What is free of one resource, and who has the rest. `names`: of pods by UID."""

    def __init__(self, manager: DeviceManager, name: str, names: Mapping[str, str]) -> None:
        self._name = name
        self._resource = manager.resources.get(name, DeviceResource())
        self._free = self._resource.healthy - manager.state.in_use.get(name, NO_DEVICES)
        self._holders = [
            (f"{names.get(uid, f'pod {uid}')} {container}", entries[name].ids)
            for uid, pod in manager.state.entries.items()
            for container, entries in pod.items()
            if name in entries
        ]

    def on_nodes(self, count: int, *, single: bool) -> str:
        """No set of NUMA nodes of the smallest possible size has `count` free devices. `single`: a set is one node."""
        groups = self._resource.groups
        nodes = tuple(sorted({node for own in groups for node in own}))
        sets = subsets(nodes)
        total = counts_on(nodes, {own: len(ids) for own, ids in groups.items()})
        size = next((len(chosen) for chosen, have in zip(sets, total, strict=True) if have >= count), None)
        if size is None:
            return self.on_all(count)
        if single and size > 1:
            return f"{count} {self._name} on one NUMA node; the largest node has {max(total[: len(nodes)])}"
        free = counts_on(nodes, {own: len(ids & self._free) for own, ids in groups.items()})
        best = max((number for number, one in enumerate(sets) if len(one) == size), key=free.__getitem__)
        chosen = sets[best]
        where = "one NUMA node" if size == 1 else f"{size} NUMA nodes"
        shown = f"node{'' if size == 1 else 's'} {', '.join(map(str, sorted(chosen)))}"
        there = NO_DEVICES.union(*(ids for own, ids in groups.items() if not chosen.isdisjoint(own)))
        return f"{count} {self._name} on {where}; largest free: {free[best]} on {shown}{self._held(there)}"

    def on_all(self, count: int) -> str:
        """The whole node does not have `count` free devices."""
        if not (self._resource.healthy or self._resource.unhealthy):
            return f"{count} {self._name}; no device plugin offers any now"
        return f"{count} {self._name}; free: {len(self._free)}{self._held(self._resource.healthy)}"

    def _held(self, devices: frozenset[str]) -> str:
        held = [f"{holder} ({number})" for holder, ids in self._holders if (number := len(ids & devices))]
        more = len(held) - MAX_HOLDERS
        listed = [*held[:MAX_HOLDERS], *([f"{more} more"] if more > 0 else [])]
        ill = len(self._resource.unhealthy)
        return (f", held by {', '.join(listed)}" if listed else "") + (f"; {ill} unhealthy" if ill else "")


def short_resource(manager: DeviceManager, wanted: Mapping[str, int]) -> str:
    """The first resource of which less is free than is wanted; empty if there is none."""
    for name, count in wanted.items():
        healthy = manager.resources.get(name, DeviceResource()).healthy
        if len(healthy - manager.state.in_use.get(name, NO_DEVICES)) < count:
            return name
    return ""
