"""Wakes the readers of a resource when it has changed: at once while they are few, and less often the more there are.

Waking a watch costs about 0.1 ms, for one change or for several. With hundreds of watches of one resource, each change would keep the
event loop busy for longer than the change itself; so such readers get the changes of a short while together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

#: So many readers of a resource are woken at each change.
FEW_READERS = 20
#: Seconds between two wake-ups for each reader, when there are more; and the longest.
PACE_S, LONGEST_PACE_S = 0.00025, 0.1
#: So many are woken before other requests are looked at.
WOKEN_AT_ONCE = 25


class Wakeups:
    """The readers, by resource; "": of all resources, which are woken at each change."""

    def __init__(self) -> None:
        self._readers: dict[str, dict[asyncio.Event, None]] = {}  # in their order, which a set has not
        self._woken_at: dict[str, float] = {}
        self._later: set[str] = set()

    def add(self, resource: str, wakeup: asyncio.Event) -> None:
        """Set `wakeup` after changes of the resource."""
        self._readers.setdefault(resource, {})[wakeup] = None

    def discard(self, resource: str, wakeup: asyncio.Event) -> None:
        """End `add`."""
        readers = self._readers.get(resource)
        if readers is not None:
            readers.pop(wakeup, None)
            if not readers:
                del self._readers[resource]

    def count(self, resource: str) -> int:
        """The number of readers."""
        return len(self._readers.get(resource, ()))

    def wake(self, resources: Iterable[str]) -> None:
        """Wake the readers of resources that have changed, or have them woken within LONGEST_PACE_S."""
        for resource in (*resources, ""):
            readers = self._readers.get(resource)
            if not readers or resource in self._later:
                continue
            if not resource or len(readers) <= FEW_READERS:
                _wake(list(readers))
                continue
            loop = asyncio.get_running_loop()
            pace_s = min(len(readers) * PACE_S, LONGEST_PACE_S)
            wait_s = self._woken_at.get(resource, 0.0) + pace_s - loop.time()
            self._later.add(resource)
            loop.call_later(max(wait_s, 0.0), self._wake_many, resource)

    def _wake_many(self, resource: str) -> None:
        self._later.discard(resource)
        self._woken_at[resource] = asyncio.get_running_loop().time()
        _wake(list(self._readers.get(resource, ())))


def _wake(readers: list[asyncio.Event]) -> None:
    """Wake some, and the others after what else is ready."""
    for wakeup in readers[:WOKEN_AT_ONCE]:
        wakeup.set()
    if len(readers) > WOKEN_AT_ONCE:
        asyncio.get_running_loop().call_soon(_wake, readers[WOKEN_AT_ONCE:])
