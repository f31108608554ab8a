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
 7. A volume with a device waits until that is staged for the node (`decide_devices.py`).
 8. A step looks only at the volumes that its events concern, and plans a few of them; the others are in `PodVolumes.todo`, for the next
    steps. Of a pod, 64 operations run at a time. So no step takes long, however many volumes a pod has, and all steps together
    take a time in proportion to their number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import assert_never

from pykubelet.base.kit.checks import CHECKS
from pykubelet.base.kit.clock import Moment
from pykubelet.base.kit.values import VersionedMap, changed_keys, edited, replace
from pykubelet.base.model import reasons
from pykubelet.base.model.content import ContentKey
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import warning
from pykubelet.base.model.mounts import AttachLimit, Mounts, PodMounts
from pykubelet.base.model.paths import Paths
from pykubelet.provide.volumes import decide_devices, decide_expansions, decide_mounts
from pykubelet.provide.volumes.attach_limit import ask_for_attachments, attachments_read
from pykubelet.provide.volumes.invariants import check_invariants
from pykubelet.provide.volumes.model import (
    AttachmentsRead,
    Command,
    DeviceStaged,
    DeviceUnstaged,
    DirectoryMade,
    DirectoryRemoved,
    Event,
    Inputs,
    InputsChanged,
    Noted,
    PodDirectory,
    PodVolumes,
    PodVolumesView,
    RecordEvent,
    Result,
    Resumed,
    Scan,
    ScanFailed,
    Scanned,
    SetUpEnded,
    State,
    TearDownEnded,
    VolumeExpanded,
    VolumeNeed,
    VolumePlanned,
    VolumesTimerFired,
)
from pykubelet.provide.volumes.needs import (
    affected,
    attachable,
    attachments_changed,
    changed_pods,
    extended,
    plugins_changed,
    served,
)
from pykubelet.provide.volumes.project import is_ready, project_pod, volumes_in_use
from pykubelet.provide.volumes.work import PLANS_AT_ONCE, VolumesStep, is_due, next_failure, wants

#: How long a sync of the reference kubelet waits for volumes.
WAIT_S = 123.0


def step(state: State, event: Event, now: Moment, paths: Paths) -> tuple[State, list[Command]]:
    """The next state after one event, and the commands."""
    return step_all(state, (event,), now, paths)


def step_all(state: State, events: Sequence[Event], now: Moment, paths: Paths) -> tuple[State, list[Command]]:
    """The next state after some events, and the commands. Each pod is decided about once for all that has ended.

    `state.mounts` is published; `state.pods` is the same object when no pod changed.
    """
    first = events[0] if events else None
    if isinstance(first, InputsChanged) and not _concerns(state, first.inputs):
        state, events = replace(state, inputs=first.inputs), events[1:]
    if not events:
        return state, []
    work = VolumesStep(state, now, paths)
    for event in events:
        _take(work, event)
    decide_mounts.advance_due(work)
    decide_mounts.use_devices(work)
    decide_mounts.advance_due(work)
    if work.touched_devices:
        decide_devices.settle(work)
    ended = _end(work)
    if CHECKS.is_on:
        check_invariants(ended)
    return ended, work.commands


def _take(work: VolumesStep, event: Event) -> None:
    """Take one event. Pods that it concerns are due then, or already decided about."""
    match event:
        case InputsChanged():
            _inputs_changed(work, event.inputs)
            decide_mounts.advance_due(work)
        case SetUpEnded():
            decide_mounts.set_up_ended(work, event)
        case VolumePlanned():
            decide_mounts.planned(work, event)
        case VolumeExpanded():
            decide_expansions.expanded(work, event)
        case TearDownEnded():
            decide_mounts.tear_down_ended(work, event)
        case DeviceStaged():
            decide_devices.staged(work, event)
        case DeviceUnstaged():
            decide_devices.unstaged(work, event)
        case DirectoryMade():
            _directory_made(work, event)
        case DirectoryRemoved():
            _directory_removed(work, event)
        case Scanned():
            _scanned(work, event)
        case ScanFailed():
            work.scan = next_failure(work.state.scan, event.error, work.now)
            work.scanning = False
        case VolumesTimerFired():
            _timer_fired(work, event.scan)
        case AttachmentsRead():
            attachments_read(work, event)
        case Resumed():
            for uid in tuple(islice(work.unfinished, PLANS_AT_ONCE)):  # each has one volume to plan at least
                work.look(uid, work.pods[uid].todo.cause)
        case Noted(uid, note):
            if uid in work.pods:
                work.commands.append(RecordEvent(warning(note.reason, note.message, work.pods[uid].ref)))
        case _:
            assert_never(event)


def next_timer(state: State, now: Moment, before: State | None = None) -> float | None:
    """When `VolumesTimerFired` is next due, in monotonic seconds after `now`; None when nothing waits for a time.

    A retry that is overdue is left out: it waits for something else, such as the end of running containers. `before`: an earlier state;
    of pods, only the times that are new since then count.
    """
    times = [state.scan.retry_at] if state.scan is not None else []
    times.extend(device.failure.retry_at for device in state.devices.values() if device.failure is not None)
    for uid in state.timed if before is None else changed_keys(before.timed, state.timed):
        times.extend(state.timed.get(uid, ()))
    return min((time for time in times if time is not None and time > now.mono), default=None)


# Events


def _concerns(state: State, new: Inputs) -> bool:
    """Whether a change of the snapshots may concern any volume or device."""
    if changed_pods(state, new) or affected(state, new) or attachable(state, new) or extended(state, new):
        return True
    return bool(state.devices) and _concerns_devices(state.inputs, new)


def _concerns_devices(old: Inputs, new: Inputs) -> bool:
    changed = attachments_changed(old, new) or plugins_changed(old, new)
    return changed or old.roster.sources_ready != new.roster.sources_ready


def _inputs_changed(work: VolumesStep, new: Inputs) -> None:
    state = work.state
    changed = changed_pods(state, new)
    work.inputs = new
    again, node_changed = served(state, new), state.inputs.node is not new.node
    for uid in again:
        _make_failures_due(work, uid)
    if plugins_changed(state.inputs, new):
        decide_devices.retry_now(work)
    parts = _with_new_content(work, affected(state, new))
    of_extensions = extended(state, new)
    for uid, keys in of_extensions.items():
        _make_failures_due(work, uid, keys)
    for found in (attachable(state, new), of_extensions):
        for uid, keys in found.items():
            parts.setdefault(uid, []).extend(keys)
    for uid in sorted({*changed, *parts}):
        afresh = node_changed or uid in again or uid in parts
        work.look(uid, "changed", None if uid in changed else parts[uid], afresh=afresh)
    if _concerns_devices(state.inputs, new):
        work.touched_devices.update(work.devices)


def _with_new_content(
    work: VolumesStep, affected_keys: Mapping[PodUID, Collection[ContentKey]]
) -> dict[PodUID, list[str]]:
    """The volumes that are made from content that has changed, by pod."""
    parts: dict[PodUID, list[str]] = {}
    for uid, changed in affected_keys.items():
        pod = work.pods[uid]
        parts[uid] = list(dict.fromkeys(name for key in changed for name in pod.keys[key] if name in pod.used))
    return parts


def _timer_fired(work: VolumesStep, scan: bool) -> None:
    scan_due = work.scan is not None and is_due(work.scan, work.now)
    if (scan or scan_due) and not work.scanning:
        work.scanning = True
        work.commands.append(Scan("safety net" if work.scan is None else "failed before"))
    decide_devices.retry(work)
    for uid, times in work.state.timed.items():
        if any(time <= work.now.mono for time in times):
            waiting = work.state.views[uid].times
            due = (key for key, at in waiting.items() if any(time <= work.now.mono for time in at))
            work.look(uid, "retry", due)


def _scanned(work: VolumesStep, event: Scanned) -> None:
    first = not work.reconstructed
    work.reconstructed, work.scan, work.scanning = True, None, False
    if first:
        decide_devices.found_on_disk(work, event.devices, event.found)
    decide_mounts.found_on_disk(work, event.found, first=first)


def _directory_made(work: VolumesStep, event: DirectoryMade) -> None:
    pod = work.pod_with_directory(event.uid, PodDirectory.MAKING)
    if event.result is Result.DONE:
        pod = replace(pod, directory=PodDirectory.MADE, directory_failure=None)
    else:
        failure = next_failure(pod.directory_failure, event.error, work.now)
        pod = replace(pod, directory=PodDirectory.UNKNOWN, directory_failure=failure)
        if pod.ref is not None:
            text = f"error making pod data directories: {event.error}"
            work.commands.append(RecordEvent(warning(reasons.EVENT_FAILED, text, pod.ref)))
    work.pods[event.uid] = pod
    work.look(event.uid, "directory made")


def _directory_removed(work: VolumesStep, event: DirectoryRemoved) -> None:
    pod = work.pod_with_directory(event.uid, PodDirectory.REMOVING)
    if event.result is Result.DONE and not event.left:
        if pod.need is VolumeNeed.ORPHANED:
            work.remove(event.uid)
            work.touched_devices.update(n for n, device in work.devices.items() if event.uid in device.holders)
            return
        pod = replace(pod, directory=PodDirectory.UNKNOWN, directory_failure=None)
    else:
        error = event.error or "volumes are still there"
        failure = None if wants(pod) else next_failure(pod.directory_failure, error, work.now)
        pod = replace(pod, directory=PodDirectory.UNKNOWN, directory_failure=failure)
    work.pods[event.uid] = pod
    if (event.result is not Result.DONE or event.left) and not wants(pod):
        work.add_found(event.uid, event.left)
    work.look(event.uid, "directory removed", None)


def _make_failures_due(work: VolumesStep, uid: PodUID, keys: Collection[str] | None = None) -> None:
    """Let the pod's volumes be tried again now, because a driver or an extension has come. `keys`: which; None: all."""
    for key, state in work.pods[uid].volumes.items():
        if keys is not None and key not in keys:
            continue
        if state.failure is not None and state.failure.retry_at is not None:
            work.put(uid, key, replace(state, failure=replace(state.failure, retry_at=work.now.mono)))


# The end of a step


def _end(work: VolumesStep) -> State:
    for name in work.touched_devices:
        for uid, key in work.index.of_device(name):
            work.change(uid, key)
    mounts = work.state.mounts
    views = _views(work, mounts.pods)
    in_use = volumes_in_use(work.devices, work.inputs) if work.reconstructed else None
    at_limit = _at_limit(work, mounts.at_limit)
    if (
        views is not mounts.pods
        or work.reconstructed != mounts.reconstructed
        or in_use != mounts.in_use
        or at_limit is not mounts.at_limit
    ):
        mounts = Mounts(views, work.reconstructed, in_use, at_limit)
    return State(
        work.pods,
        work.devices,
        work.inputs,
        mounts,
        work.scan,
        work.scanning,
        _timed(work),
        work.views(),
        work.index.done(),
        tuple(work.unfinished),
    )


def _views(work: VolumesStep, before: Mapping[PodUID, PodMounts]) -> Mapping[PodUID, PodMounts]:
    """The published state of all pods; `before` itself if nothing has changed."""
    now: VersionedMap[PodUID, PodMounts] | None = None
    for uid in work.touched:
        pod = _with_reminder(work, uid)
        view = project_pod(pod, work.view(uid), work.now.wall) if pod is not None else None
        if before.get(uid) == view:
            continue
        now = edited(before) if now is None else now
        if view is not None:
            now[uid] = view
        else:
            del now[uid]
    return before if now is None else now


def _at_limit(work: VolumesStep, before: Mapping[PodUID, AttachLimit]) -> Mapping[PodUID, AttachLimit]:
    """The pods that cannot start because of a limit of volumes; `before` itself if nothing has changed."""
    now = {uid: pod.at_limit for uid in work.touched if (pod := work.pods.get(uid)) and pod.at_limit is not None}
    if not now and before.keys().isdisjoint(work.touched):
        return before
    now = {uid: limit for uid, limit in before.items() if uid not in work.touched} | now
    return before if now == before else now


def _with_reminder(work: VolumesStep, uid: PodUID) -> PodVolumes | None:
    """Look for the reason if the pod has waited for long; return the pod with the time when that is done next."""
    pod = work.pods.get(uid)
    if pod is None:
        return None
    if not wants(pod) or is_ready(pod, work.view(uid)):
        after = None
    elif pod.remind_at is None:
        after = work.now.mono + WAIT_S
    elif work.now.mono >= pod.remind_at:
        after = work.now.mono + WAIT_S
        ask_for_attachments(work, pod)
    else:
        after = pod.remind_at
    if after != pod.remind_at:
        pod = replace(pod, remind_at=after)
        work.pods[uid] = pod
    return pod


def _timed(work: VolumesStep) -> Mapping[PodUID, tuple[float, ...]]:
    before, now = work.state.timed, None
    for uid in work.touched:
        pod = work.pods.get(uid)
        times = _times(pod, work.view(uid)) if pod is not None else ()
        if times == before.get(uid, ()):
            continue
        now = edited(before) if now is None else now
        if times:
            now[uid] = times
        else:
            del now[uid]
    return before if now is None else now


def _times(pod: PodVolumes, view: PodVolumesView) -> tuple[float, ...]:
    """When the pod's retries, its repeated set-ups and the next look for the reason of its wait are due, in monotonic seconds."""
    of_directory = pod.directory_failure.retry_at if pod.directory_failure is not None else None
    of_pod = (time for time in (pod.remind_at, of_directory) if time is not None)
    return (*of_pod, *(time for times in view.times.values() for time in times))
