"""A driver that reports another limit of volumes after a while: a real driver, and an API server that follows its script."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from support.csi import DRIVER, csi_driver

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import AttachLimit, Mounts
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.report.node.csi_node import CSI_DRIVERS, CsiNodeKeeper
from pykubelet.testing.kubeapi.fake import FakeApiServer


async def test_a_driver_is_asked_again_as_often_as_it_wants() -> None:
    with TemporaryDirectory(prefix="csi-") as made:  # a socket's path is at most 107 bytes long
        top = Path(made)
        async with FakeApiServer() as server, csi_driver(top / "root", top / "data", limit=7) as driver:
            node = server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
            spec = {"nodeAllocatableUpdatePeriodSeconds": 1}
            server.create(CSI_DRIVERS, {"metadata": {"name": DRIVER}, "spec": spec})
            api_node, _ = make_cell("api-node", ApiNode(registered=True, uid=node["metadata"]["uid"]))
            info = CsiNodeInfo("node-1", 7)
            plugin = Plugin(PluginType.CSI, DRIVER, "/r", str(driver.endpoint), ("1.0.0",), 1.0, info)
            plugins, write = make_cell("plugins", Plugins({plugin.socket: plugin}))
            client = ApiClient(server.access(), SystemClock(), ClientLimits())
            mounts, limits = make_cell("mounts", Mounts())
            keeper = CsiNodeKeeper(client, "n", api_node, plugins, SystemClock(), None, mounts)

            async def until(limit: int | None) -> None:
                async with asyncio.timeout(30):
                    while shown(server) != limit:  # noqa: ASYNC110 - the server sends no event for it
                        await asyncio.sleep(0.02)

            async with Supervisor("test") as tasks:
                tasks.start_root("keeper", keeper.run())
                await until(7)
                await driver.behave(info={"max": 3})
                await until(3)
                await driver.behave(NodeGetInfo="fail INTERNAL broken")
                count = len(driver.calls("NodeGetInfo"))
                await driver.wait_calls("NodeGetInfo", count + 4)
                assert shown(server) == 3, "a failure changes nothing"
                slow = {"nodeAllocatableUpdatePeriodSeconds": 3600}
                server.update(f"{CSI_DRIVERS}/{DRIVER}", lambda found: found["spec"].update(slow))
                await driver.behave(NodeGetInfo="", info={"max": 2})
                limits.publish(Mounts(at_limit={PodUID("u1"): AttachLimit("full", (DRIVER, "unknown.example"))}))
                await until(2)
                server.update(f"{CSI_DRIVERS}/{DRIVER}", lambda found: found["spec"].clear())
                write.publish(Plugins())
                await until(None)
            await client.close()


def shown(server: FakeApiServer) -> int | None:
    """The limit in the driver's entry; None without an entry."""
    objects = server.store.objects.items()
    found = next((item for place, item in objects if place.plural == "csinodes"), None)
    drivers = found["spec"]["drivers"] if found is not None else []
    limit: int | None = drivers[0]["allocatable"]["count"] if drivers else None
    return limit
