"""A whole agent at an API server that follows its script: what no real one can be made to do, or old ones do not know."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.agent import NODE_NAME, WAIT_S, Agent, Json, RuntimeView, condition, is_ready
from support.api_server import FakeApiServer, Sent

from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.core import Pod
from pykubelet.base.manifests.defaults import default_pod

PODS = "/api/v1/namespaces/default/pods"


@dataclass
class World:
    server: FakeApiServer
    agent: Agent

    def run(self, pod: Json) -> Json:
        """Create a pod bound to the node, with the defaults that an API server gives it."""
        bound = pod | {"spec": pod["spec"] | {"nodeName": NODE_NAME}}
        return self.server.create(PODS, to_object(default_pod(from_object(Pod, bound))))

    def delete(self, name: str, grace_s: int = 1) -> None:
        self.server.delete(f"{PODS}/{name}", {"gracePeriodSeconds": grace_s})

    def change(self, name: str, **spec: Any) -> None:
        """Other fields of the pod's spec, with their defaults."""

        def changed(pod: Json) -> None:
            given = {"metadata": pod["metadata"], "spec": pod["spec"] | spec}
            pod["spec"] = to_object(default_pod(from_object(Pod, given)))["spec"]

        self.server.update(f"{PODS}/{name}", changed)

    def pod(self, name: str) -> Json | None:
        return next((p for p in self.server.store.objects.values() if is_pod(p, name)), None)

    async def wait(self, name: str, what: str, holds: Callable[[Json], Any], within: float = WAIT_S) -> Json:
        def found() -> Json | None:
            pod = self.pod(name)
            return pod if pod is not None and holds(pod) else None

        return dict(await self.agent.wait_for(f"{name}: {what}", found, within))

    async def wait_ready(self, *names: str, within: float = WAIT_S) -> None:
        for name in names:
            await self.wait(
                name, "running and ready", lambda p: is_ready(p) and condition(p, "Ready") == "True", within
            )

    async def wait_gone(self, *names: str, within: float = WAIT_S) -> None:
        """No object of these names, and nothing of the pods at the runtime."""
        for name in names:
            await self._wait_gone(name, within)

    async def _wait_gone(self, name: str, within: float) -> None:
        await self.agent.wait_for(f"{name} gone", lambda: self.pod(name) is None, within)
        await self.agent.wait_runtime(f"nothing of {name}", lambda view: is_empty(view.of(name)), within)

    async def wait_nothing_left(self) -> None:
        """For the end of a test that has deleted all its pods: no file, mount or cgroup of any."""
        await self.agent.wait_nothing_left()

    def node_condition(self, kind: str) -> str:
        """The status of a condition of the Node; empty when it is not there."""
        found = self.node()
        return condition(found, kind) if found is not None else ""

    def node(self) -> Json | None:
        """The Node; None before the agent has registered it."""
        nodes = (item for item in self.server.store.objects.values() if item.get("kind") == "Node")
        return next((node for node in nodes if node["metadata"]["name"] == NODE_NAME), None)

    def events(self, reason: str) -> list[Json]:
        """The Events of a reason."""
        objects = self.server.store.objects.values()
        return [item for item in objects if item.get("kind") == "Event" and item["reason"] == reason]

    def reported(self, name: str) -> list[Sent]:
        """The patches of its status, oldest first."""
        return [sent for sent in self.server.requests if sent.path == f"{PODS}/{name}/status"]


def is_empty(view: RuntimeView) -> bool:
    return not view.sandboxes and not view.containers


def is_evicted(pod: Json) -> bool:
    """Failed, with the reason of pods that the node was too short of something for."""
    return bool(pod["status"].get("phase") == "Failed" and pod["status"].get("reason") == "Evicted")


def is_pod(item: Json, name: str) -> bool:
    return item.get("kind") == "Pod" and item["metadata"]["name"] == name


def kubeconfig(server: FakeApiServer, path: Path, user: Json | None = None, **cluster: str) -> Path:
    """`user` and `cluster`: their entries in the kubeconfig, `{"token": "t"}` and the server's URL unless given."""
    clusters = [{"name": "c", "cluster": {"server": server.url, **cluster}}]
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": user or {"token": "t"}}]
    whole = {"clusters": clusters, "contexts": contexts, "users": users, "current-context": "x"}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **whole}))
    return path


@contextlib.asynccontextmanager
async def a_world(make_agent: Callable[..., Agent], folder: Path, **settings: Any) -> AsyncIterator[World]:
    """A started agent, and the API server it belongs to."""
    async with FakeApiServer() as server:
        agent = make_agent(("--kubeconfig", str(kubeconfig(server, folder / "kubeconfig"))), **settings)
        agent.start()
        yield World(server, agent)
        agent.stop()
