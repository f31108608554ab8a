"""The claim manager with a driver that is a process of its own and serves with grpcio on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from provide.claims.samples import GPU, claiming_pod
from provide.claims.stand import DEVICE, Stand
from support.api_server import FakeApiServer
from support.drivers import dra_driver

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.model.claims import ClaimDeviceHealth
from pykubelet.base.model.lifecycle import Stage

QUICK = BackoffPolicy(initial_s=0.05, cap_s=0.2)


@pytest.fixture
async def stand(folder: Path) -> AsyncIterator[Stand]:
    async with FakeApiServer() as server:
        yield Stand(folder, server)


@pytest.mark.parametrize(
    "versions", ["v1.DRAPlugin,v1.DRAResourceHealth", "v1beta1.DRAPlugin,v1alpha1.DRAResourceHealth"]
)
async def test_a_process_prepares_and_unprepares_claims_on_one_connection(stand: Stand, versions: str) -> None:
    stand.create("one")
    stand.create("two", "b")
    web, b = claiming_pod(), claiming_pod("b", {"name": "gpu", "resourceClaimName": "two"})
    async with dra_driver(stand.root, versions=versions, health=True) as driver, stand.running():
        await driver.behave([DEVICE], health_of=[{"device": "dev-0", "health": "Unhealthy", "message": "hot"}])
        stand.want(web, b)
        (claim,) = (await stand.ready()).containers["main"]
        assert claim.cdi == (f"{GPU}/gpu=one",)
        await stand.ready("b")
        health = {(GPU, "pool", "dev-0"): ClaimDeviceHealth("Unhealthy", "hot")}
        await stand.claims.wait_for(lambda now: now.health == health)
        stand.life(web, Stage.TERMINATED)
        stand.life(b, Stage.TERMINATED)
        await stand.gone()
        await stand.gone("b")
        assert sorted(driver.claims("NodeUnprepareResources")) == ["one", "two"]
        assert len({call["peer"] for call in driver.calls() if "peer" in call}) == 1


async def test_a_process_that_crashes_is_called_again_when_it_is_back(stand: Stand) -> None:
    stand.create()
    async with stand.running(retry=QUICK):
        async with dra_driver(stand.root) as driver:
            await driver.behave(prepare="crash")
            stand.want(claiming_pod())
            await driver.wait_calls("NodePrepareResources", 1)
        async with dra_driver(stand.root) as again:
            await again.behave([DEVICE])
            assert (await stand.ready()).containers["main"][0].cdi == (f"{GPU}/gpu=one",)
