"""Bounds what the files of a pod's volumes take beyond the objects that they are made from, before they are written.

A pod that mounts each key of its ConfigMaps and Secrets once is never refused for their size; one that mounts the same
content again and again is. Volumes in memory take whole pages, which count for the agent and not for the pod.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from pykubelet.act.volumes.kind import VolumesError
from pykubelet.act.volumes.payloads.payload import PayloadFile
from pykubelet.base.model.ids import PodUID

#: Bytes that the files of one pod may take beyond their contents, of which each counts once.
MAX_EXTRA = 32 << 20
#: What a file in memory takes beside whole pages: inodes and names.
_PAGE, _FILE = 4096, 2048


class PayloadBudget:
    """What the files of all pods take. Called from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[PodUID, _Pod] = {}

    def take(self, uid: PodUID, path: str, files: Sequence[PayloadFile], *, in_memory: bool) -> None:
        """Take the files of the volume at `path`, in place of its earlier ones. VolumesError if the pod's files take too much."""
        with self._lock:
            pod = self._pods.setdefault(uid, _Pod())
            pod.drop(path)
            pod.add(path, files, sum(_size(file, in_memory=in_memory) for file in files))
            extra = pod.extra
            if extra > MAX_EXTRA:
                self._drop(uid, path)
        if extra > MAX_EXTRA:
            raise VolumesError(
                f"the files of the pod's volumes take {extra >> 20} MiB more than what they are made from, more than"
                f" {MAX_EXTRA >> 20} MiB: mount the same content fewer times, or fewer small files"
            )

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
    """The files of one pod's volumes. `extra`: the bytes that they take beyond their contents.

    Contents differ by identity: two objects with the same content are two contents.
    """

    def __init__(self) -> None:
        self.volumes: dict[str, tuple[Sequence[PayloadFile], int]] = {}
        self.extra = 0
        self._uses: Counter[int] = Counter()

    def add(self, path: str, files: Sequence[PayloadFile], taken: int) -> None:
        self.volumes[path] = files, taken
        self.extra += taken
        for file in files:
            self._uses[file.origin] += 1
            if self._uses[file.origin] == 1:
                self.extra -= len(file.data)

    def drop(self, path: str) -> None:
        files, taken = self.volumes.pop(path, ((), 0))
        self.extra -= taken
        for file in files:
            self._uses[file.origin] -= 1
            if not self._uses[file.origin]:
                del self._uses[file.origin]
                self.extra += len(file.data)


def _size(file: PayloadFile, *, in_memory: bool) -> int:
    size = len(file.data)
    return -(-size // _PAGE) * _PAGE + _FILE if in_memory else size
