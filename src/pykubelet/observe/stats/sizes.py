"""How much of file systems is used: the node's, the images', each pod's volumes, logs and own files. Blocks.

A volume with a file system of its own is asked of the file system; the others are walked, which is why this is done for
one pod at a time, in a thread, and seldom.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.usage import FileSystemUse, VolumeUse
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import list_dir, stat_file
from pykubelet.edges.host.fs.mounts import is_mount_point, read_fs_usage
from pykubelet.edges.host.fs.trees import read_disk_usage


class PodSizes(Value):
    """`logs`: by container name. `host_files`: bytes of the files the agent made for the pod. `took`: how each volume was
    asked (`du`, `statfs`), and the seconds that it took."""

    at: float
    volumes: tuple[VolumeUse, ...] = ()
    logs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    host_files: int = 0
    took: tuple[tuple[str, float], ...] = ()


def read_file_system(path: str, at: float, used: tuple[int, int] | None = None) -> FileSystemUse:
    """The file system that holds `path`; `used`: bytes and inodes of a part of it. HostError."""
    usage = read_fs_usage(path)
    taken, inodes = used if used is not None else (usage.used_bytes, usage.inodes_used)
    return FileSystemUse(
        at=at,
        capacity=usage.capacity_bytes,
        available=usage.available_bytes,
        used=taken,
        inodes=usage.inodes,
        inodes_free=usage.inodes_free,
        inodes_used=inodes,
    )


def read_pod_sizes(
    paths: Paths, ref: PodRef, view: PodView | None, mounted: Mapping[str, MountedVolume], at: float
) -> PodSizes:
    """What vanishes meanwhile counts as nothing. HostError when a disk fails."""
    began = [time.perf_counter()]
    volumes = []
    for volume in mounted.values():
        if volume.is_measured:
            volumes.append(_volume(volume, at))
            began.append(time.perf_counter())
    took = [
        ("du" if one.is_local else "statfs", end - begin)
        for one, begin, end in zip(volumes, began, began[1:], strict=False)
    ]
    names = {container.name for container in view.containers} if view is not None else set()
    logs = {name: _size_of_files(paths.container_logs(ref, name)) for name in names}
    hosts = stat_file(paths.etc_hosts(ref.uid))
    return PodSizes(at, tuple(volumes), logs, hosts.size if hosts is not None else 0, tuple(took))


def _volume(volume: MountedVolume, at: float) -> VolumeUse:
    own = is_mount_point(volume.host_path)
    try:
        used = None if own else read_disk_usage(volume.host_path)
        fs = read_file_system(volume.host_path, at, used)
    except HostError as error:
        if not error.is_not_found:
            raise
        fs = FileSystemUse(at)
    return VolumeUse(volume.name, fs, is_local=not own)


def _size_of_files(directory: str) -> tuple[int, int]:
    try:
        found = [stat_file(f"{directory}/{entry.name}") for entry in list_dir(directory)]
    except HostError as error:
        if error.is_not_found:
            return 0, 0
        raise
    sizes = [one.size for one in found if one is not None]
    return sum(sizes), len(sizes)
