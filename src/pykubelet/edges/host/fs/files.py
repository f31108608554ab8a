"""Operations on single files and directories; all raise HostError.

Owns: reading, atomic and in-place writing, links, modes and owners, compression. Every function blocks. Call it directly for
the agent's own local directories, and through `base.kit.flight` for anything that may hang. Whole trees are in `trees`, mount
points in `mounts`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from enum import StrEnum

from pykubelet.base.kit.metrics import Counter
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, Translating, is_not_found, translated

SYNCS = Counter(
    "pykubelet_file_syncs_total", "Calls of fsync: how often the agent has waited for its files to be on the disk."
)
_COPY_BYTES = 1 << 16
#: The links that are followed in one path, as the kernel does (path_resolution(7)).
MAX_LINKS = 40
#: The longest path of which links are resolved: a root and a path below it, of PATH_MAX each.
_LONGEST_PATH = 2 * 4095
#: The unit of `st_blocks`, whatever the blocks of the file system are.
STAT_BLOCK = 512
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_TEMPORARY = re.compile(r"\..+\.tmp-[0-9a-f]{8}")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class FileKind(StrEnum):
    """The type of a file, from `st_mode`."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    SOCKET = "socket"
    FIFO = "fifo"
    CHAR_DEVICE = "char-device"
    BLOCK_DEVICE = "block-device"
    OTHER = "other"


_KINDS = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFLNK: FileKind.SYMLINK,
    stat.S_IFSOCK: FileKind.SOCKET,
    stat.S_IFIFO: FileKind.FIFO,
    stat.S_IFCHR: FileKind.CHAR_DEVICE,
    stat.S_IFBLK: FileKind.BLOCK_DEVICE,
}


class FileStat(Value):
    """The attributes of a file. `size`: in bytes. `mode`: the twelve permission bits. `mtime_ns`: since the epoch.

    `device`: that of the file system. `on_disk`: the bytes that it takes there.
    """

    kind: FileKind
    size: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    inode: int
    device: int
    rdev: int = 0
    on_disk: int = 0

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.kind is FileKind.FILE

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind is FileKind.DIRECTORY


class DirEntry(Value):
    """One entry of a directory. `kind`: that of the entry itself; links are not followed."""

    name: str
    kind: FileKind


class OpenDescriptor:
    """A descriptor for a block, which closes it at its end."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def stat_of(result: os.stat_result) -> FileStat:
    """Convert a result of stat(2) to a `FileStat`."""
    kind = _KINDS.get(stat.S_IFMT(result.st_mode), FileKind.OTHER)
    return FileStat(
        kind=kind,
        size=result.st_size,
        mode=stat.S_IMODE(result.st_mode),
        uid=result.st_uid,
        gid=result.st_gid,
        mtime_ns=result.st_mtime_ns,
        inode=result.st_ino,
        device=result.st_dev,
        rdev=result.st_rdev,
        on_disk=result.st_blocks * STAT_BLOCK,
    )


def stat_file(path: str, follow: bool = True) -> FileStat | None:
    """The attributes of the file at `path`; None if it does not exist (with `follow`, also for a dangling link)."""
    with Translating("stat", path):
        try:
            return stat_of(os.stat(path, follow_symlinks=follow))
        except OSError as error:
            if is_not_found(error):
                return None
            raise


def open_regular(path: str) -> int:
    """Open a regular file (or one of /proc) for reading. The caller must close the descriptor.

    Anything else is refused (EISDIR, EINVAL) and never opened: opening a device or a FIFO has effects of its own.
    """
    with Translating("open", path), OpenDescriptor(os.open(path, os.O_PATH | os.O_CLOEXEC)) as found:
        _refuse_special(path, os.fstat(found))
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def read_bytes(path: str, limit: int) -> bytes:
    """The content of a regular file (or one of /proc). Raises HostError (`is_too_large`) if it has more than `limit` bytes.

    Anything but a regular file is refused as by `open_regular`.
    """
    with OpenDescriptor(open_regular(path)) as descriptor, Translating("read", path):
        data = _read_up_to(descriptor, limit + 1)
    if len(data) > limit:
        raise HostError("read", path, "EFBIG", f"file is larger than {limit} bytes")
    return data


def read_text(path: str, limit: int = 1 << 20) -> str:
    """As `read_bytes`, decoded as UTF-8; invalid bytes become U+FFFD."""
    return read_bytes(path, limit).decode("utf-8", "replace")


def read_tail(path: str, limit: int) -> bytes:
    """The last `limit` bytes of a regular file. Anything else is refused as by `open_regular`."""
    with OpenDescriptor(open_regular(path)) as descriptor, Translating("read", path):
        size = os.fstat(descriptor).st_size
        if size > limit:
            os.lseek(descriptor, size - limit, os.SEEK_SET)
        return _read_up_to(descriptor, limit)


def _refuse_special(path: str, result: os.stat_result) -> None:
    if stat.S_ISDIR(result.st_mode):
        raise HostError("read", path, "EISDIR", "is a directory")
    if not stat.S_ISREG(result.st_mode):
        kind = _KINDS.get(stat.S_IFMT(result.st_mode), FileKind.OTHER)
        raise HostError("read", path, "EINVAL", f"not a regular file but a {kind}")


def _read_up_to(descriptor: int, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    while left > 0:
        part = os.read(descriptor, min(left, 1 << 20))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_atomic(
    path: str,
    data: bytes,
    mode: int = 0o644,
    uid: int = -1,
    gid: int = -1,
    *,
    whole: bool = False,
    durable: bool = False,
) -> None:
    """Replace `path` atomically by a new file: a reader sees either the old content or the new one.

    After a power cut, the file may be damaged; with `whole`, it has the old content or the new one; with `durable`, the new one.
    The mode is exact, whatever the umask is. The directory must exist.
    """
    directory, temporary = os.path.dirname(path), _temporary(path)
    try:
        with Translating("write", path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            with OpenDescriptor(os.open(temporary, flags, mode)) as descriptor:
                _write_all(descriptor, data)
                if uid != -1 or gid != -1:
                    os.fchown(descriptor, uid, gid)
                os.fchmod(descriptor, mode)
                if whole or durable:
                    _sync(descriptor)
            os.rename(temporary, path)
            if durable:
                _sync_directory(directory or ".")
    except HostError:
        _forget(temporary)
        raise


def link_over(source: str, path: str) -> None:
    """Replace `path` atomically by a further name of the file `source`."""
    temporary = _temporary(path)
    with Translating("link", path):
        os.link(source, temporary)
        try:
            os.rename(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # rename(2) does nothing if both names are of one file already


def sync_file(path: str) -> None:
    """Bring a file and its name to the disk: both survive a power cut."""
    with Translating("sync", path):
        with OpenDescriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as descriptor:
            _sync(descriptor)
        _sync_directory(os.path.dirname(path) or ".")


def sync_directory(path: str) -> None:
    """Bring the names in a directory to the disk: what was renamed and linked there before survives a power cut."""
    with Translating("sync", path):
        _sync_directory(path)


def _sync_directory(path: str) -> None:
    with OpenDescriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        _sync(descriptor)


def _sync(descriptor: int) -> None:
    SYNCS.inc()
    os.fsync(descriptor)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # it was never created, or has been renamed


def _temporary(path: str) -> str:
    """The name of `path` until its content is complete."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name[:200]}.tmp-{secrets.token_hex(4)}")


def remove_temporaries(directory: str) -> None:
    """Remove the incomplete files and links that `write_atomic` and `replace_symlink` left when the process was killed.

    Call it only for the agent's own directories, before anything writes to them.
    """
    for name in names_in(directory):
        if _TEMPORARY.fullmatch(name):
            remove_file(os.path.join(directory, name))


def write_in_place(path: str, data: bytes, mode: int = 0o644) -> None:
    """Overwrite a file, keeping its inode (for files that are bind-mounted into containers), or create it.

    The file is never empty in between, not even if the disk is full: its content is overwritten first and truncated after.
    """
    with Translating("write", path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with OpenDescriptor(os.open(path, flags, mode)) as descriptor:
            os.fchmod(descriptor, mode)
            _write_all(descriptor, data)
            os.ftruncate(descriptor, len(data))


def create_file(path: str, mode: int = 0o644) -> bool:
    """Create an empty file with exactly this mode. Returns False if something exists there already."""
    with Translating("create", path):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            return False
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        return True


def append(path: str, data: bytes, mode: int = 0o644) -> None:
    """Append to a file, which is created if it is missing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with Translating("append", path), OpenDescriptor(os.open(path, flags, mode)) as descriptor:
        _write_all(descriptor, data)


def write_value(path: str, value: str) -> None:
    """Write to an existing control file (/proc, /sys) with one write(2), without creating or truncating it."""
    with Translating("write", path), OpenDescriptor(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
        os.write(descriptor, value.encode())


def make_dirs(path: str, mode: int = 0o750, *, exact: bool = True) -> bool:
    """Create a directory and its parents (`mkdir -p`). Returns True if it was created.

    New directories get exactly `mode`; existing ones keep theirs. With `exact=False` the umask applies. The mode is set through
    a descriptor of the new directory, never by name, so that a process that may write to the parent cannot use a link to
    change another file's mode.
    """
    with Translating("mkdir", path):
        parent, name = os.path.split(path.rstrip("/"))
        try:
            parent_fd = os.open(parent or ".", _DIRECTORY)
        except FileNotFoundError:
            make_dirs(parent, mode, exact=exact)
            parent_fd = os.open(parent, _DIRECTORY)
        try:
            return _make_dir(parent_fd, name or ".", mode if exact else None, mode)
        except FileExistsError:
            if not os.path.isdir(path):
                raise NotADirectoryError(errno.ENOTDIR, "", path) from None
            return False
        finally:
            os.close(parent_fd)


def _make_dir(parent_fd: int, name: str, exact_mode: int | None, mode: int) -> bool:
    os.mkdir(name, mode, dir_fd=parent_fd)
    if exact_mode is not None:
        with OpenDescriptor(
            os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
        ) as made:
            os.fchmod(made, exact_mode)
    return True


def list_dir(path: str) -> tuple[DirEntry, ...]:
    """The entries of a directory, sorted by name. Raises HostError (`is_not_found`) if it does not exist."""
    with Translating("readdir", path), os.scandir(path) as entries:
        return tuple(sorted((DirEntry(e.name, _kind_of(e)) for e in entries), key=lambda entry: entry.name))


def names_in(path: str) -> list[str]:
    """The names in a directory, unsorted; none if it does not exist. Cheap for large directories."""
    try:
        return os.listdir(path)
    except OSError as error:
        if is_not_found(error) and error.errno != errno.ENOTDIR:  # which may be about the path itself
            return []
        raise translated("readdir", path, error) from error


def _kind_of(entry: os.DirEntry[str]) -> FileKind:
    if entry.is_symlink():
        return FileKind.SYMLINK
    if entry.is_dir(follow_symlinks=False):
        return FileKind.DIRECTORY
    if entry.is_file(follow_symlinks=False):
        return FileKind.FILE
    try:
        return _KINDS.get(stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode), FileKind.OTHER)
    except FileNotFoundError:
        return FileKind.OTHER


def replace_symlink(target: str, link: str) -> None:
    """Make `link` point at `target` atomically, whatever file or link is there.

    If something is there, a temporary link is renamed over it. It is left behind if the process is killed in between.
    """
    with Translating("symlink", link):
        try:
            os.symlink(target, link)
        except FileExistsError:
            pass
        else:
            return
    temporary = _temporary(link)
    try:
        with Translating("symlink", link):
            os.symlink(target, temporary)
            os.rename(temporary, link)
    except HostError:
        _forget(temporary)
        raise


def read_link(path: str) -> str | None:
    """The target of a symlink; None if the path does not exist or is not a symlink."""
    with Translating("readlink", path):
        try:
            return os.readlink(path)
        except OSError as error:
            if is_not_found(error) or error.errno == errno.EINVAL:
                return None
            raise


def real_path(path: str, *, strict: bool = True) -> str:
    """Resolve all links of a path. Raises HostError: ELOOP for more links than the kernel follows; with `strict`, if a part is missing.

    `os.path.realpath` follows any number of links, so that whoever can make some in a volume could let it take minutes.
    """
    with Translating("realpath", path):
        return _resolve(path, strict)


def _resolve(path: str, strict: bool) -> str:
    whole = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    here, left, links = "/", whole.split("/")[::-1], 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        deeper = os.path.join(here, name)
        if len(deeper) > _LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        try:
            target = os.readlink(deeper)
        except OSError as error:
            if strict and error.errno != errno.EINVAL:  # EINVAL: it is there, and no link
                raise
            here = deeper
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        here = "/" if target.startswith("/") else here
        left += target.split("/")[::-1]
    return here


def remove_file(path: str) -> bool:
    """Remove a file, link, socket or FIFO. Returns False if it did not exist."""
    with Translating("remove", path):
        try:
            os.unlink(path)
            return True
        except OSError as error:
            if is_not_found(error):
                return False
            raise


def remove_dir(path: str) -> bool:
    """Remove an empty directory. Returns False if it did not exist. Raises HostError (`is_busy`) if it is not empty."""
    with Translating("rmdir", path):
        try:
            os.rmdir(path)
            return True
        except OSError as error:
            if is_not_found(error) and error.errno != errno.ENOTDIR:  # which may be about the path itself
                return False
            raise


def rename(source: str, target: str) -> None:
    """Rename within a file system, replacing an existing target."""
    with Translating("rename", source):
        os.rename(source, target)


def change_mode(path: str, mode: int) -> None:
    """Change the mode with chmod(2), which follows links."""
    with Translating("chmod", path):
        os.chmod(path, mode)


def change_owner(path: str, uid: int, gid: int) -> None:
    """Change owner and group; -1 keeps the current one."""
    with Translating("chown", path):
        os.chown(path, uid, gid)


def gzip_file(path: str) -> str:
    """Compress `path` to `<path>.gz` (written as `<path>.tmp` first) and remove it. Returns the new name.

    Follows no link and reads only regular files (EINVAL for others), because pods may be able to write to the directory.
    """
    directory, name = os.path.split(path)
    with Translating("gzip", path), OpenDescriptor(os.open(directory or ".", _DIRECTORY)) as directory_fd:
        _gzip_in(directory_fd, name)
    return f"{path}.gz"


def _gzip_in(directory_fd: int, name: str) -> None:
    import gzip  # needed only for log rotation

    temporary = f"{name}.tmp"

    def open_plain(entry: str, flags: int) -> int:
        return os.open(entry, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)

    with open(name, "rb", opener=lambda entry, _: open_plain(entry, os.O_RDONLY)) as source:
        found = os.fstat(source.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise HostError("gzip", name, "EINVAL", "not a regular file")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory_fd)
        try:
            with open(temporary, "wb", opener=lambda entry, _: open_plain(entry, _NEW_FILE)) as raw:
                os.fchmod(raw.fileno(), stat.S_IMODE(found.st_mode))
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as sink:
                    while chunk := source.read(_COPY_BYTES):
                        sink.write(chunk)
            os.rename(temporary, f"{name}.gz", src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory_fd)
            raise
        os.unlink(name, dir_fd=directory_fd)


def lock_file(path: str) -> int | None:
    """Lock a file exclusively, and create it if it is missing. Returns the descriptor; None: another process has the lock."""
    import fcntl  # needed only for --lock-file

    with Translating("lock", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
