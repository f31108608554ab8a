"""Writes of state that is kept over a restart: in a thread, with a deadline, and with log lines when they fail and work again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pykubelet.base.kit.cells import within
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError

#: Seconds until a failed write is repeated, if nothing changes before.
RETRY_S = 30.0


class KeptState:
    """The writes to the files at `path`. `what`: the plural by which the log names their content, such as "the sizes of pods"."""

    def __init__(self, what: str, path: str, flight: SingleFlight, log: Log, deadline_s: float) -> None:
        self._what = what
        self._path = path
        self._flight = flight
        self._log = log
        self._deadline_s = deadline_s
        self._problem = ""

    @property
    def is_failing(self) -> bool:
        """True if the last write failed or had no answer in time."""
        return bool(self._problem)

    async def write(self, work: Callable[[], None]) -> bool:
        """True if `work`, which may raise HostError, is done within the deadline. Other errors are raised."""
        match await self._flight.run(f"save:{self._path}", work, self._deadline_s):
            case Done():
                self._note("")
            case Failed(HostError() as error):
                self._note(str(error))
            case Failed(error):
                raise error
            case _:
                self._note("no answer in time")
        return not self._problem

    async def wait(self, wakeup: asyncio.Event, at_most_s: float | None = None) -> None:
        """Wait for `wakeup` and clear it; for `at_most_s` at most, and after a failed write for RETRY_S."""
        await within(RETRY_S if self._problem else at_most_s, wakeup.wait())
        wakeup.clear()

    def _note(self, problem: str) -> None:
        if problem and not self._problem:
            self._log.warning(f"{self._what} cannot be kept over a restart", path=self._path, error=problem)
        elif self._problem and not problem:
            self._log.info(f"{self._what} can be kept again", path=self._path)
        self._problem = problem
