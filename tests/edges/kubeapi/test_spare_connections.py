"""After a burst of requests, connections that are not needed are closed, at both ends."""

from __future__ import annotations

import asyncio

import pytest
from support.memory_api import virtual_api_server
from support.virtual_time import virtual_clock

from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.connection import KEPT_IDLE, SPARE_S

pytestmark = pytest.mark.virtual_time


async def test_the_connections_of_a_burst_are_closed_after_it() -> None:
    server = virtual_api_server()
    await server.start()
    client = ApiClient(server.access(), virtual_clock())
    try:
        await asyncio.gather(*(client.request("GET", "/api/v1/nodes") for _ in range(20)))
        connection = client._connection
        assert connection is not None
        burst = list(connection._idle)
        assert len(burst) > KEPT_IDLE
        await asyncio.sleep(2.5 * SPARE_S)
        assert len(connection._idle) == KEPT_IDLE
        assert sum(not idle.closed for idle in burst) == KEPT_IDLE
        await client.request("GET", "/api/v1/nodes")  # one of them is used again
        assert len(connection._idle) == KEPT_IDLE
    finally:
        await client.close()
        await server.stop()
