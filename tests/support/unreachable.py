"""An API server that cannot be reached, without a socket, so that days of it pass in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess


class UnreachableClient(ApiClient):
    """Every request fails after `takes_s` without an answer. `tries`: when they were made, in the loop's time."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__(ClusterAccess("https://unreachable.invalid"), SystemClock())
        self._takes_s = takes_s
        self.tries: list[float] = []

    @property
    def pauses(self) -> list[float]:
        """Seconds between two tries."""
        return [after - before for before, after in zip(self.tries, self.tries[1:], strict=False)]

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> bytes:
        self.tries.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._takes_s)
        raise ApiError(0, "", "connection refused")
