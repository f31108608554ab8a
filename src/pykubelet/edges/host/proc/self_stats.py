"""Reads the resource usage of the agent's own process from /proc/self. Source: proc(5)."""

from __future__ import annotations

import os
import resource

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.cgroups.cgroup_stats import read_boot_time
from pykubelet.edges.host.fs.text_files import read_file

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STARTED_FIELD = 19


class SelfStats(Value):
    """The usage: CPU in seconds, memory in bytes, the start in wall seconds, and file descriptors."""

    cpu_s: float
    resident: int
    virtual: int
    started_at: float
    open_files: int
    max_files: int


def read_self(proc: str = "/proc") -> SelfStats:
    """This process's current usage; 0 for figures that cannot be read."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = read_file(f"{proc}/self/statm").split()
    fields = read_file(f"{proc}/self/stat").rpartition(")")[2].split()
    started = int(fields[_STARTED_FIELD]) / _TICKS if len(fields) > _STARTED_FIELD else 0.0
    try:
        files = len(os.listdir(f"{proc}/self/fd"))
    except OSError:
        files = 0
    return SelfStats(
        cpu_s=used.ru_utime + used.ru_stime,
        resident=int(pages[1]) * _PAGE if len(pages) > 1 else 0,
        virtual=int(pages[0]) * _PAGE if pages else 0,
        started_at=read_boot_time(proc) + started,
        open_files=files,
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
