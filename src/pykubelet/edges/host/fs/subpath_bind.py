"""Bind mounts for `subPath`: a part of a volume is bound at a path of the agent's, which the runtime mounts into a container.

Owns: the bind target below `volume-subpaths` and the mount on it. The walk inside the volume is in `subpaths`. Blocks:
use `base.kit.flight`. Source: the Kubernetes documentation on subPath, CVE-2017-1002101, CVE-2021-25741.
"""

from __future__ import annotations

import os

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath, mounts, subpaths
from pykubelet.edges.host.fs.errors import HostError, translating


def bind_beneath(root: str, relative: str, target: Beneath) -> None:
    """Bind-mount `root/relative` at `target`, which is created as a directory or file.

    An existing mount is kept if it is the same file, else replaced. Raises HostError as `subpaths.open_beneath` does.
    """
    descriptor = subpaths.open_beneath(root, relative)
    try:
        if mounts.is_mount_point(target):
            if _is_same(descriptor, target):
                return
            mounts.unmount(target)
        _make_target(target, subpaths.kind_is_directory(descriptor))
        mounts.bind_fd(descriptor, target)
    finally:
        os.close(descriptor)


def _is_same(descriptor: int, target: Beneath) -> bool:
    with translating("stat", target):
        return os.path.samestat(os.fstat(descriptor), os.lstat(target))


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
