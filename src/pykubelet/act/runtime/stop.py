"""Stopping containers and sandboxes, and removing them.

Owns: the order in which a pod's containers end (regular ones together, then sidecars in reverse order, KEP-753), and
what of the grace period each still has. All preStop hooks run at once; the order holds for the stop signals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pykubelet.act.runtime.hooks import HookRunner
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.model.fieldpath import container_field_path, every_container
from pykubelet.base.model.happenings import Happening, normal, warning
from pykubelet.base.model.ids import ContainerID, PodRef, SandboxID
from pykubelet.base.model.labels import CONTAINER_NAME
from pykubelet.base.model.observed import ContainerState, PodView
from pykubelet.base.model.reasons import EVENT_FAILED_PRE_STOP_HOOK, EVENT_KILLING
from pykubelet.base.model.restart import is_sidecar
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

log = Log("runtime")
MIN_STOP_S = 2


@dataclass(frozen=True, slots=True)
class StopTarget:
    """One container to stop. `pod_ip`: for HTTP hooks, empty when it is not known."""

    pod: Pod
    ref: PodRef
    name: str
    container: ContainerID
    pod_ip: str = ""


@dataclass(frozen=True, slots=True)
class PodRemains:
    """What a stopped pod leaves in the runtime. `strays`: containers whose sandbox is gone already."""

    sandboxes: tuple[SandboxID, ...] = ()
    strays: tuple[ContainerID, ...] = ()


class ContainerStopper:
    """Each call raises CriError only for what it could not do; what is gone already is fine."""

    def __init__(self, cri: CriClient, hooks: HookRunner, clock: Clock, happenings: Post[Happening]) -> None:
        self._cri = cri
        self._hooks = hooks
        self._clock = clock
        self._happenings = happenings

    async def stop_container(
        self, target: StopTarget, grace_s: int, message: str = "", *, first: Sequence[asyncio.Event] = ()
    ) -> None:
        """preStop hook, stop signal, then SIGKILL: all within the grace period (the signal gets two seconds at least).

        `first`: what is to happen before the signal, while there is time.
        """
        path = container_field_path(target.pod, target.name)
        text = message or f"Stopping container {target.name}"
        self._happenings.post(normal(EVENT_KILLING, text, target.ref, path))
        began = self._clock.monotonic()
        if grace_s > 0:
            await self._pre_stop(target, grace_s, path)
        await _wait_for_all(first, began + grace_s - self._clock.monotonic())
        left = grace_s - round(self._clock.monotonic() - began)
        await self._gone_is_fine(self._cri.stop_container(target.container, max(MIN_STOP_S, left)))

    async def _pre_stop(self, target: StopTarget, grace_s: int, path: str) -> None:
        container = next((c for c in every_container(target.pod) if c.name == target.name), None)
        lifecycle = container.lifecycle if container is not None else None
        if container is None or lifecycle is None or lifecycle.preStop is None:
            return
        try:
            async with asyncio.timeout(grace_s):
                problem = await self._hooks.run(lifecycle.preStop, container, target.container, target.pod_ip)
        except TimeoutError:
            problem = f"preStop hook did not complete within the grace period of {grace_s} s"
        if problem:
            log.warning("preStop hook failed", pod=target.ref, container=target.name, error=problem)
            self._happenings.post(warning(EVENT_FAILED_PRE_STOP_HOOK, "PreStopHook failed", target.ref, path))

    async def stop_pod(
        self, pod: Pod, ref: PodRef, grace_s: int, pod_ip: str, known: PodView | None = None
    ) -> PodRemains:
        """Stop all that runs of the pod within `grace_s`, then its sandboxes; what there is left to remove.

        `known`: a look at the pod after which nothing was done to it; without one the runtime is asked.
        """
        containers: Sequence[pb.Container]
        sandboxes: Sequence[pb.PodSandbox]
        if known is not None:
            containers, sandboxes = _as_listed(known)
        else:
            containers, sandboxes = await asyncio.gather(
                self._cri.list_containers(uid=ref.uid), self._cri.list_pod_sandboxes(uid=ref.uid)
            )
        alive = [c for c in containers if c.state in (pb.CONTAINER_RUNNING, pb.CONTAINER_UNKNOWN)]
        targets = [StopTarget(pod, ref, _name(c), ContainerID(c.id), pod_ip) for c in alive]
        await self._stop_in_turns(targets, grace_s, stop_turns(pod, [target.name for target in targets]))
        await _all(self._gone_is_fine(self._cri.stop_pod_sandbox(s.id)) for s in sandboxes)
        ids = tuple(SandboxID(s.id) for s in sandboxes)
        strays = tuple(ContainerID(c.id) for c in containers if c.pod_sandbox_id not in ids)
        return PodRemains(ids, strays)

    async def _stop_in_turns(
        self, targets: Sequence[StopTarget], grace_s: int, turns: Mapping[str, Sequence[str]]
    ) -> None:
        """Stop all; who is not gone for an error keeps those that come after it waiting for all of the grace period."""
        gone = {target.name: asyncio.Event() for target in targets}

        async def stop(target: StopTarget) -> None:
            await self.stop_container(target, grace_s, first=[gone[name] for name in turns[target.name]])
            gone[target.name].set()

        await _all(stop(target) for target in targets)

    async def remove_container(self, container: ContainerID) -> None:
        await self._gone_is_fine(self._cri.remove_container(container))

    async def remove_pod(self, ref: PodRef, remains: PodRemains | None = None) -> None:
        """Remove the sandboxes with their containers, and strays. `remains` None: look what there is."""
        if remains is None:
            containers, sandboxes = await asyncio.gather(
                self._cri.list_containers(uid=ref.uid), self._cri.list_pod_sandboxes(uid=ref.uid)
            )
            ids = tuple(SandboxID(s.id) for s in sandboxes)
            remains = PodRemains(ids, tuple(ContainerID(c.id) for c in containers if c.pod_sandbox_id not in ids))
        await _all(self._remove_sandbox(sandbox) for sandbox in remains.sandboxes)
        await _all(self.remove_container(stray) for stray in remains.strays)

    async def _remove_sandbox(self, sandbox: str) -> None:
        await self._gone_is_fine(self._cri.remove_pod_sandbox(sandbox))

    @staticmethod
    async def _gone_is_fine(call: Awaitable[None]) -> None:
        try:
            await call
        except CriError as error:
            if not error.is_not_found:
                raise


def stop_turns(pod: Pod, alive: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Whom each container that is alive lets end first: a sidecar all regular ones, and the sidecars behind it."""
    sidecars = [c.name for c in pod.spec.initContainers if is_sidecar(c) and c.name in alive]
    regular = tuple(c.name for c in pod.spec.containers if c.name in alive)
    turns: dict[str, tuple[str, ...]] = dict.fromkeys(alive, ())
    for index, name in enumerate(sidecars):
        turns[name] = (*regular, *sidecars[index + 1 :])
    return turns


async def _wait_for_all(events: Sequence[asyncio.Event], limit_s: float) -> None:
    """Wait until all are set, at most `limit_s` seconds."""
    if all(event.is_set() for event in events) or limit_s <= 0:
        return
    try:
        async with asyncio.timeout(limit_s):
            for event in events:
                await event.wait()
    except TimeoutError:
        return


def _as_listed(view: PodView) -> tuple[list[pb.Container], list[pb.PodSandbox]]:
    """A look at a pod, as far as stopping needs it, in the form of the runtime's lists."""
    states = {ContainerState.RUNNING: pb.CONTAINER_RUNNING, ContainerState.UNKNOWN: pb.CONTAINER_UNKNOWN}
    containers = [
        pb.Container(
            id=c.id,
            pod_sandbox_id=c.sandbox_id,
            metadata=pb.ContainerMetadata(name=c.name),
            state=states.get(c.state, pb.CONTAINER_EXITED),
        )
        for c in view.containers
    ]
    return containers, [pb.PodSandbox(id=s.id) for s in view.sandboxes]


def _name(container: pb.Container) -> str:
    return container.labels.get(CONTAINER_NAME) or container.metadata.name


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    """Make all calls together, each to its end; then raise the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
