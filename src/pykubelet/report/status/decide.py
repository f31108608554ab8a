"""Decides the next step for one pod's status, and when it is due. Pure; `now` is monotonic seconds.

Rules, in their order:
1. Until the runtime was listed, the pod was read, and `act/pods` has a worker for it, the status from before the agent's restart stays
   published: a container that runs may have a hook that is still to be run. A static pod without such a status, which another
   agent may have started, waits for that and for the results of its probes at most FIRST_LOOK_S.
2. A desired pod is projected when `act/pods` works with its newest manifest, so that the first status already shows the
   result of admission. `act/pods` publishes a lifecycle after it has started the pod's work, because that work goes first.
   Without such a lifecycle, the status is projected `take_up_s` after the manifest arrived.
3. Most resizes end within RESIZE_S. One that has just begun is awaited so long, and after a new view until `act/pods` has seen it, so
   that it is one change of the status.
4. A pod that has ended in the API, and has nothing in the runtime, keeps its status from the API.
5. A change that cannot alter the status is not projected (`changes`). A snapshot that is older than the projected one is
   ignored.
6. A projection needs the name of the runtime for container IDs, and the termination messages of all exited containers.
7. A new instance may run before the exit status of the previous one is known. The status waits for it, at most
   EXIT_STATUS_S.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pykubelet.base.api.core import ContainerStatus, Pod, PodStatus
from pykubelet.base.kit.values import Value, changed_keys, field, replace
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.node import HandlerFeatures
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.phase import Phase, has_created_regular, pod_phase
from pykubelet.base.model.probes import ProbeKind, ProbeResults
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.roster import TERMINAL_PHASES, RosterPod, has_ended_in_api, is_quarantined, is_static, pod_ref
from pykubelet.base.model.sizing import PendingResize
from pykubelet.report.status.changes import (
    has_unread_message,
    is_absent,
    is_cleaned_up,
    is_complete,
    is_final,
    lifecycle_unchanged,
    starts_over,
    view_unchanged,
)
from pykubelet.report.status.device_health import NO_HEALTH, ContainerHealth

EXIT_STATUS_S = 5.0
FIRST_LOOK_S = 2.0
RESIZE_S = 0.05
RESIZE_VIEWS_S = 1.0


class SharedInputs(Value):
    """The inputs that are the same for all pods. `host_ips`: the node's. `runtime`: its name."""

    probes: ProbeResults = field(default_factory=ProbeResults)
    host_ips: tuple[str, ...] = ()
    runtime: str = ""
    handlers: Mapping[str, HandlerFeatures] = field(default_factory=dict)


class PodSnapshot(Value):
    """All current inputs of one pod's status.

    `entry` None: the pod is not desired any more. `lifecycle` None: `act/pods` has no worker for the pod yet. `view` None: the
    runtime's newest snapshot does not have the pod, or there is no snapshot. `listed_at`: as in `Observed`. `is_unread`: the
    runtime has the pod, but it was not read yet. `health`: of the devices of its containers.
    """

    pod: Pod
    entry: RosterPod | None
    lifecycle: PodLifecycle | None
    view: PodView | None
    listed_at: float | None
    is_unread: bool
    shared: SharedInputs
    health: ContainerHealth = NO_HEALTH


class Snapshot(Value):
    """The inputs of all pods' statuses, at one moment."""

    roster: Mapping[PodUID, RosterPod] = field(default_factory=dict)
    lifecycles: Mapping[PodUID, PodLifecycle] = field(default_factory=dict)
    observed: Observed = field(default_factory=Observed)
    shared: SharedInputs = field(default_factory=SharedInputs)
    health: Mapping[PodUID, ContainerHealth] = field(default_factory=dict)

    def has(self, uid: PodUID) -> bool:
        """True for a pod that is desired or has a lifecycle."""
        return uid in self.lifecycles or uid in self.roster

    def pod(self, uid: PodUID) -> PodSnapshot | None:
        """The inputs of one pod; None for a pod that is neither desired nor has a lifecycle."""
        entry, lifecycle = self.roster.get(uid), self.lifecycles.get(uid)
        if lifecycle is not None:
            pod = lifecycle.pod
        elif entry is not None:
            pod = entry.pod
        else:
            return None
        seen = self.observed
        view, health = seen.pods.get(uid), self.health.get(uid, NO_HEALTH)
        return PodSnapshot(pod, entry, lifecycle, view, seen.listed_at, seen.is_unread(uid), self.shared, health)

    def changed_since(self, before: Snapshot) -> list[PodUID]:
        """The pods that have changed inputs or are gone; may contain duplicates."""
        if self.shared is not before.shared:
            return [*self.lifecycles, *self.roster, *before.lifecycles, *before.roster]
        return [
            *changed_keys(before.lifecycles, self.lifecycles),
            *changed_keys(before.roster, self.roster),
            *changed_keys(before.observed.pods, self.observed.pods),
            *changed_keys(before.health, self.health),
        ]


class Projected(Value):
    """The inputs that one status was made from. `pending`: a requested size that is not allocated. `health`: of devices."""

    pod: Pod
    lifecycle: PodLifecycle
    view: PodView | None
    shared: SharedInputs
    pending: PendingResize | None = None
    health: ContainerHealth = NO_HEALTH


class PodRecord(Value):
    """The state of one pod between passes. Times are monotonic seconds.

    `made_from`: the inputs of `status`, None before the first projection. `not_before`: snapshots of the runtime that began
    earlier show the pod before it started again. `remembered`: the status from before the agent's restart, while there is no
    newer one. `entry`, `entry_since`: the newest manifest, and when it arrived. `between_since`: since when the exit status of
    a replaced instance is missing. `is_reading`: its termination messages are being read.
    """

    made_from: Projected | None = None
    status: PodStatus = field(default_factory=PodStatus)
    not_before: float = 0.0
    remembered: PodStatus | None = None
    entry: RosterPod | None = None
    entry_since: float = 0.0
    between_since: float | None = None
    is_reading: bool = False

    @property
    def newest(self) -> PodStatus | None:
        """The status to publish; None while there is none."""
        return self.status if self.made_from is not None else self.remembered

    @property
    def is_remembered(self) -> bool:
        """True while the newest status is the one from before the agent's restart."""
        return self.made_from is None and self.remembered is not None

    def reflects(self, view: PodView | None) -> bool:
        """True if the status was made from this snapshot of the runtime, or needs none."""
        if self.made_from is None:
            return False
        return self.made_from.view is view or (is_absent(self.made_from.view) and is_absent(view))


class Keep(Value):
    """Publish nothing now."""

    record: PodRecord


class Publish(Value):
    """Publish `record.newest`."""

    record: PodRecord


class Defer(Value):
    """Decide again at `until` (monotonic seconds), or at the next change of an input."""

    record: PodRecord
    until: float


class ReadMessages(Value):
    """Read the termination messages of this snapshot, then decide again."""

    record: PodRecord
    view: PodView


class Project(Value):
    """Make a status from `inputs` and the previous status `old`, and publish it. `record`: the record before this step."""

    record: PodRecord
    inputs: Projected
    old: PodStatus | None


Step = Keep | Publish | Defer | ReadMessages | Project


def plan_status(
    record: PodRecord, pod: PodSnapshot, read: Collection[ContainerID], now: float, take_up_s: float
) -> Step:
    """The next step for a pod. `read`: the containers whose termination messages are known."""
    if pod.entry is not record.entry:
        record = replace(record, entry=pod.entry, entry_since=now)
    made_from = record.made_from
    before = _status_before_restart(record, pod.pod)
    is_unseen = pod.listed_at is None or pod.is_unread
    if made_from is None and before is not None and (is_unseen or _is_about_to_be_taken_up(pod)):
        return Publish(replace(record, remembered=before))
    if (
        made_from is None
        and before is None
        and (is_unseen or pod.shared.probes.learning)
        and _may_run(record, pod, now)
    ):
        return Defer(record, record.entry_since + FIRST_LOOK_S)
    if _awaits_take_up(pod) and now < record.entry_since + take_up_s:
        return Defer(record, record.entry_since + take_up_s)
    if (until := _resize_awaited_until(record, pod, take_up_s)) > now:
        return Defer(record, until)
    lifecycle = _lifecycle(record, pod)
    if _rests(record, pod):
        return Publish(_with_api_status(record, pod, lifecycle))
    if made_from is not None and pod.entry is None and is_complete(record.status, lifecycle):
        return Keep(record)
    is_new_life = made_from is not None and starts_over(made_from.lifecycle, lifecycle)
    if is_new_life:
        made_from = Projected(pod.pod, lifecycle, None, pod.shared)
        record = replace(record, made_from=made_from, status=PodStatus(), not_before=now)
    pending = pod.entry.pending if pod.entry is not None else None
    inputs = Projected(pod.pod, lifecycle, _newest_view(record, pod, lifecycle), pod.shared, pending, pod.health)
    if made_from is not None and not is_new_life and _same_status(record.status, made_from, inputs):
        return Keep(replace(record, made_from=inputs))
    return _plan_projection(record, inputs, read, now)


def _plan_projection(record: PodRecord, inputs: Projected, read: Collection[ContainerID], now: float) -> Step:
    """Rules 6 and 7."""
    view = inputs.view
    if view is not None and not view.is_gone and not inputs.shared.runtime:
        return Keep(record)
    if view is not None and has_unread_message(view, read):
        return ReadMessages(record, view)
    if view is None or not view.is_between:
        record = replace(record, between_since=None) if record.between_since is not None else record
    else:
        since = now if record.between_since is None else record.between_since
        record = replace(record, between_since=since)
        if now - since < EXIT_STATUS_S:
            return Defer(record, since + EXIT_STATUS_S)
    return Project(record, inputs, _old_status(record, inputs.pod, view))


def with_status(step: Project, status: PodStatus) -> PodRecord:
    """The record with the status that the step's projection has made."""
    return replace(step.record, made_from=step.inputs, status=status, remembered=None)


def without_pod(record: PodRecord) -> PodRecord | None:
    """The record of a pod that is neither desired nor has a lifecycle, but may still appear; None: there is nothing to keep."""
    return PodRecord(remembered=record.remembered) if record.remembered is not None else None


def _may_run(record: PodRecord, pod: PodSnapshot, now: float) -> bool:
    """Whether a pod without a status may run already, started by another agent: one of the API server would have a status."""
    return pod.entry is not None and is_static(pod.pod) and now < record.entry_since + FIRST_LOOK_S


def _is_about_to_be_taken_up(pod: PodSnapshot) -> bool:
    """True if only the pod worker, which starts with this snapshot, knows the state of the containers."""
    if pod.entry is None or is_quarantined(pod.entry) or is_absent(pod.view):
        return False
    return pod.lifecycle is None or not pod.lifecycle.has_worker


def _awaits_take_up(pod: PodSnapshot) -> bool:
    """True if `act/pods` does not have the newest manifest yet. A pod that is being killed needs no newer one."""
    if pod.entry is None:
        return False
    if pod.lifecycle is None:
        return True
    return pod.lifecycle.kill_reason is None and pod.lifecycle.pod is not pod.entry.pod


def _resize_awaited_until(record: PodRecord, pod: PodSnapshot, take_up_s: float) -> float:
    """Until when a resize that may end soon is awaited, so that the whole of it is one change; 0.0 if there is none.

    It is awaited for a moment after its start, while nothing else has happened, and in its first second until `act/pods` has seen the
    newest view.
    """
    before, life, view = record.made_from, pod.lifecycle, pod.view
    if before is None or before.view is None or life is None or view is None:
        return 0.0
    if life.resize is None or life.resize.error or life.kill_reason is not None:
        return 0.0
    if view is not before.view:
        return min(view.read_at + take_up_s, record.entry_since + RESIZE_VIEWS_S)
    return record.entry_since + RESIZE_S if pod.shared is before.shared and pod.health == before.health else 0.0


def _lifecycle(record: PodRecord, pod: PodSnapshot) -> PodLifecycle:
    """The pod's lifecycle; until `act/pods` has one, a placeholder that stays the same object."""
    if pod.lifecycle is not None:
        return pod.lifecycle
    if record.made_from is not None and record.made_from.pod is pod.pod:
        return record.made_from.lifecycle
    assert pod.entry is not None
    seen_at = pod.entry.seen_at
    return PodLifecycle(pod_ref(pod.pod), pod.pod, Stage.SYNCING, seen_at, seen_at)


def _rests(record: PodRecord, pod: PodSnapshot) -> bool:
    """True if the pod has ended in the API and the runtime has nothing of it that could change its status."""
    if is_static(pod.pod) or not has_ended_in_api(pod.pod):
        return False
    return is_absent(pod.view) and (record.made_from is None or is_absent(record.made_from.view))


def _with_api_status(record: PodRecord, pod: PodSnapshot, lifecycle: PodLifecycle) -> PodRecord:
    made_from = record.made_from
    if made_from is not None and made_from.lifecycle is lifecycle and made_from.pod is pod.pod:
        return record
    keeps = made_from is not None and record.status.phase in TERMINAL_PHASES
    status = record.status if keeps else pod.pod.status
    inputs = Projected(pod.pod, lifecycle, None, pod.shared)
    return replace(record, made_from=inputs, status=status, not_before=0.0, remembered=None)


def _newest_view(record: PodRecord, pod: PodSnapshot, lifecycle: PodLifecycle) -> PodView | None:
    """The newest snapshot of the pod, never older than the projected one. None: the runtime was not read yet."""
    view, listed_at = pod.view, pod.listed_at
    if record.made_from is None:
        existed = listed_at is not None and _status_before_restart(record, pod.pod) is not None
        return PodView(lifecycle.ref, read_at=listed_at or 0.0) if view is None and existed else view
    projected = record.made_from.view
    if projected is None:
        return view if view is not None and view.read_at >= record.not_before else None
    if view is None and listed_at is not None and listed_at > projected.read_at and not projected.is_gone:
        return PodView(projected.ref, read_at=listed_at)
    return projected if view is None or view.read_at < projected.read_at else view


def _same_status(status: PodStatus, before: Projected, now: Projected) -> bool:
    """True if the inputs `now` lead to the same status as the inputs `before`."""
    if before.pod is not now.pod or before.pending is not now.pending or before.health != now.health:
        return False
    is_same = view_unchanged(before.view, now.view) or is_cleaned_up(before.view, now.view, before.lifecycle)
    is_same = is_same or is_final(status, now.lifecycle)
    is_same = is_same and lifecycle_unchanged(before.lifecycle, now.lifecycle, now.view)
    return is_same and _shared_unchanged(now.view, before.shared, now.shared)


def _shared_unchanged(view: PodView | None, before: SharedInputs, now: SharedInputs) -> bool:
    """True if the change of the shared inputs does not affect a pod with this snapshot."""
    if before is now:
        return True
    if (before.host_ips, before.runtime, before.handlers) != (now.host_ips, now.runtime, now.handlers):
        return False
    if (before.probes.watched, before.probes.keeps) != (now.probes.watched, now.probes.keeps):
        return False
    return view is None or all(
        before.probes.get(c.id, kind) is now.probes.get(c.id, kind)
        and before.probes.is_known(c.id, kind) is now.probes.is_known(c.id, kind)
        for c in view.containers
        for kind in ProbeKind
    )


def _old_status(record: PodRecord, pod: Pod, view: PodView | None) -> PodStatus | None:
    """The previous status for the projection of the next one; None: there is none.

    For a static pod, a terminal status from before the agent's restart counts only if the runtime also shows the end.
    Otherwise the pod starts again, like one whose manifest was removed and added again meanwhile.
    """
    if record.made_from is not None:
        return record.status if record.status.phase else None
    old = _status_before_restart(record, pod)
    if old is None or not is_static(pod):
        return old
    if old.phase not in (Phase.SUCCEEDED, Phase.FAILED):
        return replace(
            old, initContainerStatuses=tuple(_without_unsure_end(s, pod, view) for s in old.initContainerStatuses)
        )
    is_over = view is not None and view.containers and pod_phase(pod, view, {}, ended=False).is_terminal
    return old if is_over else None


def _without_unsure_end(status: ContainerStatus, pod: Pod, view: PodView | None) -> ContainerStatus:
    """The previous status of a static pod's init container, without a state that may not be its last one.

    No API server confirms the state of one without an instance: it may have succeeded since, unless it is a sidecar, or no
    regular container came after it.
    """
    end = status.state.terminated if status.state is not None else None
    is_last = end is not None and (
        any(c.name == status.name and is_sidecar(c) for c in pod.spec.initContainers)
        or not has_created_regular(pod, view)
    )
    is_there = view is not None and any(c.name == status.name for c in view.containers)
    return status if is_there or is_last else replace(status, state=None, containerID="")


def _status_before_restart(record: PodRecord, pod: Pod) -> PodStatus | None:
    """The status from before the agent's restart: from the journal of this node, else from the API server.

    After a power cut, the journal may lack the newest statuses. Then that of the API server has come further.
    """
    kept = record.remembered
    if is_static(pod) or not (pod.status.startTime or has_ended_in_api(pod)):
        return kept
    return pod.status if kept is None or _progress(pod.status) > _progress(kept) else kept


def _progress(status: PodStatus) -> tuple[bool, int, str]:
    """How far a pod has come, greater in a later status: whether it has ended, its restarts, and the newest date in its status.

    Dates alone do not show which is later, because the clock may have been set back. As in the API, they sort as text.
    """
    restarts = sum(s.restartCount for s in (*status.initContainerStatuses, *status.containerStatuses))
    return status.phase in TERMINAL_PHASES, restarts, _newest_date(status)


def _newest_date(status: PodStatus) -> str:
    dates = [condition.lastTransitionTime for condition in status.conditions]
    for container in (*status.initContainerStatuses, *status.containerStatuses):
        for state in (container.state, container.lastState):
            if state is None:
                continue
            dates.append(state.running.startedAt if state.running is not None else "")
            dates += (state.terminated.startedAt, state.terminated.finishedAt) if state.terminated is not None else ()
    return max(dates, default="")
