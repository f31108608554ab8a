"""Runs work on the files of CNI in threads, so that a slow disk does not hold up the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.network.model import CniError

#: Of one piece of work: seconds.
DISK_S = 20.0
_WORKERS = 2
T = TypeVar("T")


class CniDisk:
    """The threads. `run` raises CniError if the disk refuses the work, or does not answer."""

    def __init__(self) -> None:
        self._flight = SingleFlight("cni", workers=_WORKERS)
        self._runs = 0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`."""
        self._runs += 1  # pieces of work do not wait for each other
        try:
            return value_of(
                await self._flight.run(str(self._runs), work, DISK_S),
                lambda _: CniError(f"the disk with the files of CNI does not answer within {DISK_S:g} s"),
            )
        except HostError as error:
            raise CniError(str(error)) from error
