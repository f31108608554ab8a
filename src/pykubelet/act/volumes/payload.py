"""Volumes whose content the agent writes (downwardAPI, projected): a tmpfs and the atomic writer. Blocks.

The content never reaches a disk. Setting up a volume that is there refreshes it.
"""

from __future__ import annotations

from pykubelet.act.volumes.atomic_writer import write_payload
from pykubelet.act.volumes.empty_dir import make_volume_dir
from pykubelet.act.volumes.model import PayloadPlan
from pykubelet.edges.host import mounts, trees


def set_up(plan: PayloadPlan, wall: float) -> None:
    """Mount if needed, then write what has changed. `wall`: seconds. HostError when the host refuses."""
    if not mounts.is_mount_point(plan.path):
        make_volume_dir(plan.path)
        mounts.mount_tmpfs(plan.path, plan.size, no_swap=True)
    written = write_payload(plan.path, plan.files, wall, plan.fs_group)
    if plan.fs_group is not None and (written or not trees.group_is_applied(plan.path, plan.fs_group, read_only=True)):
        trees.apply_group(plan.path, plan.fs_group, read_only=True)
