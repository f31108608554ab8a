"""Set-up, refresh and tear-down shared by the volume kinds whose files the agent writes. Blocks.

Only the content of configMaps is written to a disk. Setting up a volume that is already set up refreshes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.model.content import ContentKey
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.directories import delete_volume, make_volume_dir
from pykubelet.provide.volumes.kind import (
    PlanInputs,
    RefusedPlan,
    SetUpContext,
    UndecidedPlan,
    VolumeKind,
    entries_of,
    no_keys,
)
from pykubelet.provide.volumes.payloads.atomic_writer import write_payload
from pykubelet.provide.volumes.payloads.payload import PayloadPlan


def set_up(plan: PayloadPlan, context: SetUpContext) -> None:
    """Mount the tmpfs if needed, then write the files that have changed. HostError, or VolumesError if they take too much."""
    files = context.take_files(plan.directory, plan)
    if not plan.in_memory:
        make_volume_dir(plan.directory)
    elif not mounts.is_mount_point(plan.directory):
        make_volume_dir(plan.directory)
        mounts.mount_tmpfs(plan.directory, plan.size, no_swap=True)
    for nested in plan.nested:
        _make_mount_point(plan.directory / nested)
    written = write_payload(plan.directory, files, context.wall, plan.fs_group)
    if plan.fs_group is not None and (
        written or not beneath.group_is_applied(plan.directory, plan.fs_group, read_only=True)
    ):
        beneath.apply_group(plan.directory, plan.fs_group, read_only=True)


def _make_mount_point(path: Beneath) -> None:
    """Make a directory in the volume for a mount. The runtime reports it if a file of the volume is in the way."""
    try:
        beneath.make_dirs(path, 0o755)
    except HostError as error:
        if error.errno_name not in ("ELOOP", "ENOTDIR"):
            raise


def needs_refresh(present: PayloadPlan, wanted: PayloadPlan) -> bool:
    """Whether the files may differ. The size of a tmpfs and the mount points inside stay as they were made."""
    return present.sources != wanted.sources


def payload_kind(
    name: str,
    plugin: str,
    plan: Callable[[PlanInputs], PayloadPlan | RefusedPlan | UndecidedPlan],
    keys: Callable[[Pod, Volume], Iterable[ContentKey]] = no_keys,
    weight: Callable[[Volume], int] = entries_of,
) -> VolumeKind[PayloadPlan]:
    """A volume kind with files as plans. Writing them takes only a moment, so sandboxes do not wait for it."""
    return VolumeKind(
        name=name,
        plugin=plugin,
        keys=keys,
        plan=plan,
        weight=weight,
        set_up=set_up,
        needs_refresh=needs_refresh,
        delays_sandbox=False,
        tear_down=delete_volume,
    )
