"""A reporter of a node on a fake API server, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from support.api_server import FakeApiServer

from pykubelet.base.api.core import Taint
from pykubelet.base.kit.cells import Mailbox, make_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.evictions import NodePressure, NodeShutdown
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import ApiNode, ApiState, NodeView, NodeWanted, RuntimeReady
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.report.node.api_node import ReporterClients
from pykubelet.report.node.lease import LeaseLoop, LeasePeriods
from pykubelet.report.node.model import NodePeriods, NodeRegistration
from pykubelet.report.node.reporter import NodeReporter, ReporterCells
from pykubelet_local_api.objects import Json

NODES, NODE = "/api/v1/nodes", "/api/v1/nodes/n"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n"
WELL = RuntimeReady(checked=True, runtime_error="", name="containerd", version="2.0")
SOON = NodePeriods(update=0.05, retry=0.02, retry_max=0.1, images=0.05, first_answer=0.3)
ABOUT = NodeRegistration(
    "n", "host", {"kubernetes.io/hostname": "host", "given": "1"}, taints=(Taint(key="k", effect="NoSchedule"),)
)


@dataclass
class Images:
    """A runtime with images and nothing else."""

    images: list[pb.Image] = field(default_factory=list)
    cidrs: Mailbox[str] = field(default_factory=lambda: Mailbox("cidrs"))

    async def list_images(self) -> list[pb.Image]:
        return self.images

    async def update_runtime_config(self, pod_cidr: str) -> None:
        self.cidrs.post(pod_cidr)


class Stand:
    """One reporter (and lease) on a fake API server."""

    def __init__(
        self, server: FakeApiServer, about: NodeRegistration, periods: NodePeriods, lease_s: int, deadline_s: float
    ) -> None:
        self.server = server
        view = NodeView("n", "host", ("10.0.0.1",), {"cpu": 1000, "memory": 1, "pods": 1, "ephemeral-storage": 1})
        node, self.set_view = make_cell("node", view)
        self.node, api_node = make_cell("api-node", ApiNode())
        self.runtime, self.set_runtime = make_cell("runtime", RuntimeReady())
        self.pressure, self.set_pressure = make_cell("pressure", NodePressure())
        self.shutdown, self.set_shutdown = make_cell("shutdown", NodeShutdown())
        self.mounts, self.set_mounts = make_cell("mounts", Mounts())
        self.state, state = make_cell("api", ApiState(server.url))
        self.images = Images()
        self.events: Mailbox[KubeEvent] = Mailbox("events")
        clock = server.clock
        self.clients = [ApiClient(server.access(), clock, ClientLimits(deadline_s=deadline_s)) for _ in range(2)]
        self.wanted: Mailbox[NodeWanted] = Mailbox("wanted")
        cells = ReporterCells(
            node, api_node, self.runtime, self.pressure, self.shutdown, self.mounts, self.wanted, state
        )
        clients = ReporterClients(*self.clients)
        self.reporter = NodeReporter(about, clients, cells, self.images, self.events, clock, periods)
        self.lease = LeaseLoop(self.clients[1], "n", self.node, state, clock, LeasePeriods(lease_s), (self.clients[0],))
        self.supervisor = Supervisor("test")

    def start(self, *, lease: bool = False) -> None:
        self.supervisor.start_root("reporter", self.reporter.run())
        if lease:
            self.supervisor.start_root("lease", self.lease.run())

    async def stop(self) -> None:
        await self.supervisor.stop()
        for client in self.clients:
            await client.close()

    def get(self, path: str = NODE) -> Json | None:
        from pykubelet.edges.kubeapi.errors import ApiError

        try:
            return self.server.get(path)
        except ApiError:
            return None

    async def until(self, holds: Callable[[Json], object], path: str = NODE) -> Json:
        wakeup = asyncio.Event()
        self.server.store.watch(wakeup)
        try:
            async with asyncio.timeout(30):
                while (found := self.get(path)) is None or not holds(found):
                    await wakeup.wait()
                    wakeup.clear()
            return found
        except TimeoutError:
            raise AssertionError(f"never so; now: {self.get(path)}") from None
        finally:
            self.server.store.unwatch(wakeup)

    async def until_patched(self, number: int) -> None:
        """At least so often."""
        for _ in range(3000):
            if self.server.count("PATCH") >= number:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"only {self.server.count('PATCH')} patches")

    async def until_reported(self, reason: str) -> None:
        async with asyncio.timeout(30):
            while (await self.events.get()).reason != reason:
                pass

    async def until_ready(self) -> Json:
        return await self.until(lambda node: ready(node)["status"] == "True")


def ready(node: Json) -> Json:
    return next((c for c in node.get("status", {}).get("conditions", ()) if c["type"] == "Ready"), {"status": ""})


MakeStand = Callable[..., Stand]
