"""A directory shown to others: listings and files, and nothing outside of it, whatever links lie in it.

Owns: the way from a requested path to an open file. A link is followed where it ends inside the tree; what a path led to is
checked on the open file, so that nobody can swap a link in between. Blocks.
"""

from __future__ import annotations

import os
import stat

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.errors import HostError, host_error, translating

CHUNK = 256 * 1024
MAX_ENTRIES = 20_000


class ShownFile(Value):
    """An open file; the owner closes it. `changed_at`: wall seconds."""

    descriptor: int
    size: int
    changed_at: float


class ShownDirectory(Value):
    """Names, directories with a slash behind them, sorted."""

    names: tuple[str, ...]


def open_shown(root: str, path: str) -> ShownFile | ShownDirectory:
    """What lies at `path` below `root`. HostError: ENOENT also for what lies outside, and for devices and sockets."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    where = "/".join([root.rstrip("/"), *parts])
    if ".." in parts or "\0" in path:
        raise host_error("open", where, 2)
    with translating("open", where):
        top = os.path.realpath(root)
        descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")
        if found != top and not found.startswith(top.rstrip("/") + "/"):
            raise host_error("open", where, 2)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            names = _names(descriptor)
            os.close(descriptor)
            return ShownDirectory(names)
        if not stat.S_ISREG(status.st_mode):
            raise host_error("open", where, 2)
    except OSError as error:
        os.close(descriptor)
        raise HostError("open", where, "EIO", str(error)) from error
    except HostError:
        os.close(descriptor)
        raise
    return ShownFile(descriptor, status.st_size, status.st_mtime)


def _names(descriptor: int) -> tuple[str, ...]:
    with os.scandir(descriptor) as entries:
        found = [entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "") for entry in entries]
    return tuple(sorted(found)[:MAX_ENTRIES])


def read_shown(file: ShownFile, at: int, limit: int = CHUNK) -> bytes:
    """Up to `limit` bytes from `at`; empty at the end."""
    with translating("read", ""):
        return os.pread(file.descriptor, limit, at)


def close_shown(file: ShownFile) -> None:
    os.close(file.descriptor)
