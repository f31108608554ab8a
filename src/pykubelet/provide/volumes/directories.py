"""Makes the directories of a pod and of one volume on the host, and unmounts and removes those of the volume. Blocks.

Nothing is deleted through a mount: a volume is unmounted first. `delete_volume` then removes the directory with its content.
`release_volume` removes the directory only when it is empty, because the data may be stored elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.errors import HostError

_CSI_DATA = "vol_data.json"  # lies beside the mount of a CSI volume


class VolumeDirs(Value):
    """A volume's directories. `path`: what containers see, below the pod's `volumes`. `private`: the agent's notes, below `plugins`.

    `is_block`: the volume is a block device; then `path` is a link below the pod's `volumeDevices`. `plugins`: the directory
    of all plugins on this node.
    """

    path: Beneath
    private: Beneath
    is_block: bool = False
    plugins: str = ""

    @classmethod
    def of(cls, paths: Paths, uid: PodUID, directory: str, name: str, *, is_block: bool = False) -> VolumeDirs:
        """The directories of one volume. `directory`: that of its kind, such as `kubernetes.io~empty-dir`."""
        path = paths.pod_devices(uid) / directory / name if is_block else paths.volume(uid, directory, name)
        return cls(path, paths.pod_plugins(uid) / directory / name, is_block, paths.plugins)

    @property
    def name(self) -> str:
        """The volume's name, which is that of the PersistentVolume if it is claimed."""
        return self.path.name

    @property
    def uid(self) -> PodUID:
        """The pod that has the volume."""
        return PodUID(self.path.split("/")[-4])


def make_pod_dirs(paths: Paths, uid: PodUID) -> None:
    """Make the pod's directory with its subdirectories `volumes` and `plugins`."""
    for path in (paths.pod_volumes(uid), paths.pod_plugins(uid)):
        beneath.make_dirs(path, 0o750)


def make_volume_dir(path: Beneath) -> None:
    """Make the directory of a volume. Every user may use it, but not its parent directories."""
    beneath.make_dirs(path.parent, 0o750)
    if not beneath.make_dirs(path, 0o777) and not mounts.is_mount_point(path):
        beneath.change_mode(path, 0o777)


def make_empty_volume_dir(path: Beneath) -> None:
    """Make the directory on which a volume will be mounted. Only the agent may use it while nothing is mounted."""
    beneath.make_dirs(path, 0o750)


def delete_volume(dirs: VolumeDirs) -> None:
    """Unmount the volume and delete its data. A missing volume is no error."""
    _tear_down(dirs, _delete)


def release_volume(dirs: VolumeDirs) -> None:
    """Unmount the volume and keep its data. A missing volume is no error."""
    _tear_down(dirs, _release)


def _tear_down(dirs: VolumeDirs, remove: Callable[[Beneath], None]) -> None:
    beneath.remove_tree(dirs.private)
    while mounts.unmount(dirs.path):
        continue
    try:
        _remove_volume(dirs.path, remove)
    except HostError as error:
        if not error.is_busy:
            raise
        for below in mounts.mounts_below(dirs.path):
            mounts.unmount(below.target)
        _remove_volume(dirs.path, remove)


def _remove_volume(path: Beneath, remove: Callable[[Beneath], None]) -> None:
    try:
        beneath.remove_dir(path)
    except HostError as error:
        if not error.is_busy and not error.is_not_found:
            raise
        remove(path)


def _delete(path: Beneath) -> None:
    beneath.remove_tree(path)


def _release(path: Beneath) -> None:
    found = beneath.stat_file(path)
    if found is not None and not found.is_dir:  # nothing is removed behind a link
        raise HostError("rmdir", path, "ENOTDIR", f"it is no directory but a {found.kind}: remove it")
    beneath.remove_file(path / _CSI_DATA)
    for entry in beneath.list_directories(path):
        while mounts.unmount(path / entry.name):
            continue
        beneath.remove_dir(path / entry.name)
    beneath.remove_dir(path)
