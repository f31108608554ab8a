"""A watch of directories that wakes a loop. Owns: one inotify instance, which is made again after it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.cells import within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.inotify import Watcher

log = Log("plugins")
REWATCH = BackoffPolicy(initial_s=1.0, cap_s=20.0)


class DirectoryWatch:
    """Sets `wakeup` after each change in the directories that were added. `directory`: the topmost one, for the log."""

    def __init__(self, directory: str, clock: Clock) -> None:
        self.wakeup = asyncio.Event()
        self._directory = directory
        self._clock = clock
        self._watcher: Watcher | None = None
        self._problem = ""

    async def run(self) -> None:
        """Watch until cancelled."""
        pause: Backoff | None = None
        while True:
            try:
                with Watcher() as watcher:
                    self._watcher = watcher
                    self.wakeup.set()
                    async for _ in watcher:
                        self.wakeup.set()
            except (HostError, OSError) as error:
                self.report(f"plugins are not watched, only scanned periodically: {error}")
            finally:
                self._watcher = None
            now = self._clock.monotonic()
            pause = REWATCH.raised(pause, now, now)
            await asyncio.sleep(pause.delay_s)

    def add(self, directories: Iterable[str]) -> bool:
        """Watch these directories too. Returns whether there was one that was not watched before: then it must be read again."""
        has_new = False
        for directory in directories if self._watcher is not None else ():
            if self._watcher is None or self._watcher.is_watched(directory):
                continue
            try:
                self._watcher.add(directory)
                has_new = True
            except HostError as error:
                if not error.is_not_found:
                    self.report(str(error))
        return has_new

    async def follow(self, scan: Callable[[], Awaitable[Iterable[str] | None]], period_s: float) -> NoReturn:
        """Scan after each change, and once in `period_s` seconds. Never returns.

        `scan`: returns the directories that it has read, which are watched from then on; None if it has failed.
        """
        while True:
            self.wakeup.clear()
            found = await scan()
            if found is not None and self.add(found):
                continue  # files may have been created before the new watch
            await within(period_s, self.wakeup.wait())

    def report(self, problem: str) -> None:
        """Log a problem once, until another one or none ("") is reported."""
        if problem and problem != self._problem:
            log.warning("plugins' directory", path=self._directory, reason=problem)
        self._problem = problem
