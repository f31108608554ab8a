"""Decisions of the pod state machine about resizes. Pure; part of `decide`.

Rules:
- The state keeps the resources of each container instance from its start on. A running container that was adopted has the
  pod's size. If the pod was resized after the container was created, it has the size before the resize.
- A resize is in progress until all running containers have the new size. A newer size replaces it.
- A failed resize is tried again after a pause. Each new reason is reported once, and so is the completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.act.pods.backoff import START_RETRY_S
from pykubelet.act.pods.model import Command, PodWorkerState, ReportResize, SyncEnded, Work
from pykubelet.act.runtime.plan.plan import PodPlan
from pykubelet.act.runtime.plan.plan_resize import Applied, is_under_way
from pykubelet.base.api.core import Pod, ResourceRequirements
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.observed import ContainerView
from pykubelet.base.model.sizing import ResizeProgress, same_size, size_of


def resized_spec(state: PodWorkerState, pod: Pod) -> PodWorkerState:
    """The state after the pod's size may have changed; `state.pod` is still the old pod."""
    if same_size(size_of(state.pod), size_of(pod)):
        return state
    return replace(state, resize=ResizeProgress(pod.metadata.generation or 0))


def with_instances(state: PodWorkerState) -> PodWorkerState:
    """The state with the resources of each instance in the newest view."""
    if state.view is None:
        return state
    here = {c.id: c for c in state.view.containers}
    if here.keys() == state.applied.containers.keys():
        return state
    if here and state.applied == Applied():
        state = replace(state, applied=Applied(whole=_first_whole(state, here.values())))
    sizes = size_of(state.pod).containers
    given = {}
    for instance, container in here.items():
        known = state.applied.containers.get(instance)
        if known is not None or container.name in sizes:
            given[instance] = known if known is not None else _first_given(state, container, sizes)
    if given == state.applied.containers:
        return state
    return replace(state, applied=replace(state.applied, containers=given))


def _first_whole(state: PodWorkerState, here: Iterable[ContainerView]) -> ResourceRequirements | None:
    """The pod-level resources that were applied before this agent started."""
    adopted = state.adopted_size
    if adopted is not None and any(container.created_at / 1e9 < adopted.at for container in here):
        return adopted.before.whole
    return state.pod.spec.resources


def _first_given(
    state: PodWorkerState, container: ContainerView, sizes: Mapping[str, ResourceRequirements]
) -> ResourceRequirements:
    if container.name in state.starting:
        return state.starting[container.name]
    adopted = state.adopted_size
    if adopted is not None and container.created_at / 1e9 < adopted.at and container.name in adopted.before.containers:
        return adopted.before.containers[container.name]
    return sizes[container.name]


def with_starts(state: PodWorkerState, plan: PodPlan) -> PodWorkerState:
    """Note, before a sync, that the containers it starts get the pod's current size."""
    sizes = size_of(state.pod).containers
    starting = {**state.starting, **{name: sizes[name] for name in plan.starts if name in sizes}}
    applied = replace(state.applied, whole=state.pod.spec.resources) if plan.create_sandbox else state.applied
    return replace(state, starting=starting, applied=applied)


def without_held_resize(state: PodWorkerState, plan: PodPlan, now: float, wakes: list[float]) -> PodPlan:
    """The plan without a resize that is waiting for its retry. Appends the time of the retry to `wakes`."""
    again = state.resize_retry_at
    if again is None or again <= now or not plan.resize_pod:
        return plan
    wakes.append(again)
    return replace(plan, resizes=(), resize_pod=False)


def resize_ended(state: PodWorkerState, ended: SyncEnded, now: float) -> tuple[PodWorkerState, tuple[Command, ...]]:
    """Record the resources that a sync has applied, and report a new reason for a failure."""
    if ended.resized is not None:
        given = {**state.applied.containers, **ended.resized.containers}
        state = replace(state, applied=Applied(given, ended.resized.whole))
    state = replace(state, resize_retry_at=now + START_RETRY_S if ended.resize_error else None)
    progress = state.resize
    if progress is None or progress.error == ended.resize_error or not ended.resize_error:
        return state, ()
    progress = replace(progress, error=ended.resize_error)
    return replace(state, resize=progress), (ReportResize(state.pod, progress, "resize failed"),)


def with_progress(state: PodWorkerState, cause: str) -> tuple[PodWorkerState, tuple[Command, ...]]:
    """Update the progress of a resize after any event, and report its completion."""
    if state.stage is not Stage.SYNCING:
        return (replace(state, resize=None), ()) if state.resize is not None else (state, ())
    if state.view is None:
        return state, ()
    if is_under_way(state.pod, state.view, state.applied):
        if state.resize is None:
            state = replace(state, resize=ResizeProgress(state.pod.metadata.generation or 0))
        return state, ()
    is_known = state.work is Work.NONE and state.view is not None and state.view.read_at >= state.read_after
    if state.resize is None or not is_known:
        return state, ()
    done = replace(state.resize, error="")
    return replace(state, resize=None), (ReportResize(state.pod, done, cause),)
