"""Opens and creates paths inside volumes that containers write to, so that no symlink or race leads outside.

Owns: the walk from a volume's root to a sub-path. As in the reference, a link is followed if it stays inside the volume, and
refused if it leads out, even if it is swapped in at the last moment: the walk ends in an open descriptor, and
`mounts.bind_fd` mounts the descriptor, not a name. Source: the Kubernetes documentation on subPath, CVE-2017-1002101.
"""

from __future__ import annotations

import errno
import os
import stat

from pykubelet.edges.host.fs import libc
from pykubelet.edges.host.fs.errors import HostError, translating
from pykubelet.edges.host.fs.files import read_bytes, real_path

_DIR_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_STEP_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_beneath(root: str, relative: str) -> int:
    """Open `root/relative` (a directory, file, socket or device) with O_PATH. The caller must close the descriptor.

    Raises HostError: `is_not_found`; EXDEV if it leads out of `root`; ELOOP if a link was created in the meantime.
    """
    real_root, inside = _resolved(root, relative, strict=True)
    with translating("open", f"{root}/{relative}"):
        root_fd = os.open(real_root, _DIR_FLAGS)
        try:
            return _open_plain(root_fd, inside)
        finally:
            os.close(root_fd)


def make_beneath(root: str, relative: str, mode: int) -> None:
    """Create the missing directories of `relative` below `root`, each with exactly `mode`. Same errors as `open_beneath`."""
    whole = f"{root}/{relative}"
    real_root, inside = _resolved(root, relative, strict=False)
    with translating("mkdir", whole):
        root_fd = os.open(real_root, _DIR_FLAGS)
        here = root_fd
        try:
            for part in _parts(inside):
                deeper = _enter_or_make(here, part, mode)
                if here != root_fd:
                    os.close(here)
                here = deeper
        finally:
            if here != root_fd:
                os.close(here)
            os.close(root_fd)


def kind_is_directory(descriptor: int) -> bool:
    """Whether an open descriptor is a directory, so that its bind target must be one too."""
    with translating("stat", f"/proc/self/fd/{descriptor}"):
        return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def _resolved(root: str, relative: str, *, strict: bool) -> tuple[str, str]:
    """Resolve the links of the root and of the path below it. This works on names; the later open checks again."""
    if relative.startswith("/") or ".." in relative.split("/"):
        raise HostError("open", f"{root}/{relative}", "EXDEV", "must be a relative path without '..'")
    real_root = real_path(root)
    real = real_path(os.path.join(real_root, relative), strict=strict)
    if real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
        raise HostError("open", f"{root}/{relative}", "EXDEV", f"subpath {real!r} not within volume path {real_root!r}")
    return real_root, os.path.relpath(real, real_root)


def _parts(relative: str) -> list[str]:
    return [part for part in relative.split("/") if part not in ("", ".")]


def _open_plain(root_fd: int, relative: str) -> int:
    """Open a path that must not contain links."""
    resolve = libc.RESOLVE_BENEATH | libc.RESOLVE_NO_SYMLINKS | libc.RESOLVE_NO_MAGICLINKS
    descriptor = libc.openat2(root_fd, relative or ".", os.O_PATH | os.O_NOFOLLOW, resolve)
    if descriptor is not None:
        return descriptor
    return walk_plain(root_fd, relative)


def walk_plain(root_fd: int, relative: str) -> int:
    """As openat2(2) without links, for kernels before 5.6: opens step by step. Raises OSError (ELOOP) for a link."""
    here = os.open(".", _DIR_FLAGS, dir_fd=root_fd)
    for part in _parts(relative):
        try:
            deeper = os.open(part, _STEP_FLAGS, dir_fd=here)
        finally:
            os.close(here)
        if stat.S_ISLNK(os.fstat(deeper).st_mode):
            os.close(deeper)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
        here = deeper
    return here


def _enter_or_make(dir_fd: int, name: str, mode: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=dir_fd)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, mode, dir_fd=dir_fd)
        made = True
    except FileExistsError:
        made = False
    descriptor = os.open(name, flags, dir_fd=dir_fd)
    if made:
        os.fchmod(descriptor, mode)
    return descriptor


def read_beneath(root: str, relative: str, limit: int) -> bytes:
    """Read the regular file `root/relative` of at most `limit` bytes. Errors as `open_beneath` and `read_bytes`."""
    descriptor = open_beneath(root, relative)
    try:
        return read_bytes(f"/proc/self/fd/{descriptor}", limit)
    finally:
        os.close(descriptor)
