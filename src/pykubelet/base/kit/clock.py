"""The clocks. No other module reads them; decisions take the time as an argument.

Owns: the pair of clocks that every component is given. Decisions take `now` (seconds on the monotonic clock, a float) and,
where Kubernetes needs a date, a wall time (seconds since the epoch, a float).
"""

from __future__ import annotations

import time
from typing import Protocol

from pykubelet.base.kit.values import Value


class Moment(Value):
    """The time of a decision: `mono`, monotonic seconds, for the decision itself; `wall`, wall seconds, for texts."""

    mono: float
    wall: float


class Clock(Protocol):
    """A monotonic and a wall clock: those of the system, or virtual time in tests."""

    def monotonic(self) -> float:
        """Seconds that only go forward; deadlines, back-off and probes are measured on it."""
        ...

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC; only for what people and the API read."""
        ...


def moment_of(clock: Clock) -> Moment:
    """The moment now."""
    return Moment(clock.monotonic(), clock.wall())


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()


class ManualClock:
    """A clock that tests set; monotonic and wall time move together unless `jump_wall` is used."""

    def __init__(self, start: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._now = start
        self._wall = wall

    def monotonic(self) -> float:
        """The monotonic seconds that the test has set."""
        return self._now

    def wall(self) -> float:
        """The seconds since the epoch that the test has set."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._now += seconds
        self._wall += seconds

    def jump_wall(self, seconds: float) -> None:
        """Move the wall clock alone, as an administrator or NTP would."""
        self._wall += seconds
