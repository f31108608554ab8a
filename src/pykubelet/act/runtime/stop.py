"""Stopping containers and sandboxes, and removing them.

Owns: the order in which a pod's containers end (regular ones together, then sidecars in reverse order, KEP-753), and
what of the grace period each still has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.model.fieldpath import container_field_path
from pykubelet.base.model.happenings import Happening, normal
from pykubelet.base.model.ids import ContainerID, PodRef
from pykubelet.base.model.labels import CONTAINER_NAME
from pykubelet.base.model.reasons import EVENT_KILLING
from pykubelet.base.model.restart import is_sidecar
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

log = Log("runtime")
MIN_STOP_S = 2


class ContainerStopper:
    """Each call raises CriError only for what it could not do; what is gone already is fine."""

    def __init__(self, cri: CriClient, clock: Clock, happenings: Post[Happening]) -> None:
        self._cri = cri
        self._clock = clock
        self._happenings = happenings

    async def stop_container(
        self, pod: Pod, ref: PodRef, name: str, container: ContainerID, grace_s: int, message: str = ""
    ) -> None:
        """Stop signal, then SIGKILL after the grace period (at least two seconds)."""
        text = message or f"Stopping container {name}"
        self._happenings.post(normal(EVENT_KILLING, text, ref, container_field_path(pod, name)))
        await self._gone_is_fine(self._cri.stop_container(container, max(MIN_STOP_S, grace_s)))

    async def stop_pod(self, pod: Pod, ref: PodRef, grace_s: int) -> None:
        """Stop all that runs of the pod within `grace_s`, then its sandboxes."""
        containers, sandboxes = await asyncio.gather(
            self._cri.list_containers(uid=ref.uid), self._cri.list_pod_sandboxes(uid=ref.uid)
        )
        alive = [c for c in containers if c.state in (pb.CONTAINER_RUNNING, pb.CONTAINER_UNKNOWN)]
        deadline = self._clock.monotonic() + grace_s
        for group in stop_order(pod, alive):
            left = max(0, round(deadline - self._clock.monotonic()))
            await _all(
                self.stop_container(pod, ref, _name(container), ContainerID(container.id), left) for container in group
            )
        await _all(self._gone_is_fine(self._cri.stop_pod_sandbox(s.id)) for s in sandboxes)

    async def still_running(self, ref: PodRef) -> list[str]:
        """Names of containers of the pod that still run."""
        running = pb.CONTAINER_RUNNING
        return [_name(c) for c in await self._cri.list_containers(uid=ref.uid, state=running)]

    async def remove_container(self, container: ContainerID) -> None:
        await self._gone_is_fine(self._cri.remove_container(container))

    async def remove_pod(self, ref: PodRef) -> None:
        """Remove all sandboxes of the pod with their containers, and containers whose sandbox is gone."""
        sandboxes = await self._cri.list_pod_sandboxes(uid=ref.uid)
        await _all(self._remove_sandbox(s.id) for s in sandboxes)
        left = await self._cri.list_containers(uid=ref.uid)
        await _all(self.remove_container(ContainerID(c.id)) for c in left)

    async def _remove_sandbox(self, sandbox: str) -> None:
        await self._gone_is_fine(self._cri.remove_pod_sandbox(sandbox))

    @staticmethod
    async def _gone_is_fine(call: Awaitable[None]) -> None:
        try:
            await call
        except CriError as error:
            if not error.is_not_found:
                raise


def stop_order(pod: Pod, alive: Sequence[pb.Container]) -> list[list[pb.Container]]:
    """Groups of containers that end together, in order: all but sidecars, then sidecars from the last to the first."""
    sidecars = [c.name for c in pod.spec.initContainers if is_sidecar(c)]
    groups = [[c for c in alive if _name(c) not in sidecars]]
    groups.extend([c for c in alive if _name(c) == name] for name in reversed(sidecars))
    return [group for group in groups if group]


def _name(container: pb.Container) -> str:
    return container.labels.get(CONTAINER_NAME) or container.metadata.name


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """Make all calls together, each to its end; then raise the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
