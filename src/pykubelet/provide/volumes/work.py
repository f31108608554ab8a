"""What one step of the volume manager reads and collects: the pods, devices and commands so far. Pure.

Owns: the back-off of failed operations, and the texts of Events about volumes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.checks import CHECKS
from pykubelet.base.kit.clock import Moment
from pykubelet.base.kit.values import Value, edited, field, replace, with_changes
from pykubelet.base.model import reasons
from pykubelet.base.model.content import ContentKey
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import normal, warning
from pykubelet.base.model.paths import Paths
from pykubelet.provide.volumes.invariants import check_device, check_volume
from pykubelet.provide.volumes.kind import (
    ATTACH,
    EXPANDING,
    HEAVY,
    MOUNT_DEVICE,
    NEW_MOUNTER,
    NODE_AFFINITY,
    SET_UP,
    DevicePlan,
    FoundDevice,
    Plan,
    VolumePlan,
)
from pykubelet.provide.volumes.model import (
    BUSY,
    UNUSED,
    Command,
    DevicePhase,
    DeviceState,
    FoundVolume,
    Identity,
    MountPhase,
    PodDirectory,
    PodVolumes,
    PodVolumesView,
    RecordEvent,
    State,
    VolumeFailure,
    VolumeNeed,
    VolumeState,
)
from pykubelet.provide.volumes.needs import UsersDraft
from pykubelet.provide.volumes.plan import plan_volume, volume_keys, weight_of
from pykubelet.provide.volumes.project import missing_volumes, view_pod
from pykubelet.provide.volumes.selinux import conflict, unmount_awaited

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


#: So many volumes are planned in one step, fewer if their plans are made from many things, and so many are looked at; then other tasks of
#: the agent go on.
PLANS_AT_ONCE = 32
LOOKS_AT_ONCE = 2000
#: So many operations on volumes of one pod run at once.
MAX_RUNNING = 64
#: So many missing volumes are named in an Event.
MAX_NAMED = 50


class PodLook(Value):
    """A pod to be decided about. `keys`: the volumes that may have to be changed; None: all. Others as in `Pass`."""

    cause: str
    keys: tuple[str, ...] | None = ()
    afresh: bool = False

    def joined(self, other: PodLook) -> PodLook:
        """Both in one."""
        keys = None if self.keys is None or other.keys is None else (*self.keys, *other.keys)
        return PodLook(self.cause, keys, self.afresh or other.afresh)


class VolumesStep:
    """One step. `touched`, `touched_devices`: the pods and devices that may have changed. `freed_devices`: those on which, or on
    a volume with which, an operation has ended. `due`: the pods to be decided about. `plans_left`, `looks_left`: how many volumes
    the step may still plan and look at. `unfinished`: as in `State`.

    Volumes are changed by `put` alone: it copies what the step changes once, and maintains the indices.
    """

    def __init__(self, state: State, now: Moment, paths: Paths) -> None:
        self.state = state
        self.now = now
        self.paths = paths
        self.inputs = state.inputs
        self.pods = edited(state.pods)
        self.devices = dict(state.devices)
        self.commands: list[Command] = []
        self.touched: set[PodUID] = set()
        self.touched_devices: set[str] = set()
        self.freed_devices: set[str] = set()
        self.due: dict[PodUID, PodLook] = {}
        self.plans_left = PLANS_AT_ONCE
        self.looks_left = LOOKS_AT_ONCE
        self.unfinished = dict.fromkeys(state.unfinished)
        self.reconstructed = state.mounts.reconstructed
        self.scan = state.scan
        self.scanning = state.scanning
        self.index = UsersDraft(state.users)
        self._drafts: dict[PodUID, _Draft] = {}
        self._changed: dict[PodUID, set[str]] = {}
        self._remade: set[PodUID] = set()
        self._views: dict[PodUID, PodVolumesView] = {}
        self._removed: set[PodUID] = set()

    # Pods

    def look(self, uid: PodUID, cause: str, keys: Iterable[str] | None = (), *, afresh: bool = False) -> None:
        """Note that the pod is to be decided about. `keys`: the volumes that are to be looked at; None: all."""
        wanted = PodLook(cause, None if keys is None else tuple(keys), afresh)
        before = self.due.get(uid)
        self.due[uid] = wanted if before is None else before.joined(wanted)

    def put(self, uid: PodUID, key: str, volume: VolumeState | None) -> None:
        """Store the volume `key` of the pod; None removes it."""
        draft = self._draft(uid)
        before = draft.volumes.get(key)
        if volume is before:
            return
        if CHECKS.is_on:
            check_volume(uid, key, before, volume)
        if volume is None:
            del draft.volumes[key]
        else:
            draft.volumes[key] = volume
        (draft.busy.add if volume is not None and volume.phase in BUSY else draft.busy.discard)(key)
        if key not in self.pods[uid].used:
            if before is not None and draft.strays.get(identity(before)) == key:
                del draft.strays[identity(before)]
            if volume is not None:
                draft.strays[identity(volume)] = key
        self.index.change((uid, key), before, volume)
        self._changed.setdefault(uid, set()).add(key)
        self.touched.add(uid)

    def add_keys(self, uid: PodUID, volume: Volume) -> None:
        """Note the keys of the content that the volume is made from. Those that it is not made from any more stay, and do no harm."""
        draft, pod = self._draft(uid), self.pods[uid].pod
        assert pod is not None
        for key in volume_keys(pod, volume, self.inputs.content):
            if key not in draft.own_keys:
                draft.own_keys[key] = draft.keys[key] = dict(draft.keys.get(key, ()))
            draft.own_keys[key][volume.name] = None

    def remake(self, pod: PodVolumes) -> None:
        """Store a pod of which every volume may have to be decided about and published anew, because its need or spec is another."""
        strays = {identity(volume): key for key, volume in pod.volumes.items() if key not in pod.used}
        self._drafts.pop(pod.uid, None)
        self._remade.add(pod.uid)
        self.pods[pod.uid] = replace(pod, strays=strays)
        self.touched.add(pod.uid)

    def remove(self, uid: PodUID) -> None:
        """Forget the pod."""
        for key in list(self.pods[uid].volumes):
            self.put(uid, key, None)
        del self.pods[uid]
        self._views.pop(uid, None)
        self._removed.add(uid)
        self.unfinished.pop(uid, None)
        self.touched.add(uid)

    def change(self, uid: PodUID, key: str) -> None:
        """Note that the volume is to be published anew, because its device has changed."""
        self._changed.setdefault(uid, set()).add(key)
        self.touched.add(uid)

    def view(self, uid: PodUID) -> PodVolumesView:
        """What is published of the pod, as it is now."""
        before = self._views.get(uid) or self.state.views.get(uid)
        changed = self._changed.pop(uid, set())
        if uid in self._remade or before is None:
            self._remade.discard(uid)
            before = view_pod(PodVolumesView(), self.pods[uid], None, self.devices)
        elif changed:
            before = view_pod(before, self.pods[uid], changed, self.devices)
        self._views[uid] = before
        return before

    def views(self) -> Mapping[PodUID, PodVolumesView]:
        """What is published of all pods."""
        if not self._views and not self._removed:
            return self.state.views
        removed = dict.fromkeys(uid for uid in self._removed if uid not in self.pods)
        return with_changes(self.state.views, {**self._views, **removed})

    def _draft(self, uid: PodUID) -> _Draft:
        draft = self._drafts.get(uid)
        if draft is None:
            pod = self.pods[uid]
            draft = self._drafts[uid] = _Draft(dict(pod.volumes), set(pod.busy), dict(pod.strays), dict(pod.keys))
            self.pods[uid] = replace(pod, volumes=draft.volumes, busy=draft.busy, strays=draft.strays, keys=draft.keys)
        return draft

    def plan(self, pod: Pod, volume: Volume) -> Plan:
        """The plan of a volume, which counts as several if it is made from many things."""
        self.plans_left -= 1 + weight_of(volume) * PLANS_AT_ONCE // HEAVY
        return plan_volume(pod, volume, self.inputs, self.paths)

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

    def add_found(self, uid: PodUID, found: Iterable[FoundVolume]) -> None:
        """Add the volumes of the pod that were found on disk. Those that it knows but has not mounted may be mounted."""
        known: dict[Identity, list[str]] = {}
        for key, volume in self.pods[uid].volumes.items():
            known.setdefault(identity(volume), []).append(key)
        for on_disk in found:
            volumes = self.pods[uid].volumes
            same = known.get((on_disk.name, on_disk.plugin, on_disk.is_block), [])
            for key in same:
                self.put(uid, key, as_left(volumes[key]))
            key = on_disk.name if on_disk.name not in volumes else f"{on_disk.plugin}/{on_disk.name}"
            if not same and key not in volumes:
                state = VolumeState(
                    on_disk.name,
                    MountPhase.UNCERTAIN,
                    self.now.wall,
                    on_disk.plugin,
                    device=on_disk.device,
                    is_block=on_disk.is_block,
                    left_by_previous_run=True,
                )
                self.put(uid, key, state)
                known[identity(state)] = [key]
                self.touch_device(on_disk.device)

    # Devices

    def put_device(self, name: str, device: DeviceState | None) -> None:
        """Store the device; None removes it."""
        if CHECKS.is_on:
            check_device(name, self.devices.get(name), device)
        if device is None:
            del self.devices[name]
        else:
            self.devices[name] = device

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
            self.put_device(plan.name, DeviceState(found, DevicePhase.WANTED, self.now.wall, plan))
        elif known.plan != plan:
            self.put_device(plan.name, replace(known, plan=plan))
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
        places = self.index.of_device(name)
        return [(self.pods[uid], self.pods[uid].volumes[key]) for uid, key in places]

    # Events

    def record_missing(self, pod: PodVolumes, unknown: list[str], error: str) -> None:
        """Record which volumes are missing. `unknown`: those of which it is not known what to mount."""
        text = f"Unable to attach or mount volumes: {self.missing_text(pod, unknown, error)}"
        self.commands.append(RecordEvent(warning(reasons.EVENT_FAILED_MOUNT, text, pod.ref)))

    def missing_text(self, pod: PodVolumes, unknown: list[str], error: str) -> str:
        """Which volumes are missing. `unknown`: those of which it is not known what to mount."""
        return (
            f"unmounted volumes=[{_named(missing_volumes(pod))}], "
            f"unattached volumes=[{_named(self.unattached(pod))}], "
            f"failed to process volumes=[{_named(unknown)}]: {error}"
        )

    def unattached(self, pod: PodVolumes) -> Iterator[str]:
        """The names of the pod's volumes that wait until they are attached."""
        attached = self.inputs.node_volumes.attached
        for key, volume in pod.volumes.items():
            device = self.devices.get(volume.device)
            plan = device.plan if device is not None and volume.mounted is None else None
            if plan is not None and plan.is_attachable and volume.device not in attached:
                yield key

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


class _Draft(Value):
    """What a step changes of a pod: its own copies, which are parts of the pod that it stores."""

    volumes: dict[str, VolumeState]
    busy: set[str]
    strays: dict[Identity, str]
    keys: dict[ContentKey, Mapping[str, None]]
    own_keys: dict[ContentKey, dict[str, None]] = field(default_factory=dict)


def identity(volume: VolumeState) -> Identity:
    """Where the volume is on disk."""
    return volume.name, volume.plugin, volume.is_block


def _named(names: Iterable[str]) -> str:
    """The names as a text that is not much longer than `MAX_NAMED` of them."""
    listed = list(islice(names, MAX_NAMED + 1))
    return " ".join(sorted(listed[:MAX_NAMED]) + ["..."] * (len(listed) > MAX_NAMED))


def as_left(volume: VolumeState) -> VolumeState:
    """A volume that was found on disk, where an earlier agent has left it."""
    phase, before = MountPhase.UNCERTAIN, MountPhase.UNCERTAIN
    if volume.phase in (MountPhase.NEW, MountPhase.FAILED):
        return replace(volume, phase=phase, before=before, left_by_previous_run=True)
    if volume.phase is MountPhase.SETTING_UP:
        return replace(volume, before=before, left_by_previous_run=True)
    return volume


def wants(pod: PodVolumes) -> bool:
    """Whether volumes are set up for the pod."""
    return pod.need is VolumeNeed.NEEDED
