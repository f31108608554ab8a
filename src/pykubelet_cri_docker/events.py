"""GetContainerEvents: Docker's events about sandboxes and containers, with the statuses of the pod.

A client that subscribes gets what happens from then on. If the daemon ends, the events between are read from it when it is
back. Source: the CRI API; the Docker Engine API reference, "Monitor events".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from pykubelet.base.kit.log import Log
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.net.grpc.status import RpcError
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.containers import Containers
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import Engine, begins_with
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.sandboxes import PodSandboxes

log = Log("cri-docker")
RECONNECT_S = 1.0
_TYPES = {
    "create": pb.CONTAINER_CREATED_EVENT,
    "start": pb.CONTAINER_STARTED_EVENT,
    "die": pb.CONTAINER_STOPPED_EVENT,
    "destroy": pb.CONTAINER_DELETED_EVENT,
    "remove": pb.CONTAINER_DELETED_EVENT,  # Podman's word
}
#: Podman shows `die`, but its filter knows only `died`.
_FILTERS = {"type": ["container"], "event": [*_TYPES, "died"], "label": [labels.TYPE]}


class ContainerEvents:
    """Events of sandboxes and containers."""

    def __init__(self, engine: Engine, sandboxes: PodSandboxes, containers: Containers) -> None:
        self._engine = engine
        self._sandboxes = sandboxes
        self._containers = containers

    async def follow(self) -> AsyncGenerator[pb.ContainerEventResponse]:
        """Events as they come, without an end."""
        after, problem = time.time_ns(), ""
        while True:
            try:
                async with self._engine.events(_FILTERS, since_of(after)) as events:
                    problem = ""
                    async for event in events:
                        if event.time_nano > after:
                            after = event.time_nano
                            if (shown := await self._show(event)) is not None:
                                yield shown
            except EngineError as error:
                if error.message != problem:
                    log.warning("cannot follow the events of Docker Engine; it is tried again", error=error)
                problem = error.message
            await asyncio.sleep(RECONNECT_S)

    async def _show(self, event: docker.DockerEvent) -> pb.ContainerEventResponse | None:
        """An event in the form of the CRI; None if the container is none of ours."""
        own = event.actor.attributes or {}
        kind, kind_of_event = own.get(labels.TYPE), _TYPES.get(event.action)
        is_own = kind in (*labels.ContainerKind,) and begins_with(own.get("name", ""), labels.NAMES)
        if not is_own or kind_of_event is None:
            return None
        sandbox_id = event.actor.id if kind == labels.ContainerKind.SANDBOX else own.get(labels.SANDBOX_ID, "")
        shown = pb.ContainerEventResponse(
            container_id=event.actor.id, container_event_type=kind_of_event, created_at=event.time_nano
        )
        try:
            shown.pod_sandbox_status.CopyFrom(await self._sandboxes.status(sandbox_id))
            for item in await self._containers.list(pb.ContainerFilter(pod_sandbox_id=sandbox_id)):
                is_changed = item.id == event.actor.id
                status = self._containers.status_and_log if is_changed else self._containers.status
                shown.containers_statuses.append(await status(item.id))
        except (EngineError, RpcError) as error:
            log.debug("an event without the statuses of its pod", id=event.actor.id, error=error)
        return shown


def since_of(time_ns: int) -> str:
    """A time as Docker takes it. Pure."""
    return f"{time_ns // 10**9}.{time_ns % 10**9:09d}"
