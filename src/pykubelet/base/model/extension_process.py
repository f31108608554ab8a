"""The state of a process extension as snapshots, and the names of what it may offer.

`docs/extensions/protocol.md` has the protocol. Written by edges/plugins alone. Imported only if such an extension is loaded.
"""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.kit.values import Value
from pykubelet.base.model.extensions import PROVIDES_VOLUMES

#: The version of the protocol, `MAJOR.MINOR`. A process with the same major version can be used.
PROTOCOL_VERSION = "1.0"


class Point(StrEnum):
    """What a process may offer."""

    SOURCE = "source"
    NEED = "need"
    OBSERVER = "observer"
    PROBE = "probe"
    VOLUME = PROVIDES_VOLUMES


class ProcessPhase(StrEnum):
    """starting: it has not answered `hello` yet; running: it has; away: it has ended, and is started again later."""

    STARTING = "starting"
    RUNNING = "running"
    AWAY = "away"


class ExtensionProcessState(Value):
    """One process extension. `run`: how often it was started. `version`: of the protocol, as it has answered.

    `offers`, `annotation`: of the last answer to `hello`; with `annotation`, only pods with it are prepared. `known`: there was such an
    answer, to this agent or an earlier one. `missed`: this agent got none, and the first is overdue, so that it works without the process.
    `error`: why it is away. `restart_at`: wall seconds.
    """

    name: str
    phase: ProcessPhase = ProcessPhase.STARTING
    run: int = 0
    version: str = ""
    offers: frozenset[Point] = frozenset()
    annotation: str = ""
    known: bool = False
    missed: bool = False
    error: str = ""
    restart_at: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it takes calls."""
        return self.phase is ProcessPhase.RUNNING

    def offered(self, point: Point) -> bool:
        """Whether it offers a point, or did when it was last there."""
        return point in self.offers


class PodSet(Value):
    """The newest set of pods of a source: a JSON list. `number` grows with every set; 0: there is none yet."""

    number: int = 0
    data: bytes = b""
