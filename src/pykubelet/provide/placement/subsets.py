"""The subsets of a machine's NUMA nodes, in the order of the reference, and sums over them. Pure.

Hints are made for each subset, 255 of 8 nodes, several times for each container. So what depends on the nodes alone is kept, and
a sum is made of that of a smaller subset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

from pykubelet.base.model.machine import TopologyHint

#: The subsets of more nodes than this are not kept. The Topology Manager refuses machines with more than 8 by default.
_KEPT = 10


def subsets(nodes: tuple[int, ...]) -> Sequence[frozenset[int]]:
    """All subsets of `nodes` but the empty one: by size, then in the order of `nodes`. There are 2^n - 1 of them."""
    return _kept(nodes) if len(nodes) <= _KEPT else tuple(_all(nodes))


def subset_masks(count: int) -> Sequence[int]:
    """For each subset of `count` nodes its bits: bit n is set if it has the n-th node."""
    return _kept_masks(count) if count <= _KEPT else tuple(_masks(count))


def subset_sums(values: Sequence[int]) -> Sequence[int]:
    """For each subset, in the same order, the sum of its values. `values`: in the order of the nodes."""
    return _kept_sums(tuple(values)) if len(values) <= _KEPT else _sums(values)


def subset_hints(nodes: tuple[int, ...], preferred: int) -> Sequence[TopologyHint]:
    """A hint for each subset; those of `preferred` nodes are preferred."""
    return _kept_hints(nodes, preferred) if len(nodes) <= _KEPT else tuple(_hints(nodes, preferred))


@lru_cache(maxsize=16)
def _kept(nodes: tuple[int, ...]) -> tuple[frozenset[int], ...]:
    return tuple(_all(nodes))


@lru_cache(maxsize=64)
def _kept_hints(nodes: tuple[int, ...], preferred: int) -> tuple[TopologyHint, ...]:
    return tuple(_hints(nodes, preferred))


@lru_cache(maxsize=_KEPT + 1)
def _kept_masks(count: int) -> tuple[int, ...]:
    return tuple(_masks(count))


@lru_cache(maxsize=64)
def _kept_sums(values: tuple[int, ...]) -> tuple[int, ...]:
    return _sums(values)


def _sums(values: Sequence[int]) -> tuple[int, ...]:
    sums = [0]
    for value in values:
        sums += [so_far + value for so_far in sums]
    return tuple([sums[mask] for mask in subset_masks(len(values))])


def _all(nodes: tuple[int, ...]) -> Iterator[frozenset[int]]:
    return (frozenset(chosen) for size in range(1, len(nodes) + 1) for chosen in combinations(nodes, size))


def _hints(nodes: tuple[int, ...], preferred: int) -> Iterator[TopologyHint]:
    return (TopologyHint(chosen, len(chosen) == preferred) for chosen in _all(nodes))


def _masks(count: int) -> Iterator[int]:
    bits = [1 << number for number in range(count)]
    return (sum(chosen) for size in range(1, count + 1) for chosen in combinations(bits, size))
