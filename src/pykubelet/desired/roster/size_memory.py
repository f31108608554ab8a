"""Keeps the allocated sizes of pods over restarts of the agent.

Owns: the file `<root>/pod_sizes`. The spec of a pod may request another size than is allocated; after a restart the agent
must know the allocated one. Pods without resources cannot be resized and are not in the file. Without the file, every pod
is assumed to have the size of its spec.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.desired.roster.kept_size import KeptSize, with_kept_sizes
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.edges.host.fs.errors import HostError

log = Log("roster")
SAVE_DEADLINE_S = 10.0


class SizeMemory:
    """The file with the allocated sizes, at `path`. Call `load` first, then `follow`."""

    def __init__(self, path: str, flight: SingleFlight) -> None:
        self._file = Checkpoint(path)
        self._flight = flight
        self._saved: dict[PodUID, KeptSize] = {}
        self._problem = ""

    def load(self) -> Mapping[PodUID, KeptSize]:
        """Read the sizes of the last run. Never raises; an unreadable file is logged and ignored."""
        data = self._file.load()
        if data is None:
            return {}
        try:
            self._saved = decode(dict[PodUID, KeptSize], data)
        except DecodeError as error:
            log.warning("the sizes of pods cannot be read", error=error)
        return self._saved

    async def follow(self, roster: Cell[Roster]) -> None:
        """Update the file when the roster changes. Never returns."""
        seen: Mapping[PodUID, RosterPod] = {}
        sizes: dict[PodUID, KeptSize] = {}
        async for now in roster.changes():
            if now.sources_ready:
                sizes, seen = with_kept_sizes(sizes, seen, now.pods), now.pods
                await self._save(sizes)

    async def _save(self, sizes: dict[PodUID, KeptSize]) -> None:
        if sizes == self._saved:
            return
        payload = encode(sizes)
        outcome = await self._flight.run("save:pod-sizes", lambda: self._file.save(payload), SAVE_DEADLINE_S)
        match outcome:
            case Done():
                self._saved = sizes
                self._note("")
            case Failed(HostError() as error):
                self._note(str(error))
            case Failed(error):
                raise error
            case _:
                self._note("no answer in time")

    def _note(self, problem: str) -> None:
        if problem and not self._problem:
            log.warning("the sizes of pods cannot be kept over a restart", error=problem)
        elif self._problem and not problem:
            log.info("the sizes of pods can be kept again")
        self._problem = problem
