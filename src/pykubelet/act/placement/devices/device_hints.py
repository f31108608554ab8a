"""On which NUMA nodes devices of one resource can be allocated. Pure.

Source: KEP-693 (Topology Manager), "Hint Providers"; the Kubernetes documentation "Device Plugins and Topology Manager".
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.act.placement.devices.device_state import NO_DEVICES
from pykubelet.act.placement.subsets import subsets
from pykubelet.base.kit.values import Value
from pykubelet.base.model.hints import TopologyHint
from pykubelet.base.model.placement import DeviceResource


class _Group(Value):
    """The devices on the same NUMA nodes: how many there are, are free, and can be reused."""

    nodes: frozenset[int]
    total: int
    free: int
    reusable: int


def device_hints(
    nodes: tuple[int, ...], resource: DeviceResource, busy: frozenset[str], reusable: frozenset[str], count: int
) -> tuple[TopologyHint, ...]:
    """Every set of the machine's `nodes` with `count` devices that are not `busy` or are `reusable`. A device is on each of its
    nodes.

    All reusable devices must be on a set. Preferred are the sets of as few nodes as could ever have `count` devices.
    """
    groups = [
        _Group(frozenset(own), len(ids), len(ids) - len(ids & busy), len(ids & reusable))
        for own, ids in resource.groups.items()
    ]
    # Reusable devices with a topology but without a node are on no set, those without a topology on any.
    if any(not resource.nodes[device] for device in reusable if device in resource.nodes):
        return ()
    least = len(nodes)
    fitting = []
    for chosen in subsets(nodes):
        on = [group for group in groups if not group.nodes.isdisjoint(chosen)]
        if sum(group.total for group in on) >= count:
            least = min(least, len(chosen))
        if any(group.reusable and group.nodes.isdisjoint(chosen) for group in groups):
            continue
        if sum(group.free + group.reusable for group in on) >= count:
            fitting.append(chosen)
    return tuple(TopologyHint(chosen, len(chosen) == least) for chosen in fitting)


def near(resource: DeviceResource, busy: frozenset[str], hint: TopologyHint) -> frozenset[str]:
    """The devices on the nodes of the hint, except `busy` ones; none without a hint."""
    if hint.nodes is None:
        return NO_DEVICES
    return _union(ids - busy if busy else ids for own, ids in resource.groups.items() if not hint.nodes.isdisjoint(own))


def far(resource: DeviceResource, busy: frozenset[str], hint: TopologyHint) -> frozenset[str]:
    """The devices on other nodes only, except `busy` ones; none without a hint."""
    if hint.nodes is None:
        return NO_DEVICES
    return _union(ids - busy if busy else ids for own, ids in resource.groups.items() if hint.nodes.isdisjoint(own))


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    first, *others = *sets, NO_DEVICES
    return first.union(*others)
