"""Scans the manifest path: lists the files, and reads those that have changed.

Owns: the last content of each file (unchanged files are not read again), and the rule about files that are being written.
`file.py` decides when to scan.

A recently changed file that its writer has not closed (no event CLOSE_WRITE or MOVED_TO) may be incomplete. Its previous
content counts until it is closed, or has not changed for `SETTLE_S`. So a slow editor never kills a running pod, and an
incomplete manifest never starts one. A file that was removed and exists again before the next scan counts as returned
(`ManifestScan.returned`) when it has been read.

Editors save a file by renaming it to a backup, writing it anew, and removing the backup. So the content of a file that was renamed within
its directory counts for `SETTLE_S`, or until the file is there again; the file with the new name is not read before. If the content is
the same, the pod does not notice. A directory may be listed before the event of a renaming arrives: a file that is missing without an
event counts for `SETTLE_S`, too.

Files are looked at and read in a thread. While their file system does not answer, the set stays as it was.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Mapping, Set
from typing import TypeVar

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.content import ManifestObject
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem
from pykubelet.desired.sources.decode import MAX_BYTES, ManifestRules, problem, too_large
from pykubelet.desired.sources.reading import read_manifest
from pykubelet.desired.sources.static import file_origin
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import DirEntry, FileKind, FileStat, list_dir, read_bytes, stat_file

T = TypeVar("T")
SETTLE_S = 0.5
#: The time for one step of file work: seconds.
DISK_DEADLINE_S = 10.0
#: Bytes of changed files that are read in the same step as the directory is listed. Others are read one by one, so that memory is bounded.
READ_AT_ONCE = 1 << 20


class ReadManifest(Value):
    """The content of a file when it was last read. `key`: equal while the file has not changed."""

    key: tuple[int, int, int, int]
    pods: tuple[Pod, ...]
    problems: tuple[ManifestProblem, ...]
    objects: tuple[ManifestObject, ...] = ()
    remarks: tuple[Remark, ...] = ()


class ManifestScan(Value):
    """The result of one scan: the whole set. `unsettled`: scan again in `SETTLE_S`. `keep`: the set could not be read, so the
    previous one is kept. `origins`: the file of each pod, in the order of `pods`. `returned`: the files that were away
    between this scan and the previous one."""

    pods: tuple[Pod, ...] = ()
    problems: tuple[ManifestProblem, ...] = ()
    unsettled: bool = False
    keep: bool = False
    origins: tuple[str, ...] = ()
    returned: Set[str] = frozenset()
    objects: tuple[ManifestObject, ...] = ()
    remarks: tuple[Remark, ...] = ()


class NoAnswerError(Exception):
    """A file system does not answer in time."""


class _Rename(Value):
    """A file was renamed to `new_name` within its directory. `until`: monotonic seconds. `is_new`: there was no such file."""

    new_name: str
    until: float
    is_new: bool


class _Found(Value):
    """What is at the path. In a directory: `stats` of the files that may have changed, `data` of some of those that have changed."""

    at_path: FileStat | None
    entries: tuple[DirEntry, ...] = ()
    stats: Mapping[str, FileStat | HostError | None] = field(default_factory=dict)
    data: Mapping[str, bytes | HostError] = field(default_factory=dict)


class _Look(Value):
    """What one scan looks for. `known`: the contents by the last scan. `young`: names of files that may be incomplete.

    `closed`, `settle`, `touched`: as in `Manifests.scan`.
    """

    path: str
    known: Mapping[str, ReadManifest]
    young: Set[str]
    closed: Set[str]
    settle: bool
    touched: Set[str] | None
    wall_s: float

    def find(self) -> _Found:
        """The file work of a scan, in a thread. Raises HostError."""
        at_path = stat_file(self.path)
        if at_path is None or not at_path.is_dir:
            return _Found(at_path)
        entries, left = list_dir(self.path), READ_AT_ONCE
        stats: dict[str, FileStat | HostError | None] = {}
        data: dict[str, bytes | HostError] = {}
        for entry in entries:
            path = os.path.join(self.path, entry.name)
            if not _is_manifest(entry) or self.is_as_before(entry, path):
                continue
            stat = stats[path] = _stat(path)
            if isinstance(stat, FileStat) and stat.is_file and stat.size <= left and self.is_to_be_read(path, stat):
                data[path] = _bytes_of(path)
                left -= stat.size
        return _Found(at_path, entries, stats, data)

    def is_as_before(self, entry: DirEntry, path: str) -> bool:
        """Whether the file cannot have changed. The target of a link changes without events here."""
        if self.touched is None or entry.kind is not FileKind.FILE:
            return False
        if entry.name in self.touched or entry.name in self.young:
            return False
        before = self.known.get(path)
        return before is not None and before.key != _UNREAD

    def is_to_be_read(self, path: str, stat: FileStat) -> bool:
        """Whether the content may have changed and is complete. A closed file is read even if its times and size are as before,
        because the times of file systems are coarse."""
        return os.path.basename(path) in self.closed or (self._has_changed(path, stat) and not self._is_young(stat))

    def may_be_incomplete(self, path: str, stat: FileStat) -> bool:
        """Whether the file has changed, and its writer may not be done with it."""
        closed = os.path.basename(path) in self.closed
        return not closed and self._has_changed(path, stat) and self._is_young(stat)

    def _has_changed(self, path: str, stat: FileStat) -> bool:
        before = self.known.get(path)
        return before is None or before.key != _key(stat)

    def _is_young(self, stat: FileStat) -> bool:
        """Whether the file changed within the last `SETTLE_S`. A time in the future does not count."""
        return self.settle and 0 <= self.wall_s - stat.mtime_ns / 1e9 < SETTLE_S


class Manifests:
    """The files at one path, a directory of manifests or a single one."""

    def __init__(self, path: str, rules: ManifestRules, flight: SingleFlight, clock: Clock) -> None:
        self._path = path
        self._rules = rules
        self._flight = flight
        self._clock = clock
        self._renames: dict[str, _Rename] = {}
        self._known: dict[str, ReadManifest] = {}
        self._young: set[str] = set()
        self._removed: Set[str] = frozenset()
        self._gone: set[str] = set()  # names that are gone by an event
        self._missing: dict[
            str, float
        ] = {}  # names that are missing without such an event, and until when their contents count

    def note_removed(self, names: Set[str]) -> None:
        """Note that entries of the directory were removed since the last scan; some may exist again."""
        self._removed = self._removed | names
        self._gone |= names

    def note_renamed(self, names: Mapping[str, str]) -> None:
        """Note the new names of files that were renamed within their directory since the last scan."""
        folder = self._path if self._path not in self._known else os.path.dirname(self._path)
        until = self._clock.monotonic() + SETTLE_S
        self._gone |= names.keys()
        for old, new in names.items():
            if os.path.join(folder, old) in self._known and not new.startswith("."):
                is_new = os.path.join(folder, new) not in self._known
                self._renames[old] = _Rename(new, until, is_new)

    def _keep_renames(self, present: Iterable[str]) -> None:
        """Forget the renames that are over: those of some time ago, and those of files that were removed afterwards."""
        now, names = self._clock.monotonic(), set(present)
        self._renames = {
            old: rename
            for old, rename in self._renames.items()
            if now < rename.until and (old in names or rename.new_name in names)
        }

    async def scan(self, closed: Set[str], settle: bool, touched: Set[str] | None = None) -> ManifestScan:
        """Scan the path. `closed`: names of files whose writers have closed them. `settle` False: take all files as closed.

        `touched`: names in the directory with events since the last scan; other files, except links, have not changed.
        None: this is not known.
        """
        try:
            return await self._scan(closed, settle, touched)
        except NoAnswerError as error:
            return ManifestScan(problems=(problem(file_origin(self._path), "", str(error)),), unsettled=True, keep=True)

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Do file work in a thread. Raises its HostError; NoAnswerError if it does not end in time."""
        outcome = await self._flight.run_next(f"manifests {self._path}", work, DISK_DEADLINE_S)
        match outcome:
            case Done(value=value):
                return value
            case Failed(error=error):
                raise error
        raise NoAnswerError(f"its file system has not answered for {DISK_DEADLINE_S:g} s")

    async def _scan(self, closed: Set[str], settle: bool, touched: Set[str] | None) -> ManifestScan:
        look = _Look(self._path, self._known, frozenset(self._young), closed, settle, touched, self._clock.wall())
        try:
            found = await self.on_disk(look.find)
        except HostError as error:
            if error.is_not_found:
                self._known = {}
                return ManifestScan()
            return ManifestScan(problems=(problem(file_origin(self._path), "", str(error)),), keep=True)
        at_path = found.at_path
        if at_path is None:
            if self._path in self._known and await self._is_saved():
                return ManifestScan(unsettled=True, keep=True)
            self._known = {}
            return ManifestScan()
        if at_path.is_file:
            return await self._scan_file(look, at_path)
        if not at_path.is_dir:
            words = f"is not a directory or file but a {at_path.kind}"
            return ManifestScan(problems=(problem(file_origin(self._path), "", words),), keep=True)
        return await self._scan_directory(look, found)

    async def _is_saved(self) -> bool:
        """Whether the single file is away because an editor has renamed it to save it."""
        folder = os.path.dirname(self._path)
        new_names = [rename.new_name for rename in self._renames.values()]
        self._keep_renames(
            await self.on_disk(
                lambda: [name for name in new_names if stat_file(os.path.join(folder, name)) is not None]
            )
        )
        return os.path.basename(self._path) in self._renames

    async def _scan_file(self, look: _Look, stat: FileStat) -> ManifestScan:
        before = self._known.get(self._path)
        is_incomplete = look.may_be_incomplete(self._path, stat)
        if before is not None and not look.is_to_be_read(self._path, stat):
            content: ReadManifest | None = before
        else:
            content = await self._read(self._path, stat, None)
        if content is None:
            self._known = {}
            return ManifestScan()
        unsettled = is_incomplete and content.key != _key(stat)
        if content.pods or content.objects:
            self._known = {self._path: content}
            origins = (self._path,) * len(content.pods)
            return ManifestScan(
                content.pods, content.problems, unsettled, False, origins, frozenset(), content.objects, content.remarks
            )
        return ManifestScan((), content.problems, unsettled, keep=True, remarks=content.remarks)

    async def _scan_directory(self, look: _Look, found: _Found) -> ManifestScan:
        present = {entry.name for entry in found.entries}
        self._keep_renames(present)
        known = self._renamed(present) | self._unexplained(present, look.settle)
        unread = {rename.new_name for rename in self._renames.values() if rename.is_new}
        problems: list[ManifestProblem] = []
        young: set[str] = set()
        for entry in found.entries:
            path = os.path.join(self._path, entry.name)
            if entry.name in unread or not _is_manifest(entry):
                continue
            if path not in found.stats:
                known[path] = self._known[path]
                continue
            stat = found.stats[path]
            if isinstance(stat, HostError):
                problems.append(problem(file_origin(path), "", str(stat)))
                continue
            if stat is None or stat.is_dir:
                continue
            if not stat.is_file:
                problems.append(problem(file_origin(path), "", f"not a regular file but a {stat.kind}"))
                continue
            content = self._known.get(path)
            if look.is_to_be_read(path, stat):
                content = await self._read(path, stat, found.data.get(path))
            elif look.may_be_incomplete(path, stat):
                young.add(entry.name)
            if content is not None:
                known[path] = content
        self._known = known = dict(sorted(known.items()))
        self._young = young
        returned, self._removed = self._removed - young, self._removed & young
        return ManifestScan(
            tuple(pod for content in known.values() for pod in content.pods),
            (*problems, *(wrong for content in known.values() for wrong in content.problems)),
            bool(young or self._renames or self._missing),
            origins=tuple(path for path, content in known.items() for _ in content.pods),
            returned=frozenset(os.path.join(self._path, name) for name in returned),
            objects=tuple(found for content in known.values() for found in content.objects),
            remarks=tuple(remark for content in known.values() for remark in content.remarks),
        )

    def _renamed(self, present: Iterable[str]) -> dict[str, ReadManifest]:
        """The contents of files that were renamed and are not there again."""
        away = self._renames.keys() - set(present)
        return {path: self._known[path] for name in away if (path := os.path.join(self._path, name)) in self._known}

    def _unexplained(self, present: Set[str], settle: bool) -> dict[str, ReadManifest]:
        """The contents of files that are missing, but for which there was no event yet. Notes until when they count."""
        now, names = self._clock.monotonic(), {os.path.basename(path): path for path in self._known}
        self._gone &= names.keys() - present
        missing = names.keys() - present - self._gone if settle else set[str]()
        until = {name: self._missing.get(name, now + SETTLE_S) for name in missing}
        self._missing = {name: at for name, at in until.items() if now < at}
        return {names[name]: self._known[names[name]] for name in self._missing}

    async def _read(self, path: str, stat: FileStat, found: bytes | HostError | None) -> ReadManifest | None:
        """The content of a regular file; None if it has vanished meanwhile. `found`: its bytes, if they are read already."""
        key, origin = _key(stat), file_origin(path)
        if stat.size > MAX_BYTES:
            return ReadManifest(key, (), (too_large(origin),))
        data = found if found is not None else await self.on_disk(lambda: _bytes_of(path))
        if isinstance(data, HostError):
            if data.is_not_found:
                return None
            wrong = too_large(origin) if data.is_too_large else problem(origin, "", str(data))
            return ReadManifest(_UNREAD, (), (wrong,))
        if reason := self._rules.refused(path, data):
            return ReadManifest(_UNREAD, (), (problem(origin, "", reason),))
        result = await read_manifest(data, origin, self._rules, self._flight)
        return ReadManifest(
            key,
            tuple(item for item in result if isinstance(item, Pod)),
            tuple(item for item in result if isinstance(item, ManifestProblem)),
            tuple(item for item in result if isinstance(item, ManifestObject)),
            tuple(item for item in result if isinstance(item, Remark)),
        )


#: The key of a file that could not be read; it is read again at every scan.
_UNREAD = (-1, -1, -1, -1)


def _stat(path: str) -> FileStat | HostError | None:
    try:
        return stat_file(path)
    except HostError as error:
        return error


def _key(stat: FileStat) -> tuple[int, int, int, int]:
    return (stat.mtime_ns, stat.size, stat.inode, stat.device)


def _is_manifest(entry: DirEntry) -> bool:
    return not entry.name.startswith(".") and entry.kind is not FileKind.DIRECTORY


def _bytes_of(path: str) -> bytes | HostError:
    try:
        return read_bytes(path, MAX_BYTES)
    except HostError as error:
        return error
