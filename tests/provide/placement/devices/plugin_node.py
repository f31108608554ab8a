"""The agent's side of device plugins, for tests that run some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from support.device_plugins import device_plugin, healthy
from support.virtual_time import clock_of_loop

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import DeviceResource
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.host.services.unix_socket import keep_serving_socket
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import Services
from pykubelet.observe.plugins.loop import PluginsLoop
from pykubelet.provide.placement.devices.device_files import DeviceFiles
from pykubelet.provide.placement.devices.device_manager import AllocateCall, DeviceManager
from pykubelet.provide.placement.devices.device_plugins import DeviceInputs, NodeDevicePlugins

R = "example.com/device"
NONE = DeviceResource()
#: Longer than any pause between two attempts.
LIMIT_S = 600.0


class Node:
    """The agent's side: the plugins, and the manager as the loop of placement would keep it."""

    def __init__(self, plugins: NodeDevicePlugins, manager: DeviceManager) -> None:
        self.plugins = plugins
        self.manager = manager

    async def until(self, condition: Callable[[DeviceManager], bool]) -> DeviceManager:
        """Wait until the plugins have reported this."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                self.manager = self.plugins.refresh(self.manager)
                if condition(self.manager):
                    await self.plugins.save(self.manager)
                    return self.manager
                await self.plugins.changed.wait()
                self.plugins.changed.clear()

    async def until_healthy(self, *names: str, resource: str = R) -> DeviceResource:
        """Wait until exactly these devices are healthy."""
        now = await self.until(lambda now: now.resources.get(resource, NONE).healthy == frozenset(names))
        return now.resources.get(resource, NONE)


@asynccontextmanager
async def node(root: Path, *, watches: bool = False) -> AsyncIterator[Node]:
    """The plugins of a node with this root directory."""
    flight, (cell, writer) = SingleFlight("test"), make_cell("plugins", Plugins())
    observed, _ = make_cell("observed", Observed(listed_at=0.0))
    files = DeviceFiles(f"{root}/device-plugins", flight)
    plugins = NodeDevicePlugins(files, DeviceInputs(cell, observed), flight, clock_of_loop())
    manager = plugins.start((0, 1))
    async with Supervisor("test") as tasks:
        tasks.start_root("plugins", plugins.run())
        server = RpcServer(Services(plugins.methods()))
        tasks.start_root(
            "socket", keep_serving_socket(server.serve, f"{root}/device-plugins/kubelet.sock", "device plugins")
        )
        if watches:
            watcher = PluginsLoop(f"{root}/plugins_registry", writer, flight, clock_of_loop())
            tasks.start_root("watcher", watcher.run())
        yield Node(plugins, manager)


async def check_neighbor(tmp_path: Path, agent: Node) -> None:
    """Another plugin is served beside the bad one."""
    async with device_plugin(tmp_path, "example.com/good", devices=healthy("g")):
        await agent.until_healthy("g", resource="example.com/good")
        answer = await agent.plugins.allocate("u", AllocateCall("c", "example.com/good", frozenset("g")))
        assert isinstance(answer, bytes)
