"""States of volumes in words, for diagnostics. Pure."""

from __future__ import annotations

from pykubelet.base.model.diagnostics import Diagnostics, PodDiagnostics
from pykubelet.base.model.mounts import DeviceStatus, MountStatus
from pykubelet.provide.volumes.claims import claim_of
from pykubelet.provide.volumes.kind import DevicePlan, RefusedPlan, UndecidedPlan, VolumePlan
from pykubelet.provide.volumes.model import (
    BUSY,
    DevicePhase,
    DeviceState,
    MountPhase,
    PodVolumes,
    State,
    VolumeFailure,
    VolumeNeed,
    VolumeState,
)

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
