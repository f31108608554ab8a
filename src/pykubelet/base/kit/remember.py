"""Remembers the last result of a pure function of one value, for callers that ask several questions about the same value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def remember_last(function: Callable[[T], R]) -> Callable[[T], R]:
    """The function, which computes its result once for an argument that is the same object as the last one."""
    last: list[tuple[T, R]] = []

    def remembered(value: T) -> R:
        for known, result in last:  # at most one; threads replace it as a whole
            if known is value:
                return result
        result = function(value)
        last[:] = [(value, result)]
        return result

    return remembered
