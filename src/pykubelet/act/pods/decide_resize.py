"""What a change of a pod's size means to its machine. Pure; part of `decide`.

Rules:
- What each container instance was given is remembered from its start on; who was adopted running has the pod's size, or
  the one of before if the pod was given its size after that container was created.
- A new size is under way until all that runs has it. A size that is given meanwhile takes its place.
- What could not be done is tried again after a pause; every new reason is reported once, and so is the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.act.pods.model import RESIZE, Command, PodState, ReportResize, SyncEnded, Work
from pykubelet.act.runtime.plan.plan import PodPlan
from pykubelet.act.runtime.plan.plan_resize import Applied, is_under_way
from pykubelet.base.api.core import Pod, ResourceRequirements
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.observed import ContainerView
from pykubelet.base.model.sizing import ResizeProgress, same_size, size_of


def resized_spec(state: PodState, pod: Pod) -> PodState:
    """The state when the pod comes in another size than before; `state.pod` is still the old one."""
    if same_size(size_of(state.pod), size_of(pod)):
        return state
    return replace(state, resize=ResizeProgress(pod.metadata.generation or 0))


def with_instances(state: PodState) -> PodState:
    """Know of each instance of the newest look what it was given."""
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


def _first_whole(state: PodState, here: Iterable[ContainerView]) -> ResourceRequirements | None:
    """What the pod as a whole had been given before this agent started."""
    adopted = state.adopted_size
    if adopted is not None and any(container.created_at / 1e9 < adopted.at for container in here):
        return adopted.before.whole
    return state.pod.spec.resources


def _first_given(
    state: PodState, container: ContainerView, sizes: dict[str, ResourceRequirements]
) -> ResourceRequirements:
    if container.name in state.starting:
        return state.starting[container.name]
    adopted = state.adopted_size
    if adopted is not None and container.created_at / 1e9 < adopted.at and container.name in adopted.before.containers:
        return adopted.before.containers[container.name]
    return sizes[container.name]


def with_starts(state: PodState, plan: PodPlan) -> PodState:
    """A sync is about to begin: whatever it starts has the pod's size of this moment."""
    sizes = size_of(state.pod).containers
    starting = {**state.starting, **{name: sizes[name] for name in plan.starts if name in sizes}}
    applied = replace(state.applied, whole=state.pod.spec.resources) if plan.create_sandbox else state.applied
    return replace(state, starting=starting, applied=applied)


def without_held_resize(state: PodState, plan: PodPlan, now: float, wakes: list[float]) -> PodPlan:
    """The plan without a resize that has failed just now; `wakes` gets the time of the next try."""
    again = state.retry_at.get(RESIZE, now)
    if again <= now or not plan.resize_pod:
        return plan
    wakes.append(again)
    return replace(plan, resizes=(), resize_pod=False)


def resize_ended(state: PodState, ended: SyncEnded) -> tuple[PodState, tuple[Command, ...]]:
    """Take over what a sync has resized, and report a new reason why it could not."""
    if ended.resized is not None:
        given = {**state.applied.containers, **ended.resized.containers}
        state = replace(state, applied=Applied(given, ended.resized.whole))
    progress = state.resize
    if progress is None or progress.error == ended.resize_error or not ended.resize_error:
        return state, ()
    progress = replace(progress, error=ended.resize_error)
    return replace(state, resize=progress), (ReportResize(state.pod, progress, "resize failed"),)


def with_progress(state: PodState, cause: str) -> tuple[PodState, tuple[Command, ...]]:
    """Whether a new size is under way, after any event."""
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
