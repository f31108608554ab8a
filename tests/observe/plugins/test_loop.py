"""Plugins register when their sockets appear, in virtual time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.csi import DRIVER, csi_driver
from support.drivers import dra_driver
from support.virtual_time import clock_of_loop

from pykubelet.base.kit.cells import Cell, make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.plugins import Plugins, PluginType
from pykubelet.observe.plugins.loop import PluginsLoop

pytestmark = pytest.mark.virtual_time

GPU = "gpu.example.com"


@asynccontextmanager
async def watching(root: Path) -> AsyncIterator[Cell[Plugins]]:
    """A plugin watcher on `root`/plugins_registry."""
    cell, writer = make_cell("plugins", Plugins())
    loop = PluginsLoop(f"{root}/plugins_registry", writer, SingleFlight("test"), clock_of_loop())
    async with Supervisor("test") as tasks:
        tasks.start_root("plugins", loop.run())
        yield cell


async def until(cell: Cell[Plugins], condition: Callable[[Plugins], bool]) -> Plugins:
    async with asyncio.timeout(600):
        return await cell.wait_for(condition)


async def test_a_plugin_registers_ends_and_registers_again(folder: Path) -> None:
    async with watching(folder) as cell:
        async with dra_driver(folder) as driver:
            now = await until(cell, lambda now: bool(now.plugins))
            (plugin,) = now.of(PluginType.DRA)
            assert (plugin.name, plugin.socket, plugin.versions) == (GPU, str(driver.socket), ("v1.DRAPlugin",))
            assert plugin.endpoint == str(folder / "plugins" / GPU / "dra.sock")
            assert driver.calls("NotifyRegistrationStatus") == [
                {"call": "NotifyRegistrationStatus", "registered": True, "error": ""}
            ]
            await driver.stop()
            await until(cell, lambda now: not now.plugins)
        async with dra_driver(folder):
            again = await until(cell, lambda now: bool(now.plugins))
            assert again.of(PluginType.DRA)[0].registered_at > plugin.registered_at


async def test_a_plugin_that_is_there_at_the_start_registers(folder: Path) -> None:
    async with dra_driver(folder, versions="v1beta1.DRAPlugin"), watching(folder) as cell:
        await until(cell, lambda now: bool(now.plugins))


async def test_a_socket_that_is_created_again_registers_again(folder: Path) -> None:
    async with watching(folder) as cell, dra_driver(folder) as first:
        before = await until(cell, lambda now: bool(now.plugins))
        await first.kill()  # its sockets stay, and so does the plugin
        assert cell.get() is before
        async with dra_driver(folder) as second:
            await second.wait_calls("NotifyRegistrationStatus", 2)  # the file of calls is that of both
            await until(cell, lambda now: bool(now.plugins) and now.plugins != before.plugins)


async def test_a_socket_in_a_new_directory_registers(folder: Path) -> None:
    async with dra_driver(folder) as driver, watching(folder / "agent") as cell:
        registry = folder / "agent" / "plugins_registry"
        async with asyncio.timeout(600):
            while not registry.is_dir():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.01)
        deep = registry / "a" / "b"
        deep.mkdir(parents=True)
        driver.socket.rename(deep / "x.sock")
        now = await until(cell, lambda now: bool(now.plugins))
        assert list(now.plugins) == [str(deep / "x.sock")]
        (deep / "x.sock").rename(deep / ".x.sock")
        await until(cell, lambda now: not now.plugins)


@pytest.mark.parametrize(("call", "count"), [("info", "GetInfo"), ("notify", "NotifyRegistrationStatus")])
async def test_a_failed_call_is_repeated(folder: Path, call: str, count: str) -> None:
    async with dra_driver(folder) as driver:
        await driver.behave(None, **{call: "fail not yet"})
        async with watching(folder) as cell:
            socket = str(driver.socket)
            now = await until(cell, lambda now: socket in now.problems)
            assert now.problems[socket] == f"{count}: rpc error: code = Internal desc = not yet"
            assert not now.plugins
            await driver.behave(None, **{call: ""})
            now = await until(cell, lambda now: bool(now.plugins))
            assert not now.problems
            assert len(driver.calls(count)) > 1


async def test_a_plugin_that_hangs_keeps_no_other_from_registering(folder: Path) -> None:
    async with dra_driver(folder, "slow.example.com") as slow, dra_driver(folder) as fast:
        await slow.behave(info="hang")
        async with watching(folder) as cell:
            await until(cell, lambda now: str(fast.socket) in now.plugins)
            now = await until(cell, lambda now: str(slow.socket) in now.problems)
            assert now.problems[str(slow.socket)].startswith("GetInfo: rpc error: code = DeadlineExceeded")


async def test_a_refused_plugin_gets_the_reason_and_asked_again(folder: Path) -> None:
    async with dra_driver(folder) as driver:
        await driver.behave(type="OtherPlugin")
        async with watching(folder) as cell:
            await until(cell, lambda now: bool(now.problems))
            (notified,) = driver.calls("NotifyRegistrationStatus")
            error = (
                f"RegisterPlugin error -- no handler registered for plugin type: OtherPlugin at socket {driver.socket}"
            )
            assert (notified["registered"], notified["error"]) == (False, error)
            await driver.behave(type="DRAPlugin")
            await until(cell, lambda now: bool(now.plugins))


async def test_a_device_plugin_without_a_service_is_refused(folder: Path) -> None:
    async with (
        dra_driver(
            folder, "example.com/gpu".replace("/", "-"), kind="DevicePlugin", versions="v1beta1", deaf=True
        ) as plugin,
        watching(folder) as cell,
    ):
        await plugin.behave(name="example.com/gpu")
        endpoint = folder / "plugins" / "example.com-gpu" / "dra.sock"
        error = (
            "RegisterPlugin error -- plugin registration failed with err: "
            f"dial unix {endpoint}: connect: no such file or directory"
        )
        await until(cell, lambda now: error in now.problems.values())


async def test_a_socket_with_a_name_that_cannot_be_shown_is_ignored(folder: Path) -> None:
    async with dra_driver(folder, "first.example.com") as first, dra_driver(folder) as second:
        first.socket.rename(os.fsdecode(os.fsencode(first.socket.parent) + b"/\xff.sock"))
        async with watching(folder) as cell:
            now = await until(cell, lambda now: bool(now.plugins))
            assert (list(now.plugins), dict(now.problems)) == ([str(second.socket)], {})


async def test_many_sockets_are_cut(folder: Path) -> None:
    registry = folder / "plugins_registry"
    registry.mkdir()
    servers = []
    for number in range(270):
        servers.append(
            await asyncio.start_unix_server(lambda _, writer: writer.close(), registry / f"{number:03}.sock")
        )
    async with watching(folder) as cell:
        await until(cell, lambda now: len(now.problems) == 256)
    for server in servers:
        server.close()


@pytest.fixture
def unprivileged(folder: Path) -> Iterator[None]:
    """Run the test as a user to whom the modes of files apply."""
    before = os.geteuid()
    if before == 0:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.usefixtures("unprivileged")
async def test_a_directory_that_cannot_be_read_hides_no_other(folder: Path) -> None:
    registry = folder / "plugins_registry"
    closed, gone, new = registry / "closed" / "a.sock", registry / "gone.sock", registry / "new.sock"
    closed.parent.mkdir(parents=True)

    async def listen(path: Path) -> asyncio.AbstractServer:
        return await asyncio.start_unix_server(lambda _, writer: writer.close(), path)

    async with await listen(closed), await listen(gone), watching(folder) as cell:
        await until(cell, lambda now: now.problems.keys() == {str(closed), str(gone)})
        closed.parent.chmod(0)
        gone.unlink()
        async with await listen(new):
            now = await until(cell, lambda now: str(new) in now.problems)
            assert now.problems.keys() == {str(closed), str(new)}
            closed.parent.chmod(0o700)
            closed.unlink()
            await until(cell, lambda now: now.problems.keys() == {str(new)})


async def test_a_csi_driver_reports_about_the_node(folder: Path) -> None:
    with TemporaryDirectory(prefix="csi-") as top:  # a socket's path is at most 107 bytes long
        root = Path(top)
        async with watching(root) as cell, csi_driver(root, folder, limit=7) as driver:
            now = await until(cell, lambda now: bool(now.plugins))
            plugin = now.csi_driver(DRIVER)
            assert plugin is not None and plugin.csi is not None
            assert (plugin.endpoint, plugin.csi.node_id, plugin.csi.max_volumes) == (str(driver.endpoint), "node-1", 7)
            assert plugin.csi.topology == {f"topology.{DRIVER}/node": "node-1"}
            await driver.stop()
            await until(cell, lambda now: not now.plugins)


@pytest.mark.parametrize(
    ("behavior", "problem"),
    [
        ({"NodeGetInfo": "fail INTERNAL no idea"}, "rpc error: code = Internal desc = no idea"),
        ({"info": {"id": ""}}, "error adding CSI driver node info: driverNodeID must not be empty"),
        ({"info": {"id": "x" * 193}}, "error adding CSI driver node info: driverNodeID must be 192 bytes or less"),
        ({"info": {"topology": {"a b": "c"}}}, "error adding CSI driver node info: invalid topology key 'a b'"),
        ({"NodeGetInfo": "flood"}, "rpc error: code = ResourceExhausted"),
    ],
)
async def test_a_csi_driver_that_knows_nothing_about_the_node_is_not_registered(
    folder: Path, behavior: dict[str, Any], problem: str
) -> None:
    with TemporaryDirectory(prefix="csi-") as top:
        root = Path(top)
        async with csi_driver(root, folder, behavior=behavior) as driver, watching(root) as cell:
            now = await until(cell, lambda now: bool(now.problems))
            head = "RegisterPlugin error -- plugin registration failed with err: "
            assert now.problems[str(driver.socket)].startswith(head + problem)
            await driver.behave(NodeGetInfo="", info={})
            await until(cell, lambda now: bool(now.plugins) and not now.problems)
