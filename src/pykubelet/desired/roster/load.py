"""The load of the node: what all pods that count against its capacity request together. Pure.

A pod may have 10,000 ports and as many resources. So the sums are kept from one decision to the next, and a pod is added to them or taken
away: the cost of a decision depends on the pods that it is about, and not on the specs of all others.

Adding to a plain mapping would copy all of it. The sum of a `Totals` costs as much as what is added to it.
Source: H. Baker, "Shallow Binding Makes Functional Arrays Fast" (1991).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import repeat
from operator import add, neg
from typing import Generic, TypeVar

from pykubelet.base.kit.values import Value, VersionMark, edited, field, replace
from pykubelet.base.model.ids import PodUID

K = TypeVar("K", bound=Hashable)


class Totals(Generic[K]):
    """Amounts by key, as an immutable value; 0 for a key that has none. For use by a single thread.

    All versions share one table, which has the amounts of the version that was used last; each other version keeps only its difference
    from the next. A version that nothing refers to any more is freed with its difference. To use another version than the last costs as
    much as what lies between the two.
    """

    __slots__ = ("_difference", "_next", "_table")

    def __init__(self) -> None:
        self._table: dict[K, int] | None = {}
        self._next: Totals[K] | None = None
        self._difference: dict[K, int] = {}

    def __getitem__(self, key: K) -> int:
        return self._amounts().get(key, 0)

    def of_each(self, keys: Iterable[K]) -> Iterator[int]:
        """The amounts of these keys, in their order. Read them before the next use of another version."""
        return map(self._amounts().get, keys, repeat(0))

    def plus(self, amounts: Mapping[K, int]) -> Totals[K]:
        """These totals with more; amounts may be negative."""
        if not amounts:
            return self
        table = self._amounts()
        before = dict(zip(amounts, self.of_each(amounts), strict=True))
        _put(table, dict(zip(amounts, map(add, before.values(), amounts.values()), strict=True)))
        newer = Totals[K]()
        newer._table = table
        self._table, self._next, self._difference = None, newer, before
        return newer

    def minus(self, amounts: Mapping[K, int]) -> Totals[K]:
        """These totals with less."""
        return self.plus(dict(zip(amounts, map(neg, amounts.values()), strict=True)))

    def _amounts(self) -> dict[K, int]:
        """The shared table, with the amounts of this version."""
        if self._table is not None:
            return self._table
        versions = [self]
        while versions[-1]._next is not None:
            versions.append(versions[-1]._next)
        owner = versions.pop()
        table = owner._table
        assert table is not None
        for version in reversed(versions):
            undo = dict(zip(version._difference, map(table.get, version._difference, repeat(0)), strict=True))
            _put(table, version._difference)
            owner._table, owner._next, owner._difference = None, version, undo
            version._table, version._next, version._difference = table, None, {}
            owner = version
        return table


def _put(table: dict[K, int], amounts: Mapping[K, int]) -> None:
    """Set these amounts; a key with the amount 0 is left out."""
    table.update(amounts)
    if 0 in amounts.values():
        for key in [key for key, amount in amounts.items() if not amount]:
            del table[key]


ALL_ADDRESSES = "0.0.0.0"


class HostPort(Value):
    """A port of the node. `number`: number and protocol, as 80/TCP. `ip`: 0.0.0.0 means all addresses."""

    number: str
    ip: str = ALL_ADDRESSES


class Demand(Value):
    """What a pod requests from the node: `cpu` in millicores, other resources in whole units."""

    requests: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[HostPort] = frozenset()

    def of(self, resource: str) -> int:
        """The amount of a resource; 1 for `pods`."""
        return 1 if resource == "pods" else self.requests.get(resource, 0)


#: Added to the amount of a number for each pod that has it on all addresses.
_ON_ALL = 1 << 32
_PortKey = HostPort | str


class Load(Value):
    """The sum of demands.

    `ports`: under a number, how many pods have it on one address, and `_ON_ALL` for each that has it on all addresses; under a port of one
    address, how many pods have it.
    """

    pods: int = 0
    requests: Totals[str] = field(default_factory=Totals[str])
    ports: Totals[_PortKey] = field(default_factory=Totals[_PortKey])

    def plus(self, demand: Demand) -> Load:
        """The load with one more pod."""
        return Load(self.pods + 1, self.requests.plus(demand.requests), self.ports.plus(_amounts(demand)))

    def minus(self, demand: Demand) -> Load:
        """The load with one pod less."""
        return Load(self.pods - 1, self.requests.minus(demand.requests), self.ports.minus(_amounts(demand)))

    def has_taken(self, wanted: Demand) -> bool:
        """Whether a wanted port is taken: ports of one number and protocol clash if their addresses are the same, or one means all."""
        used = self.ports.of_each([port.number for port in wanted.ports])
        shared = [(port, amount) for port, amount in zip(wanted.ports, used, strict=True) if amount]
        if any(port.ip == ALL_ADDRESSES or amount >= _ON_ALL for port, amount in shared):
            return True
        return any(self.ports.of_each([port for port, _ in shared]))


def _amounts(demand: Demand) -> dict[_PortKey, int]:
    """What a demand adds to `Load.ports`."""
    amounts: dict[_PortKey, int] = {}
    for port in demand.ports:
        if port.ip == ALL_ADDRESSES:
            amounts[port.number] = amounts.get(port.number, 0) + _ON_ALL
        else:
            amounts[port.number] = amounts.get(port.number, 0) + 1
            amounts[port] = 1
    return amounts


class CountedPods(Value):
    """The pods that count against the capacity, and their load. `marks`: the versions of the roster's entries and of the lifecycles that
    this follows from; None: not known."""

    demands: Mapping[PodUID, Demand] = field(default_factory=dict)
    load: Load = field(default_factory=Load)
    marks: tuple[VersionMark[PodUID], VersionMark[PodUID]] | None = None

    def with_demands(
        self, changed: Mapping[PodUID, Demand | None], marks: tuple[VersionMark[PodUID], VersionMark[PodUID]] | None
    ) -> CountedPods:
        """With these demands instead; None: the pod does not count."""
        load, demands = self.load, edited(self.demands)
        for uid, new in changed.items():
            old = demands.get(uid)
            if old is new:
                continue
            if old is not None:
                load = load.minus(old)
            if new is not None:
                load = load.plus(new)
                demands[uid] = new
            else:
                del demands[uid]
        return CountedPods(demands, load, marks)

    def plus(self, uid: PodUID, demand: Demand) -> CountedPods:
        """These pods and one that does not count yet."""
        return replace(self, demands={**self.demands, uid: demand}, load=self.load.plus(demand))

    def load_without(self, uid: PodUID) -> Load:
        """The load of all pods but this one, for its resize: its ports stay, because it keeps them."""
        demand = self.demands.get(uid)
        if demand is None:
            return self.load
        return Load(self.load.pods - 1, self.load.requests.minus(demand.requests), self.load.ports)
