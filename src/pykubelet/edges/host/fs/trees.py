"""Operations on whole directory trees: removal, change of group, measurement of usage.

Owns: walks that are safe whatever a pod has written: no link is followed, no mount point is crossed, and a tree of any depth
is walked with a bounded number of descriptors. Every function blocks: use `base.kit.flight`.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.errors import HostError, Translating, is_not_found, translated
from pykubelet.edges.host.fs.files import STAT_BLOCK, OpenDescriptor
from pykubelet.edges.host.fs.mounts import mounts_below

log = Log("fs")
_MAX_DEPTH = 100
_BATCH = 1000
_WITHIN = libc.RESOLVE_NO_XDEV | libc.RESOLVE_NO_SYMLINKS | libc.RESOLVE_BENEATH
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def remove_tree(path: str, *, may_hold_mounts: bool = True) -> bool:
    """Remove `path` and everything below it. Returns False if it did not exist.

    Raises HostError (`is_busy`) if anything is mounted at or below it, and stops at a mount that appears in the meantime.
    `may_hold_mounts=False` skips reading the mount table, which takes milliseconds on a busy node. A mount is not entered in
    that case either, but it is noticed only after a part of the tree is removed.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        if is_not_found(error):
            return False
        raise translated("remove", path, error) from error
    with Translating("remove", path):
        if not stat.S_ISDIR(mode):
            os.unlink(path)
            return True
        parent_fd = os.open(os.path.dirname(path.rstrip("/")) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if may_hold_mounts or not _sees_mounts(parent_fd):
                _refuse_mounts(path)
            _remove_dir(parent_fd, os.path.basename(path.rstrip("/")))
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EBUSY):
                _refuse_mounts(path)
            raise
        finally:
            os.close(parent_fd)
    return True


def _refuse_mounts(path: str) -> None:
    if below := mounts_below(path):
        raise HostError("remove", path, "EBUSY", f"something is still mounted at {below[0].target}")


def _sees_mounts(dir_fd: int) -> bool:
    """Whether `_enter` detects every mount, including bind mounts of the same file system."""
    descriptor = libc.openat2(dir_fd, ".", _FLAGS, _WITHIN)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _enter(dir_fd: int, name: str) -> int:
    """Open a directory for walking. Raises EXDEV if something is mounted on it (also a bind mount, if openat2 exists)."""
    descriptor = libc.openat2(dir_fd, name, _FLAGS, _WITHIN)
    if descriptor is None:
        descriptor = os.open(name, _FLAGS, dir_fd=dir_fd)
        if os.fstat(descriptor).st_dev != os.fstat(dir_fd).st_dev:
            os.close(descriptor)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return descriptor


def _remove_dir(parent_fd: int, name: str) -> None:
    """Empty and remove one directory. Subdirectories that are too deep are moved up and removed afterwards."""
    with OpenDescriptor(_enter(parent_fd, name)) as top:
        while _empty(top, top, 0):
            continue
    os.rmdir(name, dir_fd=parent_fd)


def _empty(top: int, here: int, depth: int) -> bool:
    """Remove the contents of `here`. Returns True if a part was moved up to `top`, so that another pass is needed."""
    again, seen = False, _BATCH
    while seen == _BATCH:  # read again, because some file systems skip entries while others are removed
        seen = 0
        for name, is_dir in _entries(here):
            seen = min(seen + 1, _BATCH)
            try:
                if not is_dir:
                    os.unlink(name, dir_fd=here)
                    continue
                if depth >= _MAX_DEPTH:
                    os.rename(name, f".removed-{secrets.token_hex(8)}", src_dir_fd=here, dst_dir_fd=top)
                    again = True
                    continue
                with OpenDescriptor(_enter(here, name)) as inner:
                    again = _empty(top, inner, depth + 1) or again
                os.rmdir(name, dir_fd=here)
            except FileNotFoundError:
                continue  # another process has removed it
    return again


def _entries(directory: int) -> Iterator[tuple[str, bool]]:
    """Yield each name, and whether it is a directory. There may be millions, so only a batch is held in memory."""
    with os.scandir(directory) as entries:
        while len(batch := [(e.name, e.is_dir(follow_symlinks=False)) for e in islice(entries, _BATCH)]) == _BATCH:
            yield from batch
    yield from batch


def walk_tree(path: str, visit: Callable[[int, str, os.stat_result], None]) -> None:
    """Call `visit(dir_fd, name, lstat)` for everything below `path`, children before their directory, then for `path`.

    Crosses no mount point. Files that vanish in the meantime are skipped.
    """
    parent, name = os.path.split(path.rstrip("/"))
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with (
        Translating("walk", path),
        OpenDescriptor(os.open(parent or ".", flags)) as parent_fd,
        OpenDescriptor(os.open(name, _FLAGS & ~os.O_NOFOLLOW, dir_fd=parent_fd)) as top,
    ):
        _walk(top, 0, visit)
        visit(top, ".", os.fstat(top))


def _walk(here: int, depth: int, visit: Callable[[int, str, os.stat_result], None]) -> None:
    for name, is_dir in _entries(here):
        with _skip_vanished():
            result = os.stat(name, dir_fd=here, follow_symlinks=False)
            if is_dir:
                with OpenDescriptor(_enter(here, name)) as inner:
                    if depth < _MAX_DEPTH:
                        _walk(inner, depth + 1, visit)
                    else:
                        _walk_deep(inner, visit)
            visit(here, name, result)


def _walk_deep(top: int, visit: Callable[[int, str, os.stat_result], None]) -> None:
    """As `_walk`, with one descriptor at any depth: the way back is `..`. Stops if one of the directories is moved."""
    here, way = os.dup(top), [("", os.fstat(top), _visit_files(top, visit))]
    try:
        while True:
            name, own, directories = way[-1]
            if directories:
                deeper = directories.pop()
                with _skip_vanished():
                    here = _exchanged(here, _enter(here, deeper))
                    way.append((deeper, os.fstat(here), []))
                    way[-1][2].extend(_visit_files(here, visit))
                continue
            way.pop()
            if not way:
                return
            here = _exchanged(here, os.open("..", _FLAGS, dir_fd=here))
            if not os.path.samestat(os.fstat(here), way[-1][1]):
                return
            with _skip_vanished():
                visit(here, name, own)
    except FileNotFoundError:
        return  # the current directory was removed
    finally:
        os.close(here)


def _exchanged(old: int, new: int) -> int:
    os.close(old)
    return new


def _visit_files(here: int, visit: Callable[[int, str, os.stat_result], None]) -> list[str]:
    """Visit everything except directories. Returns the names of the directories."""
    directories = []
    for name, is_dir in _entries(here):
        if is_dir:
            directories.append(name)
            continue
        with _skip_vanished():
            visit(here, name, os.stat(name, dir_fd=here, follow_symlinks=False))
    return directories


@contextmanager
def _skip_vanished() -> Iterator[None]:
    """Skip files that have vanished or changed their type in the meantime, and other file systems."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
            raise


def apply_group(
    path: str,
    gid: int,
    *,
    read_only: bool = False,
    progress: Callable[[int], None] = lambda _files: None,
    shown: str = "",
) -> None:
    """Apply `fsGroup`: the group owns and may use all files, and new files inherit it.

    Files get rw (or r) for the group, directories also x and the set-gid bit. The top directory comes last, so that its state
    shows whether the change was completed (`fsGroupChangePolicy: OnRootMismatch`). Files that cannot be changed are logged, and
    stay as they are. `progress` is called before each file, with the number of files so far. `shown`: the path for the log.
    """
    access = 0o440 if read_only else 0o660
    seen, refused = 0, _Refused()

    def own(dir_fd: int, name: str, found: os.stat_result) -> None:
        nonlocal seen
        progress(seen)
        seen += 1
        is_link = stat.S_ISLNK(found.st_mode)
        mask = 0 if is_link else access | (stat.S_ISGID | 0o110 if stat.S_ISDIR(found.st_mode) else 0)
        if found.st_gid == gid and found.st_mode & mask == mask:
            return
        with refused.noting(name):
            os.chown(name, -1, gid, dir_fd=dir_fd, follow_symlinks=False)
        if not is_link:
            with refused.noting(name):
                _change_mode(dir_fd, name, found, mask)

    walk_tree(path, own)
    if refused.number:
        log.warning("not all files could be given to the group", path=shown or path, group=gid, **refused.fields())


class _Refused:
    """The changes of files that have failed: their number, and the first error."""

    def __init__(self) -> None:
        self.number = 0
        self._first = ""

    def fields(self) -> dict[str, Any]:
        """The fields of a log line."""
        return {"changes": self.number, "first": self._first}

    @contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Note an error, unless the file has vanished or is another one now."""
        try:
            with _skip_vanished():
                yield
        except OSError as error:
            self.number += 1
            self._first = self._first or f"{name}: {error.strerror}"


def _change_mode(dir_fd: int, name: str, before: os.stat_result, mask: int) -> None:
    """Add bits to a mode through a descriptor, because chmod by name would follow a link that was put there in the meantime.

    `before`: the file as it was found. The change of the group may have taken bits such as set-uid, which are set again.
    """
    with OpenDescriptor(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)) as descriptor:
        found = os.fstat(descriptor)
        wanted = (before if os.path.samestat(found, before) else found).st_mode | mask
        if not stat.S_ISLNK(found.st_mode) and found.st_mode != wanted:
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(wanted))


def group_is_applied(path: str, gid: int, *, read_only: bool = False) -> bool:
    """Whether the top directory already has the group and mode that `apply_group` sets."""
    with Translating("stat", path):
        found = os.stat(path)
    wanted = (0o440 if read_only else 0o660) | 0o110
    mode = stat.S_IMODE(found.st_mode)
    return found.st_gid == gid and mode & wanted == wanted and bool(mode & stat.S_ISGID)


#: The most files with several links that are remembered at a time: about 20 MB.
MAX_LINKED = 100_000


def read_disk_usage(path: str, max_linked: int = MAX_LINKED) -> tuple[int, int]:
    """The bytes on disk and the inodes of a tree. Hard links are counted once, as `du -x` does.

    A file with several links is remembered until all of them were found, at most `max_linked` files at a time. Once that limit
    is reached, each name of a further file counts as a fraction of the file, which is exact if all its names are in the tree.
    """
    missing: dict[tuple[int, int], int] = {}
    total = [0.0, 0.0]
    is_full = False

    def count(_: int, __: str, found: os.stat_result) -> None:
        nonlocal is_full
        share = 1.0
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            key = (found.st_dev, found.st_ino)
            left = missing.pop(key, None)
            if left is not None:
                if left > 1:
                    missing[key] = left - 1
                return
            is_full = is_full or len(missing) >= max_linked
            if is_full:
                share = 1 / found.st_nlink
            else:
                missing[key] = found.st_nlink - 1
        total[0] += found.st_blocks * STAT_BLOCK * share
        total[1] += share

    walk_tree(path, count)
    return round(total[0]), round(total[1])


def read_usage_of_files(path: str, limit: int) -> tuple[int, int]:
    """The bytes on disk and the number of the files in a directory, without the directories in it. No link is followed.

    `limit`: so many entries are read; those beyond are left out.
    """
    used = number = 0
    with Translating("readdir", path), os.scandir(path) as entries:
        for entry in islice(entries, limit):
            with _skip_vanished():
                if not entry.is_dir(follow_symlinks=False):
                    used += entry.stat(follow_symlinks=False).st_blocks * STAT_BLOCK
                    number += 1
    return used, number
