"""The detailed metrics of `/metrics/cadvisor`: input and output of cgroups and disks, and open files of processes. Pure.

The root cgroup's figures are those of the machine's disks. A container without input and output has zeros for the device of
the node's file system. Source: the cAdvisor documentation "Monitoring cAdvisor with Prometheus".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pykubelet.base.kit.exposition import with_labels
from pykubelet.base.kit.metrics import Labels, MetricFamily, MetricSample
from pykubelet.base.kit.values import Value
from pykubelet.base.model.usage import Details, DeviceIo, DiskUse, GroupDetail, GroupUse

SECTOR_BYTES, MILLI = 512, 1e3
ROOT = "/"


class SeenGroup(Value):
    """A cgroup, its labels, and whether it is that of a container."""

    labels: Labels
    group: GroupUse
    is_container: bool = False


class _Used(Value):
    """The input and output of a cgroup on one device. `labels`: include those of the device."""

    labels: Labels
    io: DeviceIo
    at: float


class _IoMetric(Value):
    """One metric. `of_group` None: the kernel counts it only for whole disks."""

    name: str
    help: str
    of_disk: Callable[[DiskUse], float]
    of_group: Callable[[DeviceIo], float] | None = None
    kind: str = "counter"


class _ProcessMetric(Value):
    name: str
    help: str
    read: Callable[[GroupDetail], float | None]
    more: Labels = ()


_IO = (
    _IoMetric(
        "reads_bytes_total",
        "Cumulative count of bytes read",
        lambda d: d.sectors_read * SECTOR_BYTES,
        lambda io: io.read_bytes,
    ),
    _IoMetric("reads_total", "Cumulative count of reads completed", lambda d: d.reads, lambda io: io.reads),
    _IoMetric("sector_reads_total", "Cumulative count of sector reads completed", lambda d: d.sectors_read),
    _IoMetric("reads_merged_total", "Cumulative count of reads merged", lambda d: d.reads_merged),
    _IoMetric("read_seconds_total", "Cumulative count of seconds spent reading", lambda d: d.read_ms / MILLI),
    _IoMetric(
        "writes_bytes_total",
        "Cumulative count of bytes written",
        lambda d: d.sectors_written * SECTOR_BYTES,
        lambda io: io.written_bytes,
    ),
    _IoMetric("writes_total", "Cumulative count of writes completed", lambda d: d.writes, lambda io: io.writes),
    _IoMetric("sector_writes_total", "Cumulative count of sector writes completed", lambda d: d.sectors_written),
    _IoMetric("writes_merged_total", "Cumulative count of writes merged", lambda d: d.writes_merged),
    _IoMetric("write_seconds_total", "Cumulative count of seconds spent writing", lambda d: d.write_ms / MILLI),
    _IoMetric("io_current", "Number of I/Os currently in progress", lambda d: d.in_progress, kind="gauge"),
    _IoMetric("io_time_seconds_total", "Cumulative count of seconds spent doing I/Os", lambda d: d.busy_ms / MILLI),
    _IoMetric(
        "io_time_weighted_seconds_total", "Cumulative weighted I/O time in seconds", lambda d: d.weighted_ms / MILLI
    ),
)
_PROCESSES = (
    _ProcessMetric(
        "container_processes", "Number of processes running inside the container.", lambda d: d.processes.count
    ),
    _ProcessMetric(
        "container_file_descriptors",
        "Number of open file descriptors for the container.",
        lambda d: d.processes.descriptors,
    ),
    _ProcessMetric("container_sockets", "Number of open sockets for the container.", lambda d: d.processes.sockets),
    _ProcessMetric(
        "container_threads_max",
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        lambda d: d.threads_max or 0,
    ),
    _ProcessMetric(
        "container_ulimits_soft",
        "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
        lambda d: d.processes.open_files_limit,
        (("ulimit", "max_open_files"),),
    ),
)


def detail_families(groups: Sequence[SeenGroup], details: Details) -> Iterator[MetricFamily]:
    """The metric families of disk input and output, processes and limits, for the cgroups with details."""
    devices = {disk.number: f"/dev/{disk.name}" for disk in details.disks}
    known = [(cgroup, detail) for cgroup in groups if (detail := details.groups.get(cgroup.group.path)) is not None]
    used = [
        _Used(with_labels(cgroup.labels, ("device", devices.get(io.number, ""))), io, cgroup.group.at)
        for cgroup, detail in known
        for io in _io_of(cgroup, detail, details, devices)
    ]
    root = next((cgroup for cgroup in groups if cgroup.group.path == ROOT), None)
    for metric in _IO:
        samples = _disk_samples(root, details.disks, metric.of_disk) if root is not None else []
        if metric.of_group is not None:
            read = metric.of_group
            samples += [MetricSample(read(use.io), use.labels, use.at) for use in used]
        yield MetricFamily(f"container_fs_{metric.name}", metric.kind, metric.help, samples)
    yield MetricFamily("container_blkio_device_usage_total", "counter", "Blkio Device bytes usage", _blkio(used))
    for process in _PROCESSES:
        found = [(cgroup, value) for cgroup, detail in known if (value := process.read(detail)) is not None]
        yield MetricFamily(
            process.name, "gauge", process.help, [_sample(cgroup, value, *process.more) for cgroup, value in found]
        )


def _io_of(cgroup: SeenGroup, detail: GroupDetail, details: Details, devices: dict[str, str]) -> tuple[DeviceIo, ...]:
    if detail.io or not cgroup.is_container or details.root_device not in devices:
        return detail.io
    return (DeviceIo(details.root_device),)


def _disk_samples(root: SeenGroup, disks: Iterable[DiskUse], read: Callable[[DiskUse], float]) -> list[MetricSample]:
    return [_sample(root, read(disk), ("device", f"/dev/{disk.name}")) for disk in disks]


def _blkio(used: Iterable[_Used]) -> list[MetricSample]:
    return [
        MetricSample(
            value, with_labels(use.labels, ("major", major), ("minor", minor), ("operation", operation)), use.at
        )
        for use in used
        for major, _, minor in (use.io.number.partition(":"),)
        for operation, value in (("Read", use.io.read_bytes), ("Write", use.io.written_bytes))
    ]


def _sample(cgroup: SeenGroup, value: float, *more: tuple[str, str]) -> MetricSample:
    return MetricSample(value, with_labels(cgroup.labels, *more) if more else cgroup.labels, cgroup.group.at)
