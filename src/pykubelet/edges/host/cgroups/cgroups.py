"""The interface of cgroup drivers, and what the drivers for version 1 and version 2 share.

Owns: the driver's interface, removal, and the steps that are the same in both versions. Paths of cgroups are relative to the
mount (`/kubepods/burstable/pod1`). Not here: names and amounts (provide/cgroups decides them), detection (`cgroup_detect.py`).
Source: the kernel's cgroup-v1 and cgroup-v2 documents, cgroups(7).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable, Mapping
from typing import Protocol

from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.edges.host.fs.errors import HostError, is_not_found, suppress_not_found, translated
from pykubelet.edges.host.fs.files import OpenDescriptor


class Cgroups(Protocol):
    """A cgroup driver. Every method blocks, usually for microseconds, and may raise HostError."""

    @property
    def version(self) -> CgroupVersion:
        """The cgroup version, which determines the files of a cgroup."""
        ...

    def controllers(self) -> frozenset[str]:
        """The controllers that can be used (`cpu`, `memory`, ...)."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the cgroup exists in every hierarchy that it should be in."""
        ...

    def missing(self, path: str) -> tuple[str, ...]:
        """The missing parts of a cgroup: paths of its directories on version 1, names of controllers on version 2.

        Empty if it can be used. On version 2, raises HostError if the cgroup does not exist.
        """
        ...

    def create(self, path: str, limits: CgroupLimits) -> None:
        """Create the cgroup and its parents if they are missing, and set its limits."""
        ...

    def update(self, path: str, limits: CgroupLimits) -> None:
        """Set the limits of an existing cgroup."""
        ...

    def files(self, path: str) -> frozenset[str]:
        """The names of the cgroup's files in all hierarchies; empty if it does not exist."""
        ...

    def memory_used(self, path: str) -> int:
        """The memory in bytes that the cgroup and those below it use now."""
        ...

    def remove(self, path: str) -> bool:
        """Remove the cgroup and those below it. False: one of them still has processes; kill them and try again."""
        ...

    def enter(self, path: str, pid: int | None = None) -> None:
        """Move a process, by default this one, to the cgroup, which is created if it is missing."""
        ...

    def own_pids(self, path: str) -> frozenset[int]:
        """The processes in the cgroup itself, without those below it."""
        ...

    def pids(self, path: str) -> frozenset[int]:
        """The processes in the cgroup and below it."""
        ...

    def kill(self, path: str) -> int:
        """Kill every process in the cgroup and below it. Returns how many there were."""
        ...

    def children(self, path: str) -> tuple[str, ...]:
        """The names of the direct child cgroups, sorted; empty if the cgroup does not exist."""
        ...


class LimitedUnits(Protocol):
    """The units of a service manager, one for each cgroup, whose limits it keeps. HostError."""

    def update(self, path: str, limits: CgroupLimits, version: CgroupVersion) -> None:
        """Set the limits of an existing unit."""
        ...


class Units(LimitedUnits, Protocol):
    """Such units that a driver also makes. It calls each method before its own work. HostError."""

    def create(self, path: str, limits: CgroupLimits, version: CgroupVersion) -> None:
        """Create the unit if it is missing, and set its limits."""
        ...

    def remove(self, path: str) -> None:
        """Remove the unit of a cgroup that exists."""
        ...


def join(root: str, path: str) -> str:
    """The directory of the cgroup at `path`."""
    inner = path.strip("/")
    return f"{root}/{inner}" if inner else root


def list_files(directory: str) -> list[str]:
    """The names in a directory of a cgroup; empty if it does not exist."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise translated("list", directory, error) from error


def write_control(file: str, value: str) -> None:
    """Write a value to a control file with one write(2)."""
    try:
        with OpenDescriptor(os.open(file, os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
            os.write(descriptor, value.encode())
    except OSError as error:
        raise HostError("write", file, *_named(error, value)) from error


def write_reservations(directory: str, suffix: str, huge_pages: Mapping[str, int]) -> None:
    """Limit the reservation of huge pages (`mmap` with MAP_HUGETLB) too, if the kernel can (5.7 and later)."""
    with suppress_not_found:
        for size, limit in huge_pages.items():
            write_control(f"{directory}/hugetlb.{size}.rsvd.{suffix}", str(limit))


def _named(error: OSError, value: str) -> tuple[str, str]:
    plain = translated("write", "", error)
    return plain.errno_name, f"cannot set {value!r}: {plain.message}"


def read_control(file: str) -> str:
    """The content of a control file, without leading and trailing blanks and newlines."""
    try:
        with OpenDescriptor(os.open(file, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            parts = []
            while part := os.read(descriptor, 1 << 16):
                parts.append(part)
    except OSError as error:
        raise translated("read", file, error) from error
    return b"".join(parts).decode("utf-8", "replace").strip()


def sub_groups(directory: str) -> list[str]:
    """The names of the direct child cgroups, sorted; empty if the cgroup is gone."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        if is_not_found(error) or error.errno == errno.ENODEV:
            return []
        raise translated("readdir", directory, error) from error


def remove_groups(directory: str) -> bool:
    """Remove the directory of the cgroup, and before it those of its descendants. False if one of them is busy."""
    if _rmdir(directory):
        return True
    clean = True
    for name in sub_groups(directory):
        clean = remove_groups(f"{directory}/{name}") and clean
    return clean and _rmdir(directory)


def _rmdir(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except OSError as error:
        if is_not_found(error):
            return True
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise translated("rmdir", directory, error) from error
    return True


def read_own_pids(directory: str) -> set[int]:
    """The processes of the cgroup itself. Processes of a foreign pid namespace (listed as 0) are left out."""
    try:
        text = read_control(f"{directory}/cgroup.procs")
    except HostError as error:
        if error.is_not_found or error.errno_name in ("ENODEV", "EOPNOTSUPP"):
            return set()  # gone in the meantime, or a threaded cgroup, whose processes its domain lists
        raise
    return {int(line) for line in text.split() if line.isdigit() and line != "0"}


def read_pids(directory: str) -> set[int]:
    """The processes of the cgroup and its descendants; see `read_own_pids`."""
    found: set[int] = set()
    waiting = [directory]
    while waiting:
        here = waiting.pop()
        found |= read_own_pids(here)
        waiting.extend(f"{here}/{name}" for name in sub_groups(here))
    return found


def kill_pids(pids: Iterable[int]) -> int:
    """Send SIGKILL to each process except this one. Returns how many existed."""
    killed = 0
    for pid in pids:
        if pid <= 1 or pid == os.getpid():
            continue
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        except OSError as error:
            raise translated("kill", str(pid), error) from error
        killed += 1
    return killed
