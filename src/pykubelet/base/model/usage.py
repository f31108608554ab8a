"""Snapshots of the resource usage of pods and the node. `Usage` is written by observe/stats alone.

Times named `_at` are wall seconds unless stated otherwise. CPU is in nanoseconds of a core, memory and file systems in
bytes. None: the machine does not report it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodRef, PodUID


class PsiData(Value):
    """One line of a pressure file: stalled microseconds in total, and percentages over the last 10, 60 and 300 s."""

    total_us: int
    avg10: float
    avg60: float
    avg300: float


class PsiStats(Value):
    """Pressure stall information. `some`: at least one task stalls; `full`: all tasks stall."""

    some: PsiData
    full: PsiData | None = None


class MemoryUse(Value):
    """The memory usage of a cgroup. `working_set`: usage without the file pages that can be dropped at once.

    `limit` None: unlimited. `page_faults`: as the kernel reports them: of the cgroup itself on cgroup v1, including the
    cgroups below it on v2; `..._below`: always including those below. Only measured with `details`: `kernel`, `peak`,
    `fail_count` and `oom_kills`.
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
    """The CPU usage of a cgroup. `quota_us` 0: no limit. The throttling counters come from the kernel's bandwidth control.

    All fields but `total_ns` are only measured with `details`.
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
    """One cgroup including those below it. `path`: below the mount.

    `pressure`: by `cpu`, `memory`, `io`. `nano_cores`: None after a single measurement.
    """

    at: float
    cpu: CpuUse
    memory: MemoryUse
    processes: int | None = None
    pressure: Mapping[str, PsiStats] = field(default_factory=dict)
    nano_cores: int | None = None
    made_at: float = 0.0
    path: str = ""


class DeviceIo(Value):
    """The bytes and operations that a cgroup has read from and written to one device. `number`: `major:minor`."""

    number: str
    read_bytes: int = 0
    written_bytes: int = 0
    reads: int = 0
    writes: int = 0


class ProcessesUse(Value):
    """Figures of the processes in a cgroup itself. `open_files_limit`: the soft limit of the first process; -1: none."""

    count: int = 0
    descriptors: int = 0
    sockets: int = 0
    open_files_limit: int | None = None


class GroupDetail(Value):
    """The figures of a cgroup that only `/metrics/cadvisor` shows. `threads_max` None: no limit."""

    io: tuple[DeviceIo, ...] = ()
    processes: ProcessesUse = ProcessesUse()
    threads_max: int | None = None


class DiskUse(Value):
    """Counters of one block device since the machine started. `number`: `major:minor`. Times are milliseconds."""

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
    """Figures that are only measured on request.

    `groups`: by path below the mount, without the root. `root_device`: the `major:minor` of the node's own file system.
    """

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
    """Traffic by interface, without loopback; the default interface comes first."""

    at: float
    interfaces: tuple[InterfaceUse, ...] = ()


class FileSystemUse(Value):
    """A directory's usage. `used` and `inodes_used` are those of the directory, the rest those of its file system.

    `device`: the path of the block device; "" for a file system without one.
    """

    at: float
    capacity: int | None = None
    available: int | None = None
    used: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    inodes_used: int | None = None
    device: str = ""


class ContainerUse(Value):
    """A container's usage. `id`: as in the runtime. `path`: of its cgroup. `rootfs`, `logs`: None if not measured yet."""

    name: str
    id: str
    image: str
    path: str
    started_at: float
    group: GroupUse
    rootfs: FileSystemUse | None = None
    logs: FileSystemUse | None = None


class VolumeUse(Value):
    """A volume's usage. `claim`: namespace and name of its PersistentVolumeClaim. `is_abnormal`: its driver reports that it does
    not work as it should; None: nothing is known about that."""

    name: str
    fs: FileSystemUse
    claim: tuple[str, str] | None = None
    is_local: bool = True
    is_abnormal: bool | None = None


class PodUse(Value):
    """A pod's usage. `sandbox_id`, `sandbox_image` and `sandbox`: the pause container, if there is one; the image and
    `sandbox` only with `details`. `sandbox_attempt`: more than 0 if the pod had another sandbox before.

    `own_files`: its hosts file, termination messages, and logs that belong to no running container; None if not measured yet.
    """

    ref: PodRef
    path: str
    started_at: float
    group: GroupUse | None
    containers: tuple[ContainerUse, ...] = ()
    network: NetworkUse | None = None
    sandbox_id: str = ""
    sandbox: GroupUse | None = None
    volumes: tuple[VolumeUse, ...] = ()
    own_files: FileSystemUse | None = None
    sandbox_image: str = ""
    sandbox_attempt: int = 0


def parts_on_disk(pod: PodUse) -> tuple[FileSystemUse, ...]:
    """What the pod has on the node's own disk: writable layers, logs, local volumes, own files. Parts not measured yet are left out."""
    parts = [fs for container in pod.containers for fs in (container.rootfs, container.logs)]
    parts += [volume.fs for volume in pod.volumes if volume.is_local]
    return tuple(fs for fs in (*parts, pod.own_files) if fs is not None and fs.used is not None)


def bytes_on_disk(pod: PodUse) -> int | None:
    """The bytes of `parts_on_disk`; None if none is measured yet."""
    parts = parts_on_disk(pod)
    return sum(fs.used or 0 for fs in parts) if parts else None


class NodeUse(Value):
    """The node's usage. `system`: system containers by name (`kubelet`, `runtime`, `misc`, `pods`). `booted_at`: wall seconds.

    `qos_groups`: the cgroups of burstable and best-effort pods; only with `details`. `huge_pages`: bytes of the memory that
    only users of huge pages can have, and so are not available (0 without the gate HugepageAwareEviction).
    """

    group: GroupUse
    memory_capacity: int
    booted_at: float
    huge_pages: int = 0
    system: Mapping[str, GroupUse] = field(default_factory=dict)
    qos_groups: tuple[GroupUse, ...] = ()
    network: NetworkUse | None = None
    fs: FileSystemUse | None = None
    image_fs: FileSystemUse | None = None
    container_fs: FileSystemUse | None = None
    max_pids: int | None = None
    running_pids: int | None = None


class Usage(Value):
    """The last measurement. `taken_at`: the monotonic second at which it began; None before the first. `error`: why it failed.

    `with_files`: it includes what is known about file systems, volumes and logs. `details`: only on request.
    """

    taken_at: float | None = None
    node: NodeUse | None = None
    pods: Mapping[PodUID, PodUse] = field(default_factory=dict)
    with_files: bool = False
    details: Details | None = None
    error: str = ""


class UsageWanted(Value):
    """Posted to observe/stats: a request for figures that are not older than `at_least` (monotonic seconds).

    `with_new_files`: the files of all pods are measured first, for some seconds at most.
    """

    at_least: float
    with_files: bool = True
    with_details: bool = False
    with_new_files: bool = False
