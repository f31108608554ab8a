"""What is new between two snapshots of a cell. Pure.

Snapshots keep the very objects that did not change, so a change is told by identity: a look at a thousand entries costs
less than one comparison of two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def changed_keys(before: Mapping[K, V], now: Mapping[K, V]) -> list[K]:
    """The keys that have another object than before, or are only in one of the two. No value may be None."""
    if before is now:
        return []
    had = before.get
    return [key for key, value in now.items() if had(key) is not value] + [key for key in before if key not in now]
