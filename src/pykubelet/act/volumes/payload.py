"""Volumes whose content the agent writes (downwardAPI, projected, secret, configMap): the atomic writer. Blocks.

The content of all but configMaps never reaches a disk. Setting up a volume that is there refreshes it.
"""

from __future__ import annotations

from pykubelet.act.volumes.atomic_writer import write_payload
from pykubelet.act.volumes.empty_dir import make_volume_dir
from pykubelet.act.volumes.model import PayloadPlan
from pykubelet.edges.host import files, mounts, trees


def set_up(plan: PayloadPlan, wall: float) -> None:
    """Mount if needed, then write what has changed. `wall`: seconds. HostError when the host refuses."""
    if not plan.in_memory:
        make_volume_dir(plan.path)
    elif not mounts.is_mount_point(plan.path):
        make_volume_dir(plan.path)
        mounts.mount_tmpfs(plan.path, plan.size, no_swap=True)
    for nested in plan.nested:
        files.make_dirs(f"{plan.path}/{nested}", 0o755)
    written = write_payload(plan.path, plan.files, wall, plan.fs_group)
    if plan.fs_group is not None and (written or not trees.group_is_applied(plan.path, plan.fs_group, read_only=True)):
        trees.apply_group(plan.path, plan.fs_group, read_only=True)
