"""Reads the resource usage of the agent's own process from /proc/self. Source: proc(5)."""

from __future__ import annotations

import os
import resource

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.text_files import read_file
from pykubelet.edges.host.proc.boot_time import read_boot_time

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STARTED_FIELD = 19
_NO_LIMIT = 2**64 - 1


class SelfStats(Value):
    """The usage: CPU in seconds, memory in bytes, the start in wall seconds, and file descriptors.

    `virtual_limit`: 2^64 - 1 without a limit, as `getrlimit` has it. `network_in` and `network_out`: the bytes of the
    process's network namespace: the kernel does not count them by process.
    """

    cpu_s: float
    resident: int
    virtual: int
    started_at: float
    open_files: int
    max_files: int
    virtual_limit: int = 0
    network_in: int = 0
    network_out: int = 0


def read_self() -> SelfStats:
    """This process's current usage; 0 for figures that cannot be read."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = read_file("/proc/self/statm").split()
    fields = read_file("/proc/self/stat").rpartition(")")[2].split()
    started = int(fields[_STARTED_FIELD]) / _TICKS if len(fields) > _STARTED_FIELD else 0.0
    try:
        files = len(os.listdir("/proc/self/fd"))
    except OSError:
        files = 0
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    network = _network_bytes(read_file("/proc/self/net/netstat"))
    return SelfStats(
        cpu_s=used.ru_utime + used.ru_stime,
        resident=int(pages[1]) * _PAGE if len(pages) > 1 else 0,
        virtual=int(pages[0]) * _PAGE if pages else 0,
        started_at=read_boot_time() + started,
        open_files=files,
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        virtual_limit=limit if limit != resource.RLIM_INFINITY else _NO_LIMIT,
        network_in=network.get("InOctets", 0),
        network_out=network.get("OutOctets", 0),
    )


def start_ticks(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks since boot; None if there is no such process."""
    fields = read_file(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[_STARTED_FIELD]) if len(fields) > _STARTED_FIELD else None


def anonymous_memory() -> int:
    """The bytes of memory that only this process uses: those that the kernel counts as `anon-rss` when it kills a process."""
    pages = read_file("/proc/self/statm").split()
    return (int(pages[1]) - int(pages[2])) * _PAGE if len(pages) > 2 else 0


def _network_bytes(text: str) -> dict[str, int]:
    """The counters of IP in the text of `/proc/self/net/netstat`: a line of names, and one of numbers."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("IpExt:")]
    names, numbers = lines if len(lines) == 2 else ([], [])
    return {name: int(number) for name, number in zip(names, numbers, strict=False)}
