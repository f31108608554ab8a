"""Hints from the runtime's event stream that something may have changed.

Owns: the choice of the stream (CRI's GetContainerEvents, else containerd's own event service, else none) and the
translation of its events to `RuntimeHint`. A hint wakes a reader, which then asks the runtime for the state. Not here:
resubscribing and relisting, which observe/pleg does.

Measured delays: containerd's exit event comes about 10 ms after the process ended; the CRI status shows the exit another 20
to 45 ms later, just after the hint `REAPED`. CRI events come after 40 to 70 ms and contain the right status.

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

# The runtime starts a subscription some time after the request arrives. A relist after this pause misses nothing.
_SETTLE_S = 0.05
R = TypeVar("R", bound=Message)
_FILTERS = ('topic~="^/tasks/(start|exit|oom|delete)$",namespace=="k8s.io"',)


class RuntimeEventSource(StrEnum):
    """The event stream that hints come from."""

    CRI = "cri"
    CONTAINERD = "containerd"


class HintKind(StrEnum):
    """The kind of a hint. `SUBSCRIBED` comes first: no event is missed from then on, so the reader must relist once."""

    SUBSCRIBED = "subscribed"
    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    REAPED = "reaped"
    DELETED = "deleted"
    OOM = "oom"


class RuntimeHint(Value):
    """A hint about a container or sandbox (`id`; empty for SUBSCRIBED). Most events do not name the pod.

    `end`: the exit, if the event contains it.
    """

    id: str
    kind: HintKind
    source: RuntimeEventSource
    pod_uid: str | None = None
    end: ContainerEnd | None = None


class StreamLost(Exception):
    """The stream has ended, usually because the runtime restarts. Subscribe again after a pause."""

    def __init__(self, source: RuntimeEventSource, cause: CriError) -> None:
        super().__init__(source, cause)
        self.source = source
        self.cause = cause

    def __str__(self) -> str:
        return f"the {self.source} event stream was lost: {self.cause}"


class NoEvents(Exception):
    """The runtime offers no known event stream, so that changes are found only by relisting."""


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
    """Yield hints from the best stream that the runtime offers; the first one is SUBSCRIBED.

    Never ends by itself. Raises StreamLost if the stream ends or cannot be opened, NoEvents if the runtime has none. Close the
    iterator (or cancel its task) to unsubscribe.
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


async def _subscribe(client: CriClient) -> tuple[RuntimeEventSource, _CriSubscription | _ContainerdSubscription]:
    of_cri = await _offered(client, client.open_container_events(), RuntimeEventSource.CRI)
    if of_cri is not None:
        return RuntimeEventSource.CRI, _CriSubscription(of_cri)
    of_containerd = await _offered(client, client.open_containerd_events(_FILTERS), RuntimeEventSource.CONTAINERD)
    if of_containerd is not None:
        return RuntimeEventSource.CONTAINERD, _ContainerdSubscription(of_containerd)
    raise NoEvents("the runtime offers neither CRI container events nor containerd's event service")


async def _offered(
    client: CriClient, opening: Awaitable[OpenStream[R]], source: RuntimeEventSource
) -> OpenStream[R] | None:
    """The stream, or None if the runtime does not serve it.

    A runtime sends nothing when a subscription succeeds. It has succeeded if it has not failed by the answer to a later call.
    """
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
    """Translate a CRI event; None for an unknown type."""
    kind = _CRI_KINDS.get(event.container_event_type)
    if kind is None:
        return None
    uid = event.pod_sandbox_status.metadata.uid or None
    return RuntimeHint(event.container_id, kind, RuntimeEventSource.CRI, uid)


def hint_from_containerd(envelope: events_pb2.Envelope) -> RuntimeHint | None:
    """Translate a containerd event; None if it is not about starts, exits or OOM kills.

    The end of an exec is a task exit too, with an id of its own. It is ignored, because otherwise every exec probe would cause
    a hint.
    """
    body = envelope.event
    decode = _TASK_EVENTS.get(body.type_url.rpartition("/")[2])
    if decode is None:
        return None
    message, kind = decode
    try:
        event = message.FromString(body.value)
    except DecodeError:
        return None  # the hint is lost, but the next relist finds the change
    end = None
    if isinstance(event, task_pb2.TaskExit | task_pb2.TaskDelete):
        if event.id not in ("", event.container_id):
            return None
        finished_at = event.exited_at.ToNanoseconds()
        end = ContainerEnd(ContainerID(event.container_id), event.exit_status, finished_at) if finished_at > 0 else None
    return RuntimeHint(event.container_id, kind, RuntimeEventSource.CONTAINERD, end=end)


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
