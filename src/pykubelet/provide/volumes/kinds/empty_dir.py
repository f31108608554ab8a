"""emptyDir volumes: a directory of the pod's own, on disk, in memory or in huge pages.

Setting up a volume again keeps its content, because the agent may restart at any moment.
Source: the Kubernetes documentation "Volumes", emptyDir; KEP-1967; KEP-2400 (tmpfs without swap); KEP-1029 (quotas); KEP-5502
(mode); KEP-6030 (resize).
"""

from __future__ import annotations

from pykubelet.base.api.core import EmptyDirVolumeSource, Pod
from pykubelet.base.api.quantity import page_size, parse
from pykubelet.base.kit.values import remember_last, replace
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.paths import Beneath
from pykubelet.base.model.sizing import pod_limits
from pykubelet.edges.host.fs import beneath, mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.volumes.directories import delete_volume, make_volume_dir
from pykubelet.provide.volumes.kind import (
    NODE_UNKNOWN,
    DirectoryPlan,
    PlanInputs,
    SetUpContext,
    UndecidedPlan,
    VolumeKind,
    VolumesError,
)
from pykubelet.provide.volumes.memory import memory_size

MEMORY = "Memory"
HUGE_PAGES = "HugePages"
READY = "ready"


class EmptyDirPlan(DirectoryPlan):
    """The plan of an emptyDir volume.

    `private`: the directory with the marker of a finished set-up. `size`: bytes, 0 for no limit. `page_size`: bytes of a huge page.
    `mode`: the permissions of the directory; None: 0777, and those of a new tmpfs in memory.
    `is_confined`: no process of the pod can change which project a file is in. `is_limited`: what it may hold has a limit. `is_resizable`:
    a volume in memory gets another size while it is mounted.
    """

    private: Beneath
    medium: str = ""
    size: int = 0
    page_size: int = 0
    fs_group: int | None = None
    mode: int | None = None
    is_confined: bool = False
    is_limited: bool = False
    is_resizable: bool = False


def plan(inputs: PlanInputs) -> EmptyDirPlan | UndecidedPlan:
    """A directory, a tmpfs or huge pages, depending on the medium. VolumesError for a medium that cannot be provided."""
    source, node, dirs = inputs.volume.emptyDir or EmptyDirVolumeSource(), inputs.node, inputs.dirs
    mounted = inputs.mounted(dirs.path, supports_relabel=True)
    basic = EmptyDirPlan(mounted, dirs.path, dirs.private, fs_group=inputs.fs_group, mode=source.mode)
    if source.medium == "":
        return replace(
            basic, is_confined=inputs.pod.spec.hostUsers is False, is_limited=_is_limited(inputs.pod, source)
        )
    if source.medium == MEMORY:
        if not node.allocatable:
            return NODE_UNKNOWN
        size = memory_size(inputs.pod, source.sizeLimit, node)
        return replace(basic, medium=MEMORY, size=size, is_resizable=inputs.resizes_memory and size > 0)
    if source.medium == HUGE_PAGES or source.medium.startswith(HUGE_PAGES + "-"):
        if not node.page_sizes and not node.allocatable:
            return NODE_UNKNOWN
        return replace(basic, medium=HUGE_PAGES, page_size=_page_size(inputs.pod, source.medium, node))
    raise VolumesError(f'unknown storage medium "{source.medium}"')


def _is_limited(pod: Pod, source: EmptyDirVolumeSource) -> bool:
    """Whether the volume or the pod's local storage has a limit."""
    return _has_storage_limit(pod) or (source.sizeLimit is not None and parse(source.sizeLimit).nano > 0)


@remember_last
def _has_storage_limit(pod: Pod) -> bool:
    limit = pod_limits(pod).get("ephemeral-storage")
    return limit is not None and limit.nano > 0


def _page_size(pod: Pod, medium: str, node: NodeView) -> int:
    """The size of a huge page in bytes, as named by the medium or requested by the containers."""
    requested = _huge_page_sizes(pod)
    if medium == HUGE_PAGES:
        if len(requested) > 1:
            raise VolumesError(f"medium: {medium} can't be used if container requests multiple huge page sizes")
        wanted = next(iter(requested), 0)
    else:
        wanted = parse(medium.removeprefix(HUGE_PAGES + "-")).value()
    if wanted not in requested or wanted == 0:
        raise VolumesError(
            f"medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )
    if wanted not in node.page_sizes:
        raise VolumesError(f"medium {medium}: the node has no huge pages of {wanted} bytes")
    return wanted


@remember_last
def _huge_page_sizes(pod: Pod) -> frozenset[int]:
    """The page sizes, in bytes, in the resources of the pod and its containers."""
    containers = (*pod.spec.containers, *pod.spec.initContainers)
    every = (pod.spec.resources, *(container.resources for container in containers))
    names = {name for resources in every if resources is not None for name in (*resources.requests, *resources.limits)}
    return frozenset(size for name in names if (size := page_size(name)) is not None)


def set_up(plan: EmptyDirPlan, context: SetUpContext) -> None:
    """Make the volume, mark it as finished, and have its use counted. HostError when the host refuses."""
    _make(plan)
    if plan.is_confined:
        context.quotas.assign(plan.directory, is_limited=plan.is_limited)


def _make(plan: EmptyDirPlan) -> None:
    finished = beneath.stat_file(plan.private / READY) is not None
    mounted = plan.medium != "" and mounts.is_mount_point(plan.directory)
    if finished and (mounted or (plan.medium == "" and _is_dir(plan.directory))):
        if plan.is_resizable:
            _resize(plan)
        return
    make_volume_dir(plan.directory)
    if not mounted:
        if plan.medium == MEMORY:
            mounts.mount_tmpfs(plan.directory, plan.size, no_swap=True)
        elif plan.medium == HUGE_PAGES:
            mounts.mount_huge_pages(plan.directory, plan.page_size)
    if plan.mode is not None:
        beneath.change_mode(plan.directory, plan.mode)
    if plan.fs_group is not None:
        beneath.apply_group(plan.directory, plan.fs_group)
    beneath.make_dirs(plan.private, 0o750)
    beneath.create_file(plan.private / READY, 0o644)


def _resize(plan: EmptyDirPlan) -> None:
    """Give the mounted tmpfs its size. VolumesError if it holds more."""
    try:
        mounts.resize_tmpfs(plan.directory, plan.size)
    except HostError as error:
        if error.errno_name != "EINVAL":
            raise
        raise VolumesError(
            f"the volume holds more than its new size of {plan.size} bytes; delete files in it"
        ) from error


def _has_other_size(before: EmptyDirPlan, now: EmptyDirPlan) -> bool:
    """Whether a mounted volume is to be resized."""
    return now.is_resizable and before.size != now.size


def _is_dir(path: Beneath) -> bool:
    found = beneath.stat_file(path)
    return found is not None and found.is_dir


KIND = VolumeKind(
    name="emptyDir",
    plugin="kubernetes.io/empty-dir",
    plan=plan,
    set_up=set_up,
    needs_refresh=_has_other_size,
    tear_down=delete_volume,
)
