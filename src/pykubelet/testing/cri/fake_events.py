"""The events of the fake runtime: those of CRI, and those of containerd's task service."""

from __future__ import annotations

from google.protobuf.message import Message

from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import containerd_task_events_pb2 as task_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.events import HintKind
from pykubelet.testing.cri.fake_state import FakeSandbox, FakeState, container_status, sandbox_status


def cri_event(
    state: FakeState, kind: HintKind, object_id: str, sandbox: FakeSandbox
) -> pb.ContainerEventResponse | None:
    """CRI's event, with the statuses of the pod; None if CRI has none of this kind."""
    cri_kind = _CRI_EVENTS.get(kind)
    if cri_kind is None:
        return None
    return pb.ContainerEventResponse(
        container_id=object_id,
        container_event_type=cri_kind,
        created_at=sandbox.created_at,
        pod_sandbox_status=sandbox_status(sandbox) if sandbox.id in state.sandboxes else None,
        containers_statuses=[container_status(c) for c in state.containers_of(sandbox)],
    )


def envelopes(kind: HintKind, object_id: str) -> list[events_pb2.Envelope]:
    """The events of containerd's event service."""
    made = []
    for topic, message in _task_events(kind, object_id):
        envelope = events_pb2.Envelope(namespace="k8s.io", topic=topic)
        envelope.event.type_url = message.DESCRIPTOR.full_name
        envelope.event.value = message.SerializeToString()
        made.append(envelope)
    return made


def _task_events(kind: HintKind, object_id: str) -> list[tuple[str, Message]]:
    if kind is HintKind.STARTED:
        return [("/tasks/start", task_pb2.TaskStart(container_id=object_id))]
    if kind is HintKind.OOM:
        return [("/tasks/oom", task_pb2.TaskOOM(container_id=object_id))]
    if kind is HintKind.STOPPED:
        exit_event = task_pb2.TaskExit(container_id=object_id, id=object_id)
        return [("/tasks/exit", exit_event), ("/tasks/delete", task_pb2.TaskDelete(container_id=object_id))]
    return []


_CRI_EVENTS = {
    HintKind.CREATED: pb.CONTAINER_CREATED_EVENT,
    HintKind.STARTED: pb.CONTAINER_STARTED_EVENT,
    HintKind.STOPPED: pb.CONTAINER_STOPPED_EVENT,
    HintKind.DELETED: pb.CONTAINER_DELETED_EVENT,
}
