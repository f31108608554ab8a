"""The sizes that pods were given, kept over restarts of the agent.

Owns: the file `<root>/pod_sizes`. A pod of the API server may ask for another size than it has; after a restart the
agent must know which one it runs with. Pods that state no resources cannot be resized and are not in the file. Losing it
loses no more than this: every pod is taken to have the size that its spec asks for.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.desired.roster.kept_size import KeptSize, with_kept_sizes
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.edges.host.fs.errors import HostError

log = Log("roster")
SAVE_DEADLINE_S = 10.0


class SizeMemory:
    """The file at `path`. `load` first, then `follow`."""

    def __init__(self, path: str, flight: Flight) -> None:
        self._file = Checkpoint(path)
        self._flight = flight
        self._saved: dict[PodUID, KeptSize] = {}
        self._problem = ""

    def load(self) -> Mapping[PodUID, KeptSize]:
        """Never raises: a file that cannot be used is set aside."""
        data = self._file.load()
        if data is None:
            return {}
        try:
            self._saved = decode(dict[PodUID, KeptSize], data)
        except DecodeError as error:
            log.warning("the sizes of pods cannot be read", error=error)
        return self._saved

    async def follow(self, roster: Cell[Roster]) -> None:
        """Keep the file up with the roster. Never returns."""
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
