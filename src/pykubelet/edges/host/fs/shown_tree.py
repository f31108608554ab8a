"""Read-only access to a directory tree for clients: listings and files, but nothing outside of it, whatever links it contains.

Owns: the way from a requested path to an open file. A link is followed if its target is inside the tree. The target is
checked on the open file, so that no process can replace a link in between. Blocks.
"""

from __future__ import annotations

import os
import stat

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import Translating, host_error
from pykubelet.edges.host.fs.files import OpenDescriptor

CHUNK = 256 * 1024
MAX_ENTRIES = 20_000


class ShownFile(Value):
    """An open file, which the caller must close."""

    descriptor: int
    size: int


class ShownDirectory(Value):
    """The sorted names in a directory; those of directories end with a slash. At most `MAX_ENTRIES`."""

    names: tuple[str, ...]


def open_shown(root: str, path: str) -> ShownFile | ShownDirectory:
    """Open `path` below `root`. Raises HostError with ENOENT also for paths outside of it, and for devices and sockets."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    where = "/".join([root.rstrip("/"), *parts])
    if ".." in parts or "\0" in path:
        raise host_error("open", where, 2)
    with Translating("open", where):
        top = os.path.realpath(root)
        with OpenDescriptor(os.open(where, os.O_PATH | os.O_CLOEXEC)) as found:
            descriptor = _reopened(found, top, where)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return ShownFile(descriptor, status.st_size)
        try:
            return ShownDirectory(_names(descriptor))
        finally:
            os.close(descriptor)


def _reopened(found: int, top: str, where: str) -> int:
    """Open it for reading, if it is a file or directory in the tree. Raises HostError (ENOENT) or OSError."""
    path, mode = os.readlink(f"/proc/self/fd/{found}"), os.fstat(found).st_mode
    is_inside = path == top or path.startswith(top.rstrip("/") + "/")
    if not is_inside or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise host_error("open", where, 2)
    return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)


def _names(descriptor: int) -> tuple[str, ...]:
    with os.scandir(descriptor) as entries:
        found = [entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "") for entry in entries]
    return tuple(sorted(found)[:MAX_ENTRIES])


def read_shown(file: ShownFile, at: int, limit: int = CHUNK) -> bytes:
    """Read up to `limit` bytes from offset `at`; empty at the end."""
    with Translating("read", ""):
        return os.pread(file.descriptor, limit, at)


def close_shown(file: ShownFile) -> None:
    """Close the descriptor of the file."""
    os.close(file.descriptor)
