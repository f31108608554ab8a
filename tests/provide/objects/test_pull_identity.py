"""The service account of a pod, as credential providers get it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.api_server import FakeApiServer

from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.plugins.credential_provider import ProviderError
from pykubelet.edges.plugins.pull_identity import PullIdentity

POD = PodRef("shop", "web", PodUID("u1"))
ACCOUNTS = "/api/v1/namespaces/shop/serviceaccounts"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(clock) as server:
        yield server


@pytest.fixture
async def identity(server: FakeApiServer, clock: ManualClock) -> AsyncIterator[PullIdentity]:
    client = ApiClient(server.access(), clock)
    yield PullIdentity(client, clock)
    await client.close()


async def test_the_account_is_read_and_its_token_kept_until_most_of_its_life_is_over(
    server: FakeApiServer, clock: ManualClock, identity: PullIdentity
) -> None:
    server.create(ACCOUNTS, {"metadata": {"name": "clerk", "annotations": {"role": "reader"}}})
    account = await identity.account("shop", "clerk")
    assert account.annotations == {"role": "reader"} and account.uid
    first = await identity.pull_token(POD, "clerk", account.uid, "registry")
    (asked,) = [sent for sent in server.requests if sent.method == "POST"]
    assert asked.body["spec"] == {
        "audiences": ["registry"],
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1"},
    }
    clock.advance(1800)
    assert await identity.pull_token(POD, "clerk", account.uid, "registry") == first
    other = await identity.pull_token(POD, "clerk", "another account of that name", "registry")
    assert other != first
    clock.advance(3000)
    assert await identity.pull_token(POD, "clerk", "another account of that name", "registry") != other


async def test_what_cannot_be_had_is_the_plugins_error(server: FakeApiServer, identity: PullIdentity) -> None:
    with pytest.raises(ProviderError, match='failed to get service account shop/clerk: serviceaccounts "clerk" not'):
        await identity.account("shop", "clerk")
    await server.stop()
    with pytest.raises(ProviderError, match="failed to get service account token for shop/clerk: "):
        await identity.pull_token(POD, "clerk", "", "registry")
