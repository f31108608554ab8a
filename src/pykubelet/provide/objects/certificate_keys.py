"""Makes keys for certificates of pods, several in one child process, and one child process at a time for each lane.

Owns: the keys that are awaited. Key types that take long have a lane of their own, so that they delay no others. A batch has one key of
each pod after the other: a pod that asks for many keys does not delay the others by more than a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from pykubelet.base.api.key_types import KEY_TYPES
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.edges.identity.keys import KeysError, StubRequest

MakeStubs = Callable[[Sequence[str]], Awaitable[list[StubRequest]]]
#: So many keys are made by one child process: of the quick types, and of the slow ones.
QUICK_BATCH, SLOW_BATCH = 32, 2


class _WantedKey(Value):
    """One awaited key."""

    key_type: str
    made: asyncio.Future[StubRequest]


class _Lane:
    """Makes keys, of one pod after the other."""

    def __init__(self, make: MakeStubs, most: int) -> None:
        self._make = make
        self._most = most
        self._waiting: dict[PodUID, deque[_WantedKey]] = {}
        self._wakeup = asyncio.Event()

    def add(self, pod: PodUID, wanted: _WantedKey) -> None:
        self._waiting.setdefault(pod, deque()).append(wanted)
        self._wakeup.set()

    async def run(self) -> None:
        """Make what is wanted. Never returns."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while batch := self._take():
                await self._fill(batch)

    def _take(self) -> list[_WantedKey]:
        """The next batch: one key of each pod, then of each again."""
        batch: list[_WantedKey] = []
        while self._waiting and len(batch) < self._most:
            pod = next(iter(self._waiting))
            queue = self._waiting.pop(pod)
            wanted = queue.popleft()
            if queue:
                self._waiting[pod] = queue  # at the end: the others come first
            if not wanted.made.done():  # the pod may be gone
                batch.append(wanted)
        return batch

    async def _fill(self, batch: list[_WantedKey]) -> None:
        try:
            stubs = await self._make([wanted.key_type for wanted in batch])
        except KeysError as error:
            for wanted in batch:
                if not wanted.made.done():
                    wanted.made.set_exception(KeysError(str(error)))
            return
        for wanted, stub in zip(batch, stubs, strict=True):
            if not wanted.made.done():
                wanted.made.set_result(stub)


class CertificateKeys:
    """Makes keys by `make`. The tasks of the lanes are started with the first key."""

    def __init__(self, make: MakeStubs, tasks: Supervisor) -> None:
        self._tasks = tasks
        self._quick, self._slow = _Lane(make, QUICK_BATCH), _Lane(make, SLOW_BATCH)
        self._running = False

    async def key(self, key_type: str, pod: PodUID) -> StubRequest:
        """A new key with its signing request. `key_type`: one of `KEY_TYPES`. Raises KeysError."""
        if not self._running:
            self._running = True
            self._tasks.start_root("content quick keys", self._quick.run())
            self._tasks.start_root("content slow keys", self._slow.run())
        made: asyncio.Future[StubRequest] = asyncio.get_running_loop().create_future()
        lane = self._slow if KEY_TYPES[key_type].is_slow else self._quick
        lane.add(pod, _WantedKey(key_type, made))
        return await made
