"""The paths of a mapped block device. Pure.

Source: KEP-1755 (raw block volumes), directories of the reference kubelet.
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Beneath
from pykubelet.provide.volumes.directories import VolumeDirs


class BlockMap(Value):
    """Where a device is mapped for one pod. `directory`: the device's global map. `link`: the path that the pod's containers get."""

    directory: Beneath
    uid: PodUID
    link: Beneath

    @property
    def file(self) -> Beneath:
        """The file on which the device is bind-mounted."""
        return self.directory / self.uid


def map_of(directory: Beneath, dirs: VolumeDirs) -> BlockMap:
    """The map of a pod's block volume. `directory`: the global map of its device."""
    return BlockMap(directory, dirs.uid, dirs.path)
