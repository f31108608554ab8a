"""Reads one container, one pod, or a list of all from the runtime. Reads a status only if it may have changed.

An exited container never changes again but by an OOM kill that the runtime notes late (`exits.py`), and a running one changes only by
exiting or when the agent resizes it, so a list shows which statuses must be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView, SandboxView, Started
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.observe.pleg.views import (
    ListedPod,
    container_view,
    pod_of,
    pod_view,
    sandbox_view,
    started_view,
    state_of,
    updated_view,
)


async def read_pod(cri: CriClient, clock: Clock, ref: PodRef, known: PodView | None) -> PodView:
    """Read one pod. `known`: its last view; its statuses are used where they cannot have changed. Raises CriError."""
    read_at = clock.monotonic()
    sandboxes, containers = await asyncio.gather(cri.list_pod_sandboxes(uid=ref.uid), cri.list_containers(uid=ref.uid))
    return await _complete(cri, ref, sandboxes, containers, known, read_at)


async def read_started(cri: CriClient, clock: Clock, ref: PodRef, started: Started, known: PodView | None) -> PodView:
    """Read a pod in which only these containers, and perhaps their sandbox, are new: by ID, without a list. Raises CriError."""
    changed = (*started.containers, *started.resized)
    read_at = clock.monotonic()
    before = known if known is not None else PodView(ref)
    if any(c.id in started.ended and c.state is not ObservedState.EXITED for c in before.containers):
        return await read_pod(cri, clock, ref, known)  # their ends were not read yet
    sandbox = next((s for s in before.sandboxes if s.id == started.sandbox), started.seen)
    is_known = sandbox is not None and sandbox.ready and bool(sandbox.ips)
    try:
        statuses, containers = await asyncio.gather(
            asyncio.gather(*(() if is_known else (cri.pod_sandbox_status(started.sandbox),))),
            asyncio.gather(*(cri.container_status(container) for container in changed)),
        )
    except CriError as error:
        if error.is_not_found:
            return await read_pod(cri, clock, ref, known)
        raise
    read = [sandbox_view(s.status, s.status) for s in statuses] if sandbox is None or statuses else [sandbox]
    sandboxes = (*(s for s in before.sandboxes if s.id != started.sandbox), *read)
    old = (c for c in before.containers if c.id not in changed)
    new = [started_view(c.status, started.sandbox) for c in containers]
    return pod_view(ref, sandboxes, (*old, *new), read_at)


async def list_pods(cri: CriClient, clock: Clock) -> tuple[float, dict[PodRef, ListedPod]]:
    """The time when the list began (monotonic seconds), and sandboxes and containers by pod, without statuses. Raises CriError."""
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


async def complete_pod(
    cri: CriClient,
    ref: PodRef,
    listed: ListedPod,
    known: PodView | None,
    read_at: float,
) -> PodView:
    """The view of a listed pod. Reads the statuses that `known` does not have. Raises CriError."""
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
        # the status of a stopped sandbox has no addresses any more: keep the last ones
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
    """Read one container of a view; None if the view does not have it. Raises CriError."""
    known = next((c for c in view.containers if c.id == container), None)
    if known is None:
        return None
    status = (await cri.container_status(container)).status
    return updated_view(known, status)
