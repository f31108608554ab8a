"""The fake API server without sockets: it answers connections within the process (`virtual_time`)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from typing import Any

from aiohttp import web
from support.memory_transport import MemoryServer
from support.virtual_time import VirtualLoop, virtual_clock

from pykubelet.base.kit.clock import Clock
from pykubelet.testing.kubeapi.fake import FakeApiServer
from pykubelet.testing.kubeapi.fake_patch import Json
from pykubelet.testing.kubeapi.fake_store import ResourcePath

PORT = 6443
KEPT_REQUESTS = 200
KEPT_CHANGES = 200


class MemoryApiServer(FakeApiServer):
    """`counted`: requests by method and plural, since the beginning; of `requests` and of the history only the newest are kept."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.port = PORT
        self.counted: Counter[str] = Counter()
        self._listening: MemoryServer | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._hanging.clear()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        assert self._runner.server is not None
        self._listening = await loop.serve_in_memory(self._runner.server, self.port)

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening.abort_clients()
            self._listening = None
        await super().stop()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        plural = next((part for part in reversed(request.path.split("/")) if part in _PLURALS), "other")
        self.counted[f"{request.method} {plural}"] += 1
        self._forget()
        return await super()._serve(request)

    def _forget(self) -> None:
        if len(self.requests) > 2 * KEPT_REQUESTS:
            del self.requests[:-KEPT_REQUESTS]
        history = self.store.history
        if len(history) > 2 * KEPT_CHANGES:
            del history[:-KEPT_CHANGES]
            self.store.oldest = history[0].version

    def _token_of(self, place: ResourcePath, body: Json) -> Json:
        """The token contains the time when it was made, by the monotonic clock."""
        answer = super()._token_of(place, body)
        text = json.dumps([place.namespace, place.name, body.get("spec"), self.clock.monotonic()])
        answer["status"]["token"] = base64.urlsafe_b64encode(text.encode()).decode()
        return answer

    def objects(self, plural: str) -> list[dict[str, Any]]:
        return [item for place, item in self.store.objects.items() if place.plural == plural]


def virtual_api_server() -> MemoryApiServer:
    """An API server that is not started, on the clock of the running event loop, which is virtual."""
    return MemoryApiServer(virtual_clock())


_PLURALS = frozenset(
    {"pods", "nodes", "leases", "events", "configmaps", "secrets", "services", "token", "csinodes"}
    | {"certificatesigningrequests", "runtimeclasses", "csidrivers", "podcertificaterequests"}
)
