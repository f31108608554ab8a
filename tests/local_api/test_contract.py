"""What the agent relies on from an API server holds for the local API, as it holds for the real one (tests/cluster)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from local_api.server import serving
from support.api_contract import CONTRACT, ApiWorld

from pykubelet.base.api.core import ConfigMap
from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import load_access


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with serving(tmp_path) as api:
        client = ApiClient(load_access(api.kubeconfig), SystemClock())
        try:
            await account_of(client)
            yield ApiWorld(client, "default")
        finally:
            await client.close()


async def account_of(client: ApiClient) -> None:
    """Wait for the service account of pods, which is made after the start."""
    async with asyncio.timeout(20):
        while True:
            try:
                await client.get("/api/v1/namespaces/default/serviceaccounts/default", ConfigMap)
                return
            except ApiError as error:
                assert error.is_not_found
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_the_local_api_keeps_the_contract(check: Callable[[ApiWorld], Awaitable[None]], world: ApiWorld) -> None:
    await check(world)
