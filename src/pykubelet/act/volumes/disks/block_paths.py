"""The paths of a mapped block device. Pure.

Source: KEP-1755 (raw block volumes), directories of the reference kubelet.
"""

from __future__ import annotations

from pykubelet.act.volumes.directories import VolumeDirs
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID


class BlockMap(Value):
    """Where a device is mapped for one pod. `directory`: the device's global map. `link`: the path that the pod's containers get."""

    directory: str
    uid: PodUID
    link: str

    @property
    def file(self) -> str:
        """The file on which the device is bind-mounted."""
        return f"{self.directory}/{self.uid}"


def map_of(directory: str, dirs: VolumeDirs) -> BlockMap:
    """The map of a pod's block volume. `directory`: the global map of its device."""
    return BlockMap(directory, dirs.uid, dirs.path)
