"""Keeps over restarts of the agent which manifest has the name of each static pod.

Owns the file `<root>/static_pods`. A manifest that was edited while the agent was away has a new UID, so that only its place shows that it
is the one in use, and not a copy of it. Without the file, the first manifest of a name is taken. The file changes with every static pod, so
its writes do not wait for the disk: after a power cut it may be as it was some seconds before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.model.roster import NameHolder, Roster
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.edges.host.fs.kept_state import KeptState

log = Log("roster")
SAVE_DEADLINE_S = 10.0


class HolderMemory:
    """The file below `root`. Call `load` first, then `follow`."""

    def __init__(self, root: str, flight: SingleFlight) -> None:
        self._file = Checkpoint(f"{root}/static_pods", durable=False, keeps_copy=False)
        self._saved: Mapping[str, NameHolder] = {}
        self._kept = KeptState("the manifests of static pods", self._file.path, flight, log, SAVE_DEADLINE_S)

    def load(self) -> Mapping[str, NameHolder]:
        """The manifests of the last run. Never raises; an unreadable file is logged and ignored."""
        data = self._file.load()
        if data is not None:
            try:
                self._saved = decode(dict[str, NameHolder], data)
            except DecodeError as error:
                log.warning("the manifests of static pods cannot be read", error=error)
        return self._saved

    async def follow(self, roster: Cell[Roster]) -> None:
        """Update the file when the roster changes. Never returns."""
        wakeup = asyncio.Event()
        with set_on_change(wakeup, roster):
            while True:
                await self._kept.wait(wakeup)
                await self.keep(roster.get())

    async def keep(self, roster: Roster) -> None:
        """Write the manifests of the roster, unless the file has them or some sources have not reported yet."""
        holders = roster.holders
        if not roster.sources_ready or holders == self._saved:
            return
        payload = encode(dict(holders))
        if await self._kept.write(lambda: self._file.save(payload)):
            self._saved = holders
