"""Decides on the first state and the first events of a pod's worker, and on the events of changes of a running one. Pure.

Times are monotonic seconds unless a name has `wall` in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.act.pods.decide import MIN_GRACE_S
from pykubelet.act.pods.model import (
    Event,
    KillOrder,
    KillRequested,
    PodSizes,
    PodWorkerState,
    RuntimeChanged,
    SpecChanged,
)
from pykubelet.act.runtime.render.render_config import RestoredContainer, restored_container
from pykubelet.base.api.core import Container, Lifecycle, ObjectMeta, Pod, PodSpec
from pykubelet.base.api.times import parse_time, wall_to_monotonic
from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import PodEviction
from pykubelet.base.model.lifecycle import KillReason, Stage, StatusOverride
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.phase import Phase
from pykubelet.base.model.reasons import PREEMPTING
from pykubelet.base.model.restart import NEVER
from pykubelet.base.model.roster import (
    Rejection,
    RosterPod,
    has_ended_in_api,
    is_static,
    pod_ref,
)

ORPHAN_GRACE_S = 1

#: The first state of a worker, and its first events.
Start = tuple[PodWorkerState, tuple[Event, ...]]


def desired_start(entry: RosterPod, view: PodView | None, at: float, wall: float) -> Start:
    """The start of a desired pod's worker, which adopts the pod's sandboxes and containers in the runtime.

    `at`, `wall`: the current time on the monotonic and the wall clock.
    """
    ref, pod = pod_ref(entry.pod), entry.pod
    dates = _earlier_starts(entry, view)
    state = PodWorkerState(
        ref=ref,
        pod=pod,
        stage=Stage.SYNCING,
        started_wall=min((entry.seen_at, *dates)),
        active_since=min((wall_to_monotonic(date, at, wall) for date in dates), default=at),
        view=view if view is not None else PodView(ref, read_at=at),
        sizes=PodSizes.of_adopted(pod, entry.change),
    )
    has_ended = has_ended_in_api(pod)
    if has_ended and (view is None or not view.is_alive):
        kill = KillOrder(KillReason.COMPLETED, MIN_GRACE_S)
        state = replace(state, stage=Stage.TERMINATED, kill=kill, terminal=True)
    events: list[Event] = []
    if entry.rejection is not None:  # the first event, so that no work begins
        events.append(_refusal(entry.rejection))
    elif pod.metadata.deletionTimestamp or has_ended:
        events.append(SpecChanged(pod, "deleted or ended in the API"))
    if view is not None:
        events.append(RuntimeChanged(view, wall, "found running"))
    else:
        events.append(RuntimeChanged(PodView(ref, read_at=at), wall, "new pod"))
    return state, tuple(events)


def orphan_start(view: PodView, wall: float) -> Start:
    """The start of the worker of a pod that only the runtime knows: the worker kills the pod."""
    state = PodWorkerState(ref=view.ref, pod=orphan_pod(view), stage=Stage.SYNCING, started_wall=wall, view=view)
    return state, (KillRequested(KillReason.ORPHANED, "found running, not desired", ORPHAN_GRACE_S),)


def update_events(before: RosterPod | None, entry: RosterPod) -> tuple[Event, ...]:
    """The events of a running worker whose pod has a new roster entry. `before` None: it was an orphan."""
    if entry.rejection is not None and (before is None or before.rejection is None):
        return (_refusal(entry.rejection),)
    changed = SpecChanged(entry.pod, "manifest changed")
    if before is not None and before.seen_at != entry.seen_at and is_static(entry.pod):
        return KillRequested(KillReason.REMOVED, "it was away and has come back"), changed
    return (changed,)


def eviction_event(eviction: PodEviction) -> KillRequested:
    """The kill of a pod that the node evicts or shuts down. The pod fails, unless all its containers exit with 0, even if they
    do so when they are stopped."""
    override = StatusOverride(Phase.FAILED, eviction.reason, eviction.message, unless_succeeded=True)
    reason = KillReason.EVICTED if eviction.disrupts else KillReason.REJECTED
    reason = KillReason.SHUTDOWN if eviction.for_shutdown else reason
    return KillRequested(reason, eviction.reason, eviction.grace_s, override)


def _refusal(rejection: Rejection) -> KillRequested:
    """The kill of a pod that the node rejects, or that a pod of higher priority preempts."""
    if rejection.reason == PREEMPTING:
        override = StatusOverride(Phase.FAILED, rejection.reason, rejection.message, unless_succeeded=True)
        return KillRequested(KillReason.EVICTED, "preempted", override=override)
    override = StatusOverride(Phase.FAILED, rejection.reason, f"Pod was rejected: {rejection.message}")
    return KillRequested(KillReason.REJECTED, "rejected by the node", override=override)


def _earlier_starts(entry: RosterPod, view: PodView | None) -> tuple[float, ...]:
    """The pod's start times from before the agent's restart, by its status and its sandboxes, in wall seconds."""
    start_time = entry.pod.status.startTime
    sandboxes = view.sandboxes if view is not None else ()
    dates = (parse_time(start_time),) if start_time else ()
    return (*dates, *(sandbox.created_at / 1e9 for sandbox in sandboxes if sandbox.created_at))


def orphan_pod(view: PodView) -> Pod:
    """A pod with what is needed to stop it: names, grace periods, preStop hooks with their ports, termination message paths.

    None of its containers is ever started again.
    """
    newest = [container for name in dict.fromkeys(c.name for c in view.containers) if (container := view.newest(name))]
    restored = {container.name: restored_container(container.annotations) for container in newest}
    return Pod(
        metadata=ObjectMeta(
            name=view.ref.name,
            namespace=view.ref.namespace,
            uid=view.ref.uid,
            deletionGracePeriodSeconds=_first(known.deletion_grace_s for known in restored.values()),
        ),
        spec=PodSpec(
            containers=tuple(_container(name, known) for name, known in restored.items()),
            restartPolicy=NEVER,
            terminationGracePeriodSeconds=_first(known.termination_grace_s for known in restored.values()),
        ),
    )


def _container(name: str, restored: RestoredContainer) -> Container:
    return Container(
        name=name,
        ports=restored.ports,
        lifecycle=Lifecycle(preStop=restored.pre_stop) if restored.pre_stop is not None else None,
        terminationMessagePath=restored.termination_message_path,
        terminationMessagePolicy=restored.termination_message_policy,
    )


def _first(found: Iterable[int | None]) -> int | None:
    return next((seconds for seconds in found if seconds is not None), None)
