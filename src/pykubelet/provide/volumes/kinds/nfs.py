"""nfs volumes: a directory that a server exports, mounted for each pod. The host needs the program `mount.nfs`.

The agent neither changes the group of the files nor deletes any of them.
Source: the Kubernetes documentation "Volumes", nfs; mount.nfs(8).
"""

from __future__ import annotations

import re

from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.directories import VolumeDirs, make_empty_volume_dir, release_volume
from pykubelet.provide.volumes.kind import (
    CallContext,
    DirectoryPlan,
    PlanInputs,
    UncertainError,
    VolumeKind,
    VolumesError,
)

_SERVER = re.compile(r"[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]{0,254}")
_PATH = re.compile(r"[^\x00-\x1f\x7f]{1,4095}")
_SHOWN = 80
#: How long mount.nfs may take; it gives up by itself after two minutes. The program is ended when the next one starts.
MOUNT_S = 110.0
_WORK_S = MOUNT_S + 20.0
#: How long an unmount waits for the server; then it is given up.
UNMOUNT_S = 60.0


class NfsPlan(DirectoryPlan):
    """A plan to mount `remote`, written `server:path`, with these options."""

    remote: str
    options: tuple[str, ...] = ()


def plan(inputs: PlanInputs) -> NfsPlan:
    """The mount of the export. A volume that is claimed is read-only only if the pod claims it read-only."""
    source = inputs.source.nfs
    assert source is not None
    if not _SERVER.fullmatch(source.server):
        shown = ascii(source.server[:_SHOWN])
        raise VolumesError(f'nfs.server {shown} is no host name: it must have no blanks, and must not begin with "-"')
    if not _PATH.fullmatch(source.path):
        raise VolumesError(f"nfs.path {source.path[:_SHOWN]!a} must have at most 4095 characters, none of control")
    read_only = bool(source.readOnly) if inputs.claimed is None else inputs.claimed.read_only
    options = set(inputs.claimed.mount_options if inputs.claimed is not None else ()) | ({"ro"} if read_only else set())
    server = f"[{source.server}]" if ":" in source.server and not source.server.startswith("[") else source.server
    mounted = inputs.mounted(inputs.dirs.path, read_only=read_only, is_measured=False, has_stats=True)
    return NfsPlan(mounted, inputs.dirs.path, f"{server}:{source.path}", tuple(sorted(options)))


async def mount(plan: NfsPlan, context: CallContext) -> None:
    """Mount the export unless it is mounted."""
    await context.blocking(lambda: mount_export(plan), _WORK_S)


def mount_export(plan: NfsPlan) -> None:
    """Mount the export unless it is mounted. VolumesError with the output of the program; UncertainError if it does not end."""
    if mounts.is_mount_point(plan.directory):
        return
    make_empty_volume_dir(plan.directory)
    try:
        mounts.mount_by_program(plan.remote, plan.directory, "nfs", plan.options, MOUNT_S)
    except HostError as error:
        if error.errno_name == "ETIMEDOUT":
            raise UncertainError(error.message) from error  # what the program began may still take place
        mounts.unmount(plan.directory)
        raise VolumesError(error.message) from error


def tear_down(dirs: VolumeDirs) -> None:
    """Unmount the export and remove the directory. Takes up to a minute and a half while the server does not answer."""
    while mounts.is_mount_point(dirs.path):
        mounts.unmount_by_program(dirs.path, UNMOUNT_S)
    release_volume(dirs)


KIND = VolumeKind(
    name="nfs",
    plugin="kubernetes.io/nfs",
    plan=plan,
    mount=mount,
    is_persistent=True,
    mount_options=True,
    tear_down=tear_down,
)
