"""Records in a file when the last graceful shutdown began and ended, so that its metrics survive the reboot.

Owns: `graceful_node_shutdown_state` in the root directory, in the reference kubelet's format. It is only written with the
gate GracefulNodeShutdownBasedOnPodPriority.
"""

from __future__ import annotations

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.api.times import format_time, parse_time
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.checkpoint import set_aside
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_text, write_atomic
from pykubelet.observe.shutdown.metrics import END_TIME, START_TIME

log = Log("shutdown")
NAME = "graceful_node_shutdown_state"
#: An unknown time in the reference kubelet's format.
NO_TIME = "0001-01-01T00:00:00Z"


class _State(Value):
    startTime: str = NO_TIME
    endTime: str = NO_TIME


class ShutdownRecord:
    """The record. `path`: the file; empty: nothing is stored. Failures are only logged, so that no shutdown waits for a disk."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._state = _State()

    def load(self) -> None:
        """Read the last shutdown and set the metrics; 0 if there was none."""
        if self._path:
            try:
                self._state = decode(_State, read_text(self._path))
            except HostError as error:
                if not error.is_not_found:
                    log.warning("cannot read the record of the last shutdown", error=error)
            except DecodeError as error:
                set_aside(self._path, str(error))
        START_TIME.set(_seconds(self._state.startTime))
        END_TIME.set(_seconds(self._state.endTime))

    def began(self, wall: float) -> None:
        """Record that a shutdown has begun."""
        self._state = _State(format_time(wall))
        START_TIME.set(wall)
        END_TIME.set(0.0)
        self._write()

    def ended(self, wall: float) -> None:
        """Record the end of a shutdown: all pods have ended, or their grace periods have passed."""
        self._state = _State(self._state.startTime, format_time(wall))
        END_TIME.set(wall)
        self._write()

    def _write(self) -> None:
        if not self._path:
            return
        try:
            write_atomic(self._path, encode(self._state), durable=True)
        except HostError as error:
            log.warning("cannot record the shutdown", error=error)


def _seconds(text: str) -> float:
    if text == NO_TIME:
        return 0.0
    try:
        return max(0.0, parse_time(text))
    except ValueError:
        return 0.0
