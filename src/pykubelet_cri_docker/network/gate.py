"""Which operations on networks run side by side: one for each container, and none beside one that needs to be alone.

Source: the CNI specification, "Lifecycle & Ordering" and "GC".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class OperationGate:
    """Lets operations on different containers pass side by side, or a single operation alone."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._single = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()

    @asynccontextmanager
    async def container(self, container_id: str) -> AsyncIterator[None]:
        """Wait while an operation on the container runs, or one that is alone."""
        lock = self._locks.setdefault(container_id, asyncio.Lock())
        async with lock:
            while not self._open.is_set():
                await self._open.wait()
            self._running += 1
            self._idle.clear()
            try:
                yield
            finally:
                self._running -= 1
                if self._running == 0:
                    self._idle.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until all others have ended. Those that come later wait."""
        async with self._single:
            self._open.clear()
            try:
                await self._idle.wait()
                yield
            finally:
                self._open.set()
