"""local persistent volumes: a directory of this node, bound below the pod's directory. The data outlive the pods.

Not here: block devices, which would have to be mounted before they are bound.
Source: the Kubernetes documentation "Volumes", local.
"""

from __future__ import annotations

from pykubelet.act.volumes.directories import make_empty_volume_dir, release_volume
from pykubelet.act.volumes.kind import PlanInputs, SetUpContext, VolumeKind, VolumePlan, VolumesError
from pykubelet.base.api.storage import PersistentVolumeSpec
from pykubelet.edges.host.fs import files, mounts, trees
from pykubelet.edges.host.fs.files import FileKind

_NEW_MOUNTER = "NewMounter initialization"


class LocalPlan(VolumePlan):
    """A plan to bind `directory`. `fs_group` None: files keep their group. `is_group_lasting`: `OnRootMismatch`."""

    directory: str
    options: tuple[str, ...] = ()
    fs_group: int | None = None
    is_group_lasting: bool = False


def plan(inputs: PlanInputs) -> LocalPlan:
    """The bind of the directory. VolumesError for a path with `..`."""
    source, claimed = inputs.source, inputs.claimed
    assert claimed is not None and isinstance(source, PersistentVolumeSpec) and source.local is not None
    path = source.local.path
    if ".." in path.split("/"):
        raise VolumesError(f"invalid local path `{path}`: must not contain '..'", _NEW_MOUNTER)
    options = tuple(sorted({*claimed.mount_options, *(("ro",) if claimed.read_only else ())}))
    context = inputs.pod.spec.securityContext
    lasting = context is not None and context.fsGroupChangePolicy == "OnRootMismatch"
    mounted = inputs.mounted(
        inputs.dirs.path,
        read_only=claimed.read_only,
        supports_relabel=not claimed.read_only,
        is_measured=False,
        has_stats=True,
    )
    return LocalPlan(mounted, path, options, None if claimed.read_only else inputs.fs_group, lasting)


def set_up(plan: LocalPlan, _context: SetUpContext) -> None:
    """Bind the directory unless it is bound, and give its files to the pod's group. VolumesError if it is no directory."""
    if mounts.is_mount_point(plan.path):
        mounts.apply_bind_options(plan.path, plan.options)  # an earlier set-up may have been cut short before it did
        return  # without asking the directory, which may be on a file system that hangs
    found = files.stat_file(plan.directory)
    if found is None:
        raise VolumesError(f'path "{plan.directory}" does not exist', _NEW_MOUNTER)
    if found.kind is FileKind.BLOCK_DEVICE:
        raise VolumesError("block devices are not supported yet", _NEW_MOUNTER)
    if not found.is_dir:
        raise VolumesError("only directory and block device are supported", _NEW_MOUNTER)
    _apply_group(plan)  # before the bind, which is the mark of a finished volume
    make_empty_volume_dir(plan.path)
    mounts.bind_with_options(plan.directory, plan.path, plan.options)


def _apply_group(plan: LocalPlan) -> None:
    """Give the files to the pod's group, unless another pod uses them."""
    if plan.fs_group is None or (plan.is_group_lasting and trees.group_is_applied(plan.directory, plan.fs_group)):
        return
    below_pod = f"/volumes/{KIND.directory}/{plan.spec_name}"
    if not any(mount.target.endswith(below_pod) for mount in mounts.read_mounts()):
        trees.apply_group(plan.directory, plan.fs_group)


KIND = VolumeKind(
    name="local",
    plugin="kubernetes.io/local-volume",
    plan=plan,
    set_up=set_up,
    is_persistent=True,
    mount_options=True,
    tear_down=release_volume,
)
