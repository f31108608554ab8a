"""Starts device plugins for tests (`support/device_plugin.py`), each a process of its own, and sets how they behave."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.drivers import TESTS, DriverProcess

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
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self._line("done")

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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "support.device_plugin",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    plugin = PluginProcess(process, resource, root / "plugins_registry" / f"{name}.sock" if watched else socket, log)
    try:
        await plugin._line("ready")
        await plugin.order(devices=list(devices), response=response or {}, follow=follow and not watched)
        yield plugin
    finally:
        await plugin.kill()
