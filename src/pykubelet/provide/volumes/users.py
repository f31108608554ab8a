"""Which volumes are shared, by two volumes of a pod or with other pods: the indices over all volumes (`Users`) and their rules. Pure.

Source: the Kubernetes documentation "Persistent Volumes", access modes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pykubelet.provide.volumes.model import Place, PodVolumes, Users, VolumeState
from pykubelet.provide.volumes.selinux import is_context_problem

K = TypeVar("K")
IN_USE = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
_NOTHING: Mapping[Place, None] = {}


def is_directory_busy(pod: PodVolumes, key: str, volume: VolumeState) -> bool:
    """Whether an operation runs on the directory of `volume`, begun for another volume of the pod."""
    others = (pod.volumes[other] for other in pod.busy if other != key)
    return any(other.plugin != "" and (other.plugin, other.name) == (volume.plugin, volume.name) for other in others)


def waits_for_other(error: str) -> bool:
    """Whether the error is that of a volume that another pod has."""
    return error == IN_USE or is_context_problem(error)


def is_same_volume(volume: VolumeState, other: VolumeState) -> bool:
    """Whether both are the same persistent volume. One that was found on disk is known by its directory alone."""
    if volume.name != other.name or volume.plugin != other.plugin:
        return False
    return all(state.plan is None or state.is_claimed for state in (volume, other))


class UsersDraft:
    """The indices of a step. An index is copied when it first changes."""

    def __init__(self, users: Users) -> None:
        self._before = users
        self._by_device = users.by_device
        self._by_directory = users.by_directory
        self._waiting = users.waiting

    def of_device(self, name: str) -> Mapping[Place, None]:
        """The volumes with this device."""
        return self._by_device.get(name, _NOTHING)

    def of_directory(self, volume: VolumeState) -> Mapping[Place, None]:
        """The volumes that may be the same persistent volume."""
        return self._by_directory.get((volume.plugin, volume.name), _NOTHING)

    @property
    def waiting(self) -> Mapping[Place, None]:
        """The volumes that were refused because another pod has them."""
        return self._waiting

    def change(self, place: Place, before: VolumeState | None, after: VolumeState | None) -> None:
        """Take the change of a volume. None: there is none."""
        old, new = (state.device if state is not None else "" for state in (before, after))
        if old != new:
            self._by_device = _moved(self._by_device, self._before.by_device, place, old or None, new or None)
        left, entered = _directory(before), _directory(after)
        if left != entered:
            self._by_directory = _moved(self._by_directory, self._before.by_directory, place, left, entered)
        is_waiting = after is not None and after.failure is not None and waits_for_other(after.failure.error)
        if is_waiting != (place in self._waiting):
            waiting = dict(self._waiting)
            if is_waiting:
                waiting[place] = None
            else:
                del waiting[place]
            self._waiting = waiting

    def done(self) -> Users:
        """The indices after the step; the same object if none has changed."""
        before = self._before
        if (
            self._by_device is before.by_device
            and self._by_directory is before.by_directory
            and self._waiting is before.waiting
        ):
            return before
        return Users(self._by_device, self._by_directory, self._waiting)


def _directory(state: VolumeState | None) -> tuple[str, str] | None:
    """The directory of a volume that is persistent, or of which that is not known; None for others."""
    if state is None or not state.plugin or not (state.plan is None or state.is_claimed):
        return None
    return state.plugin, state.name


def _moved(
    index: Mapping[K, Mapping[Place, None]],
    before: Mapping[K, Mapping[Place, None]],
    place: Place,
    old: K | None,
    new: K | None,
) -> Mapping[K, Mapping[Place, None]]:
    """The index with a place moved from one key to another. The same object, unless it is that of `before`."""
    moved = dict(index) if index is before else index
    assert isinstance(moved, dict)
    if old is not None:
        left = {other: None for other in moved.get(old, _NOTHING) if other != place}
        if left:
            moved[old] = left
        else:
            moved.pop(old, None)
    if new is not None:
        moved[new] = {**moved.get(new, _NOTHING), place: None}
    return moved
