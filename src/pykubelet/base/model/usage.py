"""What pods and the node use, as snapshots. `Usage` is written by observe/stats alone.

Times named `_at` are wall seconds; CPU is in nanoseconds of a core, memory and file systems in bytes. None: the machine
does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef, PodUID


class Pressure(Value):
    """One line of a pressure file: stalled microseconds in all, and shares of the last 10, 60 and 300 s in percent."""

    total_us: int
    avg10: float
    avg60: float
    avg300: float


class PressurePair(Value):
    """`some`: at least one task waits; `full`: all do."""

    some: Pressure
    full: Pressure | None = None


class MemoryUse(Value):
    """`working_set`: usage without the file pages that can be dropped at once. `limit` None: unlimited.

    `page_faults`: of the group itself on cgroup v1, with the groups below it on v2, as the kernel has it; `..._below`:
    always with those below it. Only in looks with `details`: `kernel`, `peak`, `fail_count` and `oom_kills`.
    """

    usage: int = 0
    working_set: int = 0
    limit: int | None = None
    rss: int = 0
    cache: int = 0
    mapped_file: int = 0
    kernel: int = 0
    active_file: int = 0
    inactive_file: int = 0
    peak: int = 0
    fail_count: int = 0
    page_faults: int = 0
    major_page_faults: int = 0
    page_faults_below: int = 0
    major_page_faults_below: int = 0
    swap: int | None = None
    swap_limit: int | None = None
    oom_kills: int = 0


class CpuUse(Value):
    """`quota_us` 0: no limit. The throttling counters are those of the kernel's bandwidth control.

    All but `total_ns` only in looks with `details`.
    """

    total_ns: int = 0
    user_ns: int = 0
    system_ns: int = 0
    periods: int = 0
    throttled_periods: int = 0
    throttled_ns: int = 0
    shares: int = 0
    quota_us: int = 0
    period_us: int = 0


class GroupUse(Value):
    """One control group with all below it, `path` below the mount.

    `pressure`: by `cpu`, `memory`, `io`. `nano_cores`: None after one look.
    """

    at: float
    cpu: CpuUse
    memory: MemoryUse
    processes: int | None = None
    pressure: Mapping[str, PressurePair] = field(default_factory=dict)
    nano_cores: int | None = None
    made_at: float = 0.0
    path: str = ""


class DeviceIo(Value):
    """What a group has read from and written to one device, `number` being `major:minor`: bytes and operations."""

    number: str
    read_bytes: int = 0
    written_bytes: int = 0
    reads: int = 0
    writes: int = 0


class ProcessesUse(Value):
    """Of the processes of a group itself. `open_files_limit`: soft, of the first one; -1: none."""

    count: int = 0
    descriptors: int = 0
    sockets: int = 0
    open_files_limit: int | None = None


class GroupDetail(Value):
    """What only `/metrics/cadvisor` tells of a group. `threads_max` None: no limit."""

    io: tuple[DeviceIo, ...] = ()
    processes: ProcessesUse = ProcessesUse()
    threads_max: int | None = None


class DiskUse(Value):
    """One block device since the start of the machine; `number` is `major:minor`. Times in milliseconds."""

    name: str
    number: str
    reads: int = 0
    reads_merged: int = 0
    sectors_read: int = 0
    read_ms: int = 0
    writes: int = 0
    writes_merged: int = 0
    sectors_written: int = 0
    write_ms: int = 0
    in_progress: int = 0
    busy_ms: int = 0
    weighted_ms: int = 0


class Details(Value):
    """`groups`: by their path below the mount, all but the root's. `root_device`: the number of the node's own file system."""

    groups: Mapping[str, GroupDetail]
    disks: tuple[DiskUse, ...] = ()
    root_device: str = ""


class InterfaceUse(Value):
    name: str
    rx_bytes: int = 0
    rx_packets: int = 0
    rx_errors: int = 0
    rx_dropped: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0
    tx_errors: int = 0
    tx_dropped: int = 0


class NetworkUse(Value):
    """Loopback left out; the default interface first."""

    at: float
    interfaces: tuple[InterfaceUse, ...] = ()


class FileSystemUse(Value):
    """`used` and `inodes_used` are of the directory in question, the rest of the file system it lies on."""

    at: float
    capacity: int | None = None
    available: int | None = None
    used: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    inodes_used: int | None = None


class ContainerUse(Value):
    """`id`: the runtime's. `path`: of its control group. `rootfs`, `logs`: None when not looked at yet."""

    name: str
    id: str
    image: str
    path: str
    started_at: float
    group: GroupUse
    rootfs: FileSystemUse | None = None
    logs: FileSystemUse | None = None


class VolumeUse(Value):
    """`claim`: namespace and name of the persistent volume claim behind it."""

    name: str
    fs: FileSystemUse
    claim: tuple[str, str] | None = None
    is_local: bool = True


class PodUse(Value):
    """`sandbox_id` and `sandbox`: the pause container, as far as it is there; `sandbox` only in looks with `details`."""

    ref: PodRef
    path: str
    started_at: float
    group: GroupUse | None
    containers: tuple[ContainerUse, ...] = ()
    network: NetworkUse | None = None
    sandbox_id: str = ""
    sandbox: GroupUse | None = None
    volumes: tuple[VolumeUse, ...] = ()
    host_files: int = 0


def bytes_on_disk(pod: PodUse) -> int | None:
    """What the pod keeps on the node's own disk: layers, logs, local volumes, its hosts file. None: nobody has looked yet."""
    parts = [fs.used for container in pod.containers for fs in (container.rootfs, container.logs) if fs is not None]
    parts += [volume.fs.used for volume in pod.volumes if volume.is_local]
    known = [used for used in parts if used is not None]
    return sum(known) + pod.host_files if known or pod.host_files else None


class NodeUse(Value):
    """`system`: control groups of note by name (`kubelet`, `runtime`, `misc`, `pods`). `booted_at`: wall seconds.

    `qos_groups`: the groups of burstable and best-effort pods; only in looks with `details`.
    """

    group: GroupUse
    memory_capacity: int
    booted_at: float
    system: Mapping[str, GroupUse] = field(default_factory=dict)
    qos_groups: tuple[GroupUse, ...] = ()
    network: NetworkUse | None = None
    fs: FileSystemUse | None = None
    image_fs: FileSystemUse | None = None
    container_fs: FileSystemUse | None = None
    max_pids: int | None = None
    running_pids: int | None = None


class Usage(Value):
    """`taken_at`: the monotonic second at which the look began; None before the first. `error`: why it failed.

    `with_files`: with what is known of file systems, volumes and logs; the rest is absent. `details`: only when asked for.
    """

    taken_at: float | None = None
    node: NodeUse | None = None
    pods: Mapping[PodUID, PodUse] = field(default_factory=dict)
    with_files: bool = False
    details: Details | None = None
    error: str = ""


class UsageWanted(Value):
    """Posted to observe/stats: somebody wants a look that is not older than `at_least` (monotonic)."""

    at_least: float
    with_files: bool = True
    with_details: bool = False
