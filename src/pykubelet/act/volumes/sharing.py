"""Decides whether a volume is shared: by two volumes of one pod, or with other pods. Pure.

Source: the Kubernetes documentation "Persistent Volumes", access modes.
"""

from __future__ import annotations

from pykubelet.act.volumes.model import PodVolumes, VolumeState
from pykubelet.act.volumes.selinux import is_context_problem

IN_USE = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"


def is_directory_busy(pod: PodVolumes, key: str, volume: VolumeState) -> bool:
    """Whether an operation runs on the directory of `volume`, begun for another volume of the pod."""
    others = (pod.volumes[other] for other in pod.busy if other != key)
    return any(other.plugin != "" and (other.plugin, other.name) == (volume.plugin, volume.name) for other in others)


def waits_for_other(error: str) -> bool:
    """Whether the error is that of a volume that another pod has."""
    return error == IN_USE or is_context_problem(error)


def is_same_volume(one: VolumeState, other: VolumeState) -> bool:
    """Whether both are the same persistent volume. One that was found on disk is known by its directory alone."""
    if one.name != other.name or one.plugin != other.plugin:
        return False
    return all(state.plan is None or state.is_claimed for state in (one, other))
