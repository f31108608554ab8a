"""Blocking work on the host in threads, with a deadline: a file system may hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.net.grpc.status import Code, RpcError

T = TypeVar("T")
WORK_S = 60.0


class HostWork:
    """Runs blocking calls. Those of one key run one after the other."""

    def __init__(self) -> None:
        self._flight = SingleFlight("host")

    async def run(self, key: str, work: Callable[[], T]) -> T:
        """The outcome of a call. Raises its HostError, or RpcError if it does not return in time."""
        match await self._flight.run_next(key, work, WORK_S):
            case Done(value=value):
                return value
            case Failed(error=error):
                raise error
        raise RpcError(Code.DEADLINE_EXCEEDED, f"{key}: the host's file system does not answer")
