"""Looks at the runtime: one pod, or all. Asks for the status only of what is new or has changed.

An exited container never changes again, and a running one changes only by ending, so a list tells which statuses are
worth a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.observed import ContainerView, PodView, SandboxView, Started
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.observe.pleg.views import (
    container_view,
    pod_of,
    pod_view,
    sandbox_view,
    started_view,
    state_of,
    updated_view,
)

#: A pod's sandboxes and containers as listed, without their statuses.
ListedPod = tuple[list[pb.PodSandbox], list[pb.Container]]


async def read_pod(cri: CriClient, clock: Clock, ref: PodRef, known: PodView | None) -> PodView:
    """One pod as it is now. Raises CriError."""
    read_at = clock.monotonic()
    sandboxes, containers = await asyncio.gather(cri.list_pod_sandboxes(uid=ref.uid), cri.list_containers(uid=ref.uid))
    return await _complete(cri, ref, sandboxes, containers, known, read_at)


async def read_started(cri: CriClient, clock: Clock, ref: PodRef, started: Started, known: PodView | None) -> PodView:
    """A pod of which nothing is new but these containers, and perhaps their sandbox. Raises CriError."""
    read_at = clock.monotonic()
    before = known if known is not None else PodView(ref)
    home = next((s for s in before.sandboxes if s.id == started.sandbox), started.seen)
    is_known = home is not None and home.ready and bool(home.ips)
    try:
        asked, containers = await asyncio.gather(
            asyncio.gather(*(() if is_known else (cri.pod_sandbox_status(started.sandbox),))),
            asyncio.gather(*(cri.container_status(container) for container in started.containers)),
        )
    except CriError as error:
        if error.is_not_found:
            return await read_pod(cri, clock, ref, known)
        raise
    homes = [sandbox_view(s.status, s.status) for s in asked] if home is None or asked else [home]
    sandboxes = (*(s for s in before.sandboxes if s.id != started.sandbox), *homes)
    old = (c for c in before.containers if c.id not in started.containers)
    new = [started_view(c.status, started.sandbox) for c in containers]
    return pod_view(ref, sandboxes, (*old, *new), read_at)


async def list_pods(cri: CriClient, clock: Clock) -> tuple[float, dict[PodRef, ListedPod]]:
    """What there is, by pod, and when the look began; no statuses yet. Raises CriError."""
    read_at = clock.monotonic()
    sandboxes, containers = await asyncio.gather(cri.list_pod_sandboxes(), cri.list_containers())
    pods: dict[PodRef, ListedPod] = {}
    for sandbox in sandboxes:
        if ref := pod_of(sandbox.labels):
            pods.setdefault(ref, ([], []))[0].append(sandbox)
    for container in containers:
        if ref := pod_of(container.labels):
            pods.setdefault(ref, ([], []))[1].append(container)
    return read_at, pods


def ids_of(pods: Iterable[ListedPod]) -> set[str]:
    """Of all sandboxes and containers in a list."""
    return {s.id for sandboxes, _ in pods for s in sandboxes} | {c.id for _, containers in pods for c in containers}


def is_unchanged(known: PodView, sandboxes: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> bool:
    """Whether a list shows nothing that the known view does not."""
    if len(known.sandboxes) != len(sandboxes) or len(known.containers) != len(containers):
        return False
    ready = {str(s.id): s.ready for s in known.sandboxes}
    states = {str(c.id): c.state for c in known.containers}
    return all(ready.get(s.id) == (s.state == pb.SANDBOX_READY) for s in sandboxes) and all(
        states.get(c.id) is state_of(c) for c in containers
    )


async def complete_pod(
    cri: CriClient,
    ref: PodRef,
    listed: ListedPod,
    known: PodView | None,
    read_at: float,
) -> PodView:
    """The view of a pod that a list has shown, with the statuses that are missing. Raises CriError."""
    return await _complete(cri, ref, listed[0], listed[1], known, read_at)


async def _complete(
    cri: CriClient,
    ref: PodRef,
    sandboxes: Sequence[pb.PodSandbox],
    containers: Sequence[pb.Container],
    known: PodView | None,
    read_at: float,
) -> PodView:
    old_sandboxes = {str(s.id): s for s in known.sandboxes} if known else {}
    old_containers = {str(c.id): c for c in known.containers} if known else {}
    sandbox_views, container_views = await asyncio.gather(
        asyncio.gather(*(_sandbox(cri, s, old_sandboxes.get(s.id)) for s in sandboxes)),
        asyncio.gather(*(_container(cri, c, old_containers.get(c.id)) for c in containers)),
    )
    return pod_view(ref, sandbox_views, (c for c in container_views if c is not None), read_at)


async def _sandbox(cri: CriClient, sandbox: pb.PodSandbox, old: SandboxView | None) -> SandboxView:
    ready = sandbox.state == pb.SANDBOX_READY
    if old is not None and old.ready == ready and (old.ips or not ready):
        return old
    if old is not None and not ready:
        # a stopped sandbox tells nothing new, and no address any more: the pod's status keeps the last one
        return replace(old, ready=False)
    try:
        response = await cri.pod_sandbox_status(sandbox.id)
    except CriError as error:
        if error.is_not_found:
            return sandbox_view(sandbox, None)
        raise
    return sandbox_view(sandbox, response.status)


async def _container(cri: CriClient, container: pb.Container, old: ContainerView | None) -> ContainerView | None:
    if old is not None and old.state is state_of(container):
        return old
    try:
        response = await cri.container_status(container.id)
    except CriError as error:
        if error.is_not_found:
            return None
        raise
    return container_view(container, response.status)


async def read_exit(cri: CriClient, view: PodView, container: str) -> ContainerView | None:
    """One container of a known pod as it is now; None when the view does not have it. Raises CriError."""
    known = next((c for c in view.containers if c.id == container), None)
    if known is None:
        return None
    status = (await cri.container_status(container)).status
    return updated_view(known, status)


def find_pod(pods: dict[PodUID, PodView], runtime_id: str) -> PodUID | None:
    """The pod that a container or sandbox id belongs to."""
    for uid, view in pods.items():
        for sandbox in view.sandboxes:
            if sandbox.id == runtime_id:
                return uid
        for container in view.containers:
            if container.id == runtime_id:
                return uid
    return None
