"""Merges the hints of all providers into the best one, which decides on admission. Pure.

A combination takes one hint of each resource. Its nodes are those that all its hints have in common; it is preferred if all
its hints are, and all hints that name nodes name the same ones. The best combination wins, as `_best` orders them.

The reference enumerates all combinations: on 8 NUMA nodes, three resources have 255 x 255 x 255. Which combination wins does
not depend on the order of the enumeration, so it is enough to know which sets of nodes some combination has. For the preferred
ones this is an intersection. For the others, the sets are folded resource by resource; there are at most 2^nodes of them.
Source: KEP-693 (Topology Manager), KEP-3545 (policy options).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from struct import pack, unpack

from pykubelet.base.kit.values import Value
from pykubelet.base.model.machine import ResourceHints, TopologyHint
from pykubelet.provide.placement.topology_options import Policy, Topology

#: The hints for a provider or resource without a preference, and for a resource that fits nowhere.
ANYWHERE = TopologyHint(None, True)
NOWHERE = TopologyHint(None, False)

#: A set of NUMA nodes as bits, by node id.
Mask = int
#: Fewer pairs than this are combined one by one.
_PAIRS = 2048
#: With ids above this, all pairs are combined one by one: the table of all masks would not be small.
_TABLE_BITS = 14
_LANE = 64


class PolicyDecision(Value):
    """The merged hint, and whether the policy admits it."""

    hint: TopologyHint
    admit: bool


class _Resource(Value):
    """One resource's hints. `any_node`, `any_preferred`: whether a hint (a preferred hint) without nodes is among them."""

    masks: frozenset[Mask]
    preferred: frozenset[Mask]
    any_node: bool
    any_preferred: bool


def merge(topology: Topology, providers: Iterable[ResourceHints]) -> PolicyDecision:
    """Merge the hints of all providers, in any order. Policy `none` ignores the hints and admits everything."""
    policy = topology.policy
    if policy is Policy.NONE:
        return PolicyDecision(TopologyHint(None, False), True)
    listed = _listed(providers)
    if policy is Policy.SINGLE_NUMA_NODE:
        listed = [tuple(hint for hint in hints if _is_single(hint)) for hints in listed]
    resources = [_read(hints) for hints in listed]
    every = _mask(frozenset(topology.nodes))
    distances = {} if policy is Policy.SINGLE_NUMA_NODE else topology.distances
    best, preferred = _best_preferred(resources, every, distances), True
    if best is None:
        best, preferred = _best_other(resources, every, distances), False
    if best is None:
        best = every
    if policy is Policy.SINGLE_NUMA_NODE and best == every:
        hint = TopologyHint(None, preferred)
    else:
        hint = TopologyHint(_nodes(best), preferred)
    return PolicyDecision(hint, preferred or policy is Policy.BEST_EFFORT)


def _listed(providers: Iterable[ResourceHints]) -> list[Sequence[TopologyHint]]:
    """The hints of each resource of each provider."""
    listed: list[Sequence[TopologyHint]] = []
    for provided in providers:
        if not provided:
            listed.append((ANYWHERE,))
        for hints in provided.values():
            listed.append((ANYWHERE,) if hints is None else hints or (NOWHERE,))
    return listed


def _is_single(hint: TopologyHint) -> bool:
    return hint.preferred and (hint.nodes is None or len(hint.nodes) == 1)


@lru_cache(maxsize=4096)
def _mask(nodes: frozenset[int]) -> Mask:
    return sum(1 << node for node in nodes)


@lru_cache(maxsize=4096)
def _nodes(mask: Mask) -> frozenset[int]:
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def _read(hints: Sequence[TopologyHint]) -> _Resource:
    named = [hint.nodes for hint in hints if hint.nodes is not None]
    preferred = [hint.nodes for hint in hints if hint.preferred and hint.nodes is not None]
    without = [hint.preferred for hint in hints if hint.nodes is None] if len(named) < len(hints) else []
    return _Resource(frozenset(map(_mask, named)), frozenset(map(_mask, preferred)), bool(without), any(without))


def _best_preferred(
    resources: Sequence[_Resource], every: Mask, distances: Mapping[int, Mapping[int, int]]
) -> Mask | None:
    """The smallest set of nodes of the preferred combinations. All resources must have it, except those that accept any."""
    bound = [resource.preferred for resource in resources if not resource.any_preferred]
    if bound:
        common = bound[0].intersection(*bound[1:])
    else:
        common = frozenset({every}).union(*(resource.preferred for resource in resources))
    masks = {mask & every for mask in common} - {0}
    return _first(masks, min(mask.bit_count() for mask in masks), distances) if masks else None


def _best_other(resources: Sequence[_Resource], every: Mask, distances: Mapping[int, Mapping[int, int]]) -> Mask | None:
    """Of all combinations: the set with the size closest, from below, to what the most demanding resource needs.

    Without a set of at most that size, the smallest. Only called when no preferred combination has a node.
    """
    masks: set[Mask] | frozenset[Mask] = {every}
    for resource in resources:
        choices = resource.masks | {every} if resource.any_node else resource.masks
        masks = _common(masks, frozenset(mask & every for mask in choices), every)
    sizes = {mask.bit_count() for mask in masks} - {0}
    if not sizes:
        return None
    wanted = max(
        (min(mask.bit_count() for mask in resource.masks) for resource in resources if resource.masks), default=0
    )
    size = max((size for size in sizes if size <= wanted), default=min(sizes))
    return _first(masks, size, distances)


def _first(masks: Iterable[Mask], size: int, distances: Mapping[int, Mapping[int, int]]) -> Mask:
    """Of the masks of `size` nodes: that with the smallest distances if they count, then that with the lowest ids."""
    sized = [mask for mask in masks if mask.bit_count() == size]
    return min(sized, key=lambda mask: (_distance(_nodes(mask), distances), mask)) if distances else min(sized)


def _distance(nodes: frozenset[int], distances: Mapping[int, Mapping[int, int]]) -> int:
    """The sum over all pairs, each node with itself too. Among sets of one size, it orders them as their average does."""
    return sum(distances[node][other] for node in nodes for other in nodes)


def _common(left: set[Mask] | frozenset[Mask], right: frozenset[Mask], every: Mask) -> set[Mask] | frozenset[Mask]:
    """The intersections of all pairs of a mask of `left` and a mask of `right`."""
    if left == {every}:
        return right
    bits = every.bit_length()
    if len(left) * len(right) <= _PAIRS or bits > _TABLE_BITS:
        return {mask & other for mask in left for other in right}
    # Count the pairs by table. Of the masks that contain a mask m, left has a and right has b: so a*b pairs have in common
    # a mask that contains m. Undoing the sums gives the pairs that have exactly m in common.
    counts = zip(_supersets(left, bits), _supersets(right, bits), strict=True)
    exact = _pack(a * b for a, b in counts)
    for bit, keep in enumerate(_keepers(bits)):
        exact -= (exact >> (_LANE << bit)) & keep
    return {mask for mask, count in enumerate(_unpack(exact, 1 << bits)) if count}


def _supersets(masks: Iterable[Mask], bits: int) -> tuple[int, ...]:
    """For each mask of `bits` bits, how many of `masks` contain it."""
    present = [0] * (1 << bits)
    for mask in masks:
        present[mask] = 1
    table = _pack(present)
    for bit, keep in enumerate(_keepers(bits)):
        table += (table >> (_LANE << bit)) & keep
    return _unpack(table, 1 << bits)


@lru_cache(maxsize=4)
def _keepers(bits: int) -> tuple[int, ...]:
    """For each bit: all ones in the lanes of the masks without it. A table is one integer with a lane for each mask."""
    full = (1 << _LANE) - 1
    return tuple(_pack(0 if mask >> bit & 1 else full for mask in range(1 << bits)) for bit in range(bits))


def _pack(values: Iterable[int]) -> int:
    listed = list(values)
    return int.from_bytes(pack(f"<{len(listed)}Q", *listed), "little")


def _unpack(table: int, lanes: int) -> tuple[int, ...]:
    return unpack(f"<{lanes}Q", table.to_bytes(lanes * _LANE // 8, "little"))
