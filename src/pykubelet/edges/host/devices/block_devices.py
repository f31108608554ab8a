"""Block devices by their path: what a path is, its size, and whether it is open for exclusive use.

Opening a device that has gone bad may hang: use `base.kit.flight`.
Source: open(2), O_EXCL on block devices.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pykubelet.edges.host.fs.errors import HostError, Translating, is_not_found, translated
from pykubelet.edges.host.fs.files import OpenDescriptor

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_STEP_S = 0.1


def is_block_device(path: str) -> bool:
    """Whether the path leads to a block device, also through links. False if there is nothing."""
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except OSError as error:
        if is_not_found(error):
            return False
        raise translated("stat", path, error) from error


def open_device(path: str, flags: int = 0) -> int:
    """Open a block device for reading; the caller closes the descriptor. HostError (ENOTBLK) for anything else."""
    if not path.startswith("/"):
        raise HostError("open", path, "EINVAL", "the path of a device must be absolute")
    with Translating("open", path):
        if not stat.S_ISBLK(os.stat(path).st_mode):  # a FIFO or a terminal is not even opened
            raise HostError("open", path, "ENOTBLK", "not a block device")
        descriptor = os.open(path, _OPEN | flags)
        if not stat.S_ISBLK(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise HostError("open", path, "ENOTBLK", "not a block device")
    return descriptor


def device_size(path: str) -> int:
    """The size of a block device in bytes."""
    with OpenDescriptor(open_device(path)) as descriptor, Translating("seek", path):
        return os.lseek(descriptor, 0, os.SEEK_END)


def is_device_in_use(path: str) -> bool:
    """Whether a file system, another device or a program has the device for itself. False if it does not exist."""
    try:
        os.close(open_device(path, os.O_EXCL))
    except HostError as error:
        if error.errno_name == "EBUSY":
            return True
        if error.is_not_found or error.errno_name in ("ENXIO", "ENODEV"):
            return False
        raise
    return False


def check_readable(path: str) -> None:
    """Read the first and the last block of the device. HostError if that fails: nothing is known of its content then."""
    with OpenDescriptor(open_device(path)) as descriptor, Translating("read", path):
        size = os.lseek(descriptor, 0, os.SEEK_END)
        if not size or not os.pread(descriptor, 4096, 0) or not os.pread(descriptor, 4096, max(0, size - 4096)):
            raise HostError("read", path, "ENODATA", "the device is empty")


@contextmanager
def locked_device(path: str, deadline_s: float) -> Iterator[int]:
    """Lock a block device against other work on its content, and yield the descriptor that holds the lock.

    A program that inherits the descriptor keeps the lock until it ends, so a restarted agent waits for the `mkfs` of its
    predecessor. systemd-udevd honors the lock too. HostError (ETIMEDOUT) if another has it for `deadline_s`.
    Source: systemd, "Locking Block Device Access".
    """
    descriptor, until = open_device(path), time.monotonic() + deadline_s
    try:
        while not _try_lock(path, descriptor):
            if time.monotonic() >= until:
                raise HostError("lock", path, "ETIMEDOUT", f"another program works on the device since {deadline_s:g}s")
            time.sleep(_STEP_S)  # noqa: TID251 - runs in a thread
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(path: str, descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return False
        raise translated("lock", path, error) from error
    return True
