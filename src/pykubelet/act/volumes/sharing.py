"""Decides whether a volume is shared: by two volumes of one pod, or with other pods. Pure.

Source: the Kubernetes documentation "Persistent Volumes", access modes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.volumes.model import BUSY, UNUSED, PodVolumes, VolumeState
from pykubelet.act.volumes.selinux import is_context_problem
from pykubelet.base.model.ids import PodUID

IN_USE = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"


def is_directory_busy(volumes: Mapping[str, VolumeState], key: str, volume: VolumeState) -> bool:
    """Whether an operation runs on the directory of `volume`, begun for another volume of the pod."""
    return any(
        other.phase in BUSY and other.plugin != "" and (other.plugin, other.name) == (volume.plugin, volume.name)
        for other_key, other in volumes.items()
        if other_key != key
    )


def is_used_by_other(pods: Mapping[PodUID, PodVolumes], uid: PodUID, volume: VolumeState) -> bool:
    """Whether another pod may have the persistent volume `volume` mounted."""
    return any(
        other.phase not in UNUSED and _is_same_volume(other, volume)
        for other_uid, pod in pods.items()
        if other_uid != uid
        for other in pod.volumes.values()
    )


def waiting_for_volumes(pods: Mapping[PodUID, PodVolumes], uid: PodUID) -> list[tuple[PodUID, str]]:
    """The pods other than `uid` that have been refused a volume because another pod had it, and the keys of their volumes."""
    return [
        (other, key)
        for other, pod in pods.items()
        for key, volume in pod.volumes.items()
        if other != uid and volume.failure is not None and _waits_for_other(volume.failure.error)
    ]


def _waits_for_other(error: str) -> bool:
    return error == IN_USE or is_context_problem(error)


def _is_same_volume(one: VolumeState, other: VolumeState) -> bool:
    """Whether both are the same persistent volume. One that was found on disk is known by its directory alone."""
    if one.name != other.name or one.plugin != other.plugin:
        return False
    return all(state.plan is None or state.is_claimed for state in (one, other))
