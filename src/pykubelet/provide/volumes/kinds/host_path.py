"""hostPath volumes: a path of the node, which must be of the type that the pod asks for.

Source: the Kubernetes documentation "Volumes", hostPath types.
"""

from __future__ import annotations

from pykubelet.base.kit.values import replace
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind
from pykubelet.provide.volumes.kind import InPlacePlan, PlanInputs, SetUpContext, VolumeKind, VolumePlan, VolumesError

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
    """A plan to check that the path has the type `mounted.host_type`."""


def plan(inputs: PlanInputs) -> HostPathPlan | InPlacePlan:
    """The path without further work, or with a check of its type. VolumesError for a path with `..`."""
    source = inputs.source.hostPath
    assert source is not None
    if ".." in source.path.split("/"):
        raise VolumesError(f"invalid HostPath `{source.path}`: must not contain '..'")
    path = source.path if source.path.startswith("/") else f"/{source.path}"
    read_only = inputs.claimed is not None and inputs.claimed.read_only
    mounted = replace(inputs.mounted(path, read_only=read_only, is_measured=False), host_type=source.type or "")
    return HostPathPlan(mounted) if source.type else InPlacePlan(mounted)


def set_up(plan: HostPathPlan, _context: SetUpContext) -> None:
    """Check the path, or make it if the type allows that. Blocks; never returns if the file system is dead."""
    require(plan.path, plan.mounted.host_type)


def require(path: str, host_type: str) -> None:
    """As `set_up`. VolumesError if the path has another type."""
    if host_type not in _TYPES:
        raise VolumesError(f"{host_type} is an invalid volume type")
    kind, words = _TYPES[host_type]
    failed = f"hostPath type check failed: {path} is not a {words}"
    try:
        found = files.stat_file(path)
    except HostError as error:
        raise VolumesError(f"{failed}: {error}") from error
    if found is None and host_type == "DirectoryOrCreate":
        files.make_dirs(path, 0o755, exact=False)
    elif found is None and host_type == "FileOrCreate":
        files.create_file(path, 0o644)
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
