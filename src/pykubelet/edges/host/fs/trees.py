"""Whole directory trees: removing, owning, measuring, without leaving the file system or following a link.

Owns: walks that a pod's own content cannot lead astray: no link is followed, no mount point is crossed, a tree of any
depth is walked with a bounded number of descriptors. Every function blocks: use `base.kit.flight`.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.errors import HostError, translated, translating
from pykubelet.edges.host.fs.mounts import mounts_below

_MAX_DEPTH = 100
_BATCH = 1000
_WITHIN = libc.RESOLVE_NO_XDEV | libc.RESOLVE_NO_SYMLINKS | libc.RESOLVE_BENEATH
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def remove_tree(path: str, *, may_hold_mounts: bool = True) -> bool:
    """Remove `path` and all below it; False when nothing was there.

    Refuses (HostError, `is_busy`) when anything is mounted at or below it, and stops at a mount that appears meanwhile.
    `may_hold_mounts=False` spares the look at the mount table, which costs milliseconds on a busy node: what is mounted
    all the same is not entered, but met only after a part of the rest is gone.
    """
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise translated("remove", path, error) from error
    with translating("remove", path):
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
    """Whether `_enter` sees every mount, also one of the same file system."""
    descriptor = libc.openat2(dir_fd, ".", _FLAGS, _WITHIN)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _enter(dir_fd: int, name: str) -> int:
    """Open a directory for walking; EXDEV when something is mounted on it (bind mounts too, where openat2 exists)."""
    descriptor = libc.openat2(dir_fd, name, _FLAGS, _WITHIN)
    if descriptor is None:
        descriptor = os.open(name, _FLAGS, dir_fd=dir_fd)
        if os.fstat(descriptor).st_dev != os.fstat(dir_fd).st_dev:
            os.close(descriptor)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return descriptor


def _remove_dir(parent_fd: int, name: str) -> None:
    """Empty and remove one directory. Deep trees are flattened: what lies too deep is moved up and removed after."""
    top = _enter(parent_fd, name)
    try:
        while _empty(top, top, 0):
            continue
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent_fd)


def _empty(top: int, here: int, depth: int) -> bool:
    """Remove what is in `here`; True when a part was moved up to `top` and another round is needed."""
    again, seen = False, _BATCH
    while seen == _BATCH:  # some file systems skip entries while others are being removed
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
                inner = _enter(here, name)
                try:
                    again = _empty(top, inner, depth + 1) or again
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=here)
            except FileNotFoundError:
                continue  # somebody else removed it, which is what we want
    return again


def _entries(directory: int) -> Iterator[tuple[str, bool]]:
    """Each name, and whether it is a directory. There may be millions: only a part of them is held at a time."""
    with os.scandir(directory) as entries:
        while len(batch := [(e.name, e.is_dir(follow_symlinks=False)) for e in islice(entries, _BATCH)]) == _BATCH:
            yield from batch
    yield from batch


def walk_tree(path: str, visit: Callable[[int, str, os.stat_result], None]) -> None:
    """Call `visit(dir_fd, name, lstat)` for everything below `path`, children before their directory, then for `path`.

    Crosses no mount point. What vanishes meanwhile is skipped.
    """
    with translating("walk", path):
        parent_fd = os.open(os.path.dirname(path.rstrip("/")) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            name = os.path.basename(path.rstrip("/"))
            top = os.open(name, _FLAGS & ~os.O_NOFOLLOW, dir_fd=parent_fd)
            try:
                _walk(top, 0, visit)
                visit(top, ".", os.fstat(top))
            finally:
                os.close(top)
        finally:
            os.close(parent_fd)


def _walk(here: int, depth: int, visit: Callable[[int, str, os.stat_result], None]) -> None:
    for name, is_dir in _entries(here):
        with _passing_by():
            result = os.stat(name, dir_fd=here, follow_symlinks=False)
            if is_dir:
                inner = _enter(here, name)
                try:
                    if depth < _MAX_DEPTH:
                        _walk(inner, depth + 1, visit)
                    else:
                        _walk_deep(inner, visit)
                finally:
                    os.close(inner)
            visit(here, name, result)


def _walk_deep(top: int, visit: Callable[[int, str, os.stat_result], None]) -> None:
    """The same with one descriptor, however deep it goes: the way back is `..`. Who moves a directory of the way ends it."""
    here, way = os.dup(top), [("", os.fstat(top), _visit_files(top, visit))]
    try:
        while True:
            name, own, directories = way[-1]
            if directories:
                deeper = directories.pop()
                with _passing_by():
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
            with _passing_by():
                visit(here, name, own)
    except FileNotFoundError:
        return  # where we are was removed
    finally:
        os.close(here)


def _exchanged(old: int, new: int) -> int:
    os.close(old)
    return new


def _visit_files(here: int, visit: Callable[[int, str, os.stat_result], None]) -> list[str]:
    """Visit all but the directories, whose names are returned."""
    directories = []
    for name, is_dir in _entries(here):
        if is_dir:
            directories.append(name)
            continue
        with _passing_by():
            visit(here, name, os.stat(name, dir_fd=here, follow_symlinks=False))
    return directories


@contextmanager
def _passing_by() -> Iterator[None]:
    """What has vanished meanwhile, or become something else, and other file systems, are none of a walk's business."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
            raise


def apply_group(path: str, gid: int, *, read_only: bool = False) -> None:
    """The ownership that `fsGroup` asks for: the group owns and may use everything, new files inherit it.

    Files get rw (or r) for the group, directories also x and the set-gid bit. The top directory comes last, so that
    its state tells whether the work was finished (`fsGroupChangePolicy: OnRootMismatch`).
    """
    access = 0o440 if read_only else 0o660

    def own(dir_fd: int, name: str, found: os.stat_result) -> None:
        os.chown(name, -1, gid, dir_fd=dir_fd, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return
        mask = access | (stat.S_ISGID | 0o110 if stat.S_ISDIR(found.st_mode) else 0)
        _change_mode(dir_fd, name, mask)

    walk_tree(path, own)


def _change_mode(dir_fd: int, name: str, mask: int) -> None:
    """Add bits to a mode, through a descriptor: chmod by name would follow a link put there meanwhile."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISLNK(mode) and mode & mask != mask:
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | mask)
    finally:
        os.close(descriptor)


def group_is_applied(path: str, gid: int, *, read_only: bool = False) -> bool:
    """Whether the top directory already is as `apply_group` leaves it."""
    with translating("stat", path):
        found = os.stat(path)
    wanted = (0o440 if read_only else 0o660) | 0o110
    mode = stat.S_IMODE(found.st_mode)
    return found.st_gid == gid and mode & wanted == wanted and bool(mode & stat.S_ISGID)


#: Files of several links that are remembered at once: about 20 MB.
MAX_LINKED = 100_000


def read_disk_usage(path: str, max_linked: int = MAX_LINKED) -> tuple[int, int]:
    """Bytes on disk and inodes of a tree, hard links counted once, as `du -x` does.

    A file of several links is remembered until all of them were met, at most `max_linked` files at a time. From the first
    one beyond that on, a name of a new one counts as its share of the file: exact as long as all its names are in the tree.
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
        total[0] += found.st_blocks * 512 * share
        total[1] += share

    walk_tree(path, count)
    return round(total[0]), round(total[1])
