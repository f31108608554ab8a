"""What one step of the volume manager reads and collects: the pods, devices and commands so far. Pure.

Owns: the back-off of failed operations, and the texts of Events about volumes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from pykubelet.act.volumes.kind import (
    ATTACH,
    EXPANDING,
    MOUNT_DEVICE,
    NEW_MOUNTER,
    NODE_AFFINITY,
    SET_UP,
    DevicePlan,
    FoundDevice,
    VolumePlan,
)
from pykubelet.act.volumes.model import (
    BUSY,
    UNUSED,
    Command,
    DevicePhase,
    DeviceState,
    FoundVolume,
    Moment,
    MountPhase,
    PodDirectory,
    PodVolumes,
    RecordEvent,
    State,
    VolumeFailure,
    VolumeNeed,
    VolumeState,
)
from pykubelet.act.volumes.project import missing_volumes
from pykubelet.act.volumes.selinux import conflict, unmount_awaited
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import replace
from pykubelet.base.model import reasons
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import normal, warning
from pykubelet.base.model.paths import Paths

RETRY = BackoffPolicy(initial_s=0.5, cap_s=122.0)
#: How Events about block devices name the steps.
_BLOCK_STEPS = {
    SET_UP: "MapPodDevice",
    MOUNT_DEVICE: "SetUpDevice",
    NEW_MOUNTER: "NewBlockVolumeMapper initialization",
}


def next_failure(last: VolumeFailure | None, error: str, now: Moment) -> VolumeFailure:
    """The failure that follows `last`, with the time of the next try."""
    delay = RETRY.next_s(last.delay_s if last is not None else 0.0)
    since = last.since if last is not None else now.wall
    return VolumeFailure(error, since, delay, now.mono + delay, now.wall + delay)


def is_due(failure: VolumeFailure | None, now: Moment) -> bool:
    """Whether another try may begin."""
    return failure is None or (failure.retry_at is not None and now.mono >= failure.retry_at)


class Work:
    """One step. `touched`, `touched_devices`: the pods and devices that may have changed. `freed_devices`: those on which, or on
    a volume with which, an operation has ended."""

    def __init__(self, state: State, now: Moment, paths: Paths) -> None:
        self.state = state
        self.now = now
        self.paths = paths
        self.inputs = state.inputs
        self.pods = dict(state.pods)
        self.devices = dict(state.devices)
        self.commands: list[Command] = []
        self.touched: set[PodUID] = set()
        self.touched_devices: set[str] = set()
        self.freed_devices: set[str] = set()
        self.reconstructed = state.mounts.reconstructed
        self.scan = state.scan
        self.scanning = state.scanning

    # Pods

    def put(self, pod: PodVolumes, key: str, volume: VolumeState | None) -> None:
        """Store the volume `key` of the pod; None removes it."""
        volumes = dict(pod.volumes)
        if volume is None:
            del volumes[key]
        else:
            volumes[key] = volume
        self.pods[pod.uid] = replace(pod, volumes=volumes)

    def busy_volume(self, uid: PodUID, key: str, phases: tuple[MountPhase, ...]) -> tuple[PodVolumes, VolumeState]:
        """The pod and its volume whose operation has ended. RuntimeError if no such operation was begun."""
        pod = self.pods.get(uid)
        volume = pod.volumes.get(key) if pod is not None else None
        if pod is None or volume is None or volume.phase not in phases:
            raise RuntimeError(f"an operation ended that was not begun: pod {uid}, volume {key}, now {pod}")
        return pod, volume

    def pod_with_directory(self, uid: PodUID, expected: PodDirectory) -> PodVolumes:
        """The pod whose directory is in the expected state; RuntimeError if it is not."""
        pod = self.pods.get(uid)
        if pod is None or pod.directory is not expected:
            raise RuntimeError(f"the directory of pod {uid} was not {expected}, now {pod}")
        return pod

    def with_found(self, pod: PodVolumes, found: Iterable[FoundVolume]) -> PodVolumes:
        """The pod with volumes that were found on disk. Those that it knows but has not mounted may be mounted."""
        volumes = dict(pod.volumes)
        for one in found:
            key = one.name if one.name not in volumes else f"{one.plugin}/{one.name}"
            same = [k for k, v in volumes.items() if is_found(v, one)]
            for known in same:
                volumes[known] = as_left(volumes[known])
            if not same and key not in volumes:
                volumes[key] = VolumeState(
                    one.name,
                    MountPhase.UNCERTAIN,
                    self.now.wall,
                    one.plugin,
                    device=one.device,
                    is_block=one.is_block,
                    is_left=True,
                )
                self.touch_device(one.device)
        return replace(pod, volumes=volumes)

    # Devices

    def touch_device(self, name: str) -> None:
        """Decide about the device at the end of the step. "" is no device."""
        if name:
            self.touched_devices.add(name)

    def free_device(self, name: str) -> None:
        """Note that an operation on the device, or on a volume with it, has ended. "" is no device."""
        if name:
            self.freed_devices.add(name)
            self.touched_devices.add(name)

    def want_device(self, plan: DevicePlan) -> None:
        """Note that a volume needs the device as planned."""
        known = self.devices.get(plan.name)
        if known is None:
            found = FoundDevice(plan.name, plan.kind, plan.directory)
            self.devices[plan.name] = DeviceState(found, DevicePhase.WANTED, self.now.wall, plan)
        elif known.plan != plan:
            self.devices[plan.name] = replace(known, plan=plan)
        self.touch_device(plan.name)

    def is_staged(self, plan: VolumePlan) -> bool:
        """Whether the volume's device is staged and no operation runs on it, so that the volume can be set up."""
        if plan.device is None:
            return True
        state = self.devices.get(plan.device.name)
        if state is None or state.phase is not DevicePhase.STAGED or state.has_other_context(plan.device):
            return False
        return self.is_device_idle(plan.device.name)

    def may_be_mounted(self, name: str) -> bool:
        """Whether a pod may have a volume with this device mounted."""
        device = self.devices.get(name)
        if device is not None and any(uid in self.pods for uid in device.holders):
            return True
        return any(volume.phase not in UNUSED for _, volume in self.users(name))

    def context_problem(self, pod: PodVolumes, plan: VolumePlan) -> str:
        """Why the volume cannot be mounted for the pod with its SELinux context; "" if it can, or need not have one."""
        wanted = plan.device
        device = self.devices.get(wanted.name) if wanted is not None else None
        if wanted is None or device is None:
            return ""
        for other, volume in self.users(wanted.name):
            if other.uid == pod.uid or volume.phase in UNUSED:
                continue
            there = volume.plan.device if isinstance(volume.plan, VolumePlan) else None
            if wants(other) and there is not None and there.context != wanted.context:
                return conflict(plan.spec_name, there.context, wanted.context)
            if device.has_other_context(wanted):
                return unmount_awaited(wanted.name)
        return ""

    def is_device_idle(self, name: str) -> bool:
        """Whether no operation runs on the device or on a pod's volume with this device."""
        state = self.devices.get(name)
        if state is not None and state.phase in (DevicePhase.STAGING, DevicePhase.UNSTAGING):
            return False
        return not any(volume.phase in BUSY for _, volume in self.users(name))

    def users(self, name: str) -> list[tuple[PodVolumes, VolumeState]]:
        """The volumes with this device, and their pods."""
        return [(pod, volume) for pod in self.pods.values() for volume in pod.volumes.values() if volume.device == name]

    # Events

    def record_missing(self, pod: PodVolumes, unknown: list[str], error: str) -> None:
        """Record which volumes are missing. `unknown`: those of which it is not known what to mount."""
        text = f"Unable to attach or mount volumes: {self.missing_text(pod, unknown, error)}"
        self.commands.append(RecordEvent(warning(reasons.EVENT_FAILED_MOUNT, text, pod.ref)))

    def missing_text(self, pod: PodVolumes, unknown: list[str], error: str) -> str:
        """Which volumes are missing. `unknown`: those of which it is not known what to mount."""
        return (
            f"unmounted volumes=[{' '.join(sorted(missing_volumes(pod)))}], "
            f"unattached volumes=[{' '.join(self.unattached(pod))}], "
            f"failed to process volumes=[{' '.join(sorted(unknown))}]: {error}"
        )

    def unattached(self, pod: PodVolumes) -> list[str]:
        """The names of the pod's volumes that wait until they are attached, sorted."""
        attached = self.inputs.node_volumes.attached
        names = {
            device.name for device in (one.plan for one in self.devices.values()) if device and device.is_attachable
        }
        wanted = (key for key, volume in pod.volumes.items() if volume.device in names and volume.mounted is None)
        return sorted(key for key in wanted if pod.volumes[key].device not in attached)

    def record_failed_mount(
        self, pod: PodVolumes, name: str, error: str, step: str = SET_UP, *, is_block: bool = False
    ) -> None:
        """Record that attaching or mounting the volume, or mapping a block device, has failed."""
        if step == ATTACH:
            text = f'{ATTACH} failed for volume "{name}" : {error}'
            self.commands.append(RecordEvent(warning(reasons.EVENT_FAILED_ATTACH_VOLUME, text, pod.ref)))
            return
        step = _BLOCK_STEPS.get(step, step) if is_block else step
        what = f"{'MapVolume' if is_block else 'MountVolume'}{f'.{step}' if step else ''}"
        what = what if step == EXPANDING else f"{what} failed"
        is_map = is_block and step != NODE_AFFINITY
        reason = reasons.EVENT_FAILED_MAP_VOLUME if is_map else reasons.EVENT_FAILED_MOUNT
        self.commands.append(RecordEvent(warning(reason, f'{what} for volume "{name}" : {error}', pod.ref)))

    def record_mapped(self, pod: PodVolumes, plan: VolumePlan) -> None:
        """Record where a block device was mapped."""
        done, link = f'MapVolume.MapPodDevice succeeded for volume "{plan.spec_name}"', plan.path
        global_map = plan.device.directory if plan.device is not None else ""
        for text in (f'{done} globalMapPath "{global_map}"', f'{done} volumeMapPath "{posixpath.dirname(link)}"'):
            self.commands.append(RecordEvent(normal(reasons.EVENT_SUCCESSFUL_MOUNT_VOLUME, text, pod.ref)))


def is_found(volume: VolumeState, found: FoundVolume | VolumeState) -> bool:
    """Whether both are the same volume on disk."""
    return (volume.name, volume.plugin, volume.is_block) == (found.name, found.plugin, found.is_block)


def as_left(volume: VolumeState) -> VolumeState:
    """A volume that was found on disk, where an earlier agent has left it."""
    phase, before = MountPhase.UNCERTAIN, MountPhase.UNCERTAIN
    if volume.phase in (MountPhase.NEW, MountPhase.FAILED):
        return replace(volume, phase=phase, before=before, is_left=True)
    if volume.phase is MountPhase.SETTING_UP:
        return replace(volume, before=before, is_left=True)
    return volume


def wants(pod: PodVolumes) -> bool:
    """Whether volumes are set up for the pod."""
    return pod.need is VolumeNeed.NEEDED
