"""The pods' directories that are on disk: scans and removes them, and tears volumes down. Blocks.

Nothing is deleted through a mount: a tree is removed only when nothing is mounted at or below it.
"""

from __future__ import annotations

from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID, is_pod_uid
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.beneath import list_directories, list_entries
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind
from pykubelet.edges.host.fs.subpaths import remove_target
from pykubelet.provide.volumes.directories import VolumeDirs
from pykubelet.provide.volumes.kind import FoundDevice, VolumesError
from pykubelet.provide.volumes.model import FoundPod, FoundVolume
from pykubelet.provide.volumes.mounted_parents import refuse_mounted, refuse_mounts_above
from pykubelet.provide.volumes.plan import KINDS, kind_in

log = Log("provide.volumes")


def scan(paths: Paths) -> tuple[FoundPod, ...]:
    """The pods that have a directory, with their volumes. Entries whose name is no pod UID are left out.

    A pod whose directory cannot be read is listed without volumes. `remove_pod` removes nothing until it can be read.
    """
    uids = [PodUID(entry.name) for entry in list_directories(Beneath(paths.pods, "")) if is_pod_uid(entry.name)]
    return tuple(FoundPod(uid, _readable_volumes(paths, uid)) for uid in uids)


def _readable_volumes(paths: Paths, uid: PodUID) -> tuple[FoundVolume, ...]:
    try:
        return read_volumes(paths, uid)
    except HostError as error:
        log.warning("the volumes in a pod's directory cannot be read", uid=uid, error=error)
        return ()


def read_volumes(paths: Paths, uid: PodUID) -> tuple[FoundVolume, ...]:
    """The volumes that have a directory, and those of which only sub-path binds are left."""
    found = [
        _found_volume(paths, uid, plugin.name, volume.name, is_block=is_block)
        for is_block, top in ((False, paths.pod_volumes(uid)), (True, paths.pod_devices(uid)))
        for plugin in list_directories(top)
        for volume in list_entries(top / plugin.name)
    ]
    names = {volume.name for volume in found}
    found.extend(FoundVolume("", e.name) for e in list_directories(paths.subpaths(uid)) if e.name not in names)
    return tuple(found)


def _found_volume(paths: Paths, uid: PodUID, plugin: str, name: str, *, is_block: bool) -> FoundVolume:
    """A volume on disk, with its device. A note about the device that cannot be read counts as none."""
    try:
        device = kind_in(plugin).device_of(paths, VolumeDirs.of(paths, uid, plugin, name, is_block=is_block))
    except (HostError, VolumesError) as error:
        log.warning("it cannot be read which device a volume uses", uid=uid, volume=name, error=error)
        device = ""
    return FoundVolume(plugin, name, device, is_block)


def scan_devices(paths: Paths) -> tuple[FoundDevice, ...]:
    """The devices of all kinds that may be staged. A kind whose directories cannot be read is left out."""
    found: list[FoundDevice] = []
    for kind in KINDS.values():
        try:
            found.extend(kind.find_devices(paths))
        except (HostError, VolumesError) as error:
            log.warning("the devices of a volume kind cannot be read", kind=kind.name, error=error)
    return tuple(found)


def tear_down(paths: Paths, uid: PodUID, plugin: str, name: str, *, is_block: bool = False) -> None:
    """Unmount a volume's sub-path binds, then tear the volume down as its kind does. A missing volume is no error.

    `plugin`: its directory below `volumes`, or below `volumeDevices` for a block device; the kind may be unknown to this
    agent. "" when it has no directory.
    """
    clean_subpaths(paths, uid, name)
    if plugin:
        dirs = VolumeDirs.of(paths, uid, plugin, name, is_block=is_block)
        refuse_mounts_above(dirs.path)
        refuse_mounts_above(dirs.private)
        kind_in(plugin).tear_down(dirs)


def prepare_tear_down(paths: Paths, uid: PodUID, name: str, directory: Beneath) -> None:
    """What comes before a driver's tear-down of the volume in `directory`. VolumesError if others have mounted above it."""
    clean_subpaths(paths, uid, name)
    refuse_mounts_above(directory)


def clean_subpaths(paths: Paths, uid: PodUID, name: str) -> None:
    """Unmount and remove the sub-path binds of a volume."""
    top = paths.subpaths(uid) / name
    found = beneath.stat_file(top)
    if found is None:
        return
    if not found.is_dir:  # nothing is removed behind a link
        raise VolumesError(f"{top} is no directory but a {found.kind}: remove it")
    refuse_mounted(top)
    refuse_mounts_above(top)
    for container in list_directories(top):
        directory = top / container.name
        refuse_mounted(directory)
        for index in list_entries(directory):
            remove_target(directory / index.name)
        beneath.remove_dir(directory)
    beneath.remove_dir(top)


def _remove_empty(uid: PodUID, top: Beneath) -> None:
    """Remove a directory of volumes and what is in it, which are empty directories only. VolumesError for anything else."""
    failed = f'orphaned pod "{uid}" found, but error occurred when trying to remove the volumes dir: '
    try:
        for entry in list_entries(top):
            if entry.kind is not FileKind.DIRECTORY:
                raise VolumesError(f"{failed}{top}/{entry.name} is no directory: remove it")
            beneath.remove_dir(top / entry.name)
        beneath.remove_dir(top)
    except HostError as error:
        raise VolumesError(f"{failed}{error}") from error


def remove_pod(paths: Paths, uid: PodUID) -> tuple[FoundVolume, ...]:
    """Remove the pod's directory, unless volumes are left in it. Returns these volumes; then nothing was removed.

    VolumesError when something else is mounted below the directory.
    """
    left = read_volumes(paths, uid)
    if left:
        return left
    for top in (paths.pod_volumes(uid), paths.pod_devices(uid)):
        _remove_empty(uid, top)
    try:
        beneath.remove_tree(paths.pod(uid), may_hold_mounts=False)
    except HostError as error:
        if error.is_busy:
            raise VolumesError(
                f'orphaned pod "{uid}" found, but something is still mounted below it: {error}'
            ) from error
        raise
    return ()
