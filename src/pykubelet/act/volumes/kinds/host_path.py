"""hostPath volumes: a path of the node, which must be of the type that the pod asks for.

Source: the Kubernetes documentation "Volumes", hostPath types.
"""

from __future__ import annotations

from pykubelet.act.volumes.kind import InPlacePlan, PlanInputs, SetUpContext, VolumeKind, VolumePlan, VolumesError
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind

_TYPES = {
    "DirectoryOrCreate": (FileKind.DIRECTORY, "directory"),
    "Directory": (FileKind.DIRECTORY, "directory"),
    "FileOrCreate": (FileKind.FILE, "file"),
    "File": (FileKind.FILE, "file"),
    "Socket": (FileKind.SOCKET, "socket file"),
    "CharDevice": (FileKind.CHAR_DEVICE, "character device"),
    "BlockDevice": (FileKind.BLOCK_DEVICE, "block device"),
}


class HostPathPlan(VolumePlan):
    """A plan to check that the path has the type `type`."""

    type: str


def plan(inputs: PlanInputs) -> HostPathPlan | InPlacePlan:
    """The path without further work, or with a check of its type. VolumesError for a path with `..`."""
    source = inputs.source.hostPath
    assert source is not None
    if ".." in source.path.split("/"):
        raise VolumesError(f"invalid HostPath `{source.path}`: must not contain '..'")
    mounted = inputs.mounted(
        source.path, read_only=inputs.claimed is not None and inputs.claimed.read_only, is_measured=False
    )
    return HostPathPlan(mounted, source.type) if source.type else InPlacePlan(mounted)


def set_up(plan: HostPathPlan, _context: SetUpContext) -> None:
    """Check the path, or make it if the type allows that. Blocks; never returns if the file system is dead."""
    if plan.type not in _TYPES:
        raise VolumesError(f"{plan.type} is an invalid volume type")
    kind, words = _TYPES[plan.type]
    failed = f"hostPath type check failed: {plan.path} is not a {words}"
    try:
        found = files.stat_file(plan.path)
    except HostError as error:
        raise VolumesError(f"{failed}: {error}") from error
    if found is None and plan.type == "DirectoryOrCreate":
        files.make_dirs(plan.path, 0o755, exact=False)
    elif found is None and plan.type == "FileOrCreate":
        files.create_file(plan.path, 0o644)
    elif found is None or found.kind is not kind:
        raise VolumesError(failed)


KIND = VolumeKind(
    name="hostPath",
    plugin="kubernetes.io/host-path",
    has_directory=False,
    is_persistent=True,
    plan=plan,
    set_up=set_up,
)
