"""Starts device plugins for tests (`support/device_plugin.py`), each a process of its own, and sets how they behave."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.device_plugin import Plugin, parse_options
from support.drivers import DriverProcess, LocalDriver, child_driver, is_virtual
from support.grpc_services import Service

from pykubelet.edges.plugins import deviceplugin_pb2 as pb
from pykubelet.edges.plugins.channels import plugin_channel
from pykubelet.edges.plugins.device_plugin import DEVICE_LIMITS
from pykubelet.net.grpc.call import call
from pykubelet.net.grpc.status import RpcError

#: An id, its health, and its NUMA nodes; None: without a topology.
Device = tuple[str, str, list[int] | None]
_numbers = itertools.count()


def healthy(*names: str) -> list[Device]:
    """Healthy devices without a topology."""
    return [(name, "Healthy", None) for name in names]


class PluginProcess(DriverProcess):
    """One running device plugin."""

    async def order(self, **command: Any) -> None:
        """Send a command; see `Plugin.take`. Returns when it is carried out."""
        await self._running.order(command)

    async def list_devices(self, devices: Sequence[Device]) -> None:
        """Send another list."""
        await self.order(devices=devices)

    async def misbehave(self, **behavior: str) -> None:
        """Change how calls are answered."""
        await self.order(behavior=behavior)

    async def register(self) -> str:
        """Register once by the agent's socket; returns the agent's error."""
        await self.order(register=True)
        return str(self.calls("Register")[-1]["error"])


@asynccontextmanager
async def device_plugin(
    root: Path,
    resource: str = "example.com/device",
    devices: Sequence[Device] = (),
    *,
    follow: bool = True,
    response: dict[str, Any] | None = None,
    version: str = "v1beta1",
    options: Sequence[str] = (),
    watched: bool = False,
) -> AsyncIterator[PluginProcess]:
    """Run a plugin for the agent with this root directory.

    `follow`: it serves, and registers whenever the agent's socket is new. `watched`: it serves and waits for the plugin watcher.
    """
    directory = root / "device-plugins"
    directory.mkdir(parents=True, exist_ok=True)
    number = next(_numbers)
    name = f"plugin-{number}"  # short, because the path of a socket has at most 107 bytes
    socket, log = (root / "plugins" if watched else directory) / f"{name}.sock", root / f"{name}.calls"
    arguments = ["--resource", resource, "--version", version, "--kubelet", str(directory / "kubelet.sock")]
    arguments += ["--socket", str(socket), "--log", str(log), *options]
    if watched:
        registry = root / "plugins_registry"
        for folder in (registry, root / "plugins"):
            folder.mkdir(parents=True, exist_ok=True)
        arguments += ["--watched", str(registry / f"{name}.sock")]
    process = _local_device_plugin(arguments) if is_virtual() else child_driver("device_plugin", arguments)
    async with process as running:
        registration = root / "plugins_registry" / f"{name}.sock"
        plugin = PluginProcess(running, resource, registration if watched else socket, log)
        await plugin.order(devices=list(devices), response=response or {}, follow=follow and not watched)
        yield plugin


class _LocalCarrier:
    """Serves a plugin within this process."""

    driver: LocalDriver

    async def serve(self, paths: Sequence[str], service: Service) -> None:
        self.driver.leave()
        for path in paths:
            await self.driver.serve(path, service)

    async def register(self, path: str, request: pb.RegisterRequest) -> str:
        channel = plugin_channel(path, DEVICE_LIMITS)
        try:
            await call(channel, "/v1beta1.Registration/Register", request, pb.Empty, 20)
        except RpcError as error:
            return error.message
        finally:
            channel.close()
        return ""

    def end(self) -> None:
        self.driver.end()


@asynccontextmanager
async def _local_device_plugin(arguments: Sequence[str]) -> AsyncIterator[LocalDriver]:
    carrier = _LocalCarrier()
    plugin = Plugin(parse_options(arguments), carrier)
    carrier.driver = LocalDriver(plugin.take)
    await plugin.begin()
    try:
        yield carrier.driver
    finally:
        await plugin.stop()
        carrier.end()
