"""System calls that Python's `os` does not have: mount, umount2, openat2, statx, statfs, quotactl_fd, setns, inotify.

Owns: the bindings and their errno handling. Decides nothing. Read by mounts, subpaths, trees, quotas and inotify.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from pykubelet.edges.host.fs.errors import host_error

_libc = ctypes.CDLL(None, use_errno=True)

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOSYMFOLLOW = 0x100
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SHARED = 1 << 20
MS_RELATIME = 1 << 21

MNT_DETACH = 0x2
UMOUNT_NOFOLLOW = 0x8

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_CACHED = 0x20  # since Linux 5.12

_SYS_OPENAT2 = 437  # the same number on every architecture
_SYS_QUOTACTL_FD = 443  # likewise; since Linux 5.14
_STATFS_BYTES = 512  # more than any architecture's struct
AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_NO_AUTOMOUNT = 0x800
_AT_EMPTY_PATH = 0x1000
_AT_STATX_DONT_SYNC = 0x4000
_STATX_ATTR_MOUNT_ROOT = 0x2000
_STATX_TYPE = 0x1
_STATX_SIZE = 0x200


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Statx(ctypes.Structure):
    """struct statx. The kernel fills 256 bytes."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("blksize", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("owner", ctypes.c_uint32 * 3),
        ("mode", ctypes.c_uint16),
        ("spare", ctypes.c_uint16),
        ("inode", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("attributes_mask", ctypes.c_uint64),
        ("times", ctypes.c_uint64 * 8),
        ("special_device", ctypes.c_uint32 * 2),
        ("disk_major", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * 116),
    )


def _bytes(text: str | None) -> bytes | None:
    """The text for a C function. Raises HostError (EINVAL) if it has a NUL, which would end it, or characters that no name has."""
    if text is None:
        return None
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise host_error("encode", repr(text), errno.EINVAL) from error
    if b"\0" in data:
        raise host_error("encode", repr(text), errno.EINVAL)
    return data


def mount(source: str | None, target: str, fs_type: str | None, flags: int, data: str | None) -> None:
    """mount(2). Raises HostError with the kernel's reason."""
    result = _libc.mount(_bytes(source), _bytes(target), _bytes(fs_type), ctypes.c_ulong(flags), _bytes(data))
    if result != 0:
        raise host_error("mount", target, ctypes.get_errno())


def umount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    if _libc.umount2(_bytes(target), ctypes.c_int(flags)) != 0:
        raise host_error("unmount", target, ctypes.get_errno())


def openat2(dir_fd: int, path: str, flags: int, resolve: int) -> int | None:
    """openat2(2). Returns a descriptor; None if the kernel (before 5.6) or a seccomp filter does not allow the call.

    Raises OSError for other failures.
    """
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    result = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(dir_fd),
        _bytes(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if result >= 0:
        return int(result)
    number = ctypes.get_errno()
    if number == errno.ENOSYS:
        return None
    raise OSError(number, os.strerror(number), path)


def is_mount_root(path: str) -> bool | None:
    """Whether `path` itself (not the target of a symlink) is the root of a mount; None: the kernel does not report it.

    A network file system whose server is dead is not asked.
    """
    if not hasattr(_libc, "statx"):
        return None
    buffer = _Statx()
    flags = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
    if _libc.statx(AT_FDCWD, _bytes(path), flags, ctypes.c_uint(0), ctypes.byref(buffer)) != 0:
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            return None
        raise host_error("statx", path, number)
    if not buffer.attributes_mask & _STATX_ATTR_MOUNT_ROOT:
        return None
    return bool(buffer.attributes & _STATX_ATTR_MOUNT_ROOT)


def size_on_disk(descriptor: int) -> int | None:
    """The bytes of a regular file on a disk of this machine; None for any other file, and if the kernel does not report it. Does not block:
    no other machine and no other process is asked.

    File systems of a network, of a process (FUSE) and of memory have no disk.
    """
    if not hasattr(_libc, "statx"):
        return None
    buffer = _Statx()
    flags, wanted = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, ctypes.c_uint(_STATX_TYPE | _STATX_SIZE)
    if _libc.statx(descriptor, b"", flags, wanted, ctypes.byref(buffer)) != 0:
        return None
    is_known = buffer.mask & _STATX_TYPE and buffer.mask & _STATX_SIZE
    return int(buffer.size) if is_known and stat.S_ISREG(buffer.mode) and buffer.disk_major else None


def file_system_type(path: str) -> int:
    """The magic number of the file system of `path`, from statfs(2)."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.statfs(_bytes(path), buffer) != 0:
        raise host_error("statfs", path, ctypes.get_errno())
    return int(ctypes.c_long.from_buffer(buffer).value) & 0xFFFFFFFF


def quotactl_fd(descriptor: int, command: int, number: int, data: bytearray) -> None:
    """quotactl_fd(2) for the file system of an open file; `data` is read or filled, by the command. OSError."""
    buffer = (ctypes.c_char * len(data)).from_buffer(data)
    _checked(
        _libc.syscall(
            ctypes.c_long(_SYS_QUOTACTL_FD),
            ctypes.c_int(descriptor),
            ctypes.c_int(command),
            ctypes.c_uint32(number),
            ctypes.byref(buffer),
        )
    )


def setns(descriptor: int) -> None:
    """Move the calling thread into a namespace. Raises OSError."""
    _checked(_libc.setns(descriptor, 0))


def inotify_init() -> int:
    """Create an inotify instance. Returns its non-blocking descriptor. Raises OSError."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def inotify_add_watch(descriptor: int, path: str, mask: int) -> int:
    """Add a watch. Returns its number, which is the same for the same file. Raises OSError."""
    return _checked(_libc.inotify_add_watch(descriptor, _bytes(path), ctypes.c_uint32(mask)))


def inotify_rm_watch(descriptor: int, watch: int) -> None:
    """Remove a watch. Raises OSError if the kernel has removed it already."""
    _checked(_libc.inotify_rm_watch(descriptor, watch))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
