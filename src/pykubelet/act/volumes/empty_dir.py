"""emptyDir volumes on the host: a directory, or a file system in memory. Blocks.

Whatever is there already and was finished once keeps its content: the agent may restart at any moment.
Source: the Kubernetes documentation "Volumes", emptyDir; KEP-1967; KEP-2400 (tmpfs without swap).
"""

from __future__ import annotations

import posixpath

from pykubelet.act.volumes.model import EmptyDirPlan
from pykubelet.act.volumes.plan import HUGE_PAGES, MEMORY
from pykubelet.edges.host import files, mounts, trees

READY = "ready"


def set_up(plan: EmptyDirPlan) -> None:
    """Make the volume and mark it as finished. HostError when the host refuses."""
    finished = files.stat_file(f"{plan.meta}/{READY}") is not None
    mounted = plan.medium != "" and mounts.is_mount_point(plan.path)
    if finished and (mounted or (plan.medium == "" and _is_dir(plan.path))):
        return
    make_volume_dir(plan.path)
    if not mounted:
        if plan.medium == MEMORY:
            mounts.mount_tmpfs(plan.path, plan.size, no_swap=True)
        elif plan.medium == HUGE_PAGES:
            mounts.mount_huge_pages(plan.path, plan.page_size)
    if plan.fs_group is not None:
        trees.apply_group(plan.path, plan.fs_group)
    files.make_dirs(plan.meta, 0o750)
    files.create_file(f"{plan.meta}/{READY}", 0o644)


def _is_dir(path: str) -> bool:
    found = files.stat_file(path, follow=False)
    return found is not None and found.is_dir


def make_volume_dir(path: str) -> None:
    """The directory of a volume, usable by everybody, below directories that are not."""
    files.make_dirs(posixpath.dirname(path), 0o750)
    if not files.make_dirs(path, 0o777) and not mounts.is_mount_point(path):
        files.change_mode(path, 0o777)
