"""`/metrics/cadvisor`: the usage of every cgroup, under cAdvisor's names. Pure.

The cgroups are: the root, the system containers, QoS classes, pods (without a container name), pause containers (with the
network, and without a container name) and containers. Source: the cAdvisor documentation "Monitoring cAdvisor with
Prometheus".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pykubelet.base.kit.exposition import with_labels
from pykubelet.base.kit.metrics import Labels, MetricFamily, MetricSample
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.usage import (
    CpuUse,
    FileSystemUse,
    GroupUse,
    InterfaceUse,
    MemoryUse,
    NetworkUse,
    PodUse,
    Usage,
)
from pykubelet.serve.metrics.cadvisor_details import SeenGroup, detail_families

NANO, MICRO = 1e9, 1e6
NO_LIMIT = 0
_COUNTERS = ("_total", "_failcnt")


class MachineFacts(Value):
    """The facts of the machine that do not change. `memory`, `swap`: in bytes."""

    cores: int
    physical_cores: int
    sockets: int
    memory: int
    swap: int
    boot_id: str
    machine_id: str
    system_uuid: str
    kernel: str
    os: str


class _Seen(Value):
    """One cgroup and its labels. `network`: for cgroups with their own network. `started_at`: wall seconds."""

    labels: Labels
    group: GroupUse
    network: NetworkUse | None = None
    started_at: float = 0.0
    is_container: bool = False


class _Metric(Value):
    """A counter if its name ends like one, else a gauge. `is_timed`: the samples have the time of the measurement; not so what is
    set when a container is made."""

    name: str
    help: str
    read: Callable[[_Seen], float | None]
    more: Labels = ()
    is_timed: bool = True

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith(_COUNTERS) else "gauge"


def _labels(container: str = "", id: str = "", image: str = "", name: str = "", pod: PodUse | None = None) -> Labels:
    namespace, pod_name = (pod.ref.namespace, pod.ref.name) if pod is not None else ("", "")
    return (
        ("container", container),
        ("id", id),
        ("image", image),
        ("name", name),
        ("namespace", namespace),
        ("pod", pod_name),
    )


def _seen(usage: Usage) -> Iterator[_Seen]:
    node = usage.node
    if node is not None:
        yield _Seen(_labels(id="/"), node.group, node.network, node.booted_at)
        for group in node.system.values():
            if group.path != "/":
                yield _Seen(_labels(id=group.path), group, started_at=group.made_at)
        for group in node.qos_groups:
            yield _Seen(_labels(id=group.path), group, started_at=group.made_at)
    for pod in usage.pods.values():
        if pod.group is not None:
            yield _Seen(_labels(id=pod.path, pod=pod), pod.group, started_at=pod.started_at)
        if pod.sandbox is not None:
            yield _Seen(
                _labels("", pod.sandbox.path, pod.sandbox_image, pod.sandbox_id, pod),
                pod.sandbox,
                pod.network,
                pod.started_at,
            )
        for container in pod.containers:
            labels = _labels(container.name, container.path, container.image, container.id, pod)
            yield _Seen(labels, container.group, started_at=container.started_at, is_container=True)


def cadvisor_families(usage: Usage, machine: MachineFacts) -> Iterator[MetricFamily]:
    """All metric families; only the error metric if the usage could not be read."""
    seen = list(_seen(usage))
    for name, metrics in _GROUPS.items():
        first = metrics[0]
        samples = [
            MetricSample(
                value,
                with_labels(cgroup.labels, *metric.more) if metric.more else cgroup.labels,
                cgroup.group.at if metric.is_timed else None,
            )
            for metric in metrics
            for cgroup in seen
            if (value := metric.read(cgroup)) is not None
        ]
        yield MetricFamily(name, first.kind, first.help, samples)
    yield from _network_families(seen)
    yield from _file_system_families(usage)
    if usage.details is not None:
        groups = [SeenGroup(cgroup.labels, cgroup.group, cgroup.is_container) for cgroup in seen]
        yield from detail_families(groups, usage.details)
    yield from _machine_families(machine)
    yield MetricFamily(
        "container_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
        [MetricSample(1.0 if usage.error else 0.0)],
    )


def _pressure(resource: str, *, full: bool) -> Callable[[_Seen], float | None]:
    def read(cgroup: _Seen) -> float | None:
        pair = cgroup.group.pressure.get(resource)
        if pair is None:
            return None
        if full:
            return pair.full.total_us / MICRO if pair.full is not None else None
        return pair.some.total_us / MICRO

    return read


def _throttling(read: Callable[[CpuUse], float]) -> Callable[[_Seen], float | None]:
    """A reader of throttling figures, which exist only for cgroups with a limit."""
    return lambda cgroup: read(cgroup.group.cpu) if cgroup.group.cpu.quota_us else None


def _of_memory(read: Callable[[MemoryUse], float | None]) -> Callable[[_Seen], float | None]:
    return lambda cgroup: read(cgroup.group.memory)


_CPU_TIME = "Cumulative {} cpu time consumed in seconds."
_FAULTS: tuple[tuple[str, str, Callable[[_Seen], float]], ...] = (
    ("pgfault", "container", lambda s: s.group.memory.page_faults),
    ("pgfault", "hierarchy", lambda s: s.group.memory.page_faults_below),
    ("pgmajfault", "container", lambda s: s.group.memory.major_page_faults),
    ("pgmajfault", "hierarchy", lambda s: s.group.memory.major_page_faults_below),
)
_SPEC: tuple[tuple[str, str, Callable[[_Seen], float | None]], ...] = (
    ("cpu_shares", "CPU share of the container.", lambda s: s.group.cpu.shares),
    ("cpu_period", "CPU period of the container.", lambda s: s.group.cpu.period_us),
    ("cpu_quota", "CPU quota of the container.", _throttling(lambda c: c.quota_us)),
    ("memory_limit_bytes", "Memory limit for the container.", lambda s: s.group.memory.limit or NO_LIMIT),
    (
        "memory_swap_limit_bytes",
        "Memory swap limit for the container.",
        lambda s: s.group.memory.swap_limit or NO_LIMIT,
    ),
    ("memory_reservation_limit_bytes", "Memory reservation limit for the container.", lambda _: 0),
)
_THROTTLING: tuple[tuple[str, str, Callable[[CpuUse], float]], ...] = (
    ("periods", "Number of elapsed enforcement period intervals.", lambda c: c.periods),
    ("throttled_periods", "Number of throttled period intervals.", lambda c: c.throttled_periods),
    ("throttled_seconds", "Total time duration the container has been throttled.", lambda c: c.throttled_ns / NANO),
)
_ALL_MEMORY = "Current memory usage in bytes, including all memory regardless of when it was accessed"
_MEMORY: tuple[tuple[str, str, Callable[[MemoryUse], float | None]], ...] = (
    ("cache", "Number of bytes of page cache memory.", lambda m: m.cache),
    ("rss", "Size of RSS in bytes.", lambda m: m.rss),
    ("kernel_usage", "Size of kernel memory allocated in bytes.", lambda m: m.kernel),
    ("mapped_file", "Size of memory mapped files in bytes.", lambda m: m.mapped_file),
    ("swap", "Container swap usage in bytes.", lambda m: m.swap or 0),
    ("usage_bytes", _ALL_MEMORY, lambda m: m.usage),
    ("max_usage_bytes", "Maximum memory usage recorded in bytes", lambda m: m.peak),
    ("working_set_bytes", "Current working set in bytes.", lambda m: m.working_set),
    ("total_active_file_bytes", "Current total active file in bytes.", lambda m: m.active_file),
    ("total_inactive_file_bytes", "Current total inactive file in bytes.", lambda m: m.inactive_file),
    ("failcnt", "Number of memory usage hits limits", lambda m: m.fail_count),
)
_OOM = "Count of out of memory events observed for the container"
_METRICS = (
    _Metric("container_last_seen", "Last time a container was seen by the exporter", lambda s: int(s.group.at)),
    _Metric(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        lambda s: int(s.started_at),
        is_timed=False,
    ),
    _Metric("container_cpu_user_seconds_total", _CPU_TIME.format("user"), lambda s: s.group.cpu.user_ns / NANO),
    _Metric("container_cpu_system_seconds_total", _CPU_TIME.format("system"), lambda s: s.group.cpu.system_ns / NANO),
    _Metric(
        "container_cpu_usage_seconds_total",
        "Cumulative cpu time consumed in seconds.",
        lambda s: s.group.cpu.total_ns / NANO,
        (("cpu", "total"),),
    ),
    *(_Metric(f"container_cpu_cfs_{name}_total", text, _throttling(read)) for name, text, read in _THROTTLING),
    *(_Metric(f"container_spec_{name}", text, read, is_timed=False) for name, text, read in _SPEC),
    *(_Metric(f"container_memory_{name}", text, _of_memory(read)) for name, text, read in _MEMORY),
    *(
        _Metric(
            "container_memory_failures_total",
            "Cumulative count of memory allocation failures.",
            value,
            (("failure_type", kind), ("scope", scope)),
        )
        for kind, scope, value in _FAULTS
    ),
    _Metric("container_oom_events_total", _OOM, lambda s: s.group.memory.oom_kills),
    _Metric("container_threads", "Number of threads running inside the container", lambda s: s.group.processes),
    *(
        _Metric(
            f"container_pressure_{resource}_{word}_seconds_total",
            f"Total time duration {text} {resource}.",
            _pressure(resource, full=full),
        )
        for resource in ("cpu", "memory", "io")
        for word, full, text in (
            ("waiting", False, "tasks in the container have waited due to"),
            ("stalled", True, "no tasks in the container could make progress due to"),
        )
    ),
)
_GROUPS: dict[str, list[_Metric]] = {}
for _metric in _METRICS:
    _GROUPS.setdefault(_metric.name, []).append(_metric)

_NETWORK: tuple[tuple[str, str, Callable[[InterfaceUse], int]], ...] = (
    ("receive_bytes", "bytes received", lambda i: i.rx_bytes),
    ("receive_packets", "packets received", lambda i: i.rx_packets),
    ("receive_packets_dropped", "packets dropped while receiving", lambda i: i.rx_dropped),
    ("receive_errors", "errors encountered while receiving", lambda i: i.rx_errors),
    ("transmit_bytes", "bytes transmitted", lambda i: i.tx_bytes),
    ("transmit_packets", "packets transmitted", lambda i: i.tx_packets),
    ("transmit_packets_dropped", "packets dropped while transmitting", lambda i: i.tx_dropped),
    ("transmit_errors", "errors encountered while transmitting", lambda i: i.tx_errors),
)


def _network_families(seen: list[_Seen]) -> Iterator[MetricFamily]:
    interfaces = [
        (interface, with_labels(cgroup.labels, ("interface", interface.name)), cgroup.network.at)
        for cgroup in seen
        if cgroup.network is not None
        for interface in cgroup.network.interfaces
    ]
    for name, text, read in _NETWORK:
        samples = [MetricSample(read(interface), labels, at) for interface, labels, at in interfaces]
        yield MetricFamily(f"container_network_{name}_total", "counter", f"Cumulative count of {text}", samples)


_FS_USAGE = "container_fs_usage_bytes"
_FS_USAGE_TEXT = "Number of bytes that are consumed by the container on this filesystem."
_FILE_SYSTEMS: tuple[tuple[str, str, Callable[[FileSystemUse], int | None]], ...] = (
    (
        "container_fs_limit_bytes",
        "Number of bytes that can be consumed by the container on this filesystem.",
        lambda fs: fs.capacity,
    ),
    ("container_fs_inodes_free", "Number of available Inodes", lambda fs: fs.inodes_free),
    ("container_fs_inodes_total", "Number of Inodes", lambda fs: fs.inodes),
    (_FS_USAGE, _FS_USAGE_TEXT, lambda fs: fs.used),
)


def _file_system_families(usage: Usage) -> Iterator[MetricFamily]:
    """The families of the file systems of the node and of the runtime, under the name of the root cgroup, and of the
    containers' usage on them."""
    node = usage.node
    root = node.fs if node is not None else None
    if node is None or root is None:
        return
    known = {fs.device: _whole(fs) for fs in (node.container_fs, node.image_fs) if fs is not None} | {root.device: root}
    used = []
    for name, text, read in _FILE_SYSTEMS:
        samples = [
            MetricSample(value, with_labels(_labels(id="/"), _device(fs)), fs.at)
            for fs in known.values()
            if (value := read(fs)) is not None
        ]
        if name == _FS_USAGE:
            used = samples
        elif samples:
            yield MetricFamily(name, "gauge", text, samples)
    for pod in usage.pods.values():
        for container in pod.containers:
            if container.rootfs is not None and container.rootfs.used is not None:
                labels = with_labels(
                    _labels(container.name, container.path, container.image, container.id, pod),
                    _device(container.rootfs),
                )
                used.append(MetricSample(container.rootfs.used, labels, container.rootfs.at))
    yield MetricFamily(_FS_USAGE, "gauge", _FS_USAGE_TEXT, used)


def _whole(fs: FileSystemUse) -> FileSystemUse:
    """The runtime's file system with all that is used on it, not only by the runtime."""
    if fs.capacity is None or fs.available is None:
        return fs
    return replace(fs, used=fs.capacity - fs.available)


def _device(fs: FileSystemUse) -> tuple[str, str]:
    return "device", fs.device or "rootfs"


def _machine_families(machine: MachineFacts) -> Iterator[MetricFamily]:
    labels = (("boot_id", machine.boot_id), ("machine_id", machine.machine_id), ("system_uuid", machine.system_uuid))
    facts = (
        ("machine_cpu_books", "Number of CPU books.", 0),
        ("machine_cpu_drawers", "Number of CPU drawers.", 0),
        ("machine_cpu_cores", "Number of logical CPU cores.", machine.cores),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", machine.physical_cores),
        ("machine_cpu_sockets", "Number of CPU sockets.", machine.sockets),
        ("machine_memory_bytes", "Amount of memory installed on the machine.", machine.memory),
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", machine.swap),
        ("machine_nvm_avg_power_budget_watts", "NVM power budget.", 0),
    )
    for name, text, value in facts:
        yield MetricFamily(name, "gauge", text, [MetricSample(value, labels)])
    capacity = [MetricSample(0, with_labels(labels, ("mode", mode))) for mode in ("app_direct_mode", "memory_mode")]
    yield MetricFamily(
        "machine_nvm_capacity",
        "gauge",
        "NVM capacity value labeled by NVM mode (memory mode or app direct mode).",
        capacity,
    )
    failed = "1 if there was an error while getting machine metrics, 0 otherwise."
    yield MetricFamily("machine_scrape_error", "gauge", failed, [MetricSample(0)])
    versions = (
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", machine.kernel),
        ("osVersion", machine.os),
    )
    yield MetricFamily(
        "cadvisor_version_info",
        "gauge",
        "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version"
        " & cadvisor revision.",
        [MetricSample(1, versions)],
    )
