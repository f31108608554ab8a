"""Refuses to remove what other programs have mounted over directories of the agent. Blocks."""

from __future__ import annotations

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import mounts
from pykubelet.provide.volumes.kind import VolumesError


def refuse_mounts_above(path: Beneath) -> None:
    """Raise VolumesError if anything is mounted at a directory above `path` that the agent has made itself.

    The agent mounts nothing there; what is below may be the data of another program.
    """
    parent = path.parent
    while parent.inside:
        refuse_mounted(parent)
        parent = parent.parent


def refuse_mounted(path: Beneath) -> None:
    """Raise VolumesError if anything is mounted at `path`."""
    if mounts.is_mount_point(path):
        raise VolumesError(f"something is mounted at {path}, so nothing below it is removed: unmount it")
