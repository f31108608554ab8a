"""Reads the resource usage of cgroups from the kernel's files of version 1 and 2.

Owns: the files, their formats, and which of them a kernel may lack. Blocks for microseconds per file. Source: the kernel's
cgroup-v1 (memory, cpuacct, pids) and cgroup-v2 documents, and its PSI document.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Protocol

from pykubelet.base.kit.values import replace
from pykubelet.base.model.usage import CpuUse, GroupDetail, GroupUse, MemoryUse, PsiData, PsiStats
from pykubelet.edges.host.cgroups.cgroups import join, sub_groups
from pykubelet.edges.host.cgroups.io_stats import parse_blkio, parse_io_stat, read_processes
from pykubelet.edges.host.cgroups.memory_notifier import MemoryNotifier
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.mounts import read_mounts_of_type
from pykubelet.edges.host.fs.text_files import read_file, read_number, read_table

#: On version 1, a limit of this or more means "no limit".
_NO_LIMIT = 1 << 62
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PRESSURE = ("cpu", "memory", "io")
_PRESSURE_LINE = re.compile(
    r"^(some|full) avg10=([\d.]+) avg60=([\d.]+) avg300=([\d.]+) total=(\d+)$", re.ASCII | re.MULTILINE
)


class MemoryReader(Protocol):
    """Reads the memory usage of cgroups by their path below the mount."""

    def memory(self, path: str) -> MemoryUse | None:
        """The memory usage of the cgroup; None if it does not exist."""
        ...

    def memory_notifier(self, path: str) -> MemoryNotifier | None:
        """A notifier for thresholds of its memory usage; None if the kernel has no such notification."""
        ...


class GroupReader(Protocol):
    """Reads the usage of cgroups by their path below the mount."""

    def read(self, path: str, at: float, *, brief: bool = False) -> GroupUse | None:
        """The usage of the cgroup; None if it does not exist. `at`: the wall second of the measurement.

        `brief`: leave out the figures that only `/metrics/cadvisor` needs; half of the files need not be read then.
        """
        ...

    def cpu_total(self, path: str) -> int | None:
        """Only the CPU time of the cgroup, in nanoseconds; None if it does not exist."""
        ...

    def detail(self, path: str) -> GroupDetail:
        """The figures that are more expensive to read: input and output, and the open files of its own processes."""
        ...

    def children(self, path: str) -> list[str]:
        """The names of the direct child cgroups."""
        ...

    def processes(self, path: str) -> list[int]:
        """The processes of the cgroup itself, without its children."""
        ...


def _limit(number: int | None) -> int | None:
    return None if number is None or number >= _NO_LIMIT else number


def _made_at(directory: str) -> float:
    """When the cgroup was created (wall seconds): the modification time of its directory, as nothing else records it."""
    try:
        return os.stat(directory).st_mtime
    except OSError:
        return 0.0


class GroupsV1:
    """The reader for version 1. `roots`: the mount directory of each controller.

    For the root cgroup, the swap usage is that of the machine, read from `proc`.
    """

    def __init__(self, roots: Mapping[str, str], proc: str = "/proc") -> None:
        self._roots = roots
        self._proc = proc

    def _directory(self, controller: str, path: str) -> str:
        return join(self._roots.get(controller, "/nowhere"), path)

    def read(self, path: str, at: float, *, brief: bool = False) -> GroupUse | None:
        """See `GroupReader.read`."""
        total = self.cpu_total(path)
        if total is None:
            return None
        accounting = self._directory("cpuacct", path)
        return GroupUse(
            at=at,
            cpu=CpuUse(total) if brief else self._cpu(path, accounting, total),
            memory=self._memory(path, brief=brief),
            processes=read_number(f"{self._directory('pids', path)}/pids.current"),
            made_at=_made_at(accounting),
            path=path,
        )

    def cpu_total(self, path: str) -> int | None:
        """See `GroupReader.cpu_total`."""
        return read_number(f"{self._directory('cpuacct', path)}/cpuacct.usage")

    def memory(self, path: str) -> MemoryUse | None:
        if read_number(f"{self._directory('memory', path)}/memory.usage_in_bytes") is None:
            return None
        return self._memory(path, brief=True)

    def memory_notifier(self, path: str) -> MemoryNotifier | None:
        return MemoryNotifier(self._directory("memory", path))

    def _cpu(self, path: str, accounting: str, total: int) -> CpuUse:
        ticks = read_table(f"{accounting}/cpuacct.stat")
        directory = self._directory("cpu", path)
        stat = read_table(f"{directory}/cpu.stat")
        return CpuUse(
            total_ns=total,
            user_ns=ticks.get("user", 0) * _TICK_NS,
            system_ns=ticks.get("system", 0) * _TICK_NS,
            periods=stat.get("nr_periods", 0),
            throttled_periods=stat.get("nr_throttled", 0),
            throttled_ns=stat.get("throttled_time", 0),
            shares=read_number(f"{directory}/cpu.shares") or 0,
            quota_us=max(0, read_number(f"{directory}/cpu.cfs_quota_us") or 0),
            period_us=read_number(f"{directory}/cpu.cfs_period_us") or 0,
        )

    def _memory(self, path: str, *, brief: bool) -> MemoryUse:
        directory = self._directory("memory", path)
        stat = read_table(f"{directory}/memory.stat")
        usage = read_number(f"{directory}/memory.usage_in_bytes") or 0
        inactive = stat.get("total_inactive_file", 0)
        limit = _limit(read_number(f"{directory}/memory.limit_in_bytes"))
        with_swap = _limit(read_number(f"{directory}/memory.memsw.limit_in_bytes"))
        use = MemoryUse(
            usage=usage,
            working_set=max(0, usage - inactive),
            limit=limit,
            rss=stat.get("total_rss", 0),
            cache=stat.get("total_cache", 0),
            mapped_file=stat.get("total_mapped_file", 0),
            active_file=stat.get("total_active_file", 0),
            inactive_file=inactive,
            page_faults=stat.get("pgfault", 0),
            major_page_faults=stat.get("pgmajfault", 0),
            page_faults_below=stat.get("total_pgfault", 0),
            major_page_faults_below=stat.get("total_pgmajfault", 0),
            swap=stat.get("total_swap"),
            swap_limit=max(0, with_swap - limit) if with_swap is not None and limit is not None else None,
        )
        if not path.strip("/"):
            swap, swap_limit = _machine_swap(self._proc)
            use = replace(use, swap=swap, swap_limit=swap_limit)
        if brief:
            return use
        return replace(
            use,
            kernel=read_number(f"{directory}/memory.kmem.usage_in_bytes") or 0,
            peak=read_number(f"{directory}/memory.max_usage_in_bytes") or 0,
            fail_count=read_number(f"{directory}/memory.failcnt") or 0,
            oom_kills=read_table(f"{directory}/memory.oom_control").get("oom_kill", 0),
        )

    def detail(self, path: str) -> GroupDetail:
        """See `GroupReader.detail`."""
        throttle = f"{self._directory('blkio', path)}/blkio.throttle"
        amounts = read_file(f"{throttle}.io_service_bytes_recursive")
        operations = read_file(f"{throttle}.io_serviced_recursive") if ":" in amounts else ""  # no device has any
        return GroupDetail(
            io=parse_blkio(amounts, operations),
            processes=read_processes(self.processes(path)),
            threads_max=read_number(f"{self._directory('pids', path)}/pids.max"),
        )

    def children(self, path: str) -> list[str]:
        """See `GroupReader.children`."""
        return _children(self._directory("cpuacct", path))

    def processes(self, path: str) -> list[int]:
        """See `GroupReader.processes`."""
        return _numbers(f"{self._directory('cpuacct', path)}/cgroup.procs")


class GroupsV2:
    """The reader for version 2. `root`: where the unified hierarchy is mounted.

    For the root cgroup, the swap usage is that of the machine, read from `proc`.
    """

    def __init__(self, root: str, proc: str = "/proc") -> None:
        self._root = root
        self._proc = proc

    def read(self, path: str, at: float, *, brief: bool = False) -> GroupUse | None:
        """See `GroupReader.read`."""
        directory = join(self._root, path)
        stat = read_table(f"{directory}/cpu.stat")
        if "usage_usec" not in stat:
            return None
        return GroupUse(
            at=at,
            cpu=CpuUse(stat["usage_usec"] * 1000) if brief else self._cpu(directory, stat),
            memory=self._memory(directory, brief=brief),
            processes=read_number(f"{directory}/pids.current"),
            pressure=read_pressure(directory),
            made_at=_made_at(directory),
            path=path,
        )

    def cpu_total(self, path: str) -> int | None:
        """See `GroupReader.cpu_total`."""
        used_us = read_table(f"{join(self._root, path)}/cpu.stat").get("usage_usec")
        return used_us * 1000 if used_us is not None else None

    def memory(self, path: str) -> MemoryUse | None:
        directory = join(self._root, path)
        return self._memory(directory, brief=True) if read_table(f"{directory}/memory.stat") else None

    def memory_notifier(self, path: str) -> MemoryNotifier | None:  # noqa: ARG002
        return None

    def _cpu(self, directory: str, stat: Mapping[str, int]) -> CpuUse:
        quota, _, period = read_file(f"{directory}/cpu.max").strip().partition(" ")
        weight = read_number(f"{directory}/cpu.weight") or 0
        return CpuUse(
            total_ns=stat["usage_usec"] * 1000,
            user_ns=stat.get("user_usec", 0) * 1000,
            system_ns=stat.get("system_usec", 0) * 1000,
            periods=stat.get("nr_periods", 0),
            throttled_periods=stat.get("nr_throttled", 0),
            throttled_ns=stat.get("throttled_usec", 0) * 1000,
            shares=2 + (weight - 1) * 262142 // 9999 if weight else 0,
            quota_us=int(quota) if quota.isdigit() else 0,
            period_us=int(period) if period.isdigit() else 0,
        )

    def _memory(self, directory: str, *, brief: bool) -> MemoryUse:
        stat = read_table(f"{directory}/memory.stat")
        usage = read_number(f"{directory}/memory.current")
        if usage is None:  # the root cgroup has no such file
            usage = stat.get("anon", 0) + stat.get("file", 0)
        inactive = stat.get("inactive_file", 0)
        use = MemoryUse(
            usage=usage,
            working_set=max(0, usage - inactive),
            limit=read_number(f"{directory}/memory.max"),
            rss=stat.get("anon", 0),
            cache=stat.get("file", 0),
            mapped_file=stat.get("file_mapped", 0),
            kernel=stat.get("kernel", 0),
            active_file=stat.get("active_file", 0),
            inactive_file=inactive,
            page_faults=stat.get("pgfault", 0),
            major_page_faults=stat.get("pgmajfault", 0),
            page_faults_below=stat.get("pgfault", 0),
            major_page_faults_below=stat.get("pgmajfault", 0),
            swap=read_number(f"{directory}/memory.swap.current"),
            swap_limit=read_number(f"{directory}/memory.swap.max"),
        )
        if directory == self._root:
            swap, swap_limit = _machine_swap(self._proc)
            use = replace(use, swap=swap, swap_limit=swap_limit)
        if brief:
            return use
        events = read_table(f"{directory}/memory.events")
        return replace(
            use,
            peak=read_number(f"{directory}/memory.peak") or 0,
            fail_count=events.get("max", 0),
            oom_kills=events.get("oom_kill", 0),
        )

    def detail(self, path: str) -> GroupDetail:
        """See `GroupReader.detail`."""
        directory = join(self._root, path)
        return GroupDetail(
            io=parse_io_stat(read_file(f"{directory}/io.stat")),
            processes=read_processes(self.processes(path)),
            threads_max=read_number(f"{directory}/pids.max"),
        )

    def children(self, path: str) -> list[str]:
        """See `GroupReader.children`."""
        return _children(join(self._root, path))

    def processes(self, path: str) -> list[int]:
        """See `GroupReader.processes`."""
        return _numbers(f"{join(self._root, path)}/cgroup.procs")


def _machine_swap(proc: str) -> tuple[int | None, int | None]:
    """The used and the total swap of the machine, in bytes."""
    words = {line.partition(":")[0]: line.split() for line in read_file(f"{proc}/meminfo").splitlines()}
    if "SwapTotal" not in words or "SwapFree" not in words:
        return None, None
    total, free = (int(words[name][1]) * 1024 for name in ("SwapTotal", "SwapFree"))
    return total - free, total


def _children(directory: str) -> list[str]:
    try:
        return sub_groups(directory)
    except HostError:
        return []


def _numbers(path: str) -> list[int]:
    return [int(word) for word in read_file(path).split() if word.isdigit()]


def read_pressure(directory: str) -> dict[str, PsiStats]:
    """Read the pressure files of a cgroup, if the kernel has them and PSI is enabled."""
    return _read_pressure(directory, ".pressure")


def read_node_pressure(proc: str = "/proc") -> dict[str, PsiStats]:
    """Read the pressure files of the machine, if the kernel has them and PSI is enabled."""
    return _read_pressure(f"{proc}/pressure", "")


def _read_pressure(directory: str, suffix: str) -> dict[str, PsiStats]:
    found = {}
    for name in _PRESSURE:
        lines = {line[0]: _pressure(line) for line in _PRESSURE_LINE.findall(read_file(f"{directory}/{name}{suffix}"))}
        if "some" in lines:
            found[name] = PsiStats(lines["some"], lines.get("full"))
    return found


def _pressure(line: tuple[str, str, str, str, str]) -> PsiData:
    _, avg10, avg60, avg300, total = line
    return PsiData(int(total), float(avg10), float(avg60), float(avg300))


def detect_reader(root: str = "/sys/fs/cgroup", proc: str = "/proc") -> GroupsV1 | GroupsV2:
    """The reader for the cgroup file systems at and below `root`."""
    roots: dict[str, str] = {}
    for mount in read_mounts_of_type("cgroup", "cgroup2", proc=proc):
        if mount.fs_type == "cgroup2" and mount.target == root:
            return GroupsV2(root, proc)
        if mount.fs_type == "cgroup" and mount.target.startswith(root + "/"):
            roots |= dict.fromkeys(mount.super_options, mount.target)
    return GroupsV1(roots, proc)


def own_group(proc: str = "/proc", hierarchies: tuple[str, ...] = ("cpuacct", "")) -> str:
    """The path of this process's cgroup in the first of the hierarchies (`""`: version 2) that exists."""
    lines = [line.split(":", 2) for line in read_file(f"{proc}/self/cgroup").splitlines()]
    paths = {name: path for _, names, path in lines for name in names.split(",")}
    return next((paths[name] for name in hierarchies if name in paths), "/")
