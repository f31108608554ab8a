"""The directories and `vol_data.json` around what a CSI driver mounts. All but `call_and_sync` blocks.

Directories are only removed when they are empty and nothing is mounted at them; `vol_data.json` goes last, because only it
states which driver has to be called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.csi.data import DATA, VolumeData, read_data
from pykubelet.provide.volumes.kind import CallContext, UncertainError, VolumesError

MAX_DATA = 64 << 10


def write_data(directory: Beneath, text: bytes) -> None:
    """Make the directory, and `vol_data.json` in it. It outlives the agent at once, and a power cut when it is synced."""
    beneath.make_dirs(directory, 0o750)
    beneath.write_atomic(directory / DATA, text, 0o644)


def sync_data(directory: Beneath) -> None:
    """Bring `vol_data.json` to the disk."""
    beneath.sync_file(directory / DATA)


async def call_and_sync(call: Awaitable[None], directory: Beneath, context: CallContext) -> None:
    """Await a call of the driver while `vol_data.json` is brought to the disk, which may take as long. Both end before this returns.

    Raises what the call raises; UncertainError if only the disk has failed.
    """
    syncing = asyncio.gather(context.blocking(lambda: sync_data(directory)), return_exceptions=True)
    try:
        await call
    finally:
        (synced,) = await syncing
    if isinstance(synced, HostError):
        raise UncertainError(str(synced)) from synced
    if isinstance(synced, BaseException):
        raise synced


def has_data(directory: Beneath) -> bool:
    """Whether there is a `vol_data.json`."""
    return beneath.stat_file(directory / DATA) is not None


def load_data(directory: Beneath, target: Beneath) -> VolumeData | None:
    """What `vol_data.json` states; None if nothing is left of the volume. VolumesError if what is left is unknown.

    `target`: what the driver mounts.
    """
    if beneath.stat_file(directory) is None:
        return None
    path = directory / DATA
    if not has_data(directory):
        if remove_around(directory, target):
            return None
        raise VolumesError(f"{path} is missing, so its CSI driver is unknown: unmount {target}")
    data = read_data(beneath.read_text(path, MAX_DATA))
    if data is None:
        raise VolumesError(f"{path} is damaged: unmount {target} and remove the file")
    return data


def remove_around(directory: Beneath, target: Beneath) -> bool:
    """Remove the target and the directory with `vol_data.json`. Returns False, and keeps all, if something is mounted or stored there."""
    if not remove_empty(target):
        return False
    beneath.remove_temporaries(directory)
    if {entry.name for entry in beneath.list_entries(directory)} - {DATA}:
        return False
    beneath.remove_file(directory / DATA)
    beneath.remove_dir(directory)
    return True


def remove_empty(target: Beneath) -> bool:
    """Remove an empty directory, if it is there. Returns False if something is mounted or stored there."""
    if mounts.is_mount_point(target):
        return False
    try:
        beneath.remove_dir(target)
    except HostError as error:
        if error.is_not_found:
            return True
        if error.is_busy:
            return False
        raise
    return True
