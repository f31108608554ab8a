"""Loop devices: found by their backing file, attached, detached.

Uses the kernel's ioctls and not losetup(8): each is one call with an errno of its own, and there is no program that could be
missing, hang or take a path for an option. Every function blocks: use `base.kit.flight`.
Source: loop(4).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time

from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError, Translating, translated

_SET_FD, _CLEAR_FD, _GET_FREE = 0x4C00, 0x4C01, 0x4C82
_LOOP = re.compile(r"loop\d+")
_DELETED = " (deleted)"
_TRIES = 64
#: How long a device may stay attached because another program has it open: seconds.
DETACH_S = 5.0
_STEP_S = 0.02


def find_loops(backing: str) -> list[str]:
    """The loop devices, such as `/dev/loop3`, whose backing file is at `backing`, or was there until it was deleted."""
    found, real = [], os.path.realpath(backing)
    for name in sorted(files.names_in("/sys/block")):
        if _LOOP.fullmatch(name) and _backing_file(f"/sys/block/{name}") in (backing, real):
            found.append(f"/dev/{name}")
    return found


def wait_let_go(backing: str) -> list[str]:
    """The loop devices of a file that stay. Those that detach themselves at the last close, as those of mount(8), are
    waited for up to `DETACH_S`: after an unmount another program may have one open for a moment."""
    until = time.monotonic() + DETACH_S
    while (found := find_loops(backing)) and all(map(_detaches_itself, found)) and time.monotonic() < until:
        time.sleep(_STEP_S)  # noqa: TID251 - a worker thread
    return found


def _detaches_itself(device: str) -> bool:
    try:
        return files.read_text(f"/sys/block/{os.path.basename(device)}/loop/autoclear", 16).strip() == "1"
    except HostError:
        return True  # it is detached now


def _backing_file(device: str) -> str | None:
    try:
        return files.read_text(f"{device}/loop/backing_file", 8192).rstrip("\n").removesuffix(_DELETED)
    except HostError:
        return None  # not attached, or no longer


def attach_loop(backing: str) -> str:
    """Attach a file or block device to a free loop device and return its path. Another one is made for each call.

    HostError (ENOENT) if the kernel has no loop devices.
    """
    with Translating("open", backing):
        try:
            file = os.open(backing, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            file = os.open(backing, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _attach(backing, file)
    finally:
        os.close(file)


def _attach(backing: str, file: int) -> str:
    for _ in range(_TRIES):  # another program may take the free device first
        with Translating("open", "/dev/loop-control"):
            control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            with Translating("find a free loop device for", backing):
                path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
        finally:
            os.close(control)
        with Translating("open", path):
            loop = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(loop, _SET_FD, file)
            return path
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise translated("attach a loop device to", backing, error) from error
        finally:
            os.close(loop)
    raise HostError("attach a loop device to", backing, "EBUSY", "other programs took every free one first")


def detach_loop(path: str) -> bool:
    """Detach a loop device. False if it was not attached.

    One that another program has open is detached when that closes it, which is waited for up to `DETACH_S`.
    """
    with Translating("open", path):
        try:
            loop = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENXIO):
                return False
            raise
    try:
        if not _clear(path, loop):
            return False
        until = time.monotonic() + DETACH_S
        while _clear(path, loop) and time.monotonic() < until:
            time.sleep(_STEP_S)  # noqa: TID251 - a worker thread
        return True
    finally:
        os.close(loop)


def _clear(path: str, loop: int) -> bool:
    """Ask the kernel to detach the device. False if it is detached."""
    try:
        fcntl.ioctl(loop, _CLEAR_FD, 0)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise translated("detach", path, error) from error
    return True
