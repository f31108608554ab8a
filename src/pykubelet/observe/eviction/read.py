"""Measures the node for its eviction signals. Blocks; called in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykubelet.base.kit.values import Value
from pykubelet.base.model.usage import FileSystemUse, PsiStats
from pykubelet.edges.host.cgroups.cgroup_stats import MemoryReader, read_node_pressure
from pykubelet.edges.host.fs.files import stat_file
from pykubelet.edges.host.fs.mounts import read_fs_usage
from pykubelet.edges.host.proc.procfs import read_pid_limit, read_process_count
from pykubelet.observe.eviction.model import FsLayout, NodeMeasures

ROOT_GROUP = "/"


def read_fs(path: str, at: float) -> FileSystemUse:
    """The file system that holds `path`. Raises HostError."""
    usage = read_fs_usage(path)
    return FileSystemUse(
        at,
        capacity=usage.capacity_bytes,
        available=usage.available_bytes,
        used=usage.used_bytes,
        inodes=usage.inodes,
        inodes_free=usage.inodes_free,
        inodes_used=usage.inodes_used,
    )


class NodeSources(Value):
    """What is measured. `memory_root`: the cgroup whose memory counts as that of the node, with `memory_capacity` bytes.

    `huge_pages`: bytes of it that only users of huge pages can have. `pods_root`: the cgroup of all pods. `with_stalls`: also
    read pressure stall information. `with_notifiers`: use memory notifications of the kernel if it supports them. `measure_fs`:
    measures the file system of a path, at a time in wall seconds. `measure_stalls`: pressure stall information of the node, by
    resource.
    """

    reader: MemoryReader
    pods_root: str
    memory_capacity: int
    root_dir: str
    huge_pages: int = 0
    memory_root: str = ROOT_GROUP
    with_stalls: bool = False
    with_notifiers: bool = False
    measure_fs: Callable[[str, float], FileSystemUse] = read_fs
    measure_stalls: Callable[[], Mapping[str, PsiStats]] = read_node_pressure


def read_memory(sources: NodeSources, at: float) -> NodeMeasures:
    """The memory of the node and its pods only. `at`: wall seconds."""
    return NodeMeasures(
        at=at,
        memory=sources.reader.memory(sources.memory_root),
        memory_capacity=sources.memory_capacity,
        huge_pages=sources.huge_pages,
        pods=sources.reader.memory(sources.pods_root),
    )


def read_processes(sources: NodeSources, at: float) -> NodeMeasures:
    """The processes, and the stalls if `with_stalls` is set. `at`: wall seconds."""
    return NodeMeasures(
        at=at,
        max_pids=read_pid_limit(),
        running_pids=read_process_count(),
        stalls=sources.measure_stalls() if sources.with_stalls else {},
    )


def read_layout(root_dir: str, images: str, containers: str) -> FsLayout:
    """Which of these directories share a file system. Raises HostError."""
    root, image, container = (_device(path) for path in (root_dir, images, containers))
    if image != container:
        return FsLayout.SPLIT
    return FsLayout.SHARED if image == root else FsLayout.DEDICATED


def _device(path: str) -> int:
    found = stat_file(path)
    return found.device if found is not None else 0
