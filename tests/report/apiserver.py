"""An API server and the pods of one node, as the components of report see them through their cells."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from support.api_server import FakeApiServer, Sent
from support.memory_api import virtual_api_server

from pykubelet.base.api import core
from pykubelet.base.api.codec import from_object
from pykubelet.base.kit.cells import CellWriter, LazyCell, LazyCellWriter, make_cell, make_lazy_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_SOURCE
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.roster import ApiPods, Roster, RosterPod, is_mirror, pod_ref
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.waits import Wait
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.listwatch import follow

PODS = "/api/v1/namespaces/shop/pods"


@dataclass
class Cluster:
    """`report` and `stage` are this node's side; `server` is the other one. Mirror pods that are there reach the roster."""

    server: FakeApiServer
    client: ApiClient
    pods: CellWriter[ApiPods]
    roster: CellWriter[Roster]
    statuses: CellWriter[Statuses]
    lifecycles: CellWriter[Lifecycles]
    node: CellWriter[NodeView]
    diagnostics: LazyCell[Diagnostics]
    diagnostics_end: LazyCellWriter[Diagnostics]

    @property
    def waits(self) -> dict[PodUID, tuple[Wait, ...]]:
        """The waits of pods for their statuses to be sent."""
        return {uid: known.waits for uid, known in self.diagnostics.get().pods.items()}

    def make(self, name: str = "web", **metadata: Any) -> core.Pod:
        body = {"metadata": {"name": name, "namespace": "shop", **metadata}, "spec": {"nodeName": "n1"}}
        return from_object(core.Pod, self.server.create(PODS, body))

    def there(self, name: str = "web") -> core.Pod:
        return from_object(core.Pod, self.server.get(f"{PODS}/{name}"))

    def names(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self.pods.get().pods.values())

    def report(self, uid: str, status: core.PodStatus) -> None:
        self.statuses.publish(Statuses({**self.statuses.get().pods, PodUID(uid): status}))

    def stage(self, pod: core.Pod, stage: Stage, reason: KillReason | None = None, *, is_held_up: bool = False) -> None:
        ref = pod_ref(pod)
        life = PodLifecycle(ref, pod, stage, 0.0, 0.0, kill_reason=reason, is_held_up=is_held_up)
        self.lifecycles.publish(Lifecycles({**self.lifecycles.get().pods, ref.uid: life}))

    def want(self, *statics: core.Pod, ready: bool = True) -> None:
        pods = {PodUID(p.metadata.uid): RosterPod(p, "file", 0.0) for p in statics}
        self.roster.publish(Roster(pods, ready, (), self.roster.get().mirrors))

    def sent(self, method: str) -> list[Sent]:
        return [sent for sent in self.server.requests if sent.method == method]

    async def until(self, condition: Callable[[], bool], within_s: float = 30.0) -> None:
        end = asyncio.get_running_loop().time() + within_s
        for _ in range(10_000):
            with contextlib.suppress(Exception):
                if condition():
                    return
            if asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(0.005)
        assert condition()

    async def follow(self) -> None:
        listed = follow(self.client, "/api/v1/pods", core.Pod, self.server.clock, field_selector="spec.nodeName=n1")
        async with aclosing(listed) as changes:
            async for now in changes:
                if now.synced:
                    pods = {PodUID(pod.metadata.uid): pod for pod in now.items.values()}
                    mirrors = {pod_ref(pod).full_name: pod for pod in pods.values() if is_mirror(pod)}
                    before = self.roster.get()
                    self.roster.publish(Roster(before.pods, before.sources_ready, (), mirrors))
                    self.pods.publish(ApiPods(pods, synced=True))


@contextlib.asynccontextmanager
async def a_cluster() -> AsyncIterator[tuple[Cluster, Supervisor]]:
    async with virtual_api_server() as server, Supervisor("test") as supervisor:
        client = ApiClient(server.access(), server.clock)
        cluster = Cluster(
            server,
            client,
            make_cell("api-pods", ApiPods())[1],
            make_cell("roster", Roster(sources_ready=True))[1],
            make_cell("statuses", Statuses())[1],
            make_cell("lifecycles", Lifecycles())[1],
            make_cell("node", NodeView("n1", "n1", registered=True, uid="node-uid"))[1],
            *make_lazy_cell("diagnostics", Diagnostics()),
        )
        supervisor.start_root("follow", cluster.follow())
        try:
            yield cluster, supervisor
        finally:
            await supervisor.stop()
            await client.close()


def static_pod(name: str = "web-n1", uid: str = "s1", **annotations: str) -> core.Pod:
    notes = {CONFIG_SOURCE: "file", "kubernetes.io/config.hash": uid, **annotations}
    meta = core.ObjectMeta(name=name, namespace="shop", uid=uid, annotations=notes, labels={"app": "web"})
    container = core.Container(name="app", image="busybox")
    return core.Pod(metadata=meta, spec=core.PodSpec(containers=(container,), nodeName="n1"))
