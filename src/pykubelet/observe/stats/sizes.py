"""Measures the usage of file systems: of the node, of images, and of each pod's volumes, logs and other files. Blocks.

A volume with a file system of its own is measured by statfs, one of which the file system counts what it uses by its quota; the
others by a walk over their files, which is slow: it runs in a thread, for one pod at a time, and seldom.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.paths import Beneath, Paths, below
from pykubelet.base.model.usage import FileSystemUse, VolumeUse
from pykubelet.edges.host.cgroups.io_stats import device_path
from pykubelet.edges.host.fs.beneath import list_entries, read_disk_usage, stat_file
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.mounts import is_mount_point, read_fs_usage
from pykubelet.edges.host.fs.quotas import VolumeQuotas


class PodSizes(Value):
    """`logs`: by container name. `host_files`: bytes of the files the agent made for the pod. `took`: how each volume was
    asked (`du`, `statfs`, `fsquota`), and the seconds that it took."""

    at: float
    volumes: tuple[VolumeUse, ...] = ()
    logs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    host_files: int = 0
    took: tuple[tuple[str, float], ...] = ()


def read_file_system(path: str, at: float, used: tuple[int, int] | None = None) -> FileSystemUse:
    """Measure the file system that contains `path`. `used`: bytes and inodes of a part of it. HostError."""
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
        device=device_path(path),
    )


def read_pod_sizes(
    paths: Paths,
    ref: PodRef,
    view: PodView | None,
    mounted: Mapping[str, MountedVolume],
    quotas: VolumeQuotas,
    at: float,
) -> PodSizes:
    """Measure a pod's files. Files that vanish meanwhile count as 0. HostError if a disk fails."""
    volumes, took = [], []
    for volume in mounted.values():
        if volume.is_measured:
            began = time.perf_counter()
            found, source = _volume(volume, paths.pods, quotas, at)
            volumes.append(found)
            took.append((source, time.perf_counter() - began))
    names = {container.name for container in view.containers} if view is not None else set()
    logs = {name: _size_of_files(paths.container_logs(ref, name)) for name in names}
    hosts = stat_file(paths.etc_hosts(ref.uid))
    return PodSizes(at, tuple(volumes), logs, hosts.size if hosts is not None else 0, tuple(took))


def _volume(volume: MountedVolume, pods: str, quotas: VolumeQuotas, at: float) -> tuple[VolumeUse, str]:
    """The volume's usage, and how it was measured."""
    path = volume.host_path
    own = is_mount_point(path)
    counted = None if own else quotas.read_use(path)
    source = "statfs" if own else "du" if counted is None else "fsquota"
    try:
        used = None if own else counted or read_disk_usage(below(path, pods))
        fs = read_file_system(path, at, used)
    except HostError as error:
        if not error.is_not_found:
            raise
        fs = FileSystemUse(at)
    return VolumeUse(volume.name, fs, is_local=not own), source


def _size_of_files(directory: Beneath) -> tuple[int, int]:
    """The bytes of the regular files, and the number of all files. A pod may be able to put anything there."""
    found = [stat_file(directory / entry.name) for entry in list_entries(directory)]
    present = [one for one in found if one is not None]
    return sum(one.size for one in present if one.is_file), len(present)
