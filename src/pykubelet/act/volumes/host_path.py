"""hostPath volumes: the path must be what the pod says it is. Blocks, for ever on a dead file system.

Source: the Kubernetes documentation "Volumes", hostPath types.
"""

from __future__ import annotations

from pykubelet.act.volumes.model import HostPathPlan, VolumesError
from pykubelet.edges.host import files
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.files import FileKind

_TYPES = {
    "DirectoryOrCreate": (FileKind.DIRECTORY, "directory"),
    "Directory": (FileKind.DIRECTORY, "directory"),
    "FileOrCreate": (FileKind.FILE, "file"),
    "File": (FileKind.FILE, "file"),
    "Socket": (FileKind.SOCKET, "socket file"),
    "CharDevice": (FileKind.CHAR_DEVICE, "character device"),
    "BlockDevice": (FileKind.BLOCK_DEVICE, "block device"),
}


def set_up(plan: HostPathPlan) -> None:
    """Check the path, or make it where the type says so. VolumesError in the reference's words."""
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
