"""What a container mounts, checked before it is created: sub-paths (`subPath`) and the types of hostPath volumes.

Owns: the bind mounts below `pods/<uid>/volume-subpaths`; `disk.tear_down` removes them with their volume. Reads `Mounts`.
The reason why a sub-path cannot be made is shown to the pod, but not what is outside of its volume.
Source: the Kubernetes documentation "Volumes", subPath.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.flight import Done, Failed, SingleFlight, Uncertain
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume, Mounts
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.fs import files, subpaths
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.subpaths import bind_beneath
from pykubelet.provide.volumes.kind import VolumesError
from pykubelet.provide.volumes.kinds.host_path import require

DEADLINE_S = 30.0
_MODE_BITS = 0o7777


class SubPathError(VolumesError):
    """The sub-path or volume cannot be mounted into the container; the text is the container's waiting message.

    `cause`: what the host answers, for the log only: it may describe what is outside of the volume.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause


class Subpaths:
    """Public: prepares what containers mount of the mounted volumes, one piece of work at a time for each container mount."""

    def __init__(self, mounts: Cell[Mounts], paths: Paths, flight: SingleFlight) -> None:
        self._mounts = mounts
        self._paths = paths
        self._flight = flight

    async def prepare_subpath(
        self, uid: PodUID, volume: str, container: str, index: int, sub_path: str
    ) -> str | SubPathError:
        """The host path to bind for `volumeMounts[index]` of a container, or why there is none.

        `sub_path` is already expanded. Directories that are missing get the mode of the volume.
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
            _make_missing(root, sub_path)
            try:
                bind_beneath(root, sub_path, target)
            except HostError as error:
                raise _Stopped("prepare subPath") from error

        outcome = await self._flight.run(f"subpath/{uid}/{volume}/{container}/{index}", work, DEADLINE_S)
        match outcome:
            case Done():
                return str(target)
            case Uncertain():
                what, reason = "prepare subPath", f"no answer within {DEADLINE_S:g}s"
                cause = reason
            case Failed(error):
                what = error.what if isinstance(error, _Stopped) else "prepare subPath"
                reason, cause = _shown_reason(error.__cause__), str(error.__cause__ or error)
        failed = f'failed to {what} for volumeMount "{volume}" of container "{container}"'
        return SubPathError(f"{failed}: {reason}" if reason else failed, cause)

    async def check_host_paths(
        self, uid: PodUID, container: str, volumes: Iterable[MountedVolume]
    ) -> SubPathError | None:
        """Check that hostPath volumes with types still have them, or make them if the type allows it. Returns the first failure.

        The container's runtime would make a directory of what is missing.
        """
        for volume in volumes:
            path, host_type = volume.host_path, volume.host_type
            key = f"host-path/{uid}/{container}/{volume.name}"
            outcome = await self._flight.run(key, partial(require, path, host_type), DEADLINE_S)
            match outcome:
                case Done():
                    continue
                case Uncertain():
                    error = f"hostPath type check failed: {path}: no answer within {DEADLINE_S:g}s"
                case Failed(VolumesError() | HostError() as failure):
                    error = str(failure)
                case Failed(failure):
                    raise failure
            return SubPathError(f'MountVolume.SetUp failed for volume "{volume.name}" : {error}')
        return None


class _Stopped(VolumesError):
    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def _make_missing(root: str, sub_path: str) -> None:
    """Make the directories that are missing. Made later by other programs, they would have a mode that the pod's group cannot use."""
    try:
        if subpaths.is_beneath(root, sub_path):
            return
        found = files.stat_file(root)
        if found is None:
            raise HostError("stat", root, "ENOENT", "no such file or directory")
        subpaths.make_beneath(root, sub_path, found.mode & _MODE_BITS)
    except HostError as error:
        if error.errno_name != "EXDEV":  # a path out of the volume is refused when it is bound, whatever is there
            raise _Stopped("create subPath directory") from error


def _shown_reason(cause: BaseException | None) -> str:
    """The reason for users; "" if it is not known. What is outside of the volume is not described."""
    if not isinstance(cause, HostError):
        return ""
    return "the path leads out of the volume" if cause.errno_name == "EXDEV" else cause.message
