"""A set that keeps the order in which its elements were added."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """For elements that are equal by identity: a `set` iterates over them by their addresses, in another order in each run."""

    def add(self, element: T) -> None:
        """Add an element at the end, unless it is there."""
        self.setdefault(element)

    def discard(self, element: T) -> None:
        """Remove an element if it is there."""
        self.pop(element, None)
