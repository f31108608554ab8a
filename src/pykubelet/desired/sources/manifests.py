"""One look at the manifest path: which files there are, and what is in those that changed.

Owns: the memory of what each file held (unchanged files are not read again) and the rule about files that are being
written. Reads the host through `edges.host.files`; decides nothing about when to look, which is `file.py`'s.

A file that changed a moment ago and whose writer has not closed it (no CLOSE_WRITE or MOVED_TO was told) may be half
written: what it held before counts until it is closed or has been still for `SETTLE_S`. So a slow editor never kills a
running pod, and half a manifest never starts one. A file that was removed and is there again before anybody looked counts as
one that has come back (`Look.returned`), once it has been read.
"""

from __future__ import annotations

import os.path
from collections.abc import Set

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.flight import Flight
from pykubelet.base.kit.values import Value
from pykubelet.base.model.roster import ManifestProblem
from pykubelet.desired.sources.decode import MAX_BYTES, problem, too_large
from pykubelet.desired.sources.reading import read_manifest
from pykubelet.desired.sources.static import file_origin
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import DirEntry, FileKind, FileStat, list_dir, read_bytes, stat_file

SETTLE_S = 0.5


class Content(Value):
    """What a file held when it was last read. `key`: what says that it has not changed since."""

    key: tuple[int, int, int, int]
    pods: tuple[Pod, ...]
    problems: tuple[ManifestProblem, ...]


class Look(Value):
    """The whole set as it is now. `unsettled`: look again in `SETTLE_S`. `keep`: the set could not be told, so the one
    before it stands. `origins`: the file of each pod, in the order of `pods`. `returned`: those files that were away
    between this look and the one before."""

    pods: tuple[Pod, ...] = ()
    problems: tuple[ManifestProblem, ...] = ()
    unsettled: bool = False
    keep: bool = False
    origins: tuple[str, ...] = ()
    returned: Set[str] = frozenset()


class Manifests:
    """The files at one path, a directory of manifests or a single one."""

    def __init__(self, path: str, node_name: str, flight: Flight) -> None:
        self._path = path
        self._node_name = node_name
        self._flight = flight
        self._known: dict[str, Content] = {}
        self._young: set[str] = set()
        self._removed: Set[str] = frozenset()

    def note_removed(self, names: Set[str]) -> None:
        """Entries of the directory were removed since the last look; some may be there again."""
        self._removed = self._removed | names

    async def look(self, wall_s: float, closed: Set[str], settle: bool, touched: Set[str] | None = None) -> Look:
        """Everything there is. `closed`: names whose writer is known to be done; without `settle` all are taken so.

        `touched`: the names in the directory that something has happened to since the last look; its other files, as
        far as they are no links, are as they were. None: nobody knows.
        """
        try:
            at_path = stat_file(self._path)
        except HostError as error:
            return Look(problems=(problem(file_origin(self._path), "", str(error)),), keep=True)
        if at_path is None:
            self._known.clear()
            return Look()
        if at_path.is_file:
            return await self._look_at_file(at_path, wall_s, closed, settle)
        if not at_path.is_dir:
            words = f"is not a directory or file but a {at_path.kind}"
            return Look(problems=(problem(file_origin(self._path), "", words),), keep=True)
        return await self._look_at_directory(wall_s, closed, settle, touched)

    async def _look_at_file(self, stat: FileStat, wall_s: float, closed: Set[str], settle: bool) -> Look:
        done = os.path.basename(self._path) in closed
        before = self._known.get(self._path)
        young = settle and not done and _is_young(stat, wall_s)
        if before is not None and (young or (before.key == _key(stat) and not done)):
            content: Content | None = before
        else:
            content = await self._read(self._path, stat)
        if content is None:
            self._known.clear()
            return Look()
        unsettled = young and content.key != _key(stat)
        if content.pods:
            self._known = {self._path: content}
            return Look(content.pods, content.problems, unsettled, origins=(self._path,) * len(content.pods))
        return Look((), content.problems, unsettled, keep=True)

    async def _look_at_directory(self, wall_s: float, closed: Set[str], settle: bool, touched: Set[str] | None) -> Look:
        try:
            entries = list_dir(self._path)
        except HostError as error:
            if error.is_not_found:
                self._known.clear()
                return Look()
            return Look(problems=(problem(file_origin(self._path), "", str(error)),), keep=True)
        known: dict[str, Content] = {}
        problems: list[ManifestProblem] = []
        young: set[str] = set()
        for entry in entries:
            if entry.name.startswith(".") or entry.kind is FileKind.DIRECTORY:
                continue
            path = os.path.join(self._path, entry.name)
            if touched is not None and self._is_as_before(entry, path, touched):
                known[path] = self._known[path]
                continue
            try:
                stat = stat_file(path)
            except HostError as error:
                problems.append(problem(file_origin(path), "", str(error)))
                continue
            if stat is None or stat.is_dir:
                continue
            if not stat.is_file:
                problems.append(problem(file_origin(path), "", f"not a regular file but a {stat.kind}"))
                continue
            before = self._known.get(path)
            if entry.name in closed:  # read it even if it looks the same: clocks of file systems are coarse
                before = await self._read(path, stat)
            elif before is None or before.key != _key(stat):
                if settle and _is_young(stat, wall_s):
                    young.add(entry.name)
                else:
                    before = await self._read(path, stat)
            if before is not None:
                known[path] = before
        self._known, self._young = known, young
        returned, self._removed = self._removed - young, self._removed & young
        return Look(
            tuple(pod for content in known.values() for pod in content.pods),
            (*problems, *(wrong for content in known.values() for wrong in content.problems)),
            bool(young),
            origins=tuple(path for path, content in known.items() for _ in content.pods),
            returned=frozenset(os.path.join(self._path, name) for name in returned),
        )

    def _is_as_before(self, entry: DirEntry, path: str, touched: Set[str]) -> bool:
        """Whether nothing can have changed in a file; what a link points at changes elsewhere."""
        if entry.kind is not FileKind.FILE or entry.name in touched or entry.name in self._young:
            return False
        before = self._known.get(path)
        return before is not None and before.key != _UNREAD

    async def _read(self, path: str, stat: FileStat) -> Content | None:
        """What the file holds; None when it has gone meanwhile. Files of special kinds never get here."""
        key, origin = _key(stat), file_origin(path)
        if stat.size > MAX_BYTES:
            return Content(key, (), (too_large(origin),))
        try:
            data = read_bytes(path, MAX_BYTES)
        except HostError as error:
            if error.is_not_found:
                return None
            wrong = too_large(origin) if error.is_too_large else problem(origin, "", str(error))
            return Content(_UNREAD, (), (wrong,))
        result = await read_manifest(data, origin, self._node_name, self._flight)
        pods = tuple(item for item in result if isinstance(item, Pod))
        return Content(key, pods, tuple(item for item in result if isinstance(item, ManifestProblem)))


#: The key of a file that could not be read: it is tried again at every look.
_UNREAD = (-1, -1, -1, -1)


def _key(stat: FileStat) -> tuple[int, int, int, int]:
    return (stat.mtime_ns, stat.size, stat.inode, stat.device)


def _is_young(stat: FileStat, wall_s: float) -> bool:
    """Changed within the last `SETTLE_S`; a date in the future does not count as a change."""
    return 0 <= wall_s - stat.mtime_ns / 1e9 < SETTLE_S
