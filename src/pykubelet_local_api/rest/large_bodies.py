"""Reads large bodies in threads, so that other requests go on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeVar

from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet_local_api.errors import unavailable
from pykubelet_local_api.store.sizes import LARGE_BYTES

T = TypeVar("T")
#: Seconds for a body of the largest size.
LIMIT_S = 60.0


class LargeBodies:
    """Two threads for bodies that take long to read."""

    def __init__(self) -> None:
        self._flight = SingleFlight("bodies", workers=2)
        self._numbers = count()

    async def run(self, body: bytes, read: Callable[[], T], *, is_large: bool = False) -> T:
        """What `read` returns; it runs in a thread if the body is large, or what it is about. Raises its error, or StatusError 503."""
        if len(body) <= LARGE_BYTES and not is_large:
            return read()
        return value_of(await self._flight.run(str(next(self._numbers)), read, LIMIT_S), _late)


def _late(_: float) -> Exception:
    return unavailable("the body was not read in time")
