"""Finds what changed between two snapshots of a cell. Pure.

A new snapshot shares the objects that did not change, so they are compared by identity: a scan of a thousand entries costs
less than one comparison by content. The loops run in `itertools` because each reader of a cell scans all pods for each
snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import compress, filterfalse
from operator import is_not
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def changed_keys(before: Mapping[K, V], now: Mapping[K, V]) -> list[K]:
    """The keys whose object was replaced, and those that only one of the two has. No value may be None."""
    if before is now:
        return []
    news = list(compress(now, map(is_not, map(before.get, now), now.values())))
    stayed = len(now) - len(news) + sum(map(before.__contains__, news))
    return news if stayed == len(before) else news + missing_keys(before, now)


def missing_keys(keys: Iterable[K], present: Collection[K]) -> list[K]:
    """Those of `keys` that are not in `present`, in their order."""
    return list(filterfalse(present.__contains__, keys))
