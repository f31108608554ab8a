"""Measures the usage of file systems: of the node, of images, and of each pod's volumes, logs and other files. Blocks.

A volume with a file system of its own is measured by statfs, one of which the file system counts what it uses by its quota; the
others by a walk over their files, which is slow: it runs in a thread, for one pod at a time, and seldom. Logs are few files in one
directory. All figures are those of `du`: the blocks on disk and not the lengths of files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.paths import Beneath, Paths, below
from pykubelet.base.model.usage import FileSystemUse, VolumeUse
from pykubelet.edges.host.cgroups.io_stats import device_path
from pykubelet.edges.host.fs.beneath import read_disk_usage, read_usage_of_files, stat_file
from pykubelet.edges.host.fs.errors import HostError, suppress_not_found
from pykubelet.edges.host.fs.mounts import is_mount_point, read_fs_usage
from pykubelet.edges.host.fs.quotas import VolumeQuotas

log = Log("stats")
#: So many entries of a log directory are read. Container runtimes keep a handful; a pod may be able to put anything there.
MAX_LOG_FILES = 10_000


class VolumeSizes(Value):
    """`took`: how each volume was asked (`du`, `statfs`, `fsquota`), and the seconds that it took."""

    volumes: tuple[VolumeUse, ...] = ()
    took: tuple[tuple[str, float], ...] = ()


class LogSizes(Value):
    """The files of a pod outside of its volumes. `at`: wall seconds. `logs`: bytes and inodes by container name.

    `own`: bytes and inodes of what no running container is charged with: its hosts file, the files in its log directory itself, the
    termination messages of all its containers, to which these may write without end, and the logs of those that do not run.
    """

    at: float
    logs: Mapping[str, tuple[int, int]]
    own: tuple[int, int]


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


def read_volume_sizes(pods: str, mounted: Mapping[str, MountedVolume], quotas: VolumeQuotas, at: float) -> VolumeSizes:
    """Measure a pod's volumes. Files that vanish meanwhile count as 0. `pods`: the directory of all pods. HostError if a disk fails."""
    volumes, took = [], []
    for volume in mounted.values():
        if volume.is_measured:
            began = time.perf_counter()
            found, source = _volume(volume, pods, quotas, at)
            volumes.append(found)
            took.append((source, time.perf_counter() - began))
    return VolumeSizes(tuple(volumes), tuple(took))


def read_log_sizes(paths: Paths, pods: Iterable[PodView], at: float) -> dict[PodUID, LogSizes]:
    """Measure the logs of running containers, and the pods' own files. Pods for which the disk fails are left out."""
    found = {}
    for pod in pods:
        try:
            found[pod.ref.uid] = _log_sizes(paths, pod, at)
        except HostError as error:
            log.debug("the logs of a pod cannot be measured", pod=pod.ref, error=error)
    return found


def _log_sizes(paths: Paths, pod: PodView, at: float) -> LogSizes:
    running = {container.name for container in pod.running}
    names = {container.name for container in pod.containers}
    logs = {name: _files(paths.container_logs(pod.ref, name)) for name in running}
    own = [_files(paths.pod_logs(pod.ref))]
    own += (_files(paths.container_logs(pod.ref, name)) for name in names - running)
    own += (_files(paths.container(pod.ref.uid, name)) for name in names)
    if (hosts := stat_file(paths.etc_hosts(pod.ref.uid))) is not None:
        own.append((hosts.on_disk, 1))
    return LogSizes(at, logs, (sum(used for used, _ in own), sum(number for _, number in own)))


def _files(directory: Beneath) -> tuple[int, int]:
    return read_usage_of_files(directory, MAX_LOG_FILES)


def _volume(volume: MountedVolume, pods: str, quotas: VolumeQuotas, at: float) -> tuple[VolumeUse, str]:
    """The volume's usage, and how it was measured."""
    path = volume.host_path
    own = is_mount_point(path)
    counted = None if own else quotas.read_use(path)
    source = "statfs" if own else "du" if counted is None else "fsquota"
    fs = FileSystemUse(at)
    with suppress_not_found:
        used = None if own else counted or read_disk_usage(below(path, pods))
        fs = read_file_system(path, at, used)
    return VolumeUse(volume.name, fs, is_local=not own), source
