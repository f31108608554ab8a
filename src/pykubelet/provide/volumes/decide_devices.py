"""Decides when devices are staged and unstaged: reads and changes the `VolumesStep` of a step. Pure.

Rules:
 1. A device is staged for the first pod that needs it, before that pod's volume is set up. All pods share it.
 2. One operation at a time: on the device, or on one pod's volume with this device.
 3. A device is unstaged when no pod needs it or may have a volume with it. After a restart, each pod that had such a volume
    on disk counts until its volume is torn down or its directory is removed.
 4. A device that may be staged is staged again for the next pod, or unstaged, like one that is. Drivers take repeated calls.
 5. A device that was staged with another SELinux context than the next pod needs is unstaged first.
 6. A device that is in use after it was unstaged stays in the Node's `volumesInUse`, so it is not detached; it is unstaged again later.
Source: the Container Storage Interface specification; the Kubernetes documentation "Node Status" (volumes in use).
"""

from __future__ import annotations

from pykubelet.base.api.storage import PersistentVolume
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import ContentKind, ObjectKey, Present
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import EventObject, EventType, KubeEvent
from pykubelet.provide.volumes.kind import DevicePlan, FoundDevice, VolumePlan
from pykubelet.provide.volumes.model import (
    DevicePhase,
    DeviceStaged,
    DeviceState,
    DeviceUnstaged,
    FoundPod,
    RecordEvent,
    Result,
    StageDevice,
    UnstageDevice,
)
from pykubelet.provide.volumes.work import VolumesStep, is_due, next_failure, wants


def found_on_disk(work: VolumesStep, found: tuple[FoundDevice, ...], pods: tuple[FoundPod, ...]) -> None:
    """Take over the devices that an earlier agent has left. Only the first scan counts: later the state knows better.

    A pod may have wanted such a device before the scan has ended.
    """
    for device in found:
        known = work.devices.get(device.name) or DeviceState(device, DevicePhase.WANTED, work.now.wall)
        context = device.context if known.phase is DevicePhase.WANTED else known.context
        holders = frozenset(pod.uid for pod in pods if any(v.device == device.name for v in pod.volumes))
        phase = DevicePhase.UNCERTAIN if known.phase is DevicePhase.WANTED else known.phase
        left_by_previous_run = known.phase is not DevicePhase.STAGED
        before = DevicePhase.UNCERTAIN  # if it is being staged
        known = replace(
            known,
            phase=phase,
            before=before,
            holders=holders,
            left_by_previous_run=left_by_previous_run,
            context=context,
        )
        work.put_device(device.name, known)
        work.touch_device(device.name)


def staged(work: VolumesStep, event: DeviceStaged) -> None:
    """Take the end of a staging. A failure is recorded at each pod that waits for the device."""
    device = _running(work, event.name, DevicePhase.STAGING)
    match event.result:
        case Result.DONE:
            device = replace(device, phase=DevicePhase.STAGED, failure=None, left_by_previous_run=False)
        case Result.TRANSIENT:
            device = replace(device, phase=device.before)
        case Result.FAILED:
            device = replace(device, phase=DevicePhase.UNCERTAIN if device.left_by_previous_run else DevicePhase.WANTED)
        case Result.UNCERTAIN:
            device = replace(device, phase=DevicePhase.UNCERTAIN)
    if event.result is not Result.DONE:
        device = replace(device, failure=next_failure(device.failure, event.error, work.now))
        for pod, volume in work.users(event.name):
            if wants(pod) and volume.mounted is None:
                work.record_failed_mount(pod, volume.name, event.error, event.step, is_block=volume.is_block)
        if event.volume_reason:
            _record_at_volumes(work, event)
    work.put_device(event.name, device)
    work.free_device(event.name)


def _record_at_volumes(work: VolumesStep, event: DeviceStaged) -> None:
    """Record the failure at the PersistentVolumes behind the device."""
    users = {volume.name: pod.ref for pod, volume in work.users(event.name) if volume.is_claimed}
    for name, pod in sorted(users.items()):
        found = work.inputs.content.find(ObjectKey(ContentKind.VOLUME, "", name))
        uid = (
            found.value.metadata.uid if isinstance(found, Present) and isinstance(found.value, PersistentVolume) else ""
        )
        text = f'MountVolume failed for volume "{name}" : {event.error}'
        about = EventObject("PersistentVolume", "", name, uid)
        work.commands.append(RecordEvent(KubeEvent(EventType.WARNING, event.volume_reason, text, pod, about=about)))


def unstaged(work: VolumesStep, event: DeviceUnstaged) -> None:
    """Take the end of an unstaging."""
    device = _running(work, event.name, DevicePhase.UNSTAGING)
    if event.result is Result.DONE:
        device = replace(device, phase=DevicePhase.WANTED, failure=None, left_by_previous_run=False)
    else:
        failure = next_failure(device.failure, event.error, work.now)
        device = replace(device, phase=DevicePhase.UNCERTAIN, failure=failure)
    work.put_device(event.name, device)
    work.free_device(event.name)


def release(work: VolumesStep, name: str, uid: PodUID) -> None:
    """Note that the pod's volume with this device was torn down."""
    device = work.devices.get(name)
    if device is not None and uid in device.holders:
        work.put_device(name, replace(device, holders=device.holders - {uid}))
    work.touch_device(name)


def settle(work: VolumesStep) -> None:
    """Decide about all devices that the step has touched."""
    for name in sorted(work.touched_devices):
        device = work.devices.get(name)
        if device is not None:
            _advance(work, device)


def retry(work: VolumesStep) -> None:
    """Decide about devices with a failed operation, because a time has come."""
    for name, device in work.devices.items():
        if device.failure is not None:
            work.touch_device(name)


def retry_now(work: VolumesStep) -> None:
    """Try the operations that have failed again without a delay, because a driver may have come."""
    for name, device in list(work.devices.items()):
        if device.failure is not None:
            work.put_device(name, replace(device, failure=replace(device.failure, retry_at=work.now.mono)))


def _running(work: VolumesStep, name: str, phase: DevicePhase) -> DeviceState:
    device = work.devices.get(name)
    if device is None or device.phase is not phase:
        raise RuntimeError(f"an operation ended that was not begun: device {name}, now {device}")
    return device


def _advance(work: VolumesStep, device: DeviceState) -> None:
    name, users = device.found.name, work.users(device.found.name)
    if device.phase in (DevicePhase.STAGING, DevicePhase.UNSTAGING):
        return
    if not users and not any(uid in work.pods for uid in device.holders):
        _give_up(work, device)
        return
    plans = [volume.plan for pod, volume in users if wants(pod) and isinstance(volume.plan, VolumePlan)]
    plan: DevicePlan | None = next((plan.device for plan in plans if plan.device is not None), None)
    if plan is None:
        return
    if device.has_other_context(plan):
        if not work.may_be_mounted(name):
            _unstage(work, device, "it is mounted with another SELinux context")
        return
    if device.phase is DevicePhase.STAGED:
        return
    if _is_due(work, device, DevicePhase.STAGING) and work.is_device_idle(name):
        work.commands.append(StageDevice(plan, "needed"))
        work.put_device(name, replace(_begun(work, device, DevicePhase.STAGING), plan=plan, context=plan.context))


def _give_up(work: VolumesStep, device: DeviceState) -> None:
    if device.phase is DevicePhase.WANTED:
        work.put_device(device.found.name, None)
    else:
        _unstage(work, device, "no pod uses it")


def _unstage(work: VolumesStep, device: DeviceState, cause: str) -> None:
    if work.reconstructed and work.inputs.roster.sources_ready and _is_due(work, device, DevicePhase.UNSTAGING):
        attached = work.inputs.node_volumes.attached.get(device.found.name, "")
        path = device.plan.device_path if device.plan is not None else attached
        work.commands.append(UnstageDevice(replace(device.found, path=path), cause))
        work.put_device(device.found.name, _begun(work, device, DevicePhase.UNSTAGING))


def _is_due(work: VolumesStep, device: DeviceState, operation: DevicePhase) -> bool:
    """Whether the operation may begin. Only its own failure delays it."""
    return device.last is not operation or is_due(device.failure, work.now)


def _begun(work: VolumesStep, device: DeviceState, operation: DevicePhase) -> DeviceState:
    failure = device.failure if device.last is operation else None
    return replace(device, phase=operation, since=work.now.wall, before=device.phase, last=operation, failure=failure)
