"""What the agent relies on from an API server, on the fake. The same assertions run against a real one (tests/cluster).

`ApiWorld` has the address; each test makes what it needs in a namespace of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support.api_contract import CONTRACT, ApiWorld, a_certificate_request_is_kept_and_answered
from support.api_server import FakeApiServer
from support.pod_signer import PodSigner

from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.kubeapi.client import ApiClient


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


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_the_fake_keeps_the_contract_of_certificate_requests(version: str, world: ApiWorld) -> None:
    await a_certificate_request_is_kept_and_answered(world, version, PodSigner())
