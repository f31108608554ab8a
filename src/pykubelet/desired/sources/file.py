"""The file source: watches a directory of manifests, or one manifest.

Owns: when to scan. File events are only hints: each leads to a scan of the whole path (`manifests.py`). A periodic scan is
the safety net. A missing path is an empty set; its nearest existing parent is watched until it is back. A lost watch is
begun again. Watches are opened in a thread, as files are read. Posts `SourceChanged` with the whole set after each change,
and once at the beginning.

In a directory, invalid files are left out and reported. If the path is a single invalid file, it is reported and the set
is kept as it was. If that file was never valid, the set is not known yet, and no running pod is killed because of it.
"""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Callable

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.readiness import Overdue
from pykubelet.base.model.content import ManifestObject
from pykubelet.base.model.labels import SOURCE_FILE
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem, SourceChanged
from pykubelet.desired.sources.decode import ManifestRules
from pykubelet.desired.sources.manifests import SETTLE_S, Manifests, ManifestScan, NoAnswerError
from pykubelet.desired.sources.reading import FirstSeen, log_new
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import stat_file
from pykubelet.edges.host.fs.inotify import DIRECTORY_CHANGES, EventKind, FileEvent, Watcher

log = Log("sources")

PARENT_CHANGES = DIRECTORY_CHANGES & ~EventKind.ATTRIB
WRITTEN = EventKind.CLOSE_WRITE | EventKind.MOVED_TO
REMOVED = EventKind.DELETE | EventKind.MOVED_FROM
#: The back-off before a watch is begun again that was lost or could not be opened.
RESTART = BackoffPolicy(initial_s=1.0, cap_s=20.0)


class FileSource:
    """Watches `path` and posts its set of pods to `out`. `period_s`: seconds between full scans (fileCheckFrequency)."""

    def __init__(
        self,
        path: str,
        rules: ManifestRules,
        period_s: float,
        out: Post[SourceChanged],
        clock: Clock,
        flight: SingleFlight,
        make_watcher: Callable[[], Watcher] = Watcher,
    ) -> None:
        self._path = os.path.abspath(path)
        self._period_s = period_s
        self._make_watcher = make_watcher
        self._out = out
        self._clock = clock
        self._manifests = Manifests(self._path, rules, flight, clock)
        self._seen = FirstSeen()
        self._pods: tuple[Pod, ...] = ()
        self._problems: tuple[ManifestProblem, ...] = ()
        self._remarks: tuple[Remark, ...] = ()
        self._origins: tuple[str, ...] = ()
        self._objects: tuple[ManifestObject, ...] = ()
        self._known = False
        self._watcher: Watcher | None = None
        self._watched: set[str] = set()
        self._unwatchable = ""
        self._restart: Backoff | None = None
        self._restart_at = 0.0

    async def run(self) -> None:
        """Scan and watch until cancelled."""
        try:
            await self._begin_watch()
            await self._follow()
        finally:
            self._end_watch()

    async def _begin_watch(self) -> bool:
        """Begin to watch. Returns False if there can be no watch now."""
        try:
            self._watcher = self._make_watcher()
        except HostError as error:
            self._unwatched(error)
            return False
        await self._watch(self._watcher)
        return True

    def _end_watch(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        self._watcher, self._watched = None, set()

    def _unwatched(self, error: Exception) -> None:
        """Note that the watch was lost or could not be begun. Another one is begun after a back-off."""
        self._log_unwatched(self._path, error)
        self._end_watch()
        now = asyncio.get_running_loop().time()
        self._restart = RESTART.raised(self._restart, now, now)
        self._restart_at = now + self._restart.delay_s

    def _log_unwatched(self, path: str, error: Exception) -> None:
        if self._unwatchable != str(error):
            self._unwatchable = str(error)
            log.warning("manifests are not watched, only scanned periodically", path=path, error=str(error))

    async def _follow(self) -> None:
        closed: set[str] = set()
        touched: set[str] | None = None
        settle = False
        while True:
            unsettled = self._publish(await self._manifests.scan(closed, settle, touched))
            settle = True
            received = await self._changes(SETTLE_S if unsettled else self._period_s)
            closed, touched = self._names_closed(received), self._names_touched(received)
            renames = self._renames(received)
            self._manifests.note_removed(self._names_removed(received) - renames.keys())
            self._manifests.note_renamed(renames)
            if self._watcher is not None and touched is None:
                await self._watch(self._watcher)

    async def _changes(self, seconds: float) -> list[FileEvent]:
        """Wait for events that may concern the path. Returns an empty list after so many seconds, or when the watch was lost or begun
        again: everything is to be scanned then."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        while self._watcher is not None:
            try:
                events = _concerning(await self._watcher.get_all(due), self._path)
            except Overdue:
                return []
            except OSError as error:
                self._unwatched(error)
                return []
            if events:
                return events
        await asyncio.sleep(min(due, self._restart_at) - loop.time())
        if self._restart_at <= due and await self._begin_watch():
            self._unwatchable = ""
            log.info("manifests are watched again", path=self._path)
        return []

    def _names_closed(self, events: list[FileEvent]) -> set[str]:
        """The names of files that their writers have closed or moved into place."""
        return {event.name for event in events if event.kinds & WRITTEN}

    def _names_removed(self, events: list[FileEvent]) -> set[str]:
        return {e.name for e in events if e.path == self._path and e.kinds & REMOVED}

    def _renames(self, events: list[FileEvent]) -> dict[str, str]:
        """The new names of manifests that were renamed within their directory."""
        moves = [event for event in events if event.cookie]
        targets = {(move.path, move.cookie): move.name for move in moves if EventKind.MOVED_TO in move.kinds}
        return {
            move.name: targets[move.path, move.cookie]
            for move in moves
            if EventKind.MOVED_FROM in move.kinds and (move.path, move.cookie) in targets
        }

    def _names_touched(self, events: list[FileEvent]) -> set[str] | None:
        """The names of the directory's entries with events; None if other things may have changed too, or without events."""
        if not events or any(event.path != self._path or not event.name for event in events):
            return None
        return {event.name for event in events}

    def _publish(self, scan: ManifestScan) -> bool:
        """Post the set if it has changed. Returns whether to scan again soon."""
        pods = self._pods if scan.keep else self._seen_pods(scan)
        origins = self._origins if scan.keep else scan.origins
        objects = self._objects if scan.keep else scan.objects
        log_new((*scan.problems, *scan.remarks), {*self._problems, *self._remarks})
        now = (pods, scan.problems, origins, objects, scan.remarks)
        changed = now != (self._pods, self._problems, self._origins, self._objects, self._remarks)
        self._pods, self._problems, self._origins, self._objects, self._remarks = now
        if changed or not (self._known or scan.keep):
            self._known = self._known or not scan.keep
            self._out.post(SourceChanged(SOURCE_FILE, pods, scan.problems, origins, self._known, objects, scan.remarks))
        return scan.unsettled

    def _seen_pods(self, scan: ManifestScan) -> tuple[Pod, ...]:
        """The pods of a scan. Those whose file was away in between get a new first-seen time."""
        again = {
            pod.metadata.uid for pod, origin in zip(scan.pods, scan.origins, strict=True) if origin in scan.returned
        }
        self._seen.forget(again)
        return self._seen.mark(scan.pods, self._clock.wall())

    async def _watch(self, watcher: Watcher) -> None:
        """Watch the path itself, and the nearest existing directory above it; end other watches.

        The watch of the parent shows when the path is replaced. A single file is only watched through its parent.
        """
        try:
            found = await self._manifests.on_disk(lambda: _open_watches(watcher, self._path))
        except NoAnswerError as error:
            self._log_unwatched(self._path, error)
            return
        for path, watch in found.items():
            if isinstance(watch, int):
                watcher.note(path, watch)
            elif not watch.is_not_found:
                self._log_unwatched(path, watch)
        for path in self._watched - found.keys():
            watcher.remove(path)
        self._watched = set(found)


def _open_watches(watcher: Watcher, path: str) -> dict[str, int | HostError]:
    """The watches of a path and of its nearest existing directory, or why there is none. In a thread."""
    own = (path,) if _is_dir(path) else ()
    parent = os.path.dirname(path)
    while parent != "/" and not _is_dir(parent):
        parent = os.path.dirname(parent)
    return {watched: _open_watch(watcher, watched, watched == path) for watched in (*own, parent)}


def _open_watch(watcher: Watcher, path: str, is_whole: bool) -> int | HostError:
    try:
        return watcher.begin(path, DIRECTORY_CHANGES if is_whole else PARENT_CHANGES)
    except HostError as error:
        return error


def _is_dir(path: str) -> bool:
    try:
        stat = stat_file(path)
    except HostError:
        return False
    return stat is not None and stat.is_dir


def _concerns(event: FileEvent, path: str) -> bool:
    """Whether an event may change the content of `path`; other events in the directories above it do not."""
    if event.path in ("", path) or not event.name:
        return True
    return f"{path}/".startswith(f"{event.path.rstrip('/')}/{event.name}/")


def _concerning(events: list[FileEvent], path: str) -> list[FileEvent]:
    """The events that may change the content of `path`, and the new names of what was renamed in it."""
    found: list[FileEvent] = []
    renamed = 0
    for event in events:
        if _concerns(event, path):
            renamed = event.cookie
            found.append(event)
        elif event.cookie and event.cookie == renamed:
            found.append(event)
    return found
