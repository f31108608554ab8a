"""Device plugins over real sockets: another process, another implementation of gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from provide.placement.devices.plugin_node import R, check_neighbor, node
from provide.placement.devices.test_device_manager import container, make_pod
from provide.placement.stand import placing
from support.cost import TRIES, MeasuringLoop, pause_limit_s
from support.device_plugins import device_plugin, healthy

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.host.services.unix_socket import keep_serving_socket
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import Services
from pykubelet.provide.placement.devices.device_files import DeviceFiles
from pykubelet.provide.placement.devices.device_manager import AllocateCall
from pykubelet.provide.placement.devices.device_plugins import DeviceInputs, NodeDevicePlugins
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology


async def test_a_process_registers_lists_its_devices_and_allocates(tmp_path: Path) -> None:
    async with (
        node(tmp_path) as agent,
        device_plugin(tmp_path, devices=healthy("a"), response={"envs": {"DEVICES": "{ids}"}}) as plugin,
    ):
        await agent.until_healthy("a")
        assert isinstance(await agent.plugins.allocate("u", AllocateCall("c", R, frozenset("a"))), bytes)
        await plugin.list_devices(healthy("b", "x"))
        await agent.until_healthy("b", "x")
        await plugin.kill()
        assert (await agent.until_healthy()).is_stopped


async def test_a_process_whose_list_never_rests_costs_no_other_one(tmp_path: Path) -> None:
    async with node(tmp_path) as agent, device_plugin(tmp_path, follow=False, devices=healthy("a")) as bad:
        await bad.misbehave(list="flood")
        await bad.order(follow=True)
        await agent.until_healthy("a")
        await check_neighbor(tmp_path, agent)


def test_a_hundred_thousand_devices_do_not_hold_up_the_event_loop(tmp_path: Path) -> None:
    """From the list to the container, with a plugin that chooses."""
    pauses = []

    async def run(root: Path) -> None:
        flight = SingleFlight("test")
        inputs = DeviceInputs(make_cell("plugins", Plugins())[0], make_cell("observed", Observed(listed_at=0.0))[0])
        plugins = NodeDevicePlugins(DeviceFiles(f"{root}/device-plugins", flight), inputs, flight, SystemClock())
        topology = Topology(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER, tuple(range(8)))
        managers = Managers(topology=topology, devices=plugins.start(tuple(range(8))))
        async with asyncio.timeout(120), placing(managers, root, plugins) as stand, Supervisor("test") as tasks:
            socket = f"{root}/device-plugins/kubelet.sock"
            tasks.start_root(
                "socket", keep_serving_socket(RpcServer(Services(plugins.methods())).serve, socket, "device plugins")
            )
            async with device_plugin(root, devices=healthy("a"), options=["--prefers"]) as plugin:
                await stand.placements.wait_for(lambda now: R in now.devices)
                loop = asyncio.get_running_loop()
                assert isinstance(loop, MeasuringLoop)
                loop.longest_s = 0.0
                await plugin.order(many=100_000)
                await stand.placements.wait_for(lambda now: len(now.devices[R].healthy) == 100_000)
                pods = [make_pod(f"p{number}", container("app", device=2)) for number in range(3)]
                for number, pod in enumerate(pods):
                    stand.desire(*pods[: number + 1])
                    assert (await stand.placed(pod)).rejection is None
                pauses.append(loop.longest_s)

    for number in range(TRIES):
        with asyncio.Runner(loop_factory=MeasuringLoop) as runner:
            runner.run(run(tmp_path / str(number)))
        if min(pauses) <= pause_limit_s():
            return
    pytest.fail(f"an iteration of the event loop takes {min(pauses) * 1000:.0f} ms")
