"""What the agent relies on from an API server holds for the real one, as it holds for the fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support.api_contract import CONTRACT, ApiWorld, a_certificate_request_is_kept_and_answered
from support.cluster import Cluster, certificates_version
from support.pod_signer import PodSigner

from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.kubeconfig import load_access


@pytest.fixture
async def world(cluster: Cluster) -> AsyncIterator[ApiWorld]:
    client = ApiClient(load_access(str(cluster.plane.admin)), SystemClock())
    try:
        yield ApiWorld(client, cluster.namespace)
    finally:
        await client.close()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_a_real_server_keeps_the_contract(check: Callable[[ApiWorld], Awaitable[None]], world: ApiWorld) -> None:
    await check(world)


async def test_a_real_server_keeps_the_contract_of_certificate_requests(world: ApiWorld, cluster: Cluster) -> None:
    await a_certificate_request_is_kept_and_answered(world, certificates_version(cluster.plane), PodSigner())
