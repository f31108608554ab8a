"""Decides about the volumes of one pod: reads and changes the `VolumesStep` of a step. Pure. `decide.py` has the rules."""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.base.api.core import Volume
from pykubelet.base.kit.clock import Moment
from pykubelet.base.kit.flight import WORK
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.needs import volume_uses
from pykubelet.base.model.roster import pod_ref
from pykubelet.provide.volumes.decide_devices import release
from pykubelet.provide.volumes.decide_expansions import expand_mounted, first_expansion
from pykubelet.provide.volumes.kind import InPlacePlan, Plan, RefusedPlan, ResolvedVolume, UndecidedPlan, VolumePlan
from pykubelet.provide.volumes.model import (
    BUSY,
    UNUSED,
    CancelSetUp,
    ContextOutcome,
    CountContext,
    FoundPod,
    MakePodDirectory,
    MountPhase,
    Pass,
    PlanVolume,
    PodDirectory,
    PodVolumes,
    RemovePodDirectory,
    Result,
    SetUp,
    SetUpEnded,
    TearDown,
    TearDownEnded,
    VolumeFailure,
    VolumeNeed,
    VolumePlanned,
    VolumeState,
)
from pykubelet.provide.volumes.needs import (
    IN_USE,
    is_alive,
    is_directory_busy,
    is_running,
    is_same_pod,
    is_same_volume,
    need_of,
    spec_of,
)
from pykubelet.provide.volumes.plan import claim_of, directory_of, is_heavy, kind_named, kind_of_persistent, resolve
from pykubelet.provide.volumes.selinux import MULTIPLE, short_mode
from pykubelet.provide.volumes.work import (
    MAX_RUNNING,
    PodLook,
    VolumesStep,
    as_left,
    identity,
    is_due,
    next_failure,
    wants,
)


def advance_due(work: VolumesStep) -> None:
    """Decide about all pods that are due, and about those that become due by that."""
    while work.due:
        uid = next(iter(work.due))
        with WORK.on(uid):
            _advance(work, uid, work.due.pop(uid))


def _advance(work: VolumesStep, uid: PodUID, look: PodLook) -> None:
    """Bring one pod closer to its need."""
    need = need_of(uid, work.inputs)
    known = work.pods.get(uid)
    if known is None and need is not VolumeNeed.NEEDED:
        return
    if known is None:
        known = PodVolumes(uid, need)
        work.remake(known)
    spec = spec_of(uid, work.inputs)
    if spec is not None and (known.pod is None or not is_same_pod(known.pod, spec)):
        used = volume_uses(spec).used
        claims = frozenset(claim for volume in used.values() if (claim := claim_of(spec, volume)) is not None)
        known = replace(known, pod=spec, ref=pod_ref(spec), used=used, claims=claims, keys={})
        work.remake(known)
        look = replace(look, keys=None, afresh=True)
    if need is not known.need:
        for key, state in known.volumes.items():
            if state.failure is not None:
                work.put(uid, key, replace(state, failure=None))
        work.remake(replace(work.pods[uid], need=need, directory_failure=None))
        look = replace(look, keys=None)
    work.touched.add(uid)
    _look_at(work, uid, look)
    gives_up = need in (VolumeNeed.RELEASED, VolumeNeed.ORPHANED)
    if gives_up and work.index.waiting and not is_running(uid, work.inputs):
        _wake_waiting(work, uid)


def _look_at(work: VolumesStep, uid: PodUID, look: PodLook) -> None:
    """Look at the pod's volumes, as many as one step may, and at its directory."""
    pod, need = work.pods[uid], work.pods[uid].need
    work.unfinished.pop(uid, None)
    if need is VolumeNeed.KEPT:
        work.pods[uid] = replace(pod, todo=Pass())
        return
    if look.keys is None:
        todo = Pass(tuple(pod.used if need is VolumeNeed.NEEDED else pod.volumes), look.cause, look.afresh)
    else:
        todo = Pass((*look.keys, *pod.todo.keys), look.cause, look.afresh or pod.todo.afresh)
    if need is VolumeNeed.NEEDED:
        todo = _provide(work, uid, todo)
    else:
        todo = _give_up(work, uid, todo)
    work.pods[uid] = replace(work.pods[uid], todo=todo if todo.keys else Pass())
    waits = len(work.pods[uid].busy) >= MAX_RUNNING
    if todo.keys and not waits:
        work.unfinished[uid] = None  # behind the others


def found_on_disk(work: VolumesStep, found: tuple[FoundPod, ...], *, first: bool) -> None:
    """Take over the pods and volumes that a scan has found. `first`: it is the first scan since the start."""
    for found_pod in found:
        pod = work.pods.get(found_pod.uid)
        if pod is None:
            work.remake(PodVolumes(found_pod.uid, VolumeNeed.KEPT, directory=PodDirectory.MADE))
        elif not first or pod.directory is PodDirectory.REMOVING:
            continue
        work.add_found(found_pod.uid, found_pod.volumes)
        work.look(found_pod.uid, "found on disk", None)
    if first:
        for uid in work.pods:
            work.look(uid, "the disk was read", None)


def set_up_ended(work: VolumesStep, event: SetUpEnded) -> None:
    """Take the end of a set-up or refresh."""
    pod, volume = work.busy_volume(event.uid, event.key, (MountPhase.SETTING_UP, MountPhase.REFRESHING))
    refreshing, replan_needed = volume.phase is MountPhase.REFRESHING, volume.replan_needed
    volume = replace(volume, replan_needed=False, is_cancelled=False)
    if event.result is Result.DONE:
        plan = volume.plan
        assert isinstance(plan, VolumePlan)
        again = work.now.mono + plan.repeat_s if plan.repeat_s else None
        volume = replace(volume, phase=MountPhase.MOUNTED, mounted=plan.mounted, failure=None, again_at=again)
        volume = replace(volume, left_by_previous_run=False)
        volume = replace(volume, size=event.size or volume.size, expand_failure=None)
        if volume.is_block and not refreshing:
            work.record_mapped(pod, plan)
        if pod.directory is PodDirectory.UNKNOWN and _makes_directory(volume):
            work.pods[event.uid] = replace(pod, directory=PodDirectory.MADE, directory_failure=None)
    else:
        phase = MountPhase.MOUNTED if refreshing else _phase_after(event.result, volume)
        failure = _failure_after(event, volume, work.now) if wants(pod) or refreshing else None
        volume = replace(volume, phase=phase, failure=failure)
        if pod.need in (VolumeNeed.NEEDED, VolumeNeed.KEPT) and event.pending is None:
            work.record_failed_mount(pod, volume.name, event.error, event.step, is_block=volume.is_block)
    work.put(event.uid, event.key, volume)
    work.free_device(volume.device)
    work.look(event.uid, "set up", _with_same_directory(work, event.uid, event.key), afresh=replan_needed)


def tear_down_ended(work: VolumesStep, event: TearDownEnded) -> None:
    """Take the end of a tear-down."""
    pod, volume = work.busy_volume(event.uid, event.key, (MountPhase.TEARING_DOWN,))
    keys = _with_same_directory(work, event.uid, event.key)
    if event.result is Result.DONE:
        work.put(event.uid, event.key, None)
        work.touch_device(volume.device)
        release(work, volume.device, event.uid)
        _wake_waiting(work, event.uid)
    else:
        failure = None if wants(pod) else next_failure(volume.failure, event.error, work.now)
        work.put(event.uid, event.key, replace(volume, phase=MountPhase.UNCERTAIN, mounted=None, failure=failure))
    work.free_device(volume.device)
    work.look(event.uid, "torn down", keys)


def _with_same_directory(work: VolumesStep, uid: PodUID, key: str) -> tuple[str, ...]:
    """The volume, and the pod's other volumes with its directory, which may have waited for the end of an operation on it."""
    same = work.index.of_directory(work.pods[uid].volumes[key])
    return key, *(other for owner, other in same if owner == uid and other != key)


def use_devices(work: VolumesStep) -> None:
    """Set up the volumes whose device is staged and idle, and tear down those that waited for an operation on it."""
    for name in sorted(work.freed_devices):
        for uid, key in work.index.of_device(name):
            work.look(uid, "its device is free", (key,))


def is_again_due(volume: VolumeState, now: Moment) -> bool:
    """Whether a mounted volume is to be set up again."""
    return volume.again_at is not None and now.mono >= volume.again_at


def _failure_after(event: SetUpEnded, volume: VolumeState, now: Moment) -> VolumeFailure:
    """The failure of a set-up that did not succeed; for one that goes on in an extension, when to ask it again."""
    last, pending = volume.failure, event.pending
    if pending is None:
        return next_failure(last, event.error, now)
    since = last.since if last is not None and last.extension else now.wall
    again_s = pending.again_s
    return VolumeFailure(event.error, since, 0.0, now.mono + again_s, now.wall + again_s, pending.extension)


def _phase_after(result: Result, volume: VolumeState) -> MountPhase:
    """The phase of a volume that is not mounted, after a failed set-up."""
    if result is Result.TRANSIENT:
        return volume.before
    return MountPhase.FAILED if result is Result.FAILED and not volume.left_by_previous_run else MountPhase.UNCERTAIN


def _wake_waiting(work: VolumesStep, uid: PodUID) -> None:
    """Try the pods again that were refused a volume because the pod `uid` had it, if that holds no more."""
    for other, key in list(work.index.waiting):
        pod = work.pods[other]
        wanted, state = pod.used.get(key), pod.volumes[key]
        if other == uid or pod.pod is None or wanted is None:
            continue
        waits = isinstance(state.plan, VolumePlan) and work.context_problem(pod, state.plan) != ""
        if not waits and not _is_in_use(work, pod, wanted, state):
            work.put(other, key, replace(state, failure=None))
            work.look(other, "volume is free", (key,))


# Set-up


def _provide(work: VolumesStep, uid: PodUID, todo: Pass) -> Pass:
    """Look at volumes that the pod needs, and return what is left to look at."""
    pod = work.pods[uid]
    if pod.directory is PodDirectory.REMOVING or pod.pod is None:
        return Pass()  # all are looked at once the directory is gone
    done = 0
    for key in todo.keys:
        wanted = pod.used.get(key)
        if wanted is not None:
            if len(work.pods[uid].busy) >= MAX_RUNNING or work.plans_left <= 0 or work.looks_left <= 0:
                break
            work.looks_left -= 1
            present = work.pods[uid].volumes.get(key) or VolumeState(key, MountPhase.NEW, work.now.wall)
            if todo.afresh or present.phase is MountPhase.NEW:
                work.add_keys(uid, wanted)
            work.put(uid, key, _provide_volume(work, work.pods[uid], wanted, present, todo.cause, todo.afresh))
            _drop_found(work, uid, key)
        done += 1
    pod = work.pods[uid]
    is_missing = pod.directory is PodDirectory.UNKNOWN and is_due(pod.directory_failure, work.now)
    if is_missing and not any(map(_brings_directory, pod.volumes.values())):
        work.commands.append(MakePodDirectory(uid, todo.cause))
        work.pods[uid] = replace(pod, directory=PodDirectory.MAKING)
    return replace(todo, keys=todo.keys[done:])


def _drop_found(work: VolumesStep, uid: PodUID, key: str) -> None:
    """Forget a volume that was only known from the disk, because it is now known to be the pod's volume `key`."""
    pod = work.pods[uid]
    known = pod.volumes[key]
    if not pod.strays or not known.plugin or not isinstance(known.plan, VolumePlan):
        return
    other = pod.strays.get(identity(known))
    if other is not None and pod.volumes[other].phase not in BUSY:
        work.touch_device(pod.volumes[other].device)
        work.put(uid, other, None)
        work.put(uid, key, as_left(known))


def planned(work: VolumesStep, event: VolumePlanned) -> None:
    """Take a plan that was made in a thread. It counts even if something that it depends on has changed meanwhile: then it is made
    again after it was carried out."""
    pod = work.pods.get(event.uid)
    state = pod.volumes.get(event.key) if pod is not None else None
    if pod is None or state is None or state.planning is not event.request:
        return
    state, wanted = replace(state, planning=None), pod.used.get(event.key)
    if event.plan is None:
        state = replace(state, failure=next_failure(state.failure, "its plan could not be made", work.now))
    elif wanted is not None and wants(pod):
        state = _use_plan(work, pod, wanted, state, event.plan, "planned")
    replan_needed = state.replan_needed and state.phase not in BUSY
    work.put(event.uid, event.key, replace(state, replan_needed=False) if replan_needed else state)
    _drop_found(work, event.uid, event.key)
    work.look(event.uid, "planned", (event.key,) if replan_needed else (), afresh=replan_needed)


def _provide_volume(
    work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState, cause: str, afresh: bool
) -> VolumeState:
    assert pod.pod is not None
    if state.phase in BUSY or state.planning is not None:
        return replace(state, replan_needed=True) if afresh else state
    refused = _waits_for_change(state) or isinstance(state.plan, (RefusedPlan, UndecidedPlan))
    if not is_due(state.failure, work.now) and not (refused and afresh):
        return state
    again = is_again_due(state, work.now)
    if state.phase is MountPhase.MOUNTED and state.is_claimed:
        state = expand_mounted(work, pod, wanted, state)
        if state.phase is MountPhase.EXPANDING:
            return state
    if state.phase is MountPhase.MOUNTED and not _may_refresh(state, again=again, afresh=afresh):
        return state
    if state.phase is MountPhase.NEW:  # so that scans recognize it even without a plan
        state = replace(state, name=wanted.name, plugin=directory_of(wanted))
    if is_heavy(wanted):
        request = PlanVolume(pod.uid, wanted.name, pod.pod, wanted, work.inputs)
        work.commands.append(request)
        return replace(state, planning=request)
    return _use_plan(work, pod, wanted, state, work.plan(pod.pod, wanted), cause)


def _use_plan(
    work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState, plan: Plan, cause: str
) -> VolumeState:
    if state.phase is MountPhase.MOUNTED:
        return _refresh_volume(work, pod, wanted, state, plan)
    match plan:
        case RefusedPlan():
            return replace(state, plan=plan, failure=_refused(work, pod, wanted, state, plan))
        case UndecidedPlan():
            if plan.device is not None:
                state = replace(state, device=plan.device.name)
                work.want_device(plan.device)
            return replace(state, plan=plan, failure=None)
    return _begin_set_up(work, pod, wanted, _planned(work, pod, wanted, state, plan), plan, cause)


def _waits_for_change(state: VolumeState) -> bool:
    return state.failure is not None and state.failure.retry_at is None


def _count_context(work: VolumesStep, pod: PodVolumes, wanted: Volume, outcome: ContextOutcome) -> None:
    """Count a decision about the SELinux context of a persistent volume."""
    assert pod.pod is not None
    resolved = resolve(pod.pod, wanted, work.inputs.content)
    if not isinstance(resolved, ResolvedVolume):
        return
    spec = resolved.volume.spec
    kind = kind_of_persistent(spec)
    plugin = kind.plugin if kind is not None else ""
    plugin = f"{plugin}:{spec.csi.driver}" if spec.csi is not None else plugin
    work.commands.append(CountContext(outcome, plugin, short_mode(spec.accessModes)))


def _planned(work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState, plan: VolumePlan) -> VolumeState:
    """The state of a volume that can be set up. Its device is wanted."""
    work.touch_device(state.device)
    if plan.device is not None and plan.device.context and not isinstance(state.plan, VolumePlan):
        _count_context(work, pod, wanted, ContextOutcome.ADMITTED)
    if plan.device is not None:
        work.want_device(plan.device)
    return replace(
        state,
        name=plan.spec_name,
        plugin=_directory(plan),
        plan=plan,
        failure=None if _waits_for_change(state) else state.failure,
        device=plan.device.name if plan.device is not None else "",
        is_claimed=plan.mounted.spec_name != "",
        is_block=plan.mounted.is_block,
    )


def _begin_set_up(
    work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState, plan: VolumePlan, cause: str
) -> VolumeState:
    """Begin to set the volume up, unless it has to wait for an operation, its device, or another pod."""
    if is_directory_busy(pod, wanted.name, state):
        return state
    if plan.mounted.is_of_one_pod and (not work.reconstructed or work.inputs.observed.listed_at is None):
        return state  # it is not known yet which pods have the volume
    if plan.mounted.is_of_one_pod and _is_in_use(work, pod, wanted, state):
        work.record_failed_mount(pod, state.name, IN_USE)
        return replace(state, failure=next_failure(state.failure, IN_USE, work.now))
    if problem := work.context_problem(pod, plan):
        if state.failure is None:
            _count_context(work, pod, wanted, ContextOutcome.VOLUME_MISMATCH)
        work.record_missing(pod, [wanted.name], problem)
        return replace(state, failure=next_failure(state.failure, problem, work.now))
    if not work.is_staged(plan):
        return state
    if isinstance(plan, InPlacePlan):
        return replace(state, phase=MountPhase.MOUNTED, mounted=plan.mounted, failure=None)
    state, expansion = first_expansion(work, pod, wanted, state) if state.is_claimed else (state, None)
    work.commands.append(SetUp(pod.uid, wanted.name, plan, cause, expansion))
    return replace(state, phase=MountPhase.SETTING_UP, before=state.phase)


def _is_in_use(work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState) -> bool:
    """Whether another pod may have the persistent volume mounted, or runs and had it when the agent was started."""
    assert pod.pod is not None
    claim = claim_of(pod.pod, wanted)
    others = (other for uid, other in work.pods.items() if uid != pod.uid and claim in other.claims)
    return _is_used_by_other(work, pod.uid, state) or any(is_running(other.uid, work.inputs) for other in others)


def _is_used_by_other(work: VolumesStep, uid: PodUID, volume: VolumeState) -> bool:
    """Whether another pod may have the persistent volume `volume` mounted."""
    places = (place for place in work.index.of_directory(volume) if place[0] != uid)
    others = (work.pods[owner].volumes[key] for owner, key in places)
    return any(other.phase not in UNUSED and is_same_volume(other, volume) for other in others)


def _may_refresh(state: VolumeState, *, again: bool, afresh: bool) -> bool:
    """Whether a mounted volume may have to be set up again."""
    return _needs_refresh(state) is not None and (afresh or again or state.failure is not None)


def _is_refreshed(state: VolumeState) -> bool:
    return isinstance(state.plan, VolumePlan) and state.plan.is_refreshed


def _refresh_volume(work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState, plan: Plan) -> VolumeState:
    """Set a mounted volume up again if its kind asks for that. A refused plan leaves the volume mounted as it is (rule 6)."""
    match plan:
        case RefusedPlan(until=until) if until or not _is_refreshed(state):
            return replace(state, failure=None)
        case RefusedPlan():
            return replace(state, failure=_refused(work, pod, wanted, state, plan))
        case VolumePlan() if isinstance(state.plan, VolumePlan) and state.plan.kind == plan.kind:
            failed = state.failure is not None and state.failure.retry_at is not None
            needs_refresh, again = _needs_refresh(state), is_again_due(state, work.now)
            if not (failed or again) and (needs_refresh is None or not needs_refresh(state.plan, plan)):
                return replace(state, failure=None)
            if not work.is_staged(plan):
                return state
            work.commands.append(SetUp(pod.uid, wanted.name, plan, "repeated" if again else "content changed"))
            return replace(state, phase=MountPhase.REFRESHING, plan=plan, again_at=None)
    return state


def _refused(
    work: VolumesStep, pod: PodVolumes, wanted: Volume, state: VolumeState, plan: RefusedPlan
) -> VolumeFailure:
    """The failure of a refused volume. Repeated refusals with the same error record one Event."""
    if state.failure is not None and state.failure.error == plan.error and state.failure.retry_at is None:
        return state.failure
    if plan.step:
        work.record_failed_mount(pod, plan.spec_name or state.name, plan.error, plan.step, is_block=plan.is_block)
    else:
        work.record_missing(pod, [wanted.name], plan.error)
        if plan.error.startswith(MULTIPLE):
            _count_context(work, pod, wanted, ContextOutcome.POD_MISMATCH)
    return VolumeFailure(plan.error, work.now.wall)


# Tear-down


def _give_up(work: VolumesStep, uid: PodUID, todo: Pass) -> Pass:
    """Look at volumes that the pod does not need any more, and return what is left to look at. Nothing while containers run."""
    if is_running(uid, work.inputs):
        return Pass()
    done = 0
    for key in todo.keys:
        pod = work.pods[uid]
        state = pod.volumes.get(key)
        if state is not None and state.phase in BUSY:
            work.put(uid, key, _cancelled(work, pod, key, state))
        elif state is not None and len(pod.busy) >= MAX_RUNNING:
            break
        elif state is not None:
            _give_up_volume(work, pod, key, state, todo.cause)
        done += 1
    pod = work.pods[uid]
    idle = pod.directory is PodDirectory.UNKNOWN or pod.directory is PodDirectory.MADE
    gone = pod.need is VolumeNeed.ORPHANED and not pod.volumes and not is_alive(uid, work.inputs)
    if gone and idle and is_due(pod.directory_failure, work.now):
        work.commands.append(RemovePodDirectory(uid, todo.cause))
        work.pods[uid] = replace(pod, directory=PodDirectory.REMOVING)
    return replace(todo, keys=todo.keys[done:])


def _give_up_volume(work: VolumesStep, pod: PodVolumes, key: str, state: VolumeState, cause: str) -> None:
    if state.phase is MountPhase.NEW or not _needs_tear_down(pod, key, state):
        work.touch_device(state.device)
        work.put(pod.uid, key, None)
    elif _may_tear_down(work, pod, key, state):
        work.commands.append(TearDown(pod.uid, key, state.plugin, state.name, cause, state.is_block))
        since = work.now.wall if state.failure is None else state.since
        work.put(pod.uid, key, replace(state, phase=MountPhase.TEARING_DOWN, mounted=None, since=since, planning=None))


def _cancelled(work: VolumesStep, pod: PodVolumes, key: str, state: VolumeState) -> VolumeState:
    """The volume with its running set-up abandoned, which may take long if the volume has many files."""
    if state.phase is not MountPhase.SETTING_UP or state.is_cancelled:
        return state
    work.commands.append(CancelSetUp(pod.uid, key))
    return replace(state, is_cancelled=True)


def _may_tear_down(work: VolumesStep, pod: PodVolumes, key: str, state: VolumeState) -> bool:
    """Whether no other operation runs on the volume's directory or device, and no back-off delays the tear-down."""
    if not is_due(state.failure, work.now) or is_directory_busy(pod, key, state):
        return False
    return not state.device or work.is_device_idle(state.device)


# The kinds


def _directory(plan: VolumePlan) -> str:
    """The directory below the pod's `volumes`, "" for kinds without one."""
    return plan.plugin_directory or kind_named(plan.kind).directory


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
    if volume.plugin != "" or pod.pod is None or volume.plan is None:
        return True
    return key in volume_uses(pod.pod).with_subpath
