"""Sub-paths of volumes (`subPath`): gives `act/pods` host paths that cannot lead out of the volume.

Owns: the bind mounts below `pods/<uid>/volume-subpaths`; `disk.tear_down` removes them with their volume. Reads `Mounts`.
An error inside the volume is logged and not shown to the pod, because it could reveal what exists on the host.
Source: the Kubernetes documentation "Volumes", subPath.
"""

from __future__ import annotations

from pykubelet.act.volumes.kind import VolumesError
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.flight import Done, Failed, SingleFlight, Uncertain
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.fs import files, subpaths
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.subpath_bind import bind_beneath

log = Log("act.volumes")
DEADLINE_S = 30.0
_MODE_BITS = 0o7777


class SubPathError(VolumesError):
    """The sub-path cannot be mounted into the container; the text is the container's waiting message."""


class Subpaths:
    """Public: prepares sub-paths of mounted volumes, one piece of work at a time for each container mount."""

    def __init__(self, mounts: Cell[Mounts], paths: Paths, flight: SingleFlight) -> None:
        self._mounts = mounts
        self._paths = paths
        self._flight = flight

    async def prepare_subpath(
        self, uid: PodUID, volume: str, container: str, index: int, sub_path: str, mode: int | None = None
    ) -> str | SubPathError:
        """The host path to bind for `volumeMounts[index]` of a container, or why there is none.

        `sub_path` is already expanded. Directories that are missing get `mode`, or else the mode of the volume.
        """
        if sub_path.startswith("/"):
            return SubPathError(f"error SubPath `{sub_path}` must not be an absolute path")
        if ".." in sub_path.split("/"):
            return SubPathError(f"unable to provision SubPath `{sub_path}`: must not contain '..'")
        pod = self._mounts.get().pods.get(uid)
        mounted = pod.volumes.get(volume) if pod is not None else None
        if mounted is None or not mounted.host_path:
            return SubPathError(
                f'cannot prepare subPath of volume "{volume}" for container "{container}": it is not mounted'
            )
        root, target = mounted.host_path, self._paths.subpath(uid, mounted.spec_name or volume, container, index)

        def work() -> None:
            _make_missing(root, sub_path, mode)
            try:
                bind_beneath(root, sub_path, target)
            except HostError as error:
                raise _Stopped("prepare subPath") from error

        outcome = await self._flight.run(f"subpath/{uid}/{volume}/{container}/{index}", work, DEADLINE_S)
        match outcome:
            case Done():
                return target
            case Uncertain():
                what, cause = "prepare subPath", f"no answer within {DEADLINE_S:g}s"
            case Failed(error):
                what = error.what if isinstance(error, _Stopped) else "prepare subPath"
                cause = str(error.__cause__ or error)
        log.warning("subPath refused", uid=uid, volume=volume, container=container, path=sub_path, cause=cause)
        return SubPathError(f'failed to {what} for volumeMount "{volume}" of container "{container}"')


class _Stopped(VolumesError):
    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def _make_missing(root: str, sub_path: str, mode: int | None) -> None:
    """Make the directories that are missing. Made later by other programs, they would have a mode that the pod's group cannot use."""
    try:
        if files.stat_file(f"{root}/{sub_path}") is not None:
            return
        found = files.stat_file(root)
        if found is None:
            raise HostError("stat", root, "ENOENT", "no such file or directory")
        subpaths.make_beneath(root, sub_path, found.mode & _MODE_BITS if mode is None else mode)
    except HostError as error:
        raise _Stopped("create subPath directory") from error
