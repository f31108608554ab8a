"""Pods with resource claims on a real runtime, with a DRA driver that is a process of its own.

The containerd of Debian 12 knows no CDI; `tests/act/pods/test_claims.py` shows what the runtime is sent. A runtime that
knows it gives the container its device.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from provide.claims.samples import GPU, claim_body
from support.agent import Agent, make_container, make_pod
from support.drivers import dra_driver
from support.world import World
from testbed import containerd
from testbed.private_runtime import Testbed

from pykubelet.base.api.resource_claims import claims_path
from pykubelet.edges.cri.client import CriClient

pytestmark = pytest.mark.integration

CLAIMS = claims_path("default")
DEVICE = {"device": "dev-0", "requests": ["gpu"], "cdi": [f"{GPU}/gpu={{name}}"]}
ERROR = f"Failed to prepare dynamic resources: prepare dynamic resources: DRA driver {GPU} is not registered"


@pytest.fixture(autouse=True)
def described(testbed: Testbed) -> None:
    containerd.describe_devices(testbed, f"{GPU}/gpu", ["one"])


async def injects_devices(testbed: Testbed) -> bool:
    """Whether the runtime reports that it knows CDI; only containerd reports it, and only it may be without."""
    if not testbed.is_containerd:
        return True
    client = CriClient(testbed.endpoint, timeout_s=10)
    try:
        config = (await client.status(verbose=True)).info.get("config", "{}")
    finally:
        await client.close()
    return json.loads(config).get("enableCDI", False) is True


def run_with_claim(world: World, name: str, claim: str) -> None:
    """Create a pod and then its claim, which is reserved for it."""
    script = "echo device=$DEVICE; while true; do sleep 1; done"
    container = make_container(script=script, resources={"claims": [{"name": "gpu"}]})
    made = world.run(make_pod(name, container, resourceClaims=[{"name": "gpu", "resourceClaimName": claim}]))
    body = claim_body(claim)
    body["status"]["reservedFor"][0] |= {"name": name, "uid": made["metadata"]["uid"]}
    world.server.create(CLAIMS, body)


def waits_for_driver(agent: Agent, pod: str) -> bool:
    """Whether `explain` shows that the pod waits for the driver."""
    shown = agent.ask_json("explain", pod)["waits"]
    return any(wait["owner"] == "DRA manager" and GPU in wait["detail"] for wait in shown)


async def test_a_claim_is_prepared_before_the_pod_starts_and_unprepared_after_it_has_ended(world: World) -> None:
    agent = world.agent
    run_with_claim(world, "web", "one")
    await agent.wait_for(
        "the Event", lambda: [e for e in world.events("FailedPrepareDynamicResources") if e["message"] == ERROR]
    )
    await agent.wait_for("the wait", lambda: asyncio.to_thread(waits_for_driver, agent, "web"))
    assert not (await agent.look()).of("web").sandboxes
    async with dra_driver(agent.root) as driver:
        await driver.behave([DEVICE])
        await world.wait_ready("web")
        assert driver.claims("NodePrepareResources") == ["one"]
        wanted = "device=one" if await injects_devices(agent.testbed) else "device="
        [log] = await agent.wait_for("its output", lambda: [*agent.logs.glob("default_web_*/main/0.log")])
        await agent.wait_for("its device", lambda: log.read_text().rstrip("\n").endswith(wanted))
        agent.kill9()
        agent.start()
        await world.wait_ready("web")
        await driver.wait_calls("GetInfo", 2)
        await driver.behave(unprepare="fail not yet")
        world.delete("web")
        await driver.wait_calls("NodeUnprepareResources", 2)
        held = world.pod("web")
        assert held is not None  # its claim is still in use
        assert not (await agent.look()).of("web").running
        await driver.behave(unprepare="")
        await world.wait_gone("web")
        assert driver.claims("NodePrepareResources") == ["one"]
        await world.wait_nothing_left()


async def test_a_completed_pod_frees_its_claim_before_it_succeeds(world: World) -> None:
    async with dra_driver(world.agent.root) as driver:
        await driver.behave([DEVICE], unprepare="fail not yet")
        container = make_container("main", "exit 0", resources={"claims": [{"name": "gpu"}]})
        claims = [{"name": "gpu", "resourceClaimName": "one"}]
        made = world.run(make_pod("job", container, resourceClaims=claims, restartPolicy="Never"))
        body = claim_body("one")
        body["status"]["reservedFor"][0] |= {"name": "job", "uid": made["metadata"]["uid"]}
        world.server.create(CLAIMS, body)
        await driver.wait_calls("NodeUnprepareResources", 2)
        held = world.pod("job")
        assert held is not None and held["status"]["phase"] != "Succeeded"
        await driver.behave(unprepare="")
        await world.wait("job", "succeeded", lambda pod: pod["status"]["phase"] == "Succeeded")
        world.delete("job")
        await world.wait_gone("job")


async def test_claims_of_a_pod_that_was_deleted_while_the_agent_was_down(world: World) -> None:
    agent = world.agent
    async with dra_driver(agent.root) as driver:
        await driver.behave([DEVICE])
        run_with_claim(world, "web", "one")
        await world.wait_ready("web")
        agent.kill9()
        world.server.store.remove(_place(world, "web"))
        agent.start()
        await driver.wait_calls("NodeUnprepareResources", 1)
        await world.wait_gone("web")
        assert driver.claims("NodePrepareResources") == ["one"]
        await world.wait_nothing_left()


def _place(world: World, name: str) -> Any:
    return next(place for place in world.server.store.objects if (place.plural, place.name) == ("pods", name))


async def test_a_bad_state_file_keeps_the_agent_from_starting(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent()
    agent.root.mkdir(parents=True, exist_ok=True)
    (agent.root / "dra_manager_state").write_text('{"Data":"{}","Checksum":5}')
    agent.start(wait=False)
    assert agent.process is not None
    assert agent.process.wait(60) == 1
    log = agent.log_text()
    assert log.splitlines()[-1] == (
        "Error: could not initialize checkpoint manager, please drain node and remove DRA state file, err: checkpoint is "
        f"corrupted: the checksum does not match the data (the file is {agent.root}/dra_manager_state)"
    )
    assert "never awaited" not in log and "Traceback" not in log
