"""What the agent relies on from an API server, on the fake. The same assertions run against a real one (tests/cluster).

`ApiWorld` has the address; each test makes what it needs in a namespace of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support.api_contract import CONTRACT, ApiWorld

from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.testing.kubeapi.fake import FakeApiServer


@pytest.fixture
async def world() -> AsyncIterator[ApiWorld]:
    async with FakeApiServer() as server:
        client = ApiClient(server.access(), SystemClock())
        try:
            yield ApiWorld(client, "default")
        finally:
            await client.close()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_the_fake_keeps_the_contract(check: Callable[[ApiWorld], Awaitable[None]], world: ApiWorld) -> None:
    await check(world)
