"""Removes containers and sandboxes from the runtime, even if their processes still run.

If the runtime refuses a removal because a process that it lists as ended still runs, the process is ended and the removal
is tried again, once for each such process. If another call starts, ends or removes the container at the same time (a removal
of its sandbox does), the removal is tried again until it is gone, so that its name and log are free afterwards. If that also
fails, the caller tries again later.

A container that seems never to have been started is not removed while or after the runtime starts it: an agent that was killed may
have left such a call, whose process runs or has run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID, SandboxID
from pykubelet.base.model.waits import UNRECORDED, Owner, Wait, Waits
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

log = Log("runtime")
_LEFT = Wait("process to end", Owner.CONTAINER_RUNTIME, 0.0, next_step="remove its container")
_STARTED = Wait(
    "start by an earlier agent",
    Owner.CONTAINER_RUNTIME,
    0.0,
    next_step="take the container over, or start its successor",
)
#: The pauses before further tries to remove a container while another call changes its state, in seconds.
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


async def remove_container(cri: CriClient, container: ContainerID, waits: Waits = UNRECORDED) -> None:
    """Remove one container; succeeds if it is already gone. Raises CriError."""
    await _remove(cri, partial(cri.remove_container, container), waits)


async def remove_sandbox(cri: CriClient, sandbox: SandboxID, waits: Waits = UNRECORDED) -> None:
    """Remove a sandbox with its containers; succeeds if it is already gone. Raises CriError."""
    await _remove(cri, partial(cri.remove_pod_sandbox, sandbox), waits)


async def remove_unstarted(cri: CriClient, container: ContainerID, waits: Waits = UNRECORDED) -> bool:
    """Remove a container that was created and not started; succeeds if it is already gone. Raises CriError.

    False: a call starts it, or has done so since. Then it is left, and this waits a while until its state is known.
    """
    try:
        if (await cri.container_status(container)).status.state != pb.CONTAINER_CREATED:
            return False
        await cri.remove_container(container)
    except CriError as error:
        if error.is_changing:
            with waits.waiting(replace(_STARTED, subject=container, detail=error.message)):
                return await _is_gone(cri, container)
        if not error.is_not_found:
            raise
    return True


async def _is_gone(cri: CriClient, container: ContainerID) -> bool:
    """Whether a container is gone after the call that changes its state. False also if the call takes long."""
    for pause in _PAUSES_S:
        await asyncio.sleep(pause)
        try:
            if (await cri.container_status(container)).status.state != pb.CONTAINER_CREATED:
                break
        except CriError as error:
            if error.is_not_found:
                return True
            raise
    return False


async def _remove(cri: CriClient, remove: Callable[[], Awaitable[None]], waits: Waits) -> None:
    ended: set[str] = set()
    pauses = iter(_PAUSES_S)
    while True:
        try:
            return await remove()
        except CriError as error:
            if error.is_changing and (pause := next(pauses, None)) is not None:
                await asyncio.sleep(pause)
                continue
            left = error.running_task
            if left is None or left in ended:
                raise
            log.warning(
                "the runtime does not remove a container whose process still runs; ending the process",
                container=left,
                error=error,
            )
            ended.add(left)
            wait = replace(_LEFT, subject=left, reason=error.code, detail=error.message)
        with waits.waiting(wait):
            await cri.stop_container(left, 0)
            await cri.end_task(left)
