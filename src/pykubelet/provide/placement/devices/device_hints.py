"""On which NUMA nodes devices of one resource can be allocated. Pure.

Source: KEP-693 (Topology Manager), "Hint Providers"; the Kubernetes documentation "Device Plugins and Topology Manager".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pykubelet.base.model.machine import TopologyHint
from pykubelet.base.model.placement import DeviceResource
from pykubelet.provide.placement.devices.device_state import NO_DEVICES
from pykubelet.provide.placement.subsets import subset_hints, subset_masks, subset_sums, subsets


def device_hints(
    nodes: tuple[int, ...], resource: DeviceResource, busy: frozenset[str], reusable: frozenset[str], count: int
) -> tuple[TopologyHint, ...]:
    """Every set of the machine's `nodes` with `count` devices that are not `busy` or are `reusable`. A device is on each of its
    nodes.
    """
    free = {own: len(ids) - len(ids & busy) for own, ids in resource.groups.items()}
    return hints_of_free(nodes, resource, free, reusable, count)


def hints_of_free(
    nodes: tuple[int, ...],
    resource: DeviceResource,
    free: Mapping[tuple[int, ...], int],
    reusable: frozenset[str],
    count: int,
) -> tuple[TopologyHint, ...]:
    """The same. `free`: how many devices of each group are not busy.

    All reusable devices must be on a set. Preferred are the sets of as few nodes as could ever have `count` devices.
    """
    # Reusable devices with a topology but without a node are on no set, those without a topology on any.
    if any(not resource.nodes[device] for device in reusable if device in resource.nodes):
        return ()
    total = counts_on(nodes, {own: len(ids) for own, ids in resource.groups.items()})
    # The smallest sets come first.
    least = next((len(chosen) for chosen, have in zip(subsets(nodes), total, strict=True) if have >= count), len(nodes))
    usable = {own: free[own] + len(ids & reusable) for own, ids in resource.groups.items()}
    fitting = [number for number, have in enumerate(counts_on(nodes, usable)) if have >= count]
    reused = [own for own, ids in resource.groups.items() if reusable and not ids.isdisjoint(reusable)]
    for needed in {_mask(nodes, own) for own in reused}:
        masks = subset_masks(len(nodes))
        fitting = [number for number in fitting if masks[number] & needed]
    hints = subset_hints(nodes, least)
    return tuple([hints[number] for number in fitting])


def counts_on(nodes: tuple[int, ...], groups: Mapping[tuple[int, ...], int]) -> Sequence[int]:
    """For each set of nodes, the devices of the groups that have any of its nodes. `groups`: how many devices each has."""
    alone = dict.fromkeys(nodes, 0)
    together: dict[int, int] = {}
    for own, number in groups.items():
        if len(own) == 1 and own[0] in alone:
            alone[own[0]] += number
        else:
            mask = _mask(nodes, own)
            together[mask] = together.get(mask, 0) + number
    counts = subset_sums(list(alone.values()))
    masks = subset_masks(len(nodes))
    for mask, number in together.items():
        counts = [count + number if chosen & mask else count for count, chosen in zip(counts, masks, strict=True)]
    return counts


def _mask(nodes: tuple[int, ...], own: Collection[int]) -> int:
    return sum(1 << place for place, node in enumerate(nodes) if node in own)


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
