"""Records in a file when the last graceful shutdown began and ended, so that its metrics survive the reboot.

Owns: `graceful_node_shutdown_state` in the root directory, in the reference kubelet's format. It is only written with the
gate GracefulNodeShutdownBasedOnPodPriority.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.times import format_time, parse_time
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Gauge
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.checkpoint import set_aside
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_text, write_atomic

START_TIME = Gauge(
    "kubelet_graceful_shutdown_start_time_seconds", "Last graceful shutdown start time since unix epoch in seconds"
)
END_TIME = Gauge(
    "kubelet_graceful_shutdown_end_time_seconds", "Last graceful shutdown end time since unix epoch in seconds"
)


log = Log("shutdown")
T = TypeVar("T")
#: So long a shutdown waits for the disk: seconds.
DISK_DEADLINE_S = 2.0
NAME = "graceful_node_shutdown_state"
#: An unknown time in the reference kubelet's format.
NO_TIME = "0001-01-01T00:00:00Z"


class _State(Value):
    startTime: str = NO_TIME
    endTime: str = NO_TIME


class ShutdownRecord:
    """The record. `path`: the file; empty: nothing is stored. Failures are only logged, so that no shutdown waits long for a disk."""

    def __init__(self, path: str, flight: SingleFlight) -> None:
        self._path = path
        self._flight = flight
        self._state = _State()

    async def load(self) -> None:
        """Read the last shutdown and set the metrics; 0 if there was none."""
        if self._path:
            try:
                self._state = decode(_State, await self._on_disk(lambda: read_text(self._path)))
            except HostError as error:
                if not error.is_not_found:
                    log.warning("cannot read the record of the last shutdown", error=error)
            except DecodeError as error:
                reason = str(error)
                await self._on_disk(lambda: set_aside(self._path, reason))
        START_TIME.set(_seconds(self._state.startTime))
        END_TIME.set(_seconds(self._state.endTime))

    async def began(self, wall: float) -> None:
        """Record that a shutdown has begun."""
        self._state = _State(format_time(wall))
        START_TIME.set(wall)
        END_TIME.set(0.0)
        await self._write()

    async def ended(self, wall: float) -> None:
        """Record the end of a shutdown: all pods have ended, or their grace periods have passed."""
        self._state = _State(self._state.startTime, format_time(wall))
        END_TIME.set(wall)
        await self._write()

    async def _write(self) -> None:
        if not self._path:
            return
        data = encode(self._state)
        try:
            await self._on_disk(lambda: write_atomic(self._path, data, durable=True))
        except HostError as error:
            log.warning("cannot record the shutdown", error=error)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        """Do file work in a thread. Raises its errors; HostError if it does not end in time."""
        outcome = await self._flight.run_next("shutdown:record", work, DISK_DEADLINE_S)
        match outcome:
            case Done(value=value):
                return value
            case Failed(error=error):
                raise error
        raise HostError("write", self._path, "ETIMEDOUT", "the file system does not answer")


def _seconds(text: str) -> float:
    if text == NO_TIME:
        return 0.0
    try:
        return max(0.0, parse_time(text))
    except ValueError:
        return 0.0
