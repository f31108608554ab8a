"""Project quotas of volumes: the kernel counts the usage of a directory tree, so its files need not be walked.

Owns: the ids of the directories that this process has put into projects. They are not used to limit a volume: where the
reference sets a limit, it is larger than any file system. If anything fails for a volume, its files are walked, and the
first failure is logged. Blocks; called in threads. Source: quotactl(2), the kernel's `include/uapi/linux/dqblk_xfs.h` and
`fs.h`, xfs_quota(8), KEP-1029.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.errors import HostError, Translating, suppress_not_found
from pykubelet.edges.host.fs.files import OpenDescriptor
from pykubelet.edges.host.fs.project_files import ProjectFiles, claim_id, release_paths
from pykubelet.edges.host.fs.trees import walk_tree

log = Log("fs")

#: The largest limit in bytes of the file systems with project quotas (ext4, xfs), by their magic number.
LARGEST_LIMIT: Final = {0xEF53: 2**58 - 1, 0x58465342: 2**63 - 1}
_PROJECTS = 2  # the type of quota
_GET_STATE, _GET_QUOTA, _SET_LIMIT = (((0x5800 + n) << 8) | _PROJECTS for n in (8, 3, 4))
_COUNTS_PROJECTS = 1 << 4
_BLOCK_LIMITS = 0b1100
_BLOCK = 512
#: struct fs_quota_statv as far as the flags; fs_disk_quota; fsxattr.
_STATE, _STATE_BYTES = struct.Struct("=bBH"), 160
_QUOTA = struct.Struct("=bbHIQQQQQQiiHHbbbbQQQiHh8x")
_ATTRIBUTES = struct.Struct("=IIIII8x")
_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_INHERITED = 0x200
_PLAIN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LOCATE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class QuotaCalls(Protocol):
    """The system calls for project quotas. Each raises HostError."""

    def largest_limit(self, path: str) -> int:
        """The largest limit in bytes; 0 if the file system of `path` does not count the usage of projects."""

    def project_of(self, path: str) -> int:
        """The project of a directory; 0: none."""

    def use_of(self, path: str, project: int) -> tuple[int, int]:
        """The bytes and inodes of a project on the file system of `path`; zeros for an unknown project."""

    def limit(self, path: str, project: int, limit: int) -> None:
        """Set the limit in bytes of a project on the file system of `path`; 0: no limit."""

    def move_tree(self, path: str, project: int) -> None:
        """Put a directory and its present and future contents into a project. The directory itself comes last."""


class KernelQuotas:
    """The kernel's calls. They use a descriptor on the file system, so its device need not be known. Needs Linux 5.14."""

    def largest_limit(self, path: str) -> int:
        """See `QuotaCalls`."""
        largest = LARGEST_LIMIT.get(libc.file_system_type(path), 0)
        state = bytearray(_STATE_BYTES)
        state[0] = 1  # version
        try:
            with Translating("read quota state of", path), _opened(path) as descriptor:
                libc.quotactl_fd(descriptor, _GET_STATE, 0, state)
        except HostError as error:
            if error.errno_name in ("ENOSYS", "ESRCH", "EINVAL", "EOPNOTSUPP"):
                return 0
            raise
        return largest if _STATE.unpack_from(state)[2] & _COUNTS_PROJECTS else 0

    def project_of(self, path: str) -> int:
        """See `QuotaCalls`."""
        with Translating("read project of", path), _opened(path) as descriptor:
            return int(_attributes(descriptor)[3])

    def use_of(self, path: str, project: int) -> tuple[int, int]:
        """See `QuotaCalls`."""
        data = bytearray(_QUOTA.size)  # zeros, if nothing is there
        with suppress_not_found, Translating("read quota of", path), _opened(path) as descriptor:
            libc.quotactl_fd(descriptor, _GET_QUOTA, project, data)
        found = _QUOTA.unpack(data)
        return int(found[8]) * _BLOCK, int(found[9])

    def limit(self, path: str, project: int, limit: int) -> None:
        """See `QuotaCalls`."""
        blocks = limit // _BLOCK
        zeros = (0,) * 14
        head = (1, _PROJECTS, _BLOCK_LIMITS, project, blocks, blocks)
        data = bytearray(_QUOTA.pack(*head, 0, 0, 0, 0, *zeros))
        with Translating("limit project of", path), _opened(path) as descriptor:
            libc.quotactl_fd(descriptor, _SET_LIMIT, project, data)

    def move_tree(self, path: str, project: int) -> None:
        """See `QuotaCalls`."""

        def move(directory: int, name: str, found: os.stat_result) -> None:
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                _move(directory, name, project)

        walk_tree(path, move)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    with OpenDescriptor(os.open(path, _PLAIN)) as descriptor:
        yield descriptor


def _attributes(descriptor: int) -> list[int]:
    data = bytearray(_ATTRIBUTES.size)
    fcntl.ioctl(descriptor, _GET_ATTRIBUTES, data)
    return list(_ATTRIBUTES.unpack(data))


def _move(directory: int, name: str, project: int) -> None:
    """Put a file or directory into a project. O_PATH comes first, so that a file of another type, which a pod may have put
    there in the meantime, is not opened."""
    with OpenDescriptor(os.open(name, _LOCATE, dir_fd=directory)) as located:
        mode = os.fstat(located).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return
        with _opened(f"/proc/self/fd/{located}") as descriptor:
            attributes = _attributes(descriptor)
            inherited = _INHERITED if stat.S_ISDIR(mode) else 0
            if attributes[3] == project and attributes[0] & inherited == inherited:
                return
            attributes[0] |= inherited
            attributes[3] = project
            fcntl.ioctl(descriptor, _SET_ATTRIBUTES, _ATTRIBUTES.pack(*attributes))


class VolumeQuotas:
    """Puts volumes into projects and reads their usage. Never raises: the first failure is logged.

    `is_on`: whether volumes are put into projects. Projects of an earlier process are removed from the list in any case.
    """

    def __init__(self, *, is_on: bool, files: ProjectFiles | None = None, calls: QuotaCalls | None = None) -> None:
        self._is_on = is_on
        self._files = files or ProjectFiles()
        self._calls = calls or KernelQuotas()
        self._assigned: dict[str, int] = {}
        self._has_failed = False

    def assign(self, path: str, *, is_limited: bool) -> None:
        """Let the kernel count the usage of a volume's directory. `is_limited`: set the limit that can never be reached."""
        if not self._is_on:
            return
        try:
            self._assign(path, is_limited=is_limited)
        except HostError as error:
            self._report(error)

    def limit(self, path: str, limit_bytes: int) -> bool:
        """Limit what a directory may hold; 0: no limit. Returns whether that is possible; the first time that it is not is logged."""
        try:
            self._assign(path, is_limited=False, limit=limit_bytes)
        except HostError as error:
            self._report(error)
            return False
        return True

    def _assign(self, path: str, *, is_limited: bool, limit: int = 0) -> None:
        calls = self._calls
        largest = calls.largest_limit(path)
        if not largest:
            raise HostError("use project quotas", path, "", "the file system does not count what projects use")
        project = claim_id(self._files, path, lambda number: calls.use_of(path, number) != (0, 0))
        try:
            calls.limit(path, project, largest if is_limited else min(limit, largest))
            if calls.project_of(path) != project:
                calls.move_tree(path, project)
        except HostError:
            release_paths(self._files, lambda listed: listed == path)
            raise
        self._assigned[path] = project

    def read_use(self, path: str) -> tuple[int, int] | None:
        """The bytes and inodes of a volume that is in a project; None: its files must be walked."""
        project = self._assigned.get(path)
        if project is None:
            return None
        try:
            if self._calls.project_of(path) == project:
                return self._calls.use_of(path, project)
            raise HostError("read quota of", path, "", "the directory is in another project")
        except HostError as error:
            if not error.is_not_found:
                self._report(error)
            return None

    def release(self, path: str) -> None:
        """Remove the project of a volume that was removed."""
        self._assigned.pop(path, None)
        self._release(lambda listed: listed == path)

    def prune(self, folder: str) -> None:
        """Remove the projects of volumes below `folder` that do not exist any more, left by a process that was killed."""
        self._release(lambda path: path.startswith(f"{folder}/") and not os.path.lexists(path))

    def _release(self, is_released: Callable[[str], bool]) -> None:
        try:
            for project, path in release_paths(self._files, is_released):
                self._lift_limit(path, project)
        except HostError as error:
            self._report(error)

    def _lift_limit(self, path: str, project: int) -> None:
        """Remove the limit of a project whose directory is gone, through its nearest existing parent, on the same file system."""
        while not os.path.lexists(path):
            path = os.path.dirname(path)
        if self._calls.largest_limit(path):
            self._calls.limit(path, project, 0)

    def _report(self, error: HostError) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.warning(
                "project quotas cannot be used: directories are not limited, and their files are counted", cause=error
            )
