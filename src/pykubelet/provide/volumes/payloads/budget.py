"""Bounds what the files of a pod's volumes take beyond the objects that they are made from, before they are written.

A pod that mounts each key of its ConfigMaps and Secrets once is never refused for their size; one that mounts the same
content again and again is. Volumes in memory take whole pages, which count for the agent and not for the pod.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.provide.volumes.kind import VolumesError
from pykubelet.provide.volumes.payloads.payload import MAX_FILES, PayloadFile, PayloadPlan

#: Bytes that the files of one pod may take beyond their contents, of which each counts once.
MAX_EXTRA = 32 << 20
#: What a file in memory takes beside whole pages: inodes and names.
_PAGE, _FILE = 4096, 2048


class PayloadBudget:
    """What the files of all pods take. Called from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[PodUID, _Pod] = {}

    def take(self, uid: PodUID, path: str, plan: PayloadPlan) -> tuple[PayloadFile, ...]:
        """Take the files of the volume at `path`, in place of its earlier ones. VolumesError if the pod's files take too much, or
        are too many, in which case they are not even made."""
        with self._lock:
            pod = self._pods.setdefault(uid, _Pod())
            pod.drop(path)
            count = pod.reserve(path, plan.most_files)
            if count > MAX_FILES:
                self._drop(uid, path)
        if count > MAX_FILES:
            raise VolumesError(f"the pod's volumes have {count} files, more than {MAX_FILES}: mount fewer keys")
        files = plan.files
        sizes: dict[int, int] = {}
        for file in files:
            if file.origin not in sizes:  # many files may have one content, which takes time to measure
                sizes[file.origin] = file.size
        taken = sum(_size(sizes[file.origin], in_memory=plan.in_memory) for file in files)
        with self._lock:
            pod = self._pods.setdefault(uid, _Pod())
            pod.drop(path)
            pod.add(path, files, sizes, taken)
            extra = pod.extra
            if extra > MAX_EXTRA:
                self._drop(uid, path)
        if extra > MAX_EXTRA:
            raise VolumesError(
                f"the files of the pod's volumes take {extra >> 20} MiB more than what they are made from, more than"
                f" {MAX_EXTRA >> 20} MiB: mount the same content fewer times, or fewer small files"
            )
        return files

    def release(self, uid: PodUID, path: str) -> None:
        """Forget the files of the volume at `path`."""
        with self._lock:
            if uid in self._pods:
                self._drop(uid, path)

    def _drop(self, uid: PodUID, path: str) -> None:
        pod = self._pods[uid]
        pod.drop(path)
        if not pod.volumes:
            del self._pods[uid]


class _Pod:
    """The files of one pod's volumes. `extra`: the bytes that they take beyond their contents. `count`: of files.

    Contents differ by identity: two objects with the same content are two contents.
    """

    def __init__(self) -> None:
        self.volumes: dict[str, _Volume] = {}
        self.extra = self.count = 0
        self._contents: dict[int, _Content] = {}

    def reserve(self, path: str, count: int) -> int:
        """Count the files of a new volume before they are made. Returns how many the pod has with them."""
        self.volumes[path] = _Volume(count)
        self.count += count
        return self.count

    def add(self, path: str, files: Sequence[PayloadFile], sizes: Mapping[int, int], taken: int) -> None:
        """`sizes`: of the contents. `taken`: bytes of all files."""
        self.volumes[path] = _Volume(len(files), taken, array("Q", (file.origin for file in files)))
        self.extra += taken
        self.count += len(files)
        for file in files:
            content = self._contents.get(file.origin)
            if content is None:
                self._contents[file.origin] = _Content(file.kept, sizes[file.origin])
                self.extra -= sizes[file.origin]
            else:
                content.uses += 1

    def drop(self, path: str) -> None:
        volume = self.volumes.pop(path, _Volume(0))
        self.extra -= volume.taken
        self.count -= volume.count
        for origin in volume.origins:
            content = self._contents[origin]
            content.uses -= 1
            if not content.uses:
                del self._contents[origin]
                self.extra += content.size


class _Volume(Value):
    """The number of its files, the bytes that they take, and the contents that they are made from."""

    count: int
    taken: int = 0
    origins: array[int] = field(default_factory=lambda: array("Q"))


class _Content:
    """An object that files are made from, which keeps its identity while they use it; its size in bytes."""

    __slots__ = ("kept", "size", "uses")

    def __init__(self, kept: object, size: int) -> None:
        self.kept = kept
        self.size = size
        self.uses = 1


def _size(size: int, *, in_memory: bool) -> int:
    """What a file of `size` bytes takes."""
    return -(-size // _PAGE) * _PAGE + _FILE if in_memory else size
