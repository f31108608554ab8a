"""What the CSINode shows: of a real driver that reports another limit after a while, and of drivers that come back changed.

The API server is a fake that lets no entry of a CSINode be changed, as the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.api_server import FakeApiServer
from support.csi import DRIVER, csi_driver

from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import AttachLimit, Mounts
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.report.node.csi_node import CSI_DRIVERS, CSI_NODES, CsiNodeKeeper

pytestmark = pytest.mark.virtual_time


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


def entry(server: FakeApiServer, name: str) -> tuple[str, list[str], int] | None:
    """The id, topology keys and limit of a driver in the CSINode."""
    nodes = (item for place, item in server.store.objects.items() if place.plural == "csinodes")
    found = next((driver for node in nodes for driver in node["spec"]["drivers"] or () if driver["name"] == name), None)
    return found and (found["nodeID"], found["topologyKeys"] or [], found["allocatable"]["count"])


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the server sends no event for it
            await asyncio.sleep(0.01)


def registered(*drivers: tuple[str, CsiNodeInfo]) -> Plugins:
    return Plugins(
        {name: Plugin(PluginType.CSI, name, name, f"/{name}", ("1.0.0",), 1.0, info) for name, info in drivers}
    )


@asynccontextmanager
async def keeping(server: FakeApiServer, plugins: Plugins) -> AsyncIterator[CellWriter[Plugins]]:
    """A node, new or known to the server, with these drivers."""
    nodes = (item for place, item in server.store.objects.items() if place.plural == "nodes")
    node = next(nodes, None) or server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    api_node, _ = make_cell("api-node", ApiNode(registered=True, uid=node["metadata"]["uid"]))
    cell, write = make_cell("plugins", plugins)
    client = ApiClient(server.access(), SystemClock(), ClientLimits())
    keeper = CsiNodeKeeper(client, "n", api_node, cell, SystemClock())
    async with Supervisor("test") as tasks:
        task = tasks.start_root("keeper", keeper.run())
        yield write
        task.cancel()
    await client.close()


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_driver_that_comes_back_changed_has_a_new_entry_beside_the_others(is_old: bool) -> None:
    async with FakeApiServer() as server:
        server.store.limits_are_fixed = is_old
        first, moved, larger = CsiNodeInfo("id-1", 7, {"t/zone": "a"}), CsiNodeInfo("id-2", 7), CsiNodeInfo("id-2", 9)
        async with keeping(server, registered(("a", first))):
            await eventually(lambda: entry(server, "a") == ("id-1", ["t/zone"], 7))
        # the agent was restarted, and the driver has another id of the node
        async with keeping(server, registered(("a", moved), ("b", first))) as write:
            await eventually(lambda: entry(server, "a") == ("id-2", [], 7) and entry(server, "b") is not None)
            write.publish(registered(("a", larger), ("b", first), ("c", first)))
            await eventually(lambda: entry(server, "a") == ("id-2", [], 9) and entry(server, "c") is not None)
            assert entry(server, "b") == ("id-1", ["t/zone"], 7)


async def test_the_csi_node_of_an_earlier_node_goes_with_its_drivers() -> None:
    async with FakeApiServer() as server:
        owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "another"}
        gone = {"name": "gone", "nodeID": "x", "topologyKeys": None}
        made = server.create(
            CSI_NODES, {"metadata": {"name": "n", "ownerReferences": [owner]}, "spec": {"drivers": [gone]}}
        )
        async with keeping(server, registered(("a", CsiNodeInfo("id-1", 7)))):
            await eventually(lambda: entry(server, "a") is not None)
        found = next(item for place, item in server.store.objects.items() if place.plural == "csinodes")
        assert [driver["name"] for driver in found["spec"]["drivers"]] == ["a"]
        assert found["metadata"]["uid"] != made["metadata"]["uid"]
        assert found["metadata"]["ownerReferences"][0]["uid"] != "another"
