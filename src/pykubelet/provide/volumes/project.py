"""Projects the state of volumes to what is published: `PodMounts`, the volumes in use, and diagnostics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, assert_never

from pykubelet.base.kit.values import replace
from pykubelet.base.model import reasons
from pykubelet.base.model.content import TokenKey, wait_for_key
from pykubelet.base.model.diagnostics import Diagnostics, PodDiagnostics
from pykubelet.base.model.mounts import DeviceStatus, MountStatus, PodMounts
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.provide.volumes.kind import DevicePlan, RefusedPlan, UndecidedPlan, VolumePlan
from pykubelet.provide.volumes.model import (
    BUSY,
    DevicePhase,
    DeviceState,
    Inputs,
    MountPhase,
    PodDirectory,
    PodVolumes,
    PodVolumesView,
    State,
    VolumeFailure,
    VolumeNeed,
    VolumeState,
    VolumeView,
)
from pykubelet.provide.volumes.plan import claim_of, kind_named

NO_DEVICES: Final[Mapping[str, DeviceState]] = {}


def missing_volumes(pod: PodVolumes) -> Iterator[str]:
    """Names of the volumes that the pod's containers need and that are not mounted."""
    present = pod.volumes
    return (name for name in pod.used if name not in present or present[name].mounted is None)


def view_pod(
    before: PodVolumesView,
    pod: PodVolumes,
    changed: Iterable[str] | None,
    devices: Mapping[str, DeviceState] = NO_DEVICES,
) -> PodVolumesView:
    """The view of the pod. `before`: that of an earlier state. `changed`: the volumes that may have changed since; None: all.

    `devices`: by unique name.
    """
    if changed is None:
        before, changed = PodVolumesView(), pod.volumes
    volumes, times = dict(before.volumes), dict(before.times)
    ready, mounting, held = before.ready, before.mounting, before.held
    for key in changed:
        state = pod.volumes.get(key)
        old = volumes.get(key)
        new = _view_volume(pod, key, state, devices.get(state.device)) if state is not None else None
        ready += _is(new, "is_ready") - _is(old, "is_ready")
        mounting += _is(new, "is_mounting") - _is(old, "is_mounting")
        held += _is(new, "is_held") - _is(old, "is_held")
        times.pop(key, None)
        if new is None:
            volumes.pop(key, None)
            continue
        volumes[key] = new
        if new.times:
            times[key] = new.times
    return PodVolumesView(volumes, times, ready, mounting, held)


def _is(view: VolumeView | None, flag: str) -> bool:
    return view is not None and bool(getattr(view, flag))


def _view_volume(pod: PodVolumes, key: str, state: VolumeState, device: DeviceState | None) -> VolumeView:
    is_used = key in pod.used
    failures = (failure for failure in (state.failure, state.expand_failure) if failure is not None)
    return VolumeView(
        tuple(_waits_for(pod, state, device)),
        state.mounted,
        tuple(time for time in (state.again_at, *(failure.retry_at for failure in failures)) if time is not None),
        is_used and state.mounted is not None,
        is_used and state.mounted is None and _is_mounting(state),
        state.plugin != "" or device is not None or device_plan(state) is not None or state.phase in BUSY,
    )


def is_ready(pod: PodVolumes, view: PodVolumesView) -> bool:
    """Whether all volumes are mounted, and the pod's directory is neither being removed nor impossible to make."""
    return _has_directory(pod) and view.ready == len(pod.used)


def is_mounting(pod: PodVolumes, view: PodVolumesView) -> bool:
    """Whether the sandbox may be made before all volumes are mounted.

    True if every missing volume only waits for a requested token, or is being set up and does not hold the sandbox
    (`VolumeKind.delays_sandbox`). The sandbox waits for everything else, as users expect of a pod with volumes that fail.
    """
    return _has_directory(pod) and view.ready + view.mounting == len(pod.used)


def _has_directory(pod: PodVolumes) -> bool:
    return pod.pod is not None and pod.directory is not PodDirectory.REMOVING and pod.directory_failure is None


def _is_mounting(volume: VolumeState) -> bool:
    if volume.failure is not None:
        return False
    match volume.plan:
        case VolumePlan(kind=kind):
            return volume.phase is MountPhase.SETTING_UP and not kind_named(kind).delays_sandbox
        case UndecidedPlan(awaited=awaited):
            return bool(awaited) and all(isinstance(key, TokenKey) for key in awaited)
        case _:
            return False


def project_pod(pod: PodVolumes, view: PodVolumesView, now_wall: float) -> PodMounts | None:
    """The published state of the pod's volumes; None for a pod that has given up all of them."""
    gives_up = pod.need is VolumeNeed.RELEASED or pod.need is VolumeNeed.ORPHANED
    if gives_up and not pod.volumes:
        return None
    waits = [wait for volume in view.volumes.values() for wait in volume.waits]
    waits.extend(_directory_waits(pod, now_wall))
    mounted = {volume.mounted.name: volume.mounted for volume in view.volumes.values() if volume.mounted is not None}
    ready = not gives_up and is_ready(pod, view)
    mounting = not gives_up and not ready and is_mounting(pod, view)
    return PodMounts(mounted, ready, tuple(waits), mounting, view.held > 0)


def volumes_in_use(devices: Mapping[str, DeviceState], inputs: Inputs) -> tuple[str, ...] | None:
    """The unique names of attachable devices for the Node's status; None until the Node was read.

    It is not known of a device from the disk whether it is attachable: one that the Node lists as attached is.
    """
    if not inputs.api_node.registered:
        return None
    attached = inputs.node_volumes.attached
    return tuple(
        sorted(
            name
            for name, device in devices.items()
            if (device.plan.is_attachable if device.plan is not None else name in attached)
        )
    )


def _directory_waits(pod: PodVolumes, now_wall: float) -> list[Wait]:
    failure = pod.directory_failure
    if failure is not None:
        return [_failure_wait("pod directory", "", reasons.EVENT_FAILED, failure, "try again")]
    if pod.directory is PodDirectory.REMOVING and pod.need is VolumeNeed.NEEDED:
        detail = "the directory of the pod before is being removed"
        return [Wait("pod directory", Owner.VOLUME_MANAGER, now_wall, detail=detail, next_step="make it afresh")]
    return []


def _failure_wait(what: str, subject: str, reason: str, failure: VolumeFailure, next_step: str) -> Wait:
    next_at = failure.retry_wall
    step = next_step if next_at else NOTHING_BY_ITSELF
    return Wait(what, Owner.VOLUME_MANAGER, failure.since, subject, reason, failure.error, step, next_at)


def _waits_for(pod: PodVolumes, state: VolumeState, device: DeviceState | None) -> list[Wait]:
    """The waits for content that the volume is made from and that is not known yet; else for its device or the volume."""
    if state.failure is None and pod.need is VolumeNeed.NEEDED and state.mounted is None and state.phase not in BUSY:
        awaited = state.plan.awaited if isinstance(state.plan, UndecidedPlan) else ()
        if awaited:
            return [wait_for_key(key, state.since, f'volume "{state.name}"') for key in awaited]
        if device is not None and (wait := _device_wait(state, device)) is not None:
            return [wait]
    if pod.need is VolumeNeed.NEEDED and isinstance(state.plan, RefusedPlan) and state.plan.waits:
        return list(state.plan.waits) if state.mounted is None else []
    wait = _wait_for(pod, state)
    return [wait] if wait is not None else []


def _device_wait(state: VolumeState, device: DeviceState) -> Wait | None:
    """The wait of a volume for its device to be staged."""
    if device.failure is not None and device.last is DevicePhase.STAGING:
        return _failure_wait("volume", state.name, reasons.EVENT_FAILED_MOUNT, device.failure, "try again")
    match device.phase:
        case DevicePhase.STAGING:
            detail = device.plan.progress if device.plan is not None else ""
            return _wait(state, detail, "set it up for the pod", device.since)
        case DevicePhase.UNSTAGING:
            detail = "its device is being unmounted, because no pod used it"
            return _wait(state, detail, "mount the device again", device.since)
    return None


def _wait(state: VolumeState, detail: str, next_step: str, since: float | None = None) -> Wait:
    since = state.since if since is None else since
    return Wait("volume", Owner.VOLUME_MANAGER, since, state.name, detail=detail, next_step=next_step)


def _wait_for(pod: PodVolumes, state: VolumeState) -> Wait | None:
    if state.failure is not None:
        if pod.need is VolumeNeed.NEEDED and state.failure.extension:
            return _extension_wait(state, state.failure)
        if pod.need is VolumeNeed.NEEDED:
            wait = _failure_wait("volume", state.name, reasons.EVENT_FAILED_MOUNT, state.failure, "")
            return replace(wait, next_step=next_step_of(state, state.failure, "try again"))
        if pod.need is VolumeNeed.KEPT:
            return None
        return _failure_wait("volume", state.name, "", state.failure, "try to unmount again")
    if state.planning is not None and state.mounted is None:
        return _wait(state, "being planned", "set it up")
    match state.phase:
        case MountPhase.MOUNTED | MountPhase.REFRESHING | MountPhase.EXPANDING:
            return None
        case MountPhase.NEW | MountPhase.FAILED | MountPhase.UNCERTAIN:
            if pod.need is not VolumeNeed.NEEDED or state.plan is None:
                return None  # found on disk, and no container uses it
            detail = state.plan.missing if isinstance(state.plan, UndecidedPlan) else ""
            return _wait(state, detail, "set it up")
        case MountPhase.SETTING_UP:
            detail = state.plan.progress if isinstance(state.plan, VolumePlan) else "being set up"
            return _wait(state, detail, "start the pod")
        case MountPhase.TEARING_DOWN:
            return _wait(state, "being unmounted and removed", "end the pod")
    assert_never(state.phase)


def _extension_wait(state: VolumeState, failure: VolumeFailure) -> Wait:
    detail, step = f"{failure.error} (extension {failure.extension})", "ask the extension again"
    return Wait("volume", Owner.EXTENSION, failure.since, state.name, "", detail, step, failure.retry_wall)


# In words, for diagnostics

_VOLUME = {
    MountPhase.NEW: "not mounted",
    MountPhase.SETTING_UP: "being mounted",
    MountPhase.FAILED: "not mounted",
    MountPhase.MOUNTED: "mounted",
    MountPhase.REFRESHING: "mounted",
    MountPhase.EXPANDING: "mounted, being expanded",
    MountPhase.UNCERTAIN: "uncertain, it may be mounted: an operation had no clear result",
    MountPhase.TEARING_DOWN: "being unmounted",
}
_DEVICE = {
    DevicePhase.WANTED: "not mounted",
    DevicePhase.STAGING: "being mounted for the node",
    DevicePhase.STAGED: "mounted for the node",
    DevicePhase.UNCERTAIN: "uncertain, it may be mounted for the node: an operation had no clear result",
    DevicePhase.UNSTAGING: "being unmounted from the node",
}
#: The next step of a failure that nothing is done about until something changes.
NOTHING_BY_ITSELF = "nothing until the pod or the node is changed"
_IN_USE = (MountPhase.MOUNTED, MountPhase.REFRESHING, MountPhase.EXPANDING)


def diagnose(state: State) -> Diagnostics:
    """Where the volumes of all pods stand."""
    return Diagnostics(
        {
            uid: PodDiagnostics(
                volumes=tuple(mount_status(pod, v, key, state.devices.get(v.device)) for key, v in pod.volumes.items())
            )
            for uid, pod in state.pods.items()
            if pod.volumes
        }
    )


def device_plan(state: VolumeState) -> DevicePlan | None:
    """The plan of the volume's device; None if it has none."""
    return state.plan.device if isinstance(state.plan, UndecidedPlan | VolumePlan) else None


def mount_status(pod: PodVolumes, state: VolumeState, key: str, device: DeviceState | None) -> MountStatus:
    """Where a volume stands. `key`: its name in the pod, or that of its directory."""
    is_given_up = pod.need in (VolumeNeed.RELEASED, VolumeNeed.ORPHANED)
    words = _VOLUME[state.phase]
    since = 0.0 if state.phase in _IN_USE else state.since
    if state.failure is not None and state.phase not in _IN_USE:
        since = state.failure.since
    if is_given_up and state.phase not in BUSY:
        words = "not unmounted" if state.failure is not None else "mounted, to be unmounted"
    elif pod.need is VolumeNeed.KEPT and state.phase in _IN_USE:
        words = "mounted until the pod's containers have ended"
    failure = state.failure or state.expand_failure
    if state.failure is None and failure is not None and state.phase is MountPhase.MOUNTED:
        words = "mounted, not expanded"
    plan = state.plan if isinstance(state.plan, VolumePlan) else None
    parent = "volumeDevices" if state.is_block else "volumes"
    return MountStatus(
        key,
        state.name,
        words,
        since,
        kind=plan.kind if plan is not None else "",
        directory=f"{parent}/{state.plugin}/{state.name}" if state.plugin else "",
        driver=plan.driver if plan is not None else "",
        error=failure.error if failure is not None else "",
        is_leaving=is_given_up,
        device=_device_status(state, device),
        claim=_claim(pod, key),
        is_busy=state.phase in BUSY,
        next_step=_next_step(pod, state, failure),
        next_at=failure.retry_wall if failure is not None else None,
    )


def next_step_of(state: VolumeState, failure: VolumeFailure, again: str) -> str:
    """What the agent does after a failure. `again`: what it does if it tries again by itself."""
    until = state.plan.until if isinstance(state.plan, RefusedPlan) else ""
    if until:
        return f"try again when {until}"
    return again if failure.retry_wall else NOTHING_BY_ITSELF


def _next_step(pod: PodVolumes, state: VolumeState, failure: VolumeFailure | None) -> str:
    if failure is None or state.phase in BUSY:
        return ""
    if pod.need is VolumeNeed.NEEDED:
        return next_step_of(state, failure, "try again")
    return "" if pod.need is VolumeNeed.KEPT else "try to unmount again"


def _claim(pod: PodVolumes, key: str) -> str:
    """`namespace/name` of the claim of the pod's volume `key`."""
    volume = pod.used.get(key)
    found = claim_of(pod.pod, volume) if pod.pod is not None and volume is not None else None
    return f"{found.namespace}/{found.name}" if found is not None else ""


def _device_status(state: VolumeState, device: DeviceState | None) -> DeviceStatus | None:
    if device is None:
        plan = device_plan(state)
        if plan is None:
            return None
        return DeviceStatus(plan.name, "not mounted", state.since, str(plan.directory), plan.is_attachable)
    failure = device.failure
    return DeviceStatus(
        device.found.name,
        _DEVICE[device.phase],
        failure.since if failure is not None else device.since,
        str(device.found.directory),
        is_attachable=device.plan is not None and device.plan.is_attachable,
        is_leaving=device.last is DevicePhase.UNSTAGING and device.phase is not DevicePhase.STAGED,
        error=failure.error if failure is not None else "",
        next_at=failure.retry_wall if failure is not None else None,
        is_busy=device.phase in (DevicePhase.STAGING, DevicePhase.UNSTAGING),
    )
