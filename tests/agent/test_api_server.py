"""A whole agent at an API server that does as it is told: what no real one can be made to do, or old ones do not know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import MakeAgent
from support.agent import NODE_NAME, Agent, Json, condition, is_ready, make_container, make_pod

from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.core import Pod
from pykubelet.base.api.defaults import default_pod
from pykubelet.edges.kubeapi.fake import FakeApiServer, Fault

PODS = "/api/v1/namespaces/default/pods"


@dataclass
class World:
    server: FakeApiServer
    agent: Agent

    def run(self, pod: Json) -> Json:
        """Create a pod bound to the node, with the defaults that an API server gives it."""
        bound = pod | {"spec": pod["spec"] | {"nodeName": NODE_NAME}}
        return self.server.create(PODS, to_object(default_pod(from_object(Pod, bound))))

    def change(self, name: str, **spec: Any) -> None:
        """Other fields of the pod's spec, with their defaults."""

        def changed(pod: Json) -> None:
            given = {"metadata": pod["metadata"], "spec": pod["spec"] | spec}
            pod["spec"] = to_object(default_pod(from_object(Pod, given)))["spec"]

        self.server.update(f"{PODS}/{name}", changed)

    def pod(self, name: str) -> Json | None:
        return next((p for p in self.server.store.objects.values() if is_pod(p, name)), None)

    async def wait(self, name: str, what: str, holds: Callable[[Json], Any], within: float = 30.0) -> Json:
        def found() -> Json | None:
            pod = self.pod(name)
            return pod if pod is not None and holds(pod) else None

        return dict(await self.agent.wait_for(f"{name}: {what}", found, within))

    async def wait_gone(self, name: str) -> None:
        await self.agent.wait_for(f"{name} gone", lambda: self.pod(name) is None, 30.0)


def is_pod(item: Json, name: str) -> bool:
    return item.get("kind") == "Pod" and item["metadata"]["name"] == name


def kubeconfig(server: FakeApiServer, path: Path) -> Path:
    cluster = {"name": "c", "cluster": {"server": server.url}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    whole = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "x"}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **whole}))
    return path


@pytest.fixture
async def world(make_agent: MakeAgent, tmp_path: Path) -> AsyncIterator[World]:
    async with FakeApiServer() as server:
        agent = make_agent(("--kubeconfig", str(kubeconfig(server, tmp_path / "kubeconfig"))))
        agent.start()
        yield World(server, agent)
        agent.stop()


async def test_an_ephemeral_container_runs_once_in_a_running_pod(world: World) -> None:
    world.run(make_pod("web"))
    await world.wait("web", "ready", is_ready)
    script = "ps | grep -c 'sleep 3600' > /dev/termination-log; exit 5"
    debug = make_container("debug", script) | {"targetContainerName": "main"}
    world.change("web", ephemeralContainers=[debug])

    def end(pod: Json) -> Any:
        told = pod["status"].get("ephemeralContainerStatuses", [])
        return told[0]["state"].get("terminated") if told else None

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


async def test_a_pod_is_deleted_while_nobody_takes_its_status(world: World) -> None:
    world.server.faults.append(Fault("PATCH", "pods/web", status=500, reason="InternalError", times=-1))
    world.run(make_pod("web"))
    await world.agent.wait_runtime("web runs", lambda view: view.running_names() == ["web/main"])
    world.server.delete(f"{PODS}/web", {"gracePeriodSeconds": 1})
    await world.agent.wait_runtime("web is gone", lambda view: not view.sandboxes)
    assert world.pod("web") is not None  # nobody knows how it ended yet
    said = world.agent.ask_json("explain", "web")
    assert any(wait["what"] == "the API server" for wait in said["waits"]), said
    world.server.faults.clear()
    await world.wait_gone("web")
    told = [sent.body["status"] for sent in world.server.requests if sent.path == f"{PODS}/web/status"]
    assert told[-1]["phase"] == "Succeeded"
    assert told[-1]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def test_a_pod_with_finalizers_says_what_it_waits_for(world: World) -> None:
    pod = make_pod("kept")
    pod["metadata"]["finalizers"] = ["example.com/keep"]
    world.run(pod)
    await world.wait("kept", "ready", is_ready)
    world.server.delete(f"{PODS}/kept", {"gracePeriodSeconds": 1})
    await world.wait("kept", "only its finalizers", lambda p: p["metadata"]["deletionGracePeriodSeconds"] == 0)
    await world.agent.wait_runtime("nothing of it", lambda view: not view.sandboxes)
    said = world.agent.ask_json("explain", "kept")
    assert any(wait["what"] == "finalizers" for wait in said["waits"]), said
    world.server.update(f"{PODS}/kept", lambda p: p["metadata"].pop("finalizers"))
    await world.wait_gone("kept")
