"""Plans volumes of files that the agent writes: the files, their paths, and refused paths. Pure; `payload_kind.py` writes them.

Source: the Kubernetes documentation "ConfigMaps", "Secrets", "Projected Volumes", "Downward API".
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from pykubelet.base.api.codec import unusable_text
from pykubelet.base.api.core import KeyToPath, Pod
from pykubelet.base.kit.values import RedactedValue, remember_last, replace
from pykubelet.base.model.containers import every_container
from pykubelet.base.model.content import ContentKey, wait_label
from pykubelet.provide.volumes.fields import MapText
from pykubelet.provide.volumes.kind import DirectoryPlan, PlanInputs, UndecidedPlan, VolumesError
from pykubelet.provide.volumes.memory import memory_size

#: Files in all volumes of a pod. Each takes an inode, and a block of the disk or a page of memory.
MAX_FILES = 1 << 16


class PayloadFile(RedactedValue):
    """One file. `owner`: the user ID that owns it; None leaves it to root. `data`: as the object has it that the file is made
    from, so that many files of one content keep it once."""

    hidden: ClassVar = ("data",)
    path: str
    data: bytes | str | MapText
    mode: int
    owner: int | None = None

    @property
    def content(self) -> bytes:
        """What is written."""
        return self.data if isinstance(self.data, bytes) else self.data.encode()

    @property
    def size(self) -> int:
        """The bytes of the content."""
        if isinstance(self.data, str) and self.data.isascii():
            return len(self.data)
        return len(self.content)

    @property
    def kept(self) -> object:
        """The object that the content is made from."""
        return self.data.values if isinstance(self.data, MapText) else self.data

    @property
    def origin(self) -> int:
        """The identity of that object, as long as it lives."""
        return id(self.kept)


ObjectData = Mapping[str, str] | Mapping[str, bytes]


class ObjectFiles(RedactedValue):
    """The files that are made from one object: one for each key of its data, or one for each of `items` that the data have.

    `parts`: the maps of the object that have data; of a key that several have, the first counts. `mode`, `owner`: of the files whose
    item has none.
    """

    hidden: ClassVar = ("parts",)
    parts: tuple[ObjectData, ...]
    items: tuple[KeyToPath, ...]
    mode: int
    owner: int | None = None

    @property
    def number(self) -> int:
        """How many files there are at most."""
        return len(self.items) or sum(map(len, self.parts))

    def files(self) -> Iterator[PayloadFile]:
        """The files, also for keys of the object that no file can have."""
        if not self.items:
            for data in reversed(self.parts):
                for key, value in data.items():
                    yield PayloadFile(key, value, self.mode, self.owner)
        for item in self.items:
            found: str | bytes | None = next((data[item.key] for data in self.parts if item.key in data), None)
            if found is not None:
                mode = self.mode if item.mode is None else item.mode
                yield PayloadFile(item.path, found, mode, self.owner if item.user is None else item.user)


PayloadSource = PayloadFile | ObjectFiles


class PayloadPlan(DirectoryPlan):
    """Files written into a tmpfs of `size` bytes, or into a directory, and replaced all at once.

    `sources`: what the files are made from. `nested`: directories below the volume on which containers mount other volumes.
    """

    sources: tuple[PayloadSource, ...]
    size: int = 0
    fs_group: int | None = None
    in_memory: bool = True
    nested: tuple[str, ...] = ()

    @property
    def most_files(self) -> int:
        """How many files there are at most: two with the same path count twice."""
        return sum(source.number if isinstance(source, ObjectFiles) else 1 for source in _last_of_each(self.sources))

    @property
    def files(self) -> tuple[PayloadFile, ...]:
        """The files; of two with the same path, the later one. There may be very many: they are made in the thread that writes them.

        VolumesError for a path that no file of a volume may have.
        """
        by_path: dict[str, PayloadFile] = {}
        for source in _last_of_each(self.sources):
            for file in source.files() if isinstance(source, ObjectFiles) else (source,):
                _check_path(file.path)
                path = posixpath.normpath(file.path)  # `./a//b/` is `a/b`: later comparisons find the file by this name
                by_path[path] = file if path == file.path else replace(file, path=path)
        return tuple(by_path.values())


def _last_of_each(sources: tuple[PayloadSource, ...]) -> Iterable[PayloadSource]:
    """The sources without whole objects that are given again later: the later files replace theirs."""
    chosen: dict[object, PayloadSource] = {}
    for number, source in enumerate(reversed(sources)):
        whole = source.parts if isinstance(source, ObjectFiles) and not source.items else ()
        chosen.setdefault(tuple(map(id, whole)) if whole else number, source)
    return reversed(chosen.values())


def plan_payload(
    inputs: PlanInputs, sources: Iterable[PayloadSource], awaited: Iterable[ContentKey] = (), *, in_memory: bool = True
) -> PayloadPlan | UndecidedPlan:
    """The plan for the files of these sources. Undecided unless `awaited` is empty. VolumesError for a path that no file may have."""
    keys = tuple(awaited)
    if keys:
        whats = dict.fromkeys(" ".join(wait_label(key)) for key in keys)
        return UndecidedPlan(f"no answer about {', '.join(whats)} yet", keys)
    given = tuple(sources)
    for source in given:
        for path in (item.path for item in source.items) if isinstance(source, ObjectFiles) else (source.path,):
            _check_path(path)
    return PayloadPlan(
        inputs.mounted(inputs.dirs.path, read_only=True, supports_relabel=True),
        inputs.dirs.path,
        given,
        memory_size(inputs.pod, None, inputs.node),
        inputs.fs_group,
        in_memory=in_memory,
        nested=nested_mount_points(inputs.pod, inputs.volume.name),
    )


def nested_mount_points(pod: Pod, name: str) -> tuple[str, ...]:
    """The directories of the volume on which a container mounts another volume, without directories nested in them.

    The runtime cannot make them itself, because the volume is read-only to it. VolumesError for a directory that would have a
    name of the atomic writer's.
    """
    found = tuple(_nested_mount_points(pod).get(name, ()))
    for path in found:
        if path.startswith(".."):
            raise VolumesError(f"invalid container mount point {path} in the volume: must not start with '..'")
    return found


@remember_last
def _nested_mount_points(pod: Pod) -> dict[str, dict[str, None]]:
    """As `nested_mount_points`, by the name of the volume. A volume that another one covers needs no directories."""
    found: dict[str, dict[str, None]] = {}
    for container in every_container(pod):
        volumes = {below_root(mount.mountPath): mount.name for mount in container.volumeMounts}
        outer: list[str] = []
        for path in sorted(volumes):  # each directory comes before those in it, and those before all others
            while outer and not path.startswith(outer[-1]):
                outer.pop()
            if outer:
                found.setdefault(volumes[outer[-1]], {})[path.removeprefix(outer[-1]).rstrip("/")] = None
            outer.append(path)
    return found


def below_root(path: str) -> str:
    """The place in the container that a runtime mounts on for a mount path, which may be relative and have `..`; ends with `/`."""
    normal = posixpath.normpath("/" + path.lstrip("/"))
    return normal if normal == "/" else f"{normal}/"


def _check_path(path: str) -> None:
    """Refuse paths that lead out of the volume or begin with `..`, like the atomic writer's own names. VolumesError."""
    if unusable := unusable_text(path):
        raise VolumesError(f"invalid path: {unusable[1]}: {path!r}")
    parts = path.split("/")
    if path in ("", "."):
        raise VolumesError('invalid path: must not be empty: ""')
    if path.startswith("/"):
        raise VolumesError(f"invalid path: must be relative path: {path}")
    if len(path.encode()) > 4096:
        raise VolumesError("invalid path: must be less than or equal to 4096 characters")
    if ".." in parts:
        raise VolumesError(f"invalid path: must not contain '..': {path}")
    if parts[0].startswith(".."):
        raise VolumesError(f"invalid path: must not start with '..': {path}")
    if any(len(part.encode()) > 255 for part in parts):
        raise VolumesError("invalid path: filenames must be less than or equal to 255 characters")
