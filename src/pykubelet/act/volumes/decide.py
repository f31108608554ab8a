"""Decides what to do next with the pods' volumes: (state, event, now) -> (state, commands). Pure.

Rules:
 1. A pod that is desired, admitted and not terminating needs its volumes. A terminating pod keeps the volumes it has. A pod
    whose containers have ended gives up its volumes; an unknown pod gives up its directory too. Until all sources are ready,
    no pod counts as unknown.
 2. No volume is unmounted under running containers, nor before the first list of the runtime's pods.
 3. One operation per volume at a time; the pod's directory is removed only when no volume is left, and nothing is set
    up while it is being removed.
 4. A failed operation is tried again after 500 ms, doubling to 2 min 2 s. An operation without a result leaves its volume
    uncertain: the volume may be mounted, so it is set up again or torn down like a mounted one. A changed need resets the
    back-off.
 5. Two volumes of a pod that claim the same persistent volume share its directory, and one operation at a time works on it.
    A persistent volume for one pod alone is set up when no other pod may have it mounted.
 6. A refused volume gets one Event. It is tried again only when the pod, the node, or the content it is made from changes.
    When a plugin comes, changes or goes, volumes of drivers are tried again at once.
    A mounted volume stays as it is when its new content is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, assert_never

from pykubelet.act.volumes.claims import claim_of
from pykubelet.act.volumes.kind import SET_UP, InPlacePlan, Plan, RefusedPlan, UndecidedPlan, VolumePlan
from pykubelet.act.volumes.model import (
    BUSY,
    Command,
    DirectoryMade,
    DirectoryRemoved,
    Event,
    FoundPod,
    FoundVolume,
    Inputs,
    InputsChanged,
    MakePodDirectory,
    Moment,
    MountPhase,
    PodDirectory,
    PodVolumes,
    RecordEvent,
    RemovePodDirectory,
    Result,
    Scan,
    ScanFailed,
    Scanned,
    SetUp,
    SetUpEnded,
    State,
    TearDown,
    TearDownEnded,
    TimerFired,
    VolumeFailure,
    VolumeNeed,
    VolumeState,
)
from pykubelet.act.volumes.needs import (
    affected,
    changed_pods,
    is_alive,
    is_running,
    is_same_pod,
    need_of,
    served,
    spec_of,
)
from pykubelet.act.volumes.plan import has_subpaths, plan_volume
from pykubelet.act.volumes.project import is_ready, missing_volumes, project_pod
from pykubelet.act.volumes.registry import kind_named, kind_of, volume_keys
from pykubelet.act.volumes.sharing import IN_USE, is_directory_busy, is_used_by_other, waiting_for_volume
from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import replace
from pykubelet.base.model import reasons
from pykubelet.base.model.content import ContentKey
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import warning
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.needs import used_volumes
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.roster import pod_ref

T = TypeVar("T")
RETRY = BackoffPolicy(initial_s=0.5, cap_s=122.0)
REMIND_AFTER_S = 123.0


def step(state: State, event: Event, now: Moment, paths: Paths) -> tuple[State, list[Command]]:
    """The next state and the commands. `state.mounts` is published; `state.pods` is the same object when no pod changed."""
    changed = changed_pods(state, event.inputs) if isinstance(event, InputsChanged) else set()
    if isinstance(event, InputsChanged) and not changed:
        return replace(state, inputs=event.inputs), []
    this = _Step(state, now, paths)
    match event:
        case InputsChanged():
            this.inputs_changed(event.inputs, changed)
        case SetUpEnded():
            this.set_up_ended(event)
        case TearDownEnded():
            this.tear_down_ended(event)
        case DirectoryMade():
            this.directory_made(event)
        case DirectoryRemoved():
            this.directory_removed(event)
        case Scanned():
            this.scanned(event.found)
        case ScanFailed():
            this.scan = _failure(state.scan, event.error, now)
            this.scanning = False
        case TimerFired():
            this.timer_fired(event.scan)
        case _:
            assert_never(event)
    return this.end(), this.commands


def next_timer(state: State, now: Moment) -> float | None:
    """When `TimerFired` is next due, in monotonic seconds after `now`; None when nothing waits for a time.

    A retry that is overdue is left out: it waits for something else, such as the end of running containers.
    """
    times = [state.scan.retry_at] if state.scan is not None else []
    for due in state.timed.values():
        times.extend(due)
    return min((time for time in times if time is not None and time > now.mono), default=None)


def _times(pod: PodVolumes) -> tuple[float, ...]:
    """When the pod's retries, its repeated set-ups and its next Event about missing volumes are due, in monotonic seconds."""
    failures = (pod.directory_failure, *(volume.failure for volume in pod.volumes.values()))
    again = (volume.again_at for volume in pod.volumes.values())
    times = (pod.remind_at, *again, *(failure.retry_at for failure in failures if failure is not None))
    return tuple(time for time in times if time is not None)


def _failure(last: VolumeFailure | None, error: str, now: Moment) -> VolumeFailure:
    delay = RETRY.next_s(last.delay_s if last is not None else 0.0)
    since = last.since if last is not None else now.wall
    return VolumeFailure(error, since, delay, now.mono + delay, now.wall + delay)


class _Step:
    """One run of `step`: collects the changed pods and the commands."""

    def __init__(self, state: State, now: Moment, paths: Paths) -> None:
        self.state = state
        self.now = now
        self.paths = paths
        self.inputs = state.inputs
        self.pods = dict(state.pods)
        self.commands: list[Command] = []
        self.touched: set[PodUID] = set()
        self.reconstructed = state.mounts.reconstructed
        self.scan = state.scan
        self.scanning = state.scanning

    def end(self) -> State:
        mounts = self.state.mounts
        views = dict(mounts.pods)
        differs = self.reconstructed != mounts.reconstructed
        for uid in self.touched:
            pod = self._with_reminder(uid)
            view = project_pod(pod, self.now.wall) if pod is not None else None
            if views.get(uid) == view:
                continue
            differs = True
            if view is None:
                del views[uid]
            else:
                views[uid] = view
        if differs:
            mounts = Mounts(views, self.reconstructed)
        return State(self.pods, self.inputs, mounts, self.scan, self.scanning, self._timed())

    def _timed(self) -> Mapping[PodUID, tuple[float, ...]]:
        before = self.state.timed
        due = {uid: times for uid in self.touched if (pod := self.pods.get(uid)) and (times := _times(pod))}
        if not due and before.keys().isdisjoint(self.touched):
            return before
        return {uid: times for uid, times in before.items() if uid not in self.touched} | due

    # Events

    def inputs_changed(self, new: Inputs, changed: set[PodUID]) -> None:
        self.inputs = new
        node_changed, remade = self.state.inputs.node is not new.node, affected(self.state, new)
        for uid in remade:
            pod = self.pods[uid]
            self.pods[uid] = replace(pod, keys=self._keys(pod.pod)) if pod.pod is not None else pod
        again = served(self.state, new)
        for uid in again:
            self.pods[uid] = _with_due_failures(self.pods[uid], self.now)
        for uid in sorted(changed):
            self.advance(uid, "changed", afresh=node_changed or uid in remade or uid in again)

    def timer_fired(self, scan: bool) -> None:
        scan_due = self.scan is not None and _is_due(self.scan, self.now)
        if (scan or scan_due) and not self.scanning:
            self.scanning = True
            self.commands.append(Scan("safety net" if self.scan is None else "failed before"))
        for uid, pod in list(self.pods.items()):
            if (
                pod.remind_at is not None
                or pod.directory_failure is not None
                or any(v.failure or _is_again_due(v, self.now) for v in pod.volumes.values())
            ):
                self.advance(uid, "retry")

    def scanned(self, found: tuple[FoundPod, ...]) -> None:
        first = not self.reconstructed
        self.reconstructed, self.scan, self.scanning = True, None, False
        for one in found:
            pod = self.pods.get(one.uid)
            if pod is None:
                self.pods[one.uid] = self._with_found(
                    PodVolumes(one.uid, VolumeNeed.KEPT, directory=PodDirectory.MADE), one.volumes
                )
            elif first and pod.need is not VolumeNeed.NEEDED and pod.directory is not PodDirectory.REMOVING:
                self.pods[one.uid] = self._with_found(pod, one.volumes)
            else:
                continue
            self.advance(one.uid, "found on disk")
        if first:
            for uid in list(self.pods):
                self.advance(uid, "the disk was read")

    def set_up_ended(self, event: SetUpEnded) -> None:
        pod, volume = self._busy_volume(event.uid, event.key, (MountPhase.SETTING_UP, MountPhase.REFRESHING))
        refreshing, is_late = volume.phase is MountPhase.REFRESHING, volume.is_late
        volume = replace(volume, is_late=False)
        if event.result is Result.DONE:
            assert isinstance(volume.plan, VolumePlan)
            again = self.now.mono + volume.plan.repeat_s if volume.plan.repeat_s else None
            volume = replace(
                volume, phase=MountPhase.MOUNTED, mounted=volume.plan.mounted, failure=None, again_at=again
            )
            if pod.directory is PodDirectory.UNKNOWN and _makes_directory(volume):
                pod = replace(pod, directory=PodDirectory.MADE, directory_failure=None)
        else:
            failed = MountPhase.FAILED if event.result is Result.FAILED else MountPhase.UNCERTAIN
            phase = MountPhase.MOUNTED if refreshing else failed
            volume = replace(volume, phase=phase, failure=_failure(volume.failure, event.error, self.now))
            self._record_failed_mount(pod, volume.name, event.error, event.step)
        self._put(pod, event.key, volume)
        self.advance(event.uid, "set up", afresh=is_late)

    def tear_down_ended(self, event: TearDownEnded) -> None:
        pod, volume = self._busy_volume(event.uid, event.key, (MountPhase.TEARING_DOWN,))
        if event.result is Result.DONE:
            self._put(pod, event.key, None)
            for other, key in waiting_for_volume(self.pods, volume):
                self._put(self.pods[other], key, replace(self.pods[other].volumes[key], failure=None))
                self.advance(other, "volume is free")
        else:
            failure = None if pod.need is VolumeNeed.NEEDED else _failure(volume.failure, event.error, self.now)
            self._put(pod, event.key, replace(volume, phase=MountPhase.UNCERTAIN, mounted=None, failure=failure))
        self.advance(event.uid, "torn down")

    def directory_made(self, event: DirectoryMade) -> None:
        pod = self._pod_with_directory(event.uid, PodDirectory.MAKING)
        if event.result is Result.DONE:
            pod = replace(pod, directory=PodDirectory.MADE, directory_failure=None)
        else:
            pod = replace(
                pod,
                directory=PodDirectory.UNKNOWN,
                directory_failure=_failure(pod.directory_failure, event.error, self.now),
            )
            if pod.ref is not None:
                text = f"error making pod data directories: {event.error}"
                self.commands.append(RecordEvent(warning(reasons.EVENT_FAILED, text, pod.ref)))
        self.pods[event.uid] = pod
        self.advance(event.uid, "directory made")

    def directory_removed(self, event: DirectoryRemoved) -> None:
        pod = self._pod_with_directory(event.uid, PodDirectory.REMOVING)
        if event.result is Result.DONE and not event.left:
            if pod.need is VolumeNeed.ORPHANED:
                self.pods.pop(event.uid)
                self.touched.add(event.uid)
                return
            pod = replace(pod, directory=PodDirectory.UNKNOWN, directory_failure=None)
        else:
            error = event.error or "volumes are still there"
            failure = None if pod.need is VolumeNeed.NEEDED else _failure(pod.directory_failure, error, self.now)
            pod = replace(pod, directory=PodDirectory.UNKNOWN, directory_failure=failure)
            if pod.need is not VolumeNeed.NEEDED:
                pod = self._with_found(pod, event.left)
        self.pods[event.uid] = pod
        self.advance(event.uid, "directory removed")

    # Decisions

    def advance(self, uid: PodUID, cause: str, afresh: bool = False) -> None:
        """Bring one pod closer to its need. `afresh`: something that its plans depend on may have changed."""
        need = need_of(uid, self.inputs)
        known = self.pods.get(uid)
        if known is None and need is not VolumeNeed.NEEDED:
            return
        pod = known if known is not None else PodVolumes(uid, need)
        spec = spec_of(uid, self.inputs)
        if spec is not None and (pod.pod is None or not is_same_pod(pod.pod, spec)):
            pod, afresh = replace(pod, pod=spec, ref=pod_ref(spec), keys=self._keys(spec)), True
        if need is not pod.need:
            volumes = {key: replace(state, failure=None) for key, state in pod.volumes.items()}
            pod = replace(pod, need=need, volumes=volumes, directory_failure=None)
        match need:
            case VolumeNeed.NEEDED:
                pod = self._provide(pod, cause, afresh)
            case VolumeNeed.KEPT:
                pass
            case VolumeNeed.RELEASED | VolumeNeed.ORPHANED:
                pod = self._give_up(pod, cause)
            case _:
                assert_never(need)
        self.pods[uid] = pod
        self.touched.add(uid)

    def _keys(self, spec: Pod) -> frozenset[ContentKey]:
        content = self.inputs.content
        return frozenset(key for volume in used_volumes(spec) for key in volume_keys(spec, volume, content))

    def _provide(self, pod: PodVolumes, cause: str, afresh: bool) -> PodVolumes:
        if pod.directory is PodDirectory.REMOVING or pod.pod is None:
            return pod
        volumes = dict(pod.volumes)
        pod = replace(pod, volumes=volumes)  # a claim that is used twice is set up once
        assert pod.pod is not None
        for wanted in used_volumes(pod.pod):
            present = volumes.get(wanted.name) or VolumeState(wanted.name, MountPhase.NEW, self.now.wall)
            volumes[wanted.name] = self._provide_volume(pod, wanted, present, cause, afresh)
        comes_with_one = any(_brings_directory(v) for v in volumes.values())
        if pod.directory is PodDirectory.UNKNOWN and not comes_with_one and _is_due(pod.directory_failure, self.now):
            self.commands.append(MakePodDirectory(pod.uid, cause))
            pod = replace(pod, directory=PodDirectory.MAKING)
        return pod

    def _provide_volume(
        self, pod: PodVolumes, wanted: Volume, state: VolumeState, cause: str, afresh: bool
    ) -> VolumeState:
        assert pod.pod is not None
        if state.phase in BUSY:
            return replace(state, is_late=True) if afresh else state
        waits_for_change = state.failure is not None and state.failure.retry_at is None
        refused = waits_for_change or isinstance(state.plan, (RefusedPlan, UndecidedPlan))
        if not _is_due(state.failure, self.now) and not (refused and afresh):
            return state
        if state.phase is MountPhase.MOUNTED and _needs_refresh(state) is None:
            return state
        again = _is_again_due(state, self.now)
        if state.phase is MountPhase.MOUNTED and not afresh and not again and state.failure is None:
            return state
        inputs = self.inputs
        plan = plan_volume(pod.pod, wanted, inputs.node, inputs.content, self.paths, inputs.plugins)
        if state.phase is MountPhase.MOUNTED:
            return self._refresh_volume(pod, state, plan)
        if state.phase is MountPhase.NEW:  # so that scans recognize it even without a plan
            state = replace(state, name=wanted.name, plugin=kind_of(wanted).directory)
        match plan:
            case RefusedPlan():
                return replace(state, plan=plan, failure=self._refused(pod, state, plan))
            case UndecidedPlan():
                return replace(state, plan=plan, failure=None)
        failure = None if waits_for_change else state.failure
        state = replace(state, name=plan.spec_name, plugin=_directory(plan), plan=plan, failure=failure)
        if is_directory_busy(pod.volumes, wanted.name, state):
            return state
        if plan.mounted.is_of_one_pod and (not self.reconstructed or self.inputs.observed.listed_at is None):
            return state  # it is not known yet which pods have the volume
        if plan.mounted.is_of_one_pod and self._is_in_use(pod, wanted, state):
            self._record_failed_mount(pod, state.name, IN_USE, SET_UP)
            return replace(state, failure=_failure(state.failure, IN_USE, self.now))
        if isinstance(plan, InPlacePlan):
            return replace(state, phase=MountPhase.MOUNTED, mounted=plan.mounted, failure=None)
        self.commands.append(SetUp(pod.uid, wanted.name, plan, cause))
        return replace(state, phase=MountPhase.SETTING_UP)

    def _is_in_use(self, pod: PodVolumes, wanted: Volume, state: VolumeState) -> bool:
        """Whether another pod may have the persistent volume mounted, or runs and had it when the agent was started."""
        assert pod.pod is not None
        claim = claim_of(pod.pod, wanted)
        others = (other for uid, other in self.pods.items() if uid != pod.uid and claim in other.keys)
        return is_used_by_other(self.pods, pod.uid, state) or any(is_running(one.uid, self.inputs) for one in others)

    def _refresh_volume(self, pod: PodVolumes, state: VolumeState, plan: Plan) -> VolumeState:
        """Set a mounted volume up again if its kind asks for that. A refused plan leaves the volume mounted as it is (rule 6)."""
        match plan:
            case RefusedPlan():
                return replace(state, failure=self._refused(pod, state, plan))
            case VolumePlan() if isinstance(state.plan, VolumePlan) and state.plan.kind == plan.kind:
                failed = state.failure is not None and state.failure.retry_at is not None
                needs_refresh, again = _needs_refresh(state), _is_again_due(state, self.now)
                if not (failed or again) and (needs_refresh is None or not needs_refresh(state.plan, plan)):
                    return replace(state, failure=None)
                self.commands.append(SetUp(pod.uid, state.name, plan, "repeated" if again else "content changed"))
                return replace(state, phase=MountPhase.REFRESHING, plan=plan, again_at=None)
        return state

    def _refused(self, pod: PodVolumes, state: VolumeState, plan: RefusedPlan) -> VolumeFailure:
        """The failure of a refused volume. Repeated refusals with the same error record one Event."""
        if state.failure is not None and state.failure.error == plan.error and state.failure.retry_at is None:
            return state.failure
        if plan.step:
            self._record_failed_mount(pod, plan.spec_name or state.name, plan.error, plan.step)
        else:
            self._record_missing(pod, [state.name], plan.error)
        return VolumeFailure(plan.error, self.now.wall)

    def _give_up(self, pod: PodVolumes, cause: str) -> PodVolumes:
        if is_running(pod.uid, self.inputs):
            return pod
        volumes: dict[str, VolumeState] = {}
        for key, state in pod.volumes.items():
            if state.phase in BUSY:
                volumes[key] = state
            elif state.phase is MountPhase.NEW or not _needs_tear_down(pod, key, state):
                continue
            elif _is_due(state.failure, self.now) and not is_directory_busy({**pod.volumes, **volumes}, key, state):
                self.commands.append(TearDown(pod.uid, key, state.plugin, state.name, cause))
                volumes[key] = replace(state, phase=MountPhase.TEARING_DOWN, mounted=None)
            else:
                volumes[key] = state
        pod = replace(pod, volumes=volumes)
        idle = pod.directory is PodDirectory.UNKNOWN or pod.directory is PodDirectory.MADE
        gone = pod.need is VolumeNeed.ORPHANED and not volumes and not is_alive(pod.uid, self.inputs)
        if gone and idle and _is_due(pod.directory_failure, self.now):
            self.commands.append(RemovePodDirectory(pod.uid, cause))
            pod = replace(pod, directory=PodDirectory.REMOVING)
        return pod

    def _with_reminder(self, uid: PodUID) -> PodVolumes | None:
        """Record the Event about missing volumes if it is due; return the pod with the time of the next one."""
        pod = self.pods.get(uid)
        if pod is None:
            return None
        waiting = pod.need is VolumeNeed.NEEDED and not is_ready(pod)
        if not waiting:
            after = None
        elif pod.remind_at is None:
            after = self.now.mono + REMIND_AFTER_S
        elif self.now.mono >= pod.remind_at:
            after = self.now.mono + REMIND_AFTER_S
            self._record_missing(pod, [], "context deadline exceeded")
        else:
            after = pod.remind_at
        if after != pod.remind_at:
            pod = replace(pod, remind_at=after)
            self.pods[uid] = pod
        return pod

    # Helpers

    def _record_missing(self, pod: PodVolumes, unknown: list[str], error: str) -> None:
        """Record which volumes are missing. `unknown`: those of which it is not known what to mount."""
        names = " ".join(sorted(missing_volumes(pod)))
        text = (
            f"Unable to attach or mount volumes: unmounted volumes=[{names}], unattached volumes=[], "
            f"failed to process volumes=[{' '.join(unknown)}]: {error}"
        )
        self.commands.append(RecordEvent(warning(reasons.EVENT_FAILED_MOUNT, text, pod.ref)))

    def _record_failed_mount(self, pod: PodVolumes, name: str, error: str, step: str) -> None:
        text = f'MountVolume.{step} failed for volume "{name}" : {error}'
        self.commands.append(RecordEvent(warning(reasons.EVENT_FAILED_MOUNT, text, pod.ref)))

    def _with_found(self, pod: PodVolumes, found: tuple[FoundVolume, ...]) -> PodVolumes:
        volumes = dict(pod.volumes)
        for one in found:
            key = one.name if one.name not in volumes else f"{one.plugin}/{one.name}"
            same = any(v.name == one.name and v.plugin == one.plugin for v in volumes.values())
            if not same and key not in volumes:
                volumes[key] = VolumeState(one.name, MountPhase.UNCERTAIN, self.now.wall, one.plugin)
        return replace(pod, volumes=volumes)

    def _put(self, pod: PodVolumes, key: str, volume: VolumeState | None) -> None:
        volumes = dict(pod.volumes)
        if volume is None:
            del volumes[key]
        else:
            volumes[key] = volume
        self.pods[pod.uid] = replace(pod, volumes=volumes)

    def _busy_volume(self, uid: PodUID, key: str, phases: tuple[MountPhase, ...]) -> tuple[PodVolumes, VolumeState]:
        pod = self.pods.get(uid)
        volume = pod.volumes.get(key) if pod is not None else None
        if pod is None or volume is None or volume.phase not in phases:
            raise RuntimeError(f"an operation ended that was not begun: pod {uid}, volume {key}, now {pod}")
        return pod, volume

    def _pod_with_directory(self, uid: PodUID, expected: PodDirectory) -> PodVolumes:
        pod = self.pods.get(uid)
        if pod is None or pod.directory is not expected:
            raise RuntimeError(f"the directory of pod {uid} was not {expected}, now {pod}")
        return pod


def _is_due(failure: VolumeFailure | None, now: Moment) -> bool:
    return failure is None or (failure.retry_at is not None and now.mono >= failure.retry_at)


def _is_again_due(volume: VolumeState, now: Moment) -> bool:
    return volume.again_at is not None and now.mono >= volume.again_at


def _with_due_failures(pod: PodVolumes, now: Moment) -> PodVolumes:
    """The pod whose volumes are tried again now, because a driver has come."""
    volumes = {
        key: replace(state, failure=replace(state.failure, retry_at=now.mono))
        if state.failure is not None and state.failure.retry_at is not None
        else state
        for key, state in pod.volumes.items()
    }
    return replace(pod, volumes=volumes)


def _directory(plan: VolumePlan) -> str:
    """The directory below the pod's `volumes`, "" for kinds without one."""
    return kind_named(plan.kind).directory


def _needs_refresh(volume: VolumeState) -> Callable[[VolumePlan, VolumePlan], bool] | None:
    """`VolumeKind.needs_refresh` of a volume that was planned."""
    return kind_named(volume.plan.kind).needs_refresh if isinstance(volume.plan, VolumePlan) else None


def _makes_directory(volume: VolumeState) -> bool:
    """Whether the volume's set-up also makes the pod's directory: true for volumes that are below it."""
    return volume.plugin != "" and isinstance(volume.plan, VolumePlan)


def _brings_directory(volume: VolumeState) -> bool:
    """Whether a set-up that makes the pod's directory runs, or begins as soon as its content is known."""
    return isinstance(volume.plan, UndecidedPlan) or (volume.phase in BUSY and _makes_directory(volume))


def _needs_tear_down(pod: PodVolumes, key: str, volume: VolumeState) -> bool:
    """Whether anything of the volume `key` may be on the host."""
    return volume.plugin != "" or pod.pod is None or volume.plan is None or has_subpaths(pod.pod, key)
