"""Operations on files below a directory of the agent, whatever names a pod, a plugin or an image has given them.

Owns: the walk from the agent's directory to a `Beneath`, from descriptor to descriptor: no link is followed, `..` is refused, and
mount points are crossed. Every function but `open_in_memory` blocks, and raises HostError: EXDEV for a path with `..`, EINVAL for a
name that no file can have, ELOOP for a link on the way. Nothing but these functions may be given a path with such a name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import files, libc, trees
from pykubelet.edges.host.fs.errors import HostError, host_error, is_refusal, refused, suppress_not_found
from pykubelet.edges.host.fs.files import DirEntry, FileKind, FileStat

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = libc.RESOLVE_BENEATH | libc.RESOLVE_NO_SYMLINKS | libc.RESOLVE_NO_MAGICLINKS
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_LINK = "a part of the path is a symbolic link, which is not followed"


# The walk


def open_plain(top_fd: int, relative: str) -> int:
    """Open a path below a directory with O_PATH. The caller must close the descriptor. Raises OSError: ELOOP for a link."""
    descriptor = libc.openat2(top_fd, relative or ".", os.O_PATH | os.O_NOFOLLOW, _PLAIN)
    if descriptor is None:
        return walk_plain(top_fd, relative)
    if stat.S_ISLNK(os.fstat(descriptor).st_mode):  # O_PATH with O_NOFOLLOW opens a link itself
        os.close(descriptor)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
    return descriptor


def walk_plain(top_fd: int, relative: str) -> int:
    """As openat2(2) without links, for kernels before 5.6: opens step by step. Raises OSError (ELOOP) for a link."""
    here = os.open(".", _DIRECTORY, dir_fd=top_fd)
    for part in parts_of(relative):
        try:
            deeper = os.open(part, _STEP, dir_fd=here)
        finally:
            os.close(here)
        if stat.S_ISLNK(os.fstat(deeper).st_mode):
            os.close(deeper)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
        here = deeper
    return here


def parts_of(relative: str) -> list[str]:
    """The names in a path, without those that lead nowhere."""
    return [part for part in relative.split("/") if part not in ("", ".")]


def make_plain(top_fd: int, parts: list[str], mode: int) -> bool:
    """Make the directories that are missing, each with exactly `mode`. Returns whether the last one was made. Raises OSError."""
    here, missing = _deepest(top_fd, parts)
    made = False
    try:
        _check_directory(here, parts[-1] if parts else ".")
        for part in missing:
            deeper, made = _enter_or_make(here, part, mode)
            os.close(here)
            here = deeper
    finally:
        os.close(here)
    return made


def _deepest(top_fd: int, parts: list[str]) -> tuple[int, list[str]]:
    """The last part, or the one above it, if it is there, else the top; with the parts below it. In most cases one call finds it."""
    for depth in (len(parts), len(parts) - 1):
        if depth > 0:
            with suppress(FileNotFoundError):
                return open_plain(top_fd, "/".join(parts[:depth])), parts[depth:]
    return os.dup(top_fd), parts


def _enter_or_make(dir_fd: int, name: str, mode: int) -> tuple[int, bool]:
    made = False
    try:
        found = os.open(name, _STEP, dir_fd=dir_fd)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=dir_fd)
            made = True
        found = os.open(name, _STEP, dir_fd=dir_fd)
    try:
        _check_directory(found, name)
    except OSError:
        os.close(found)
        raise
    if made:
        os.chmod(f"/proc/self/fd/{found}", mode)
    return found, made


def _check_directory(descriptor: int, name: str) -> None:
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISDIR(kind):
        number = errno.ELOOP if stat.S_ISLNK(kind) else errno.ENOTDIR
        raise OSError(number, os.strerror(number), name)


def _checked(place: Beneath, op: str) -> list[str]:
    parts = parts_of(place.inside)
    if ".." in parts:
        raise HostError(op, place, "EXDEV", "must not contain '..'")
    if "\0" in place or (not place.isprintable() and not _is_encodable(place)):
        raise HostError(op, repr(place), "EINVAL", "has a character that no file name can have")
    return parts


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _about(place: Beneath, error: HostError) -> HostError:
    message = _LINK if error.errno_name == "ELOOP" else error.message
    return HostError(error.op, place, error.errno_name, message)


class _Refusals:
    """A block: its errors are raised as a `HostError` about `place`."""

    __slots__ = ("_op", "_place")

    def __init__(self, place: Beneath, op: str) -> None:
        self._place = place
        self._op = op

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, HostError):
            raise _about(self._place, error) from error.__cause__
        if is_refusal(error):
            raise _about(self._place, refused(self._op, self._place, error)) from error


class _Found:
    """A name for the file itself, which must be there, in a block: the name is that of its descriptor. Errors are about `place`."""

    __slots__ = ("_descriptor", "_op", "_place", "_refusals")

    def __init__(self, place: Beneath, op: str) -> None:
        self._place = place
        self._op = op
        self._refusals = _Refusals(place, op)

    def __enter__(self) -> str:
        return self._open(_checked(self._place, self._op))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self._descriptor)
        self._refusals.__exit__(kind, error, trace)

    def _open(self, parts: Sequence[str]) -> str:
        with self._refusals, files.OpenDescriptor(os.open(self._place.top, _DIRECTORY)) as top:
            self._descriptor = open_plain(top, "/".join(parts))
        return f"/proc/self/fd/{self._descriptor}"


class _Named(_Found):
    """A name for the file that need not be there: in the descriptor of its directory. What is there may be a link."""

    __slots__ = ()

    def __enter__(self) -> str:
        parts = _checked(self._place, self._op)
        if not parts:
            raise host_error(self._op, self._place, errno.EINVAL)
        return f"{self._open(parts[:-1])}/{parts[-1]}"


@contextmanager
def opened(place: Beneath) -> Iterator[int]:
    """The descriptor (O_PATH) of the file, whatever its kind is."""
    with _Found(place, "open") as name:
        yield int(name.rpartition("/")[2])


# What is there


def stat_file(place: Beneath) -> FileStat | None:
    """The attributes of what is there, also of a link; None if nothing is."""
    with suppress_not_found, _Named(place, "stat") as name:
        return files.stat_file(name, follow=False)
    return None


def list_dir(place: Beneath) -> tuple[DirEntry, ...]:
    """As `files.list_dir`."""
    with _Found(place, "readdir") as name:
        return files.list_dir(name)


def list_entries(place: Beneath) -> tuple[DirEntry, ...]:
    """As `list_dir`; none when there is no such directory."""
    with suppress_not_found:
        return list_dir(place)
    return ()


def list_directories(place: Beneath) -> list[DirEntry]:
    """The directories among `list_entries`."""
    return [entry for entry in list_entries(place) if entry.kind is FileKind.DIRECTORY]


def read_link(place: Beneath) -> str | None:
    """The target of a symlink; None if there is none."""
    with suppress_not_found, _Named(place, "readlink") as name:
        return files.read_link(name)
    return None


def read_bytes(place: Beneath, limit: int) -> bytes:
    """As `files.read_bytes`: anything but a regular file is refused, and not opened."""
    with _Found(place, "open") as name:
        return files.read_bytes(name, limit)


def read_text(place: Beneath, limit: int = 1 << 20) -> str:
    """As `read_bytes`, decoded as UTF-8; invalid bytes become U+FFFD."""
    return read_bytes(place, limit).decode("utf-8", "replace")


def read_tail(place: Beneath, limit: int) -> bytes:
    """As `files.read_tail`: anything but a regular file is refused, and not opened."""
    with _Found(place, "open") as name:
        return files.read_tail(name, limit)


def open_regular(place: Beneath) -> int:
    """Open a regular file for reading. The caller must close the descriptor. Anything else is refused (EINVAL), and not opened."""
    with _Found(place, "open") as name:
        return files.open_regular(name)


def open_in_memory(place: Beneath) -> tuple[int, int] | None:
    """As `open_regular`, without waiting for a disk: the descriptor and the file's size in bytes; None if that may have to wait, or fails.

    Does not block. The caller must close the descriptor.
    """
    with suppress(OSError, HostError):
        name = "/".join(_checked(place, "open"))
        if (top := libc.openat2(libc.AT_FDCWD, place.top, _DIRECTORY, libc.RESOLVE_CACHED)) is not None:
            try:
                return _open_in_memory(top, name)
            finally:
                os.close(top)
    return None


def _open_in_memory(top: int, name: str) -> tuple[int, int] | None:
    if (found := libc.openat2(top, name, _STEP, _PLAIN | libc.RESOLVE_CACHED)) is None:
        return None
    try:
        size = libc.size_on_disk(found)
        # noting when the file was read would wait for the disk
        return (os.open(f"/proc/self/fd/{found}", _READ | os.O_NOATIME), size) if size is not None else None
    finally:
        os.close(found)


def read_disk_usage(place: Beneath) -> tuple[int, int]:
    """As `trees.read_disk_usage`."""
    with _Found(place, "walk") as name:
        return trees.read_disk_usage(name)


def read_usage_of_files(place: Beneath, limit: int) -> tuple[int, int]:
    """As `trees.read_usage_of_files`; nothing when there is no such directory."""
    with suppress_not_found, _Found(place, "readdir") as name:
        return trees.read_usage_of_files(name, limit)
    return 0, 0


# Changes


def make_dirs(place: Beneath, mode: int = 0o750) -> bool:
    """Make a directory and those above it that are missing, each with exactly `mode`. Returns whether it was made."""
    parts = _checked(place, "mkdir")
    with _Refusals(place, "mkdir"):
        try:
            top = os.open(place.top, _DIRECTORY)
        except FileNotFoundError:
            files.make_dirs(place.top, mode)
            top = os.open(place.top, _DIRECTORY)
        try:
            return make_plain(top, parts, mode)
        finally:
            os.close(top)


def create_file(place: Beneath, mode: int = 0o644) -> bool:
    """As `files.create_file`."""
    with _Named(place, "create") as name:
        return files.create_file(name, mode)


def write_atomic(place: Beneath, data: bytes, mode: int = 0o644, *, durable: bool = False) -> None:
    """As `files.write_atomic`."""
    with _Named(place, "write") as name:
        files.write_atomic(name, data, mode, durable=durable)


def write_in_place(place: Beneath, data: bytes, mode: int = 0o644) -> None:
    """As `files.write_in_place`."""
    with _Named(place, "write") as name:
        files.write_in_place(name, data, mode)


def sync_file(place: Beneath) -> None:
    """As `files.sync_file`."""
    with _Named(place, "sync") as name:
        files.sync_file(name)


def replace_symlink(target: str, place: Beneath) -> None:
    """As `files.replace_symlink`. The target is any text: no function of this module follows the link."""
    with _Named(place, "symlink") as name:
        files.replace_symlink(target, name)


def rename(source: Beneath, name: str) -> None:
    """Give a file another name in its directory, replacing what has that name."""
    _checked(Beneath(source.top, name), "rename")
    if "/" in name or not name:
        raise HostError("rename", source, "EXDEV", f"{name!r} is not the name of a file")
    with _Named(source, "rename") as there:
        files.rename(there, f"{os.path.dirname(there)}/{name}")


def change_mode(place: Beneath, mode: int) -> None:
    """Change the mode of what is there."""
    with _Found(place, "chmod") as name:
        files.change_mode(name, mode)


def change_owner(place: Beneath, uid: int, gid: int) -> None:
    """Change owner and group; -1 keeps the current one."""
    with _Found(place, "chown") as name:
        files.change_owner(name, uid, gid)


def remove_file(place: Beneath) -> bool:
    """As `files.remove_file`."""
    return _removed(place, "remove", files.remove_file)


def remove_dir(place: Beneath) -> bool:
    """As `files.remove_dir`."""
    return _removed(place, "rmdir", files.remove_dir)


def remove_tree(place: Beneath, *, may_hold_mounts: bool = True) -> bool:
    """As `trees.remove_tree`. A name that is too long for a file was never made."""
    return _removed(place, "remove", lambda name: trees.remove_tree(name, may_hold_mounts=may_hold_mounts))


def _removed(place: Beneath, op: str, remove: Callable[[str], bool]) -> bool:
    try:
        with _Named(place, op) as name:
            return remove(name)
    except HostError as error:
        if error.errno_name in ("ENOENT", "ENAMETOOLONG") or (error.errno_name == "ENOTDIR" and op != "rmdir"):
            return False
        raise


def remove_temporaries(place: Beneath) -> None:
    """As `files.remove_temporaries`."""
    with _Found(place, "readdir") as name:
        files.remove_temporaries(name)


def gzip_file(place: Beneath) -> None:
    """As `files.gzip_file`."""
    with _Named(place, "gzip") as name:
        files.gzip_file(name)


def apply_group(
    place: Beneath, gid: int, *, read_only: bool = False, progress: Callable[[int], None] = lambda _files: None
) -> None:
    """As `trees.apply_group`."""
    with _Found(place, "walk") as name:
        trees.apply_group(name, gid, read_only=read_only, progress=progress, shown=place)


def group_is_applied(place: Beneath, gid: int, *, read_only: bool = False) -> bool:
    """As `trees.group_is_applied`."""
    with _Found(place, "stat") as name:
        return trees.group_is_applied(name, gid, read_only=read_only)
