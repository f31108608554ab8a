"""The pods' directories on disk: making them, reading back what is there, tearing volumes down, removing. Blocks.

Nothing is deleted through a mount: a tree is removed only when nothing is mounted at or below it, and volumes whose
data may live elsewhere are only unmounted, their directories removed when empty.
"""

from __future__ import annotations

from pykubelet.act.volumes.model import (
    CONFIG_MAP,
    DOWNWARD_API,
    EMPTY_DIR,
    PROJECTED,
    SECRET,
    FoundPod,
    FoundVolume,
    VolumesError,
)
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID, is_pod_uid
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host import files, mounts, trees
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.files import DirEntry, FileKind
from pykubelet.edges.host.subpath_bind import remove_target

log = Log("act.volumes")

# Kinds whose data belongs to the pod and ends with it.
_OWN_DATA = frozenset({EMPTY_DIR, DOWNWARD_API, PROJECTED, SECRET, CONFIG_MAP, "kubernetes.io~git-repo"})
_KEPT_BESIDE = "vol_data.json"  # what a CSI volume leaves beside its mount


def make_tree(paths: Paths, uid: PodUID) -> None:
    """The pod's directory with what the agent expects in it."""
    for path in (paths.pod(uid), paths.pod_volumes(uid), paths.pod_plugins(uid)):
        files.make_dirs(path, 0o750)


def scan(paths: Paths) -> tuple[FoundPod, ...]:
    """Every pod that has a directory, with its volumes. What is no pod's directory is left out.

    One that cannot be read counts as without volumes; nothing of it is removed before they can be read.
    """
    uids = [PodUID(entry.name) for entry in _directories(paths.pods) if is_pod_uid(entry.name)]
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
        FoundVolume(plugin.name, volume.name)
        for plugin in _directories(paths.pod_volumes(uid))
        for volume in _entries(f"{paths.pod_volumes(uid)}/{plugin.name}")
    ]
    names = {volume.name for volume in found}
    found.extend(FoundVolume("", e.name) for e in _directories(paths.subpaths(uid)) if e.name not in names)
    return tuple(found)


def _entries(path: str) -> tuple[DirEntry, ...]:
    try:
        return files.list_dir(path)
    except HostError as error:
        if error.is_not_found:
            return ()
        raise


def _directories(path: str) -> list[DirEntry]:
    return [entry for entry in _entries(path) if entry.kind is FileKind.DIRECTORY]


def tear_down(paths: Paths, uid: PodUID, plugin: str, name: str) -> None:
    """Unmount a volume's sub-path binds, then the volume, and remove what is the pod's. Nothing there is fine."""
    _clean_subpaths(paths, uid, name)
    if plugin == "":
        return
    trees.remove_tree(f"{paths.pod_plugins(uid)}/{plugin}/{name}")
    path = paths.volume(uid, plugin, name)
    while mounts.unmount(path):
        continue
    try:
        _remove_volume(path, plugin)
    except HostError as error:
        if not error.is_busy:
            raise
        for below in mounts.mounts_below(path):
            mounts.unmount(below.target)
        _remove_volume(path, plugin)


def _remove_volume(path: str, plugin: str) -> None:
    try:
        files.remove_dir(path)
        return
    except HostError as error:
        if not error.is_busy and not error.is_not_found:
            raise
    if plugin in _OWN_DATA:
        trees.remove_tree(path)
        return
    files.remove_file(f"{path}/{_KEPT_BESIDE}")
    for entry in _directories(path):
        while mounts.unmount(f"{path}/{entry.name}"):
            continue
        files.remove_dir(f"{path}/{entry.name}")
    files.remove_dir(path)


def _clean_subpaths(paths: Paths, uid: PodUID, name: str) -> None:
    top = f"{paths.subpaths(uid)}/{name}"
    if files.stat_file(top, follow=False) is None:
        return
    for container in _directories(top):
        for index in _entries(f"{top}/{container.name}"):
            remove_target(f"{top}/{container.name}/{index.name}")
        files.remove_dir(f"{top}/{container.name}")
    files.remove_dir(top)


def remove_pod(paths: Paths, uid: PodUID) -> tuple[FoundVolume, ...]:
    """Remove the pod's directory. What it returns is still there, and then nothing was removed.

    Without a volume there is no place left where anybody mounts something; a mount that is there all the same is kept.
    """
    left = read_volumes(paths, uid)
    if left:
        return left
    try:
        trees.remove_tree(paths.pod(uid), may_hold_mounts=False)
    except HostError as error:
        if error.is_busy:
            raise VolumesError(f"orphaned pod {uid} found, but something is still mounted below it: {error}") from error
        raise
    return ()
