"""What the agent relies on from an API server holds for the local API, as it holds for the real one (tests/cluster)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from local_api.server import account_made, serving
from support.api_contract import CONTRACT, ApiWorld

from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.kubeconfig import load_access


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with serving(tmp_path) as api:
        client = ApiClient(load_access(api.kubeconfig), SystemClock())
        try:
            await account_made(api)
            yield ApiWorld(client, "default")
        finally:
            await client.close()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_the_local_api_keeps_the_contract(check: Callable[[ApiWorld], Awaitable[None]], world: ApiWorld) -> None:
    await check(world)
