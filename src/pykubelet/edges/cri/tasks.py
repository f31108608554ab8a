"""A client of containerd's task service, to kill a process that CRI no longer knows about.

If the caller of StartContainer disconnects during the call, containerd 1.6 believes that the container has ended, but leaves
its process (a task) running. It then refuses to remove the container: "cannot delete running task". StopContainer has no
effect, because it considers the container stopped. This module is imported only in that case.

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


async def end_task(wire: Wire, container_id: str, timeout_s: float, namespace: str = "k8s.io") -> None:
    """Kill the task, wait for its end, and delete it. Idempotent. Raises CriError."""
    in_namespace = (("containerd-namespace", namespace),)
    kill = Unary(wire, f"{_TASKS}/Kill", KillRequest, Done, in_namespace)
    wait = Unary(wire, f"{_TASKS}/Wait", WaitRequest, Done, in_namespace)
    delete = Unary(wire, f"{_TASKS}/Delete", DeleteTaskRequest, Done, in_namespace)
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
