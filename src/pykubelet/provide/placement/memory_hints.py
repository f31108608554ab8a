"""On which groups of NUMA nodes an amount of memory fits. Pure.

A node is used either alone or as one of a group, by all containers in the same way: that is the group rule.
Source: KEP-1769 (Memory Manager), "Multi-NUMA nodes memory allocation".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model.machine import TopologyHint
from pykubelet.provide.placement.memory_state import MemoryTable, NodeMemory
from pykubelet.provide.placement.subsets import subset_hints, subset_masks, subset_sums, subsets

#: Bytes by memory type.
Sizes = Mapping[str, int]
#: Bytes that init containers leave to later containers of their pod, by nodes and memory type.
Reusable = Mapping[tuple[frozenset[int], str], int]


class MemoryDemand(Value):
    """Memory for a container, or for a pod as a whole (`container` ""). `hints`: where it may be, the best one first."""

    pod: Pod
    container: str
    sizes: Sizes
    hints: tuple[TopologyHint, ...]
    machine: Mapping[int, NodeMemory]


#: Asks the extension of a policy which nodes' memory is given: those of one of the hints; None: of the first one.
ChooseNodes = Callable[[MemoryDemand], frozenset[int] | None]

_NO_TABLE = MemoryTable(0, 0, 0, 0, 0)


def memory_hints(machine: Mapping[int, NodeMemory], sizes: Sizes, reusable: Reusable) -> tuple[TopologyHint, ...]:
    """Every set of nodes with enough free memory of each type; the same for all types. Empty without sizes.

    Preferred are the sets of as few nodes as could ever hold it, were all memory free.
    """
    if not sizes:
        return ()
    nodes = tuple(sorted(machine))
    every = subsets(nodes)
    possible: Iterable[int] = range(len(every))
    for name, size in sizes.items():
        could = subset_sums([_table(machine, node, name).allocatable for node in nodes])
        if min(could) < size:
            possible = [number for number in possible if could[number] >= size]
    possible = list(possible)
    # The smallest subsets come first.
    least = len(every[possible[0]]) if possible else len(nodes)
    allowed = _allowed(machine, nodes)
    fitting = [number for number in possible if allowed[number]]
    for name, size in sizes.items():
        free = subset_sums([_table(machine, node, name).free for node in nodes])
        left = {chosen: more for (chosen, type_), more in reusable.items() if type_ == name and more}
        fitting = [
            number for number in fitting if free[number] >= size or free[number] + left.get(every[number], 0) >= size
        ]
    hints = subset_hints(nodes, least)
    return tuple([hints[number] for number in fitting])


def _allowed(machine: Mapping[int, NodeMemory], nodes: tuple[int, ...]) -> list[bool]:
    """For each subset, whether the nodes can be used together."""
    busy = sum(1 << place for place, node in enumerate(nodes) if machine[node].assignments > 0)
    allowed = [not mask & busy for mask in subset_masks(len(nodes))]
    # Only single nodes, which are the first subsets, and groups can be used although they are busy.
    every = subsets(nodes)
    groups = {frozenset(node.cells) for node in machine.values() if len(node.cells) > 1}
    known = (every.index(group) for group in groups if group <= machine.keys())  # a state may name nodes that are gone
    for number in (*range(len(nodes)), *known):
        allowed[number] = is_group_free(machine, every[number])
    return allowed


def is_group_free(machine: Mapping[int, NodeMemory], chosen: frozenset[int]) -> bool:
    """Whether the nodes can be used together: a single node is in no group; several are unused, or are exactly a group."""
    if len(chosen) == 1:
        return all(len(machine[node].cells) <= 1 for node in chosen)
    return not breaks_group_rule(machine, chosen)


def breaks_group_rule(machine: Mapping[int, NodeMemory], chosen: frozenset[int]) -> bool:
    """Whether several nodes are chosen of which one is used alone or in another group. A single node passes."""
    if len(chosen) == 1:
        return False
    return any(machine[n].assignments > 0 and frozenset(machine[n].cells) != chosen for n in chosen)


def has_free(machine: Mapping[int, NodeMemory], nodes: Collection[int], sizes: Sizes) -> bool:
    """Whether the nodes have this much free memory of each type. What can be reused does not count."""
    return all(sum(_table(machine, node, name).free for node in nodes) >= size for name, size in sizes.items())


def best_hint(hints: Iterable[TopologyHint]) -> TopologyHint | None:
    """The best of these hints, which all name nodes: preferred ones first, then the fewest nodes, then the lowest ids."""
    every = list(hints)
    preferred = [hint for hint in every if hint.preferred]
    return min(preferred or every, key=_rank, default=None)


def ordered(hints: Iterable[TopologyHint]) -> tuple[TopologyHint, ...]:
    """The hints, which all name nodes, the best one first."""
    return tuple(sorted(hints, key=_rank))


def _rank(hint: TopologyHint) -> tuple[bool, int, int]:
    return not hint.preferred, *_size_and_ids(hint.nodes or frozenset())


@lru_cache(maxsize=1024)
def _size_and_ids(nodes: frozenset[int]) -> tuple[int, int]:
    return len(nodes), sum(1 << node for node in nodes)


def _table(machine: Mapping[int, NodeMemory], node: int, name: str) -> MemoryTable:
    return machine[node].tables.get(name, _NO_TABLE)
