"""The API server of tests without sockets: it answers connections within the process (`virtual_time`)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter

from aiohttp import web
from support.api_server import FakeApiServer
from support.memory_transport import MemoryServer
from support.virtual_time import VirtualLoop, virtual_clock

from pykubelet.base.kit.clock import Clock
from pykubelet_local_api.objects import Json

PORT = 6443
KEPT_REQUESTS = 200


class MemoryApiServer(FakeApiServer):
    """`counted`: requests by method and plural, since the beginning; of `requests` only the newest are kept."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.port = PORT
        self.counted: Counter[str] = Counter()
        self._listening: MemoryServer | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        runner = await self._started_runner()
        assert runner.server is not None
        self._listening = await loop.serve_in_memory(runner.server, self.port)

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening.abort_clients()
            self._listening = None
        await super().stop()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        plural = next((part for part in reversed(request.path.split("/")) if part in _PLURALS), "other")
        self.counted[f"{request.method} {plural}"] += 1
        if len(self.requests) > 2 * KEPT_REQUESTS:
            del self.requests[:-KEPT_REQUESTS]
        return await super()._serve(request)

    def token_of(self, namespace: str, name: str, body: Json) -> Json:
        """The token contains the time when it was made, by the monotonic clock."""
        answer = super().token_of(namespace, name, body)
        text = json.dumps([namespace, name, body.get("spec"), self.clock.monotonic()])
        answer["status"]["token"] = base64.urlsafe_b64encode(text.encode()).decode()
        return answer

    def objects(self, plural: str) -> list[Json]:
        return self.store.of(plural)


def virtual_api_server() -> MemoryApiServer:
    """An API server that is not started, on the clock of the running event loop, which is virtual."""
    return MemoryApiServer(virtual_clock())


_PLURALS = frozenset(
    {"pods", "nodes", "leases", "events", "configmaps", "secrets", "services", "token", "csinodes"}
    | {"certificatesigningrequests", "runtimeclasses", "csidrivers", "podcertificaterequests"}
)
