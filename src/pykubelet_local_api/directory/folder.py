"""The folder on disk: its files, and when they change. Blocking work is done in threads.

Only regular files with the endings below count; hidden ones and folders do not.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.readiness import Overdue
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.inotify import Watcher
from pykubelet_local_api.directory.manifests import FolderContent, read_manifests

ENDINGS = (".json", ".yaml", ".yml")
#: The most files, and the most bytes of one and of all.
MAX_FILES, MAX_FILE_BYTES, MAX_BYTES = 1000, 4 << 20, 32 << 20
#: Seconds for reading all files.
READ_S = 60.0
#: After a change, the folder is read when nothing has changed for this many seconds.
QUIET_S = 0.2
#: Seconds between two looks at a folder that is not there.
MISSING_S = 5.0
_KEY = "directory"


class FolderError(Exception):
    """The folder cannot be read. The text is the reason."""


class Folder:
    """The folder at `path`. `close` it at the end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._flight = SingleFlight("directory", workers=1)
        self._watcher = Watcher()

    async def read(self) -> FolderContent:
        """Read all files; from now on, `wait_changed` sees changes. Raises FolderError, also if there is no such folder."""
        try:
            watch, found = value_of(await self._flight.run(_KEY, self._read, READ_S), _late)
        except HostError as error:
            raise FolderError(str(error)) from error
        self._watcher.note(self.path, watch)
        return found

    async def wait_changed(self, limit_s: float) -> None:
        """Wait until the folder has changed and was quiet for a moment, for `limit_s` seconds at most."""
        now = asyncio.get_running_loop().time
        if not self._watcher.is_watched(self.path):
            await asyncio.sleep(min(MISSING_S, limit_s))
            return
        try:
            await self._watcher.get_all(now() + limit_s)
            for _ in range(int(MISSING_S / QUIET_S)):
                await self._watcher.get_all(now() + QUIET_S)
        except Overdue:
            return

    def close(self) -> None:
        """End the watch."""
        self._watcher.close()

    def _read(self) -> tuple[int, FolderContent]:
        watch = self._watcher.begin(self.path)
        names = sorted(
            name for name in files.names_in(self.path) if name.endswith(ENDINGS) and not name.startswith(".")
        )
        if len(names) > MAX_FILES:
            raise FolderError(f"{self.path} has more than {MAX_FILES} files")
        contents: dict[str, bytes] = {}
        problems: list[str] = []
        left = MAX_BYTES
        for name in names:
            if not name.isprintable():
                problems.append(f"{name!r}: not the name of a file that is applied: use printable characters")
                continue
            try:
                contents[name] = data = files.read_bytes(f"{self.path}/{name}", min(MAX_FILE_BYTES, left))
                left -= len(data)
            except HostError as error:
                problems.append(f"{name}: {error}")
        found = read_manifests(contents)
        return watch, found if not problems else FolderContent(found.manifests, (*problems, *found.problems))


def _late(since: float) -> Exception:
    del since
    return FolderError("the file system does not answer")
