"""Opens and creates paths inside volumes that containers write to, so that no symlink or race leads outside, and binds them for `subPath`.

Owns: the walk from a volume's root to a sub-path; the bind target below `volume-subpaths`, which the runtime mounts into a container.
Blocks: use `base.kit.flight`. As in the reference, a link is followed if it stays inside the volume, and
refused if it leads out, even if it is swapped in at the last moment: the walk ends in an open descriptor, and
`mounts.bind_fd` mounts the descriptor, not a name. Source: the Kubernetes documentation on subPath, CVE-2017-1002101, CVE-2021-25741.
"""

from __future__ import annotations

import os
import stat

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.beneath import make_plain, open_plain, parts_of
from pykubelet.edges.host.fs.errors import HostError, Translating, suppress_not_found
from pykubelet.edges.host.fs.files import OpenDescriptor, read_bytes, real_path

_DIR_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_beneath(root: str, relative: str) -> int:
    """Open `root/relative` (a directory, file, socket or device) with O_PATH. The caller must close the descriptor.

    Raises HostError: EXDEV if it leads out of `root`, whether or not anything is there; all others are about the inside of `root`:
    `is_not_found`; ELOOP if a link was created in the meantime.
    """
    real_root, inside = _resolved(root, relative)
    with Translating("open", f"{root}/{relative}"), OpenDescriptor(os.open(real_root, _DIR_FLAGS)) as root_fd:
        return open_plain(root_fd, inside)


def is_beneath(root: str, relative: str) -> bool:
    """Whether anything is at `root/relative`. Same errors as `open_beneath`."""
    with suppress_not_found:
        os.close(open_beneath(root, relative))
        return True
    return False


def make_beneath(root: str, relative: str, mode: int) -> None:
    """Create the missing directories of `relative` below `root`, each with exactly `mode`. Same errors as `open_beneath`."""
    real_root, inside = _resolved(root, relative)
    with Translating("mkdir", f"{root}/{relative}"), OpenDescriptor(os.open(real_root, _DIR_FLAGS)) as root_fd:
        make_plain(root_fd, parts_of(inside), mode)


def kind_is_directory(descriptor: int) -> bool:
    """Whether an open descriptor is a directory, so that its bind target must be one too."""
    with Translating("stat", f"/proc/self/fd/{descriptor}"):
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
    with OpenDescriptor(open_beneath(root, relative)) as descriptor:
        return read_bytes(f"/proc/self/fd/{descriptor}", limit)


def bind_beneath(root: str, relative: str, target: Beneath) -> None:
    """Bind-mount `root/relative` at `target`, which is created as a directory or file.

    An existing mount is kept if it is the same file, else replaced: also one that cannot be read any more, because the server of its file
    system has ended or does not know the file (ENOTCONN, ESTALE). Raises HostError as `open_beneath` does.
    """
    with OpenDescriptor(open_beneath(root, relative)) as descriptor:
        if mounts.is_mount_point(target):
            same = _is_same(descriptor, target)
            if same:
                return
            mounts.unmount(target, detach=same is None)
        _make_target(target, kind_is_directory(descriptor))
        mounts.bind_fd(descriptor, target)


def _is_same(descriptor: int, target: Beneath) -> bool | None:
    """Whether the mount at `target` is the file of the descriptor; None if it cannot be read."""
    with Translating("stat", target):
        wanted = os.fstat(descriptor)
    try:
        return os.path.samestat(wanted, os.lstat(target))
    except OSError:
        return None


def _make_target(target: Beneath, directory: bool) -> None:
    """Create the target as a directory or file. An existing target of the other kind is replaced."""
    beneath.make_dirs(target.parent, 0o750)
    present = beneath.stat_file(target)
    if present is not None and present.is_dir != directory:
        remove_target(target)
    if directory:
        beneath.make_dirs(target, 0o750)
    else:
        beneath.create_file(target, 0o640)


def remove_target(target: Beneath) -> None:
    """Unmount all mounts at `target`, and remove the empty directory or file."""
    while mounts.unmount(target):
        continue
    try:
        beneath.remove_dir(target)
    except HostError as error:
        if not error.is_not_found:
            raise
        beneath.remove_file(target)
