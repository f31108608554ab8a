"""The API server refuses, hangs, changes its certificate or wants another token: pods go on, afterwards everything is reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.agent import Agent, Json, container_status, make_container, make_pod, make_polite
from support.api_server import ApiFault, FakeApiServer
from support.secured import Secured
from support.world import World, a_world, kubeconfig

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
SOON: dict[str, object] = {"nodeStatusUpdateFrequency": "2s", "nodeLeaseDurationSeconds": 4}
RESTARTED = (
    "test -e /volume/again || { touch /volume/again; sleep 3; exit 1; }; trap 'exit 0' TERM; while :; do sleep 1; done"
)


def lively_pods(world: World) -> None:
    """One that only runs, one that restarts after some seconds, one that ends after some."""
    volumes: Json = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mounts = [{"name": "v", "mountPath": "/volume"}]
    world.run(make_pod("steady"))
    world.run(make_pod("restarting", make_container(script=RESTARTED, volumeMounts=mounts), **volumes))
    world.run(make_pod("ending", make_container(script="sleep 3; exit 0"), restartPolicy="Never"))


async def what_happened_is_reported(world: World) -> None:
    await world.wait("restarting", "its restart", lambda pod: container_status(pod)["restartCount"] == 1)
    await world.wait("ending", "its end", lambda pod: pod["status"].get("phase") == "Succeeded")
    await world.wait_ready("steady", "restarting")


async def pods_come_and_go(world: World, name: str) -> None:
    world.run(make_pod(name))
    await world.wait_ready(name)
    world.delete(name)
    await world.wait_gone(name)


def watches_opened(server: FakeApiServer) -> int:
    return sum("watch" in sent.query for sent in server.requests)


async def shown_for_node(agent: Agent, words: str) -> bool:
    return words in json.dumps(await asyncio.to_thread(agent.ask_json, "explain", "node"))


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_that_refuses_everything_for_a_while(world: World, status: int) -> None:
    lively_pods(world)
    world.run(make_pod("deleted"))
    await world.wait_ready("steady", "restarting", "deleted")
    kept = (await world.agent.look()).running_ids()["steady/main"]
    retry_after = 1 if status == 429 else None
    world.server.faults.append(ApiFault(status=status, reason="Trouble", retry_after_s=retry_after, times=-1))
    mark = len(world.server.requests)
    world.delete("deleted")  # it hears of this: its watches go on
    await world.agent.wait_runtime("it is stopped", lambda view: not view.of("deleted").running)
    world.server.cut_watches()
    await world.agent.wait_runtime("it restarted", lambda view: len(view.of("restarting").containers) > 1)
    await world.agent.wait_runtime("it ended", lambda view: not view.of("ending").running)
    assert world.pod("deleted") is not None
    assert world.agent.get("/healthz", world.agent.health_port) == (200, "ok")
    assert len(world.server.requests) - mark < 300, "no request is repeated without a pause"
    world.server.faults.clear()
    await world.wait_gone("deleted")
    await what_happened_is_reported(world)
    await pods_come_and_go(world, "after")
    assert (await world.agent.look()).running_ids()["steady/main"] == kept


async def test_a_server_that_hangs_is_left_and_found_again(make_agent: MakeAgent, tmp_path: Path) -> None:
    async with a_world(make_agent, tmp_path, **SOON) as world:
        lively_pods(world)
        world.run(make_pod("deleted"))
        await world.wait_ready("steady", "restarting", "deleted")
        kept = (await world.agent.look()).running_ids()["steady/main"]
        world.server.faults.append(ApiFault(hang=True, times=-1))
        world.server.silence_watches()
        world.delete("deleted")  # the agent gets no event of it
        await world.agent.wait_for("all watches are left", lambda: not world.server.watching, 60)
        assert world.agent.get("/healthz", world.agent.health_port) == (200, "ok")
        assert (await world.agent.look()).running_ids()["steady/main"] == kept
        world.server.faults.clear()
        await world.wait_gone("deleted", within=60)
        await what_happened_is_reported(world)
        await pods_come_and_go(world, "after")
        assert (await world.agent.look()).running_ids()["steady/main"] == kept


# Another authority, another token


@pytest.fixture
def secured(tmp_path: Path) -> Secured:
    return Secured(tmp_path)


@pytest.fixture
async def world_of_secured(secured: Secured, make_agent: MakeAgent, tmp_path: Path) -> AsyncIterator[World]:
    async with secured.server as server:
        files = {"certificate-authority": str(secured.trusted)}
        config = kubeconfig(server, tmp_path / "kubeconfig", {"tokenFile": str(secured.token)}, **files)
        agent = make_agent(("--kubeconfig", str(config)), **SOON)
        yield World(server, agent.start())
        agent.stop()


async def test_another_authority(world_of_secured: World, secured: Secured) -> None:
    world, server = world_of_secured, secured.server
    world.run(make_pod("steady"))
    await world.wait_ready("steady")
    kept, pid = (await world.agent.look()).running_ids(), world.agent.process
    opened = watches_opened(server)
    second, third = secured.authority("second"), secured.authority("third")
    secured.trust(second)
    secured.prove(second)
    await pods_come_and_go(world, "trusted")
    assert watches_opened(server) == opened, "what is open goes on"
    server.cut_watches()
    await pods_come_and_go(world, "trusted-again")

    secured.prove(third)  # of which the agent knows nothing yet
    await server.stop()
    await server.start()
    await world.agent.wait_for(
        "it is reported", lambda: shown_for_node(world.agent, "unable to get local issuer certificate")
    )
    world.run(make_pod("later"))
    assert (await world.agent.look()).running_ids() == kept
    secured.trust(third)
    await world.wait_ready("steady", "later")
    await pods_come_and_go(world, "after")
    assert kept.items() <= (await world.agent.look()).running_ids().items()
    assert world.agent.process is pid and world.agent.alive


async def test_a_token_that_is_no_longer_taken(world_of_secured: World, secured: Secured) -> None:
    world, server = world_of_secured, secured.server
    world.run(make_pod("steady"))
    await world.wait_ready("steady")
    kept, pid = (await world.agent.look()).running_ids(), world.agent.process
    server.token = "two"
    mark = len(server.requests)
    world.run(make_pod("during"))  # the open watch delivers it, but no status can be sent and nothing fetched
    await world.agent.wait_runtime("it runs", lambda view: "during/main" in view.running_names())
    server.cut_watches()
    world.run(make_pod("later"))
    await world.agent.wait_for("it is reported", lambda: shown_for_node(world.agent, "Unauthorized"))
    assert kept.items() <= (await world.agent.look()).running_ids().items()
    assert len(server.requests) - mark < 300, "no request is repeated without a pause"
    secured.give_token("two")
    await world.wait_ready("steady", "during", "later")
    await pods_come_and_go(world, "after")
    assert kept.items() <= (await world.agent.look()).running_ids().items()
    assert world.agent.process is pid and world.agent.alive


# What is under way while a pod is deleted


@pytest.mark.parametrize("answer", [0, 409, 500])
async def test_a_pod_is_deleted_while_its_status_is_on_its_way(world: World, answer: int) -> None:
    """`answer`: what the patch ends with; 0: well."""
    held = asyncio.Event()
    reason = {0: "", 409: "Conflict", 500: "InternalError"}[answer]
    world.server.faults.append(ApiFault("PATCH", "pods/web/status", status=answer, reason=reason, held=held))
    world.run(make_pod("web", make_polite()))
    await world.agent.wait_for("its patch is under way", lambda: world.reported("web"))
    await world.agent.wait_running("web")
    world.delete("web")
    await world.agent.wait_runtime("it has ended", lambda view: not view.of("web").running)
    assert len(world.reported("web")) == 1, "one at a time"
    held.set()
    await world.wait_gone("web")
    await world.wait_nothing_left()
    last = world.reported("web")[-1].body["status"]
    assert last["phase"] == "Succeeded"
