"""Requests to free disk space under disk pressure, and their answers. Pure.

observe/eviction posts `ReclaimWanted`; act removes what it can and publishes `Reclaimed`.
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value


class ReclaimWanted(Value):
    """A request to remove everything that is unused. `at`: monotonic seconds."""

    at: float


class Reclaimed(Value):
    """The last removal. `at`: as in the newest request that it answers. `error`: what could not be removed, and why."""

    at: float = float("-inf")
    error: str = ""
