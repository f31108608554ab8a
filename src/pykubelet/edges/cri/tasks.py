"""containerd's task service, beside CRI: ends a process of which CRI's part of containerd has lost sight.

When the caller of StartContainer goes away in the middle, containerd 1.6 takes the container for ended but leaves its
process (a task) as it is, and from then on refuses to remove the container: "cannot delete running task". Stopping does
nothing, for what has ended needs no stopping. Imported only when that has happened.

Source: containerd's `api/services/tasks/v1`.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from pykubelet.edges.cri.containerd_tasks_pb2 import DeleteTaskRequest, Done, KillRequest, WaitRequest
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.cri.wire import Unary, Wire

_TASKS = "/containerd.services.tasks.v1.Tasks"
_NAMESPACE = (("containerd-namespace", "k8s.io"),)


async def end_task(wire: Wire, container_id: str, timeout_s: float) -> None:
    """Kill what runs, wait for its end, and have it forgotten; idempotent. Raises CriError."""
    kill = Unary(wire, f"{_TASKS}/Kill", KillRequest, Done, _NAMESPACE)
    wait = Unary(wire, f"{_TASKS}/Wait", WaitRequest, Done, _NAMESPACE)
    delete = Unary(wire, f"{_TASKS}/Delete", DeleteTaskRequest, Done, _NAMESPACE)
    with _ended_is_fine():
        await kill(KillRequest(container_id=container_id, signal=signal.SIGKILL, all=True), timeout_s)
    with _ended_is_fine():
        await wait(WaitRequest(container_id=container_id), timeout_s)
    with _ended_is_fine():
        await delete(DeleteTaskRequest(container_id=container_id), timeout_s)


@contextlib.contextmanager
def _ended_is_fine() -> Iterator[None]:
    try:
        yield
    except CriError as error:
        if not error.is_not_found:
            raise
