"""Sums of amounts by key, as an immutable value. Pure.

Adding to a plain mapping copies all of it. Here a sum costs as much as what is added to it: all versions share one table, which has the
amounts of the version that was used last; each other version keeps only its difference from the next. A version that nothing refers to
any more is freed with its difference. To use another version than the last costs as much as what lies between the two.
Source: H. Baker, "Shallow Binding Makes Functional Arrays Fast" (1991).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import repeat
from operator import add, neg
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Totals(Generic[K]):
    """Amounts by key; 0 for a key that has none. For use by a single thread."""

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
