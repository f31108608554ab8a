"""A node whose wall clock is an hour off the API server's: tokens, lease and certificates.

Only the agent sees this clock; the API server, the runtime and the containers have the machine's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.agent import NODE_NAME, Agent, Json, make_container, make_pod
from support.api_server import FakeApiServer
from support.secured import Secured
from support.wall_clock import WallClock
from support.world import World, kubeconfig

from pykubelet.base.api.times import parse_time
from pykubelet.edges.kubeapi.errors import ApiError

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
HOUR_S = 3600
DAY_S = 24 * HOUR_S
SOON: dict[str, object] = {"nodeStatusUpdateFrequency": "2s", "nodeLeaseDurationSeconds": 4}
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}"
TOKEN = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}


def renewed(server: FakeApiServer) -> float:
    """The lease's time of renewal, in seconds since the epoch; 0 before there is one."""
    try:
        return parse_time(server.get(LEASE)["spec"]["renewTime"])
    except ApiError:
        return 0.0


def with_token(name: str) -> Json:
    container = make_container(volumeMounts=[{"name": "token", "mountPath": "/token"}])
    volumes = [{"name": "token", "projected": {"sources": [TOKEN]}}]
    return make_pod(name, container, volumes=volumes, serviceAccountName="default")


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S], ids=["fast", "slow"])
async def test_pods_tokens_and_lease_of_a_node_with_another_time(
    make_agent: MakeAgent, tmp_path: Path, off_s: int
) -> None:
    async with FakeApiServer() as server:
        server.token_seconds = 600
        agent = make_agent(("--kubeconfig", str(kubeconfig(server, tmp_path / "kubeconfig"))), **SOON)
        clock = WallClock(agent.folder / "clock")
        clock.set(off_s)
        agent.environment.update(clock.environment)
        world = World(server, agent.start())
        world.run(with_token("web"))
        await world.wait_ready("web")
        first = await agent.wait_for("a lease", lambda: renewed(server))
        assert abs(first - off_s - time.time()) < HOUR_S / 2, "its own time"
        await agent.wait_for("the lease is renewed again and again", lambda: renewed(server) > first + 3)
        assert server.count("POST", "/token") == 1, "a token is good for as long as it was given for"
        assert list((agent.root / "pods").glob("*/volumes/kubernetes.io~projected/token/token"))
        world.delete("web")
        await world.wait_gone("web")
        await world.wait_nothing_left()
        assert agent.stop() == 0


@pytest.fixture
async def skewed(make_agent: MakeAgent, tmp_path: Path) -> AsyncIterator[tuple[World, WallClock]]:
    """At an API server whose certificate is good from now on for a day."""
    secured = Secured(tmp_path)
    async with secured.server as server:
        files = {"certificate-authority": str(secured.trusted)}
        config = kubeconfig(server, tmp_path / "kubeconfig", {"tokenFile": str(secured.token)}, **files)
        agent = make_agent(("--kubeconfig", str(config)), **SOON)
        clock = WallClock(agent.folder / "clock")
        agent.environment.update(clock.environment)
        yield World(server, agent), clock
        agent.stop()


@pytest.mark.parametrize(
    ("off_s", "message"),
    [(-HOUR_S, "certificate is not yet valid"), (2 * DAY_S, "certificate has expired")],
    ids=["not yet valid", "expired"],
)
async def test_a_certificate_that_is_not_valid_by_the_nodes_time(
    skewed: tuple[World, WallClock], off_s: int, message: str
) -> None:
    world, clock = skewed
    clock.set(off_s)
    world.agent.put(make_pod("static"))
    world.agent.start()
    world.run(make_pod("web"))
    await world.agent.wait_running("static")

    async def is_reported() -> bool:
        return message in (await asyncio.to_thread(world.agent.ask, "explain", "node")).stdout

    await world.agent.wait_for("it is reported", is_reported)
    running = (await world.agent.look()).running_ids()
    clock.set(0)
    await world.wait_ready("web")
    assert running.items() <= (await world.agent.look()).running_ids().items()
    assert world.agent.alive
