"""Control groups: what is common to version 1, version 2 and systemd, and finding out which one this machine has.

Owns: the driver's shape, removal, and what both versions do alike. Paths of groups are
relative to the mount (`/kubepods/burstable/pod1`). Not here: names and amounts (act/resources decides them).
Source: the kernel's cgroup-v1 and cgroup-v2 documents, cgroups(7).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable, Mapping
from typing import Protocol

from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.edges.host.fs.errors import HostError, translated


class Cgroups(Protocol):
    """A driver. Every function blocks, for microseconds as a rule; all raise HostError."""

    @property
    def version(self) -> CgroupVersion: ...

    def controllers(self) -> frozenset[str]:
        """Those that can be used (`cpu`, `memory`, ...)."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the group is there, in every hierarchy it should be in."""
        ...

    def create(self, path: str, limits: CgroupLimits) -> None:
        """Make the group and its parents where they are missing, and set its limits."""
        ...

    def update(self, path: str, limits: CgroupLimits) -> None:
        """Set limits of a group that is there."""
        ...

    def memory_used(self, path: str) -> int:
        """Bytes that the processes in the group and below it have now."""
        ...

    def remove(self, path: str) -> bool:
        """Remove the group and those below it. False: something in it is still busy; kill it and try again."""
        ...

    def enter(self, path: str) -> None:
        """Move this process to the group, which is made where it is missing."""
        ...

    def pids(self, path: str) -> frozenset[int]:
        """The processes in the group and below it."""
        ...

    def kill(self, path: str) -> int:
        """Kill every process in the group and below it; how many were seen."""
        ...

    def children(self, path: str) -> tuple[str, ...]:
        """Names of the groups directly below, sorted; empty when there is no such group."""
        ...


def join(root: str, path: str) -> str:
    """The directory of a group."""
    inner = path.strip("/")
    return f"{root}/{inner}" if inner else root


def write_control(file: str, value: str) -> None:
    """One write(2) to a control file."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HostError("write", file, *_named(error, value)) from error


def write_reservations(directory: str, suffix: str, huge_pages: Mapping[str, int]) -> None:
    """Limit also how many huge pages may be reserved (`mmap` with MAP_HUGETLB) before they are used, where the kernel can
    (5.7 and later)."""
    for size, limit in huge_pages.items():
        try:
            write_control(f"{directory}/hugetlb.{size}.rsvd.{suffix}", str(limit))
        except HostError as error:
            if not error.is_not_found:
                raise
            return


def _named(error: OSError, value: str) -> tuple[str, str]:
    plain = translated("write", "", error)
    return plain.errno_name, f"cannot set {value!r}: {plain.message}"


def read_control(file: str) -> str:
    """The content of a control file, without the last newline."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(descriptor, 1 << 16):
                parts.append(part)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise translated("read", file, error) from error
    return b"".join(parts).decode("utf-8", "replace").strip()


def sub_groups(directory: str) -> list[str]:
    """Names of the directories in a group's directory; empty when it is gone."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno == errno.ENODEV:
            return []
        raise translated("readdir", directory, error) from error


def remove_groups(directory: str) -> bool:
    """rmdir the group, its descendants first where there are some. False when the kernel says busy."""
    if _rmdir(directory):
        return True
    clean = True
    for name in sub_groups(directory):
        clean = remove_groups(f"{directory}/{name}") and clean
    return clean and _rmdir(directory)


def _rmdir(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise translated("rmdir", directory, error) from error
    return True


def read_pids(directory: str) -> set[int]:
    """Processes of the group and its descendants. A process of a foreign pid namespace (0) is left out."""
    found: set[int] = set()
    waiting = [directory]
    while waiting:
        here = waiting.pop()
        try:
            text = read_control(f"{here}/cgroup.procs")
        except HostError as error:
            if error.is_not_found or error.errno_name in ("ENODEV", "EOPNOTSUPP"):
                text = ""  # gone meanwhile, or a threaded group, whose processes its domain lists
            else:
                raise
        found.update(int(line) for line in text.split() if line.isdigit() and line != "0")
        waiting.extend(f"{here}/{name}" for name in sub_groups(here))
    return found


def kill_pids(pids: Iterable[int]) -> int:
    """SIGKILL each, except this process; how many were there."""
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
