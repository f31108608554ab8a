"""Hints from the runtime that something happened, from whichever event stream it offers.

Owns: the choice of stream (CRI's GetContainerEvents, else containerd's own event service, else none) and its
translation to `RuntimeHint`. A hint wakes a reader; what is so, the reader asks the runtime. Not here: resubscribing
and relisting, which observe/pleg does.

Known delays, measured: containerd's exit event comes about 10 ms after the death, but the CRI status says "exited"
20 to 45 ms later; `REAPED` comes just before it does. CRI events come after 40 to 70 ms with the right status inside.

Source: KEP-3386 (evented PLEG) for the CRI stream; containerd's `docs/ops.md` and event topics for the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from enum import StrEnum
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import ContainerEnd
from pykubelet.edges.cri import containerd_events_pb2 as events_pb2
from pykubelet.edges.cri import containerd_task_events_pb2 as task_pb2
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.cri.wire import OpenStream

# The runtime takes a subscription in its own time after the request arrives; a relist then misses nothing.
_SETTLE_S = 0.05
R = TypeVar("R", bound=Message)
_FILTERS = ('topic~="^/tasks/(start|exit|oom|delete)$",namespace=="k8s.io"',)


class EventSource(StrEnum):
    """Where hints come from."""

    CRI = "cri"
    CONTAINERD = "containerd"


class HintKind(StrEnum):
    """What happened. `SUBSCRIBED` comes first: from here on nothing is missed, so list everything once now."""

    SUBSCRIBED = "subscribed"
    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    REAPED = "reaped"
    DELETED = "deleted"
    OOM = "oom"


class HintStatus(Value):
    """What the runtime sent along: the pod's statuses at the time of the event, which may be old by now."""

    created_at_ns: int
    sandbox: pb.PodSandboxStatus | None
    containers: tuple[pb.ContainerStatus, ...]


class RuntimeHint(Value):
    """Something happened to a container or sandbox (`id`; empty for SUBSCRIBED). Most events do not name the pod.

    `end`: how it ended, where the event tells that.
    """

    id: str
    kind: HintKind
    source: EventSource
    pod_uid: str | None = None
    status: HintStatus | None = None
    end: ContainerEnd | None = None


class StreamLost(Exception):
    """The stream has ended, most often because the runtime restarts. Subscribe again, with a pause between."""

    def __init__(self, source: EventSource, cause: CriError) -> None:
        super().__init__(source, cause)
        self.source = source
        self.cause = cause

    def __str__(self) -> str:
        return f"the {self.source} event stream was lost: {self.cause}"


class NoEvents(Exception):
    """This runtime offers no event stream that we know: relisting is all there is."""


class _CriSubscription(Value):
    stream: OpenStream[pb.ContainerEventResponse]

    async def next_hint(self) -> RuntimeHint | None:
        event = await self.stream.read()
        if event is None:
            raise _ended("GetContainerEvents")
        return hint_from_cri(event)


class _ContainerdSubscription(Value):
    stream: OpenStream[events_pb2.Envelope]

    async def next_hint(self) -> RuntimeHint | None:
        envelope = await self.stream.read()
        if envelope is None:
            raise _ended("Subscribe")
        return hint_from_containerd(envelope)


async def watch_runtime(client: CriClient) -> AsyncGenerator[RuntimeHint, None]:
    """Hints from the best stream the runtime offers, SUBSCRIBED first.

    Never ends by itself: raises StreamLost when the stream ends or cannot be opened, NoEvents when there is none.
    Close the iterator (or cancel its task) to unsubscribe.
    """
    source, subscription = await _subscribe(client)
    try:
        yield RuntimeHint("", HintKind.SUBSCRIBED, source)
        while True:
            hint = await subscription.next_hint()
            if hint is not None:
                yield hint
    except CriError as error:
        raise StreamLost(source, error) from error
    finally:
        subscription.stream.close()


async def _subscribe(client: CriClient) -> tuple[EventSource, _CriSubscription | _ContainerdSubscription]:
    of_cri = await _offered(client, client.open_container_events(), EventSource.CRI)
    if of_cri is not None:
        return EventSource.CRI, _CriSubscription(of_cri)
    of_containerd = await _offered(client, client.open_containerd_events(_FILTERS), EventSource.CONTAINERD)
    if of_containerd is not None:
        return EventSource.CONTAINERD, _ContainerdSubscription(of_containerd)
    raise NoEvents("the runtime offers neither CRI container events nor containerd's event service")


async def _offered(client: CriClient, opening: Awaitable[OpenStream[R]], source: EventSource) -> OpenStream[R] | None:
    """The stream, if it is served. Runtimes say nothing on success, so a call behind it must do."""
    try:
        stream = await opening
    except CriError as error:
        raise StreamLost(source, error) from error
    try:
        await client.version()
        await asyncio.sleep(_SETTLE_S)
        failure = stream.failure()
    except CriError as error:
        stream.close()
        raise StreamLost(source, error) from error
    except BaseException:
        stream.close()
        raise
    if failure is None:
        return stream
    if failure.is_unimplemented:
        return None
    raise StreamLost(source, failure) from failure


def hint_from_cri(event: pb.ContainerEventResponse) -> RuntimeHint | None:
    """The hint in CRI's event, or None for a type we do not know."""
    kind = _CRI_KINDS.get(event.container_event_type)
    if kind is None:
        return None
    sandbox = event.pod_sandbox_status if event.HasField("pod_sandbox_status") else None
    status = None
    if sandbox is not None or event.containers_statuses:
        status = HintStatus(event.created_at, sandbox, tuple(event.containers_statuses))
    uid = (sandbox.metadata.uid or None) if sandbox is not None else None
    return RuntimeHint(event.container_id, kind, EventSource.CRI, uid, status)


def hint_from_containerd(envelope: events_pb2.Envelope) -> RuntimeHint | None:
    """The hint in containerd's event, or None for one that says nothing about a container's life.

    The exit of an exec comes as a task exit too, under an id of its own: it is no hint, or every exec probe would be one.
    """
    body = envelope.event
    decode = _TASK_EVENTS.get(body.type_url.rpartition("/")[2])
    if decode is None:
        return None
    message, kind = decode
    try:
        event = message.FromString(body.value)
    except DecodeError:
        return None  # a hint that cannot be read is a hint lost, which relisting makes good
    end = None
    if isinstance(event, task_pb2.TaskExit | task_pb2.TaskDelete):
        if event.id not in ("", event.container_id):
            return None
        finished_at = event.exited_at.ToNanoseconds()
        end = ContainerEnd(ContainerID(event.container_id), event.exit_status, finished_at) if finished_at > 0 else None
    return RuntimeHint(event.container_id, kind, EventSource.CONTAINERD, end=end)


_TaskEvent = task_pb2.TaskStart | task_pb2.TaskExit | task_pb2.TaskOOM | task_pb2.TaskDelete

_TASK_EVENTS: dict[str, tuple[type[_TaskEvent], HintKind]] = {
    "containerd.events.TaskStart": (task_pb2.TaskStart, HintKind.STARTED),
    "containerd.events.TaskExit": (task_pb2.TaskExit, HintKind.STOPPED),
    "containerd.events.TaskOOM": (task_pb2.TaskOOM, HintKind.OOM),
    "containerd.events.TaskDelete": (task_pb2.TaskDelete, HintKind.REAPED),
}

_CRI_KINDS: dict[int, HintKind] = {
    pb.CONTAINER_CREATED_EVENT: HintKind.CREATED,
    pb.CONTAINER_STARTED_EVENT: HintKind.STARTED,
    pb.CONTAINER_STOPPED_EVENT: HintKind.STOPPED,
    pb.CONTAINER_DELETED_EVENT: HintKind.DELETED,
}


def _ended(call: str) -> CriError:
    return CriError(CriCode.UNAVAILABLE, "the runtime ended the stream", call)
