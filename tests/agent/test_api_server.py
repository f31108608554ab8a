"""Pods at an API server that follows its script: ephemeral containers, last deletions, finalizers."""

from __future__ import annotations

import asyncio
from typing import Any

from support.agent import Json, condition, is_ready, make_container, make_pod, make_polite
from support.api_server import ApiFault
from support.world import PODS, World


async def test_an_ephemeral_container_runs_once_in_a_running_pod(world: World) -> None:
    world.run(make_pod("web"))
    await world.wait("web", "ready", is_ready)
    script = "ps | grep -c 'sleep 3600' > /dev/termination-log; exit 5"
    debug = make_container("debug", script) | {"targetContainerName": "main"}
    world.change("web", ephemeralContainers=[debug])

    def end(pod: Json) -> Any:
        reported = pod["status"].get("ephemeralContainerStatuses", [])
        return reported[0]["state"].get("terminated") if reported else None

    ended = end(await world.wait("web", "the end of the ephemeral container", end))
    assert ended["exitCode"] == 5
    assert int(ended["message"]) >= 1  # it sees the processes of its target
    world.run(make_pod("later"))
    await world.wait("later", "ready", is_ready)
    pod = await world.wait("web", "its generation", lambda p: p["status"].get("observedGeneration") == 2)
    assert pod["status"]["ephemeralContainerStatuses"][0]["restartCount"] == 0
    assert condition(pod, "Ready") == "True"
    view = await world.agent.look()
    assert len([c for c in view.containers if c.labels["io.kubernetes.container.name"] == "debug"]) == 1


async def waits(world: World, pod: str, what: str) -> bool:
    """Whether `explain` shows that the pod waits for it."""
    reported = await asyncio.to_thread(world.agent.ask_json, "explain", pod)
    return any(wait["what"] == what for wait in reported["waits"])


async def test_a_pod_is_deleted_while_its_status_is_refused(world: World) -> None:
    world.server.faults.append(ApiFault("PATCH", "pods/web", status=500, reason="InternalError", times=-1))
    world.run(make_pod("web", make_polite()))
    await world.agent.wait_running("web")
    world.server.delete(f"{PODS}/web", {"gracePeriodSeconds": 30})
    await world.agent.wait_runtime("web is gone", lambda view: not view.sandboxes)
    assert world.pod("web") is not None  # no status with its end was accepted yet
    await world.agent.wait_for("it is reported", lambda: waits(world, "web", "the API server"))
    world.server.faults.clear()
    await world.wait_gone("web")
    reported = [sent.body["status"] for sent in world.server.requests if sent.path == f"{PODS}/web/status"]
    assert reported[-1]["phase"] == "Succeeded"
    assert reported[-1]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def test_a_pod_with_finalizers_states_what_it_waits_for(world: World) -> None:
    pod = make_pod("kept")
    pod["metadata"]["finalizers"] = ["example.com/keep"]
    world.run(pod)
    await world.wait("kept", "ready", is_ready)
    world.server.delete(f"{PODS}/kept", {"gracePeriodSeconds": 1})
    await world.wait("kept", "only its finalizers", lambda p: p["metadata"]["deletionGracePeriodSeconds"] == 0)
    await world.agent.wait_runtime("nothing of it", lambda view: not view.sandboxes)
    await world.agent.wait_for("it is reported", lambda: waits(world, "kept", "finalizers"))
    world.server.update(f"{PODS}/kept", lambda p: p["metadata"].pop("finalizers"))
    await world.wait_gone("kept")
