"""The events of containerd's task service for what happens in the fake runtime."""

from __future__ import annotations

from google.protobuf.message import Message

from pykubelet.edges.cri import containerd_task_events_pb2 as task_pb2
from pykubelet.edges.cri.events import HintKind


def task_events(kind: HintKind, object_id: str) -> list[tuple[str, Message]]:
    """The error of containerd itself."""
    if kind is HintKind.STARTED:
        return [("/tasks/start", task_pb2.TaskStart(container_id=object_id))]
    if kind is HintKind.OOM:
        return [("/tasks/oom", task_pb2.TaskOOM(container_id=object_id))]
    if kind is HintKind.STOPPED:
        exit_event = task_pb2.TaskExit(container_id=object_id, id=object_id)
        return [("/tasks/exit", exit_event), ("/tasks/delete", task_pb2.TaskDelete(container_id=object_id))]
    return []
