"""Chooses which free CPUs a container gets, so that it spans as few NUMA nodes, caches and cores as it can. Pure.

Rules: a candidate with fewer free CPUs comes first, so that partly used units fill up; of equal ones the lowest id. Only
free CPUs are ever chosen, on machines with unequal cores too.
Source: the Kubernetes documentation "Control CPU Management Policies on the Node"; KEP-2902 (distribute-cpus-across-numa),
KEP-4176 (distribute-cpus-across-cores), KEP-4800 (prefer-align-cpus-by-uncorecache).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, zip_longest

from pykubelet.base.kit.values import Value
from pykubelet.provide.placement.cpu_options import CpuOptions
from pykubelet.provide.placement.cpu_topology import CpuTopology, ids_in


class NotEnough(Value):
    """CPUs could not be chosen; `message` is the reference's text."""

    message: str


def pick_cpus(
    topology: CpuTopology, free: int, count: int, options: CpuOptions, least_nodes: int = 0
) -> int | NotEnough:
    """A mask of `count` CPUs of the mask `free`; no CPU for a count of 0 and below. `least_nodes`: over so many NUMA nodes, if they are
    distributed and so many can give them."""
    if options.distribute_across_numa:
        group = topology.threads_per_core if options.full_pcpus_only else 1
        return _pick_distributed(topology, free, (count, group, least_nodes), options)
    return _pick_packed(topology, free, count, options, caches=options.prefer_uncore_cache)


def _pick_packed(topology: CpuTopology, free: int, count: int, options: CpuOptions, *, caches: bool) -> int | NotEnough:
    """Whole NUMA nodes and sockets first, then whole caches if wanted, whole cores, single CPUs."""
    if count <= 0:
        return 0
    picking = _Picking(topology, free, count)
    if count > picking.free.bit_count():
        return _too_few(free, count)
    for step in _steps(picking, options, caches=caches):
        if picking.is_done:
            break
        picking.run(step)
    return picking.taken


def _too_few(free: int, count: int) -> NotEnough:
    return NotEnough(f"not enough cpus available to satisfy request: requested={count}, available={free.bit_count()}")


def _steps(picking: _Picking, options: CpuOptions, *, caches: bool) -> Iterator[Iterable[int]]:
    """Masks to take as far as they fit, level by level; each level is ordered when it is reached."""
    levels = (picking.whole_nodes, picking.whole_sockets)
    for level in levels if picking.topology.nodes_first else reversed(levels):
        yield level()
    if caches:
        yield picking.cache_parts()
    if not options.distribute_across_cores:
        yield picking.whole_cores()
    yield picking.single_cpus(options)


class _Picking:
    """One choice under way. `free`: may be taken. `taken`: so far. `wanted`: CPUs still to take."""

    def __init__(self, topology: CpuTopology, free: int, count: int) -> None:
        self.topology = topology
        self.free = free & topology.all
        self.wanted = max(0, count)
        self.taken = 0

    @property
    def is_done(self) -> bool:
        return self.wanted <= 0

    def take(self, cpus: int) -> None:
        self.taken |= cpus
        self.free &= ~cpus
        self.wanted -= cpus.bit_count()

    def run(self, masks: Iterable[int]) -> None:
        """Take each mask that is not larger than what is wanted still."""
        for mask in masks:
            if self.wanted >= mask.bit_count():
                self.take(mask)
            if self.is_done:
                return

    # order of candidates

    def _by_free(self, units: Mapping[int, int], within: int | None = None) -> list[int]:
        """Ids of the units that have a free CPU (inside of `within`), those with the fewest free CPUs first."""
        free = self.free
        reach = free if within is None else free & within
        counted = [((mask & free).bit_count(), unit) for unit, mask in units.items() if mask & reach]
        counted.sort()
        return [unit for _, unit in counted]

    def _nested(self, outer: Mapping[int, int], order: Iterable[int], inner: Mapping[int, int]) -> Iterator[int]:
        """The inner units of each outer unit, each once. Those of an outer unit are ordered when it is reached: often one is enough."""
        seen = set[int]()
        for outer_unit in order:
            units = [unit for unit in self._by_free(inner, outer[outer_unit]) if unit not in seen]
            seen.update(units)
            yield from units

    def nodes(self) -> list[int]:
        """NUMA nodes with a free CPU."""
        top = self.topology
        return (
            self._by_free(top.nodes) if top.nodes_first else list(self._nested(top.sockets, self.sockets(), top.nodes))
        )

    def sockets(self) -> list[int]:
        """Sockets with a free CPU."""
        top = self.topology
        return (
            list(self._nested(top.nodes, self.nodes(), top.sockets)) if top.nodes_first else self._by_free(top.sockets)
        )

    def _cores(self) -> Iterator[int]:
        top = self.topology
        if top.nodes_first:
            return self._nested(top.sockets, self.sockets(), top.cores)
        return self._nested(top.nodes, self.nodes(), top.cores)

    def _caches(self) -> list[int]:
        top = self.topology
        return list(dict.fromkeys(unit for node in self.nodes() for unit in self._by_free(top.caches, top.nodes[node])))

    # levels; none of a level's units where each is larger than what is wanted

    def whole_nodes(self) -> Iterable[int]:
        """NUMA nodes of which every CPU is free."""
        if all(self.wanted < mask.bit_count() for mask in self.topology.nodes.values()):
            return ()
        return self._whole(self.topology.nodes, self.nodes())

    def whole_sockets(self) -> Iterable[int]:
        """Sockets of which every CPU is free, and which have as many as sockets have on average."""
        if self.wanted < self.topology.cpus_per_socket:
            return ()
        return self._whole(self.topology.sockets, self.sockets(), self.topology.cpus_per_socket)

    def whole_cores(self) -> Iterable[int]:
        """Cores of which every thread is free, and which have as many as cores have on average."""
        if self.wanted < self.topology.threads_per_core:
            return ()
        return self._whole(self.topology.cores, self._cores(), self.topology.threads_per_core)

    def _whole(self, units: Mapping[int, int], order: Iterable[int], size: int | None = None) -> Iterator[int]:
        masks = (units[unit] for unit in order)
        return (mask for mask in masks if mask & ~self.free == 0 and size in (None, mask.bit_count()))

    def cache_parts(self) -> Iterator[int]:
        """Whole free caches while more than one is needed, else the lowest free cores of one that can hold all the rest."""
        for cache in self._caches():
            if self.wanted >= self.topology.cpus_per_cache:
                yield from self._whole(self.topology.caches, self._caches())
                if self.is_done:
                    return
            part = self._part_of_cache(cache)
            if part.bit_count() == self.wanted:
                yield part
                return

    def _part_of_cache(self, cache: int) -> int:
        """The free CPUs on as many of the cache's lowest cores as the rest needs; for an odd rest without the last thread."""
        top = self.topology
        inside = self.free & top.caches[cache]
        cores = [core for core, mask in top.cores.items() if mask & inside]
        part = 0
        for core in cores[: -(-self.wanted // top.threads_per_core)]:
            part |= top.cores[core] & self.free
        if self.wanted % 2 and top.threads_per_core > 1 and part.bit_count() > self.wanted:
            part ^= 1 << part.bit_length() - 1
        return part

    def single_cpus(self, options: CpuOptions) -> Iterator[int]:
        """Single CPUs, core by core. Spread over the cores of each socket, so that threads of one core come far apart: round
        robin, or by id, which is the same where the first threads of all cores have the lowest ids."""
        if options.distribute_across_cores and options.spread_by_topology:
            yield from self._round_robin()
            return
        top = self.topology
        units, order = (top.sockets, self.sockets()) if options.distribute_across_cores else (top.cores, self._cores())
        for unit in order:
            yield from (1 << cpu for cpu in ids_in(units[unit] & self.free))

    def _round_robin(self) -> Iterator[int]:
        top = self.topology
        for inside in [top.sockets[socket] & self.free for socket in self.sockets()]:
            cores = [ids_in(top.cores[core] & inside) for core in self._by_free(top.cores, inside)]
            yield from (1 << cpu for threads in zip_longest(*cores) for cpu in threads if cpu is not None)


# distribute-cpus-across-numa


class _Split(Value):
    """How CPUs are divided: `share` CPUs from each of `nodes`, then one group each in rounds from `rest_nodes`."""

    nodes: tuple[int, ...]
    share: int
    rest_nodes: tuple[int, ...] = ()


def _pick_distributed(
    topology: CpuTopology, free: int, wanted: tuple[int, int, int], options: CpuOptions
) -> int | NotEnough:
    """Equal shares from the fewest NUMA nodes that can give them; packed where none can.

    `wanted`: how many CPUs, in groups of how many, and from how many nodes at least.
    """
    count, group, least_nodes = wanted
    picking = _Picking(topology, free, count)
    if count % group or count <= 0:
        return _pick_packed(topology, free, count, options, caches=False)
    if count > picking.free.bit_count():
        return _too_few(free, count)
    split = _best_split(picking, group, least_nodes) or _best_split(picking, group, 0)
    if split is None:
        return _pick_packed(topology, free, count, options, caches=False)
    for node in split.nodes:
        _take_packed(picking, node, split.share, options)
    while not picking.is_done:
        for node in split.rest_nodes:
            if not picking.is_done and (picking.free & topology.nodes[node]).bit_count() >= group:
                _take_packed(picking, node, group, options)
    return picking.taken


def _take_packed(picking: _Picking, node: int, count: int, options: CpuOptions) -> None:
    cpus = _pick_packed(picking.topology, picking.free & picking.topology.nodes[node], count, options, caches=False)
    assert isinstance(cpus, int), "the split counted the free CPUs of each node"
    picking.take(cpus)


def _best_split(picking: _Picking, group: int, least: int) -> _Split | None:
    """The split over the fewest nodes, `least` or more; of equal numbers the one that leaves the nodes most evenly free, then the first."""
    top, count = picking.topology, picking.wanted
    order = picking.nodes()
    left = {node: (picking.free & top.nodes[node]).bit_count() for node in order}
    groups_needed = -(-count // group)
    groups = -(-len(top.cpus) // group)
    groups_per_node = -(-groups // len(top.nodes))
    for size in range(max(least, -(-groups_needed // groups_per_node)), min(groups_needed, len(order)) + 1):
        best, best_balance = None, math.inf
        for nodes in combinations(order, size):
            split, balance = _split_over(nodes, left, count, group)
            if split is not None and balance < best_balance:
                best, best_balance = split, balance
            if best_balance == 0:
                break
        if best is not None:
            return best
    return None


def _split_over(nodes: tuple[int, ...], left: Mapping[int, int], count: int, group: int) -> tuple[_Split | None, float]:
    """How `nodes` can share the CPUs and the imbalance that this leaves; None if they cannot."""
    share = count // len(nodes) // group * group
    if sum(left[node] // group for node in nodes) * group < count or any(left[node] < share for node in nodes):
        return None, math.inf
    after = {node: free - share if node in nodes else free for node, free in left.items()}
    rest = count - share * len(nodes)
    if not rest:
        return _Split(nodes, share), _deviation(after.values())
    able = [node for node in nodes if after[node] >= group]
    best, best_balance = None, math.inf
    for size in range(len(able), 0, -1):
        for subset in combinations(able, size):
            if sum(after[node] // group for node in subset) * group < rest:
                continue
            balance = _deviation(_without_rest(after, subset, rest, group).values())
            if balance < best_balance:
                best, best_balance = _Split(nodes, share, subset), balance
    return best, best_balance


def _without_rest(after: Mapping[int, int], subset: Sequence[int], rest: int, group: int) -> dict[int, int]:
    """What stays free when the members of `subset` give one group each in rounds."""
    after = dict(after)
    while rest > 0:
        for node in subset:
            if rest > 0 and after[node] >= group:
                after[node] -= group
                rest -= group
    return after


def _deviation(numbers: Iterable[int]) -> float:
    """The standard deviation, to three decimals as the reference rounds it: smaller differences are ties."""
    numbers = list(numbers)
    mean = _rounded(sum(numbers) / len(numbers))
    return _rounded(math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers)))


def _rounded(number: float) -> float:
    return int(number * 1000 + 0.5) / 1000
