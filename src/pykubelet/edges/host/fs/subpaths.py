"""Opens and creates paths inside volumes that containers write to, so that no symlink or race leads outside.

Owns: the walk from a volume's root to a sub-path. As in the reference, a link is followed if it stays inside the volume, and
refused if it leads out, even if it is swapped in at the last moment: the walk ends in an open descriptor, and
`mounts.bind_fd` mounts the descriptor, not a name. Source: the Kubernetes documentation on subPath, CVE-2017-1002101.
"""

from __future__ import annotations

import os
import stat

from pykubelet.edges.host.fs.beneath import make_plain, open_plain, parts_of
from pykubelet.edges.host.fs.errors import HostError, translating
from pykubelet.edges.host.fs.files import read_bytes, real_path

_DIR_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_beneath(root: str, relative: str) -> int:
    """Open `root/relative` (a directory, file, socket or device) with O_PATH. The caller must close the descriptor.

    Raises HostError: EXDEV if it leads out of `root`, whether or not anything is there; all others are about the inside of `root`:
    `is_not_found`; ELOOP if a link was created in the meantime.
    """
    real_root, inside = _resolved(root, relative)
    with translating("open", f"{root}/{relative}"):
        root_fd = os.open(real_root, _DIR_FLAGS)
        try:
            return open_plain(root_fd, inside)
        finally:
            os.close(root_fd)


def is_beneath(root: str, relative: str) -> bool:
    """Whether anything is at `root/relative`. Same errors as `open_beneath`."""
    try:
        os.close(open_beneath(root, relative))
    except HostError as error:
        if error.is_not_found:
            return False
        raise
    return True


def make_beneath(root: str, relative: str, mode: int) -> None:
    """Create the missing directories of `relative` below `root`, each with exactly `mode`. Same errors as `open_beneath`."""
    real_root, inside = _resolved(root, relative)
    with translating("mkdir", f"{root}/{relative}"):
        root_fd = os.open(real_root, _DIR_FLAGS)
        try:
            make_plain(root_fd, parts_of(inside), mode)
        finally:
            os.close(root_fd)


def kind_is_directory(descriptor: int) -> bool:
    """Whether an open descriptor is a directory, so that its bind target must be one too."""
    with translating("stat", f"/proc/self/fd/{descriptor}"):
        return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def _resolved(root: str, relative: str) -> tuple[str, str]:
    """Resolve the links of the root and of the path below it. This works on names; the later open checks again."""
    if relative.startswith("/") or ".." in relative.split("/"):
        raise HostError("open", f"{root}/{relative}", "EXDEV", "must be a relative path without '..'")
    real_root = real_path(root)
    real = real_path(os.path.join(real_root, relative), strict=False)
    if real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
        raise HostError("open", f"{root}/{relative}", "EXDEV", f"subpath {real!r} not within volume path {real_root!r}")
    return real_root, os.path.relpath(real, real_root)


def read_beneath(root: str, relative: str, limit: int) -> bytes:
    """Read the regular file `root/relative` of at most `limit` bytes. Errors as `open_beneath` and `read_bytes`."""
    descriptor = open_beneath(root, relative)
    try:
        return read_bytes(f"/proc/self/fd/{descriptor}", limit)
    finally:
        os.close(descriptor)
