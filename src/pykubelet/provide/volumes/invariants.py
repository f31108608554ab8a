"""The phases of volumes and devices: how they follow each other, and what always holds. Pure.

`VOLUMES` and `DEVICES` are their whole lives: for each phase the next ones, where None is a volume or device that is not known.
While `CHECKS` is on, each change is looked up here, and each step ends with `check_invariants`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

from pykubelet.base.kit.checks import BrokenInvariantError
from pykubelet.base.model.ids import PodUID
from pykubelet.provide.volumes.kind import VolumePlan
from pykubelet.provide.volumes.model import (
    BUSY,
    DevicePhase,
    DeviceState,
    MountPhase,
    Place,
    PodDirectory,
    PodVolumes,
    State,
    Users,
    VolumeState,
)
from pykubelet.provide.volumes.needs import UsersDraft

P = TypeVar("P", MountPhase, DevicePhase)

VOLUMES: Mapping[MountPhase | None, Collection[MountPhase | None]] = {
    # needed, with or without an operation at once, or found on disk
    None: {MountPhase.NEW, MountPhase.SETTING_UP, MountPhase.MOUNTED, MountPhase.UNCERTAIN},
    # in-place volumes are mounted without an operation
    MountPhase.NEW: {MountPhase.SETTING_UP, MountPhase.MOUNTED, MountPhase.UNCERTAIN, None},
    # if nothing was tried, it is as before
    MountPhase.SETTING_UP: {MountPhase.MOUNTED, MountPhase.FAILED, MountPhase.UNCERTAIN, MountPhase.NEW},
    MountPhase.FAILED: {
        MountPhase.SETTING_UP,
        MountPhase.MOUNTED,
        MountPhase.UNCERTAIN,
        MountPhase.TEARING_DOWN,
        None,
    },
    MountPhase.MOUNTED: {MountPhase.REFRESHING, MountPhase.EXPANDING, MountPhase.TEARING_DOWN, None},
    # it stays mounted, however these end
    MountPhase.REFRESHING: {MountPhase.MOUNTED},
    MountPhase.EXPANDING: {MountPhase.MOUNTED},
    # one that is known from the disk alone is forgotten when it is known which volume of the pod it is
    MountPhase.UNCERTAIN: {MountPhase.SETTING_UP, MountPhase.MOUNTED, MountPhase.TEARING_DOWN, None},
    MountPhase.TEARING_DOWN: {None, MountPhase.UNCERTAIN},
}
DEVICES: Mapping[DevicePhase | None, Collection[DevicePhase | None]] = {
    None: {DevicePhase.WANTED, DevicePhase.UNCERTAIN},
    DevicePhase.WANTED: {DevicePhase.STAGING, DevicePhase.UNCERTAIN, None},
    DevicePhase.STAGING: {DevicePhase.STAGED, DevicePhase.WANTED, DevicePhase.UNCERTAIN},
    DevicePhase.STAGED: {DevicePhase.UNSTAGING},
    DevicePhase.UNCERTAIN: {DevicePhase.STAGING, DevicePhase.UNSTAGING},
    DevicePhase.UNSTAGING: {DevicePhase.WANTED, DevicePhase.UNCERTAIN},
}

_AT_WORK = (DevicePhase.STAGING, DevicePhase.UNSTAGING)
_IN_PLACE = (MountPhase.MOUNTED, MountPhase.REFRESHING, MountPhase.EXPANDING)
_PLANNED = (*_IN_PLACE, MountPhase.SETTING_UP)
_OF_VOLUME: tuple[tuple[str, Callable[[VolumeState], bool]], ...] = (
    ("what is mounted is known exactly if it is mounted", lambda v: (v.mounted is not None) is (v.phase in _IN_PLACE)),
    ("only a planned volume is set up", lambda v: v.phase not in _PLANNED or isinstance(v.plan, VolumePlan)),
    ("only a set-up is cancelled", lambda v: not v.is_cancelled or v.phase is MountPhase.SETTING_UP),
    (
        "what an earlier agent has left has not failed",
        lambda v: not v.left_by_previous_run or v.phase is not MountPhase.FAILED,
    ),
    ("an operation does not follow another one", lambda v: v.before not in BUSY),
    ("no plan is made during a tear-down", lambda v: v.planning is None or v.phase is not MountPhase.TEARING_DOWN),
)
_OF_DEVICE: tuple[tuple[str, Callable[[DeviceState], bool]], ...] = (
    ("the operation that runs is the last one", lambda d: d.phase not in _AT_WORK or d.last is d.phase),
    ("an operation does not follow another one", lambda d: d.before not in _AT_WORK),
    (
        "what an earlier agent has left may be staged",
        lambda d: not d.left_by_previous_run or d.phase is not DevicePhase.WANTED,
    ),
    ("a staged device has no failure", lambda d: d.failure is None or d.phase is not DevicePhase.STAGED),
)


def check_volume(uid: PodUID, key: str, before: VolumeState | None, after: VolumeState | None) -> None:
    """Raise BrokenInvariantError if the change is not in the table. None: the volume is not known."""
    phases = (before.phase if before is not None else None), (after.phase if after is not None else None)
    _look_up(VOLUMES, f"volume {key} of pod {uid}", *phases)


def check_device(name: str, before: DeviceState | None, after: DeviceState | None) -> None:
    """Raise BrokenInvariantError if the change is not in the table. None: the device is not known."""
    phases = (before.phase if before is not None else None), (after.phase if after is not None else None)
    _look_up(DEVICES, f"device {name}", *phases)


def _look_up(table: Mapping[P | None, Collection[P | None]], what: str, before: P | None, after: P | None) -> None:
    if before is not after and after not in table[before]:
        raise BrokenInvariantError(f"{what}: {before or 'not known'} is not followed by {after or 'not known'}")


def check_invariants(state: State) -> None:
    """Raise BrokenInvariantError if the state breaks a rule."""
    for what, rule in _broken(state):
        raise BrokenInvariantError(f"{what}: broken rule: {rule}")


def _broken(state: State) -> Iterator[tuple[str, str]]:
    for uid, pod in state.pods.items():
        for rule in _broken_by_pod(pod):
            yield f"pod {pod.ref or uid}", rule
        for key, volume in pod.volumes.items():
            for rule in _broken_by_volume(state, volume):
                yield f"volume {key} of pod {pod.ref or uid}, {volume.phase}", rule
    for name, device in state.devices.items():
        users = [state.pods[uid].volumes[key] for uid, key in state.users.by_device.get(name, ())]
        at_work = (device.phase in _AT_WORK) + sum(volume.phase in BUSY for volume in users)
        rules = [rule for rule, holds in _OF_DEVICE if not holds(device)]
        for rule in (*rules, *(["one operation at a time on it and its volumes"] if at_work > 1 else [])):
            yield f"device {name}, {device.phase}", rule
    if _indices(state) != _sets(state.users):
        yield "all volumes", "the indices are those of the volumes"
    for name, uids in (("timed", state.timed), ("unfinished", state.unfinished), ("mounts", state.mounts.pods)):
        if not set(state.pods) >= set(uids):
            yield "all pods", f"{name} has only pods that are known"
    if any(uid in state.pods and not state.pods[uid].todo.keys for uid in state.unfinished):
        yield "all pods", "the unfinished ones have volumes left to look at"
    if set(state.views) != set(state.pods):
        yield "all pods", "each has a view"


def _broken_by_volume(state: State, volume: VolumeState) -> Iterator[str]:
    yield from (rule for rule, holds in _OF_VOLUME if not holds(volume))
    if isinstance(volume.plan, VolumePlan) and volume.plan.device is not None and volume.device not in state.devices:
        yield "the device that it is planned with is known"


def _broken_by_pod(pod: PodVolumes) -> Iterator[str]:
    busy = [volume for volume in pod.volumes.values() if volume.phase in BUSY]
    if set(pod.busy) != {key for key, volume in pod.volumes.items() if volume.phase in BUSY}:
        yield "the busy volumes are those on which an operation runs"
    directories = Counter((volume.plugin, volume.name) for volume in busy if volume.plugin)
    if any(count > 1 for count in directories.values()):
        yield "one operation at a time on a directory"
    if pod.directory is PodDirectory.REMOVING and pod.volumes:
        yield "the directory is removed when no volume is left"
    if pod.strays != {(v.name, v.plugin, v.is_block): key for key, v in pod.volumes.items() if key not in pod.used}:
        yield "the strays are the volumes that it is not known to use"


_Sets = tuple[dict[str, set[Place]], dict[tuple[str, str], set[Place]], set[Place]]


def _indices(state: State) -> _Sets:
    """The indices, made anew from all volumes."""
    draft = UsersDraft(Users())
    for uid, pod in state.pods.items():
        for key, volume in pod.volumes.items():
            draft.change((uid, key), None, volume)
    return _sets(draft.done())


def _sets(users: Users) -> _Sets:
    by_device = {name: set(places) for name, places in users.by_device.items()}
    return by_device, {where: set(places) for where, places in users.by_directory.items()}, set(users.waiting)
