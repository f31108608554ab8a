"""What watches of the same changes share: the lines of the newest ones, and the objects of the last large one. Bounded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from pykubelet_local_api.objects import Json
from pykubelet_local_api.rest.large_bodies import LargeBodies
from pykubelet_local_api.store.history import StoredChange

T = TypeVar("T")
#: So many stretches of changes are kept, each with so many bytes at most.
KEPT, LARGEST = 8, 256 << 10
#: The objects of a large change are kept for so many seconds after a watch has asked for them.
LARGE_KEPT_S = 1.0
#: The object before a change (None: there was none), and the one after it.
ChangedObjects = tuple[Json | None, Json]


class WatchedStretch(NamedTuple):
    """What a watch without selectors sends after the version `after`. `namespace` "": of all; `name` "": all objects."""

    resource: str
    namespace: str
    name: str
    after: int


class SharedLines:
    """The lines of a stretch, and the version that they reach to. Those of older states of the store are not used."""

    def __init__(self) -> None:
        self.large = LargeChanges()
        self._version = 0
        self._kept: OrderedDict[WatchedStretch, tuple[bytes, int]] = OrderedDict()

    def find(self, stretch: WatchedStretch, version: int) -> tuple[bytes, int] | None:
        """What was kept for the stretch while the store has this version."""
        if version != self._version:
            self._kept.clear()
            self._version = version
        return self._kept.get(stretch)

    def keep(self, stretch: WatchedStretch, lines: bytes, reached: int) -> None:
        """Keep the lines, which were made after `find`."""
        if len(lines) <= LARGEST:
            self._kept[stretch] = (lines, reached)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)


class LargeChanges:
    """Reads the objects of large changes in a thread, one change at a time, each once for all watches that want it soon."""

    def __init__(self) -> None:
        self._threads = LargeBodies()
        self._reading = asyncio.Lock()
        self._last: tuple[StoredChange, ChangedObjects] | None = None
        self._forgets: asyncio.TimerHandle | None = None

    async def objects_of(self, change: StoredChange) -> ChangedObjects:
        """The objects of a change. Raises StatusError 503."""
        async with self._reading:
            if self._last is None or self._last[0] is not change:
                self._last = None
                self._last = (change, await self.run(lambda: (change.before, change.object)))
            if self._forgets is not None:
                self._forgets.cancel()
            self._forgets = asyncio.get_running_loop().call_later(LARGE_KEPT_S, self._forget)
            return self._last[1]

    async def run(self, work: Callable[[], T]) -> T:
        """Do what takes long in a thread. Raises StatusError 503."""
        return await self._threads.run(b"", work, is_large=True)

    def _forget(self) -> None:
        self._last = None
