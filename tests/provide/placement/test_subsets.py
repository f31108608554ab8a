"""Subsets of NUMA nodes, sums over them, and memory hints against their definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.model.machine import TopologyHint
from pykubelet.provide.placement.memory_hints import breaks_group_rule, memory_hints
from pykubelet.provide.placement.memory_state import MemoryTable, NodeMemory
from pykubelet.provide.placement.subsets import subset_hints, subset_masks, subset_sums, subsets


@pytest.mark.parametrize("nodes", [(), (3,), (0, 1), (5, 2, 9), tuple(range(0, 22, 2))])
def test_all_of_them_in_one_order(nodes: tuple[int, ...]) -> None:
    found = subsets(nodes)
    assert len(found) == len(set(found)) == 2 ** len(nodes) - 1
    assert [len(subset) for subset in found] == sorted(len(subset) for subset in found)
    values = [10**place + node for place, node in enumerate(nodes)]
    of = dict(zip(nodes, values, strict=True))
    assert list(subset_sums(values)) == [sum(of[node] for node in subset) for subset in found]
    bits = {node: 1 << place for place, node in enumerate(nodes)}
    assert list(subset_masks(len(nodes))) == [sum(bits[node] for node in subset) for subset in found]
    assert list(subset_hints(nodes, 2)) == [TopologyHint(subset, len(subset) == 2) for subset in found]


def tables(free: int, total: int) -> dict[str, MemoryTable]:
    return {"memory": MemoryTable(total, 0, total, total - free, free)}


@st.composite
def machines(draw: st.DrawFn) -> dict[int, NodeMemory]:
    """Nodes with gaps between their ids. Two of them may be a group; any may be in use."""
    nodes = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=5)))
    group = tuple(nodes[:2]) if len(nodes) > 1 and draw(st.booleans()) else ()
    machine = {}
    for node in nodes:
        total = draw(st.integers(0, 8))
        busy = draw(st.integers(0, 2))
        cells = group if node in group and busy else (node,)
        machine[node] = NodeMemory(busy, tables(draw(st.integers(0, total)), total), cells)
    return machine


@given(machines(), st.integers(0, 20), st.integers(0, 4))
def test_memory_hints_are_the_sets_with_enough_memory(machine: dict[int, NodeMemory], size: int, left: int) -> None:
    first = frozenset(sorted(machine)[:1])
    reusable = {(first, "memory"): left}
    possible, fitting = [], []
    for chosen in subsets(tuple(sorted(machine))):
        found = [machine[node].tables["memory"] for node in chosen]
        if sum(table.allocatable for table in found) < size:
            continue
        possible.append(len(chosen))
        more = left if chosen == first else 0
        alone = len(chosen) == 1 and all(len(machine[node].cells) == 1 for node in chosen)
        together = len(chosen) > 1 and not breaks_group_rule(machine, chosen)
        if (alone or together) and sum(table.free for table in found) + more >= size:
            fitting.append(chosen)
    least = min(possible, default=len(machine))
    hints = memory_hints(machine, {"memory": size}, reusable)
    assert hints == tuple(TopologyHint(chosen, len(chosen) == least) for chosen in fitting)
