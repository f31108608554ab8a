"""Times of events as the runtime itself reports them: its task and container events, and container statuses.

Owns: one subscription to containerd's events. All times are the runtime's own, in nanoseconds of the wall clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from pykubelet.edges.cri import containerd_task_events_pb2 as task_pb2
from pykubelet.edges.cri.client import CriClient

_FILTERS = (
    'topic~="^/tasks/(start|exit)$",namespace=="k8s.io"',
    'topic=="/containers/delete",namespace=="k8s.io"',
)
_SETTLE_S = 0.1
T = TypeVar("T")


class BenchError(Exception):
    """A figure cannot be taken; the message names what did not happen."""


class RuntimeWatch:
    """`starts`, `exits` and `deletes` by id, in the order in which they came."""

    def __init__(self, cri: CriClient) -> None:
        self._cri = cri
        self.starts: dict[str, int] = {}
        self.exits: dict[str, int] = {}
        self.deletes: dict[str, int] = {}
        self._wakeup = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RuntimeWatch:
        self._reader = asyncio.create_task(self._read())
        await asyncio.sleep(_SETTLE_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader

    async def _read(self) -> None:
        stream = await self._cri.open_containerd_events(_FILTERS)
        try:
            while (envelope := await stream.read()) is not None:
                self._take(envelope)
        finally:
            stream.close()

    def _take(self, envelope: Any) -> None:
        value = envelope.event.value
        match envelope.topic:
            case "/tasks/start":
                self.starts[task_pb2.TaskStart.FromString(value).container_id] = envelope.timestamp.ToNanoseconds()
            case "/tasks/exit":
                event = task_pb2.TaskExit.FromString(value)
                if event.id in ("", event.container_id):
                    self.exits[event.container_id] = event.exited_at.ToNanoseconds()
            case "/containers/delete":
                # ContainerDelete has the id as its first field, which TaskStart has too
                deleted = task_pb2.TaskStart.FromString(value).container_id
                self.deletes[deleted] = envelope.timestamp.ToNanoseconds()
        self._wakeup.set()

    async def wait(self, what: str, found: Callable[[], T | None], timeout_s: float) -> T:
        """The first result of `found` that is not None, asked again at every event."""
        try:
            async with asyncio.timeout(timeout_s):
                while (result := found()) is None:
                    if self._reader is not None and self._reader.done():
                        raise BenchError("the runtime's events have ended")
                    self._wakeup.clear()
                    await self._wakeup.wait()
                return result
        except TimeoutError as error:
            raise BenchError(f"{what}: not within {timeout_s:.0f} s") from error

    async def wait_starts(self, before: int, count: int, timeout_s: float) -> None:
        """Until `count` more tasks have started than the `before` there were."""
        await self.wait(f"{count} starts", lambda: True if len(self.starts) - before >= count else None, timeout_s)

    async def exited_at(self, container: str, timeout_s: float = 15.0) -> int:
        return await self.wait(f"end of container {container[:12]}", lambda: self.exits.get(container), timeout_s)

    async def deleted_at(self, sandbox: str, timeout_s: float = 15.0) -> int:
        return await self.wait(f"removal of sandbox {sandbox[:12]}", lambda: self.deletes.get(sandbox), timeout_s)
