"""Removing containers and sandboxes from the runtime, also those that it refuses to remove.

Owns: what is done when a process that the runtime takes for ended is still there: it is ended first, then the removal is
tried again, once for each such process. Whoever asked tries again later when that fails too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.base.model.waits import UNRECORDED, Wait, Waits
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

log = Log("runtime")
_LEFT = Wait("process to end", "container runtime", 0.0, next_step="remove its container")


async def remove_container(cri: CriClient, container: ContainerID, waits: Waits = UNRECORDED) -> None:
    """Gone already is fine. Raises CriError."""
    await _remove(cri, partial(cri.remove_container, container), waits)


async def remove_sandbox(cri: CriClient, sandbox: SandboxID, waits: Waits = UNRECORDED) -> None:
    """With its containers. Gone already is fine. Raises CriError."""
    await _remove(cri, partial(cri.remove_pod_sandbox, sandbox), waits)


async def _remove(cri: CriClient, remove: Callable[[], Awaitable[None]], waits: Waits) -> None:
    ended: set[str] = set()
    while True:
        try:
            return await remove()
        except CriError as error:
            left = error.running_task
            if left is None or left in ended:
                raise
            log.warning("the runtime holds on to a process that it takes for ended", container=left, error=error)
            ended.add(left)
            wait = replace(_LEFT, subject=left, reason=error.code, detail=error.message)
        with waits.waiting(wait):
            await cri.stop_container(left, 0)
            await cri.end_task(left)
