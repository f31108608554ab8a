"""What is new between two snapshots of a cell. Pure.

Snapshots keep the very objects that did not change, so a change is told by identity: a look at a thousand entries costs
less than one comparison of two of them. The walks are those of `itertools`: each reader of a cell makes one for each of
its snapshots, over all pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import compress, filterfalse
from operator import is_not
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def changed_keys(before: Mapping[K, V], now: Mapping[K, V]) -> list[K]:
    """The keys that have another object than before, or are only in one of the two. No value may be None."""
    if before is now:
        return []
    news = list(compress(now, map(is_not, map(before.get, now), now.values())))
    stayed = len(now) - len(news) + sum(map(before.__contains__, news))
    return news if stayed == len(before) else news + missing_keys(before, now)


def missing_keys(keys: Iterable[K], present: Collection[K]) -> list[K]:
    """Those of `keys` that are not in `present`, in their order."""
    return list(filterfalse(present.__contains__, keys))
