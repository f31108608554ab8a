from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.api_server import FakeApiServer

from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits

NODES = "/api/v1/nodes"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[ApiClient]:
    client = ApiClient(server.access(), SystemClock())
    yield client
    await client.close()


@pytest.fixture
async def hasty(server: FakeApiServer) -> AsyncIterator[ApiClient]:
    """A client for a server that never answers."""
    client = ApiClient(server.access(), SystemClock(), ClientLimits(deadline_s=0.5))
    yield client
    await client.close()
