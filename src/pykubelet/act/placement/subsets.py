"""The subsets of a machine's NUMA nodes, in the order of the reference. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations

#: The subsets of more nodes than this are not kept. The Topology Manager refuses machines with more than 8 by default.
_KEPT = 10


def subsets(nodes: tuple[int, ...]) -> Iterable[frozenset[int]]:
    """All subsets of `nodes` but the empty one: by size, then in the order of `nodes`. There are 2^n - 1 of them."""
    return _kept(nodes) if len(nodes) <= _KEPT else _all(nodes)


@lru_cache(maxsize=16)
def _kept(nodes: tuple[int, ...]) -> tuple[frozenset[int], ...]:
    return tuple(_all(nodes))


def _all(nodes: tuple[int, ...]) -> Iterator[frozenset[int]]:
    return (frozenset(chosen) for size in range(1, len(nodes) + 1) for chosen in combinations(nodes, size))
