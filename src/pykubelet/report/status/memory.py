"""What was told of each pod, kept over restarts of the agent.

Owns: one state file with the newest statuses. After a restart they are told again until the runtime has been looked at,
and then are what new ones follow on from: a start time or the time of a transition does not change because the agent was
away, a container that vanished meanwhile is noticed, and what had ended stays ended. Losing the file loses no more than
that. It is written a moment after a change, whole and atomically, but not forced to the disk.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.host import checkpoint
from pykubelet.edges.host.checkpoint import Checkpoint
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.files import make_dirs, write_atomic

log = Log("status")
VERSION = 1
MODE = 0o600
PAUSE_S = 0.3
SAVE_DEADLINE_S = 10.0


class StatusMemory:
    """The state file at `path`, in an existing directory or one that can be made."""

    def __init__(self, path: str, flight: Flight, pause_s: float = PAUSE_S) -> None:
        self._path = path
        self._flight = flight
        self._pause_s = pause_s
        self._saved: Statuses | None = None
        self._problem = ""

    def load(self) -> dict[PodUID, PodStatus]:
        """What was told before; empty when there is nothing or nothing that can be used. Never raises."""
        payload = Checkpoint(self._path, VERSION, MODE).load()
        if payload is None:
            return {}
        try:
            return decode(dict[PodUID, PodStatus], payload)
        except DecodeError as error:
            log.warning("the statuses of before cannot be used", path=self._path, error=error)
            return {}

    async def follow(self, statuses: Cell[Statuses]) -> None:
        """Keep the file up with the cell. Never returns; what is left is written when it is cancelled."""
        self._saved = statuses.get()
        try:
            async for told in statuses.changes():
                if told is self._saved:
                    continue
                await asyncio.sleep(self._pause_s)
                await self._save(statuses.get())
        finally:
            if statuses.get() is not self._saved:
                self._note(self._write(statuses.get()))

    async def _save(self, told: Statuses) -> None:
        outcome = await self._flight.run(f"save:{self._path}", lambda: self._write(told), SAVE_DEADLINE_S)
        match outcome:
            case Done(problem):
                self._note(problem)
            case Failed(error):
                raise error
            case _:
                self._note("no answer in time")
        self._saved = told

    def _write(self, told: Statuses) -> str:
        """Blocks. What is wrong, or an empty string."""
        data = checkpoint.encode(encode(told.pods), VERSION)
        try:
            make_dirs(self._path.rpartition("/")[0])
            write_atomic(self._path, data, MODE)
        except HostError as error:
            return str(error)
        return ""

    def _note(self, problem: str) -> None:
        if problem and not self._problem:
            log.warning("statuses cannot be kept over a restart", path=self._path, error=problem)
        elif self._problem and not problem:
            log.info("statuses can be kept again", path=self._path)
        self._problem = problem
