"""Starts CSI drivers for tests (`support/csi_driver.py`), each a process of its own, and sets how they behave."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from support.drivers import TESTS, DriverProcess

from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import LIMITS
from pykubelet.edges.host.fs.mounts import mounts_below, unmount
from pykubelet.edges.plugins.rpc import PluginMessage, call_plugin, plugin_channel

R = TypeVar("R", bound=PluginMessage)
DRIVER = "local.csi.pykubelet"
WRITER = pb.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")


class CsiProcess(DriverProcess):
    """One running driver; see `Observed` for its behaviors."""

    data: Path
    endpoint: Path

    async def has_ended(self, within_s: float = 5.0) -> bool:
        """Whether the process ends within this time."""
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    def names(self, what: str = "begun") -> list[str]:
        """The names of the calls that have begun, are `done`, or have `failed`, in order; without queries."""
        queries = ("NodeGetCapabilities", "NodeGetInfo", "NodeGetVolumeStats", "CreateVolume")
        return [one["call"] for one in self.calls() if one["is"] == what and one["call"] not in queries]

    def requests(self, call: str) -> list[dict[str, Any]]:
        """The requests of one method."""
        return [one["request"] for one in self.calls(call) if one["is"] == "begun"]

    async def create(self, name: str, *, is_block: bool = False, **parameters: str) -> str:
        """Have the driver create a volume of 8 MiB. Returns its id."""
        capability = pb.VolumeCapability(access_mode=WRITER)
        (capability.block if is_block else capability.mount).SetInParent()
        request = pb.CreateVolumeRequest(
            name=name,
            capacity_range=pb.CapacityRange(required_bytes=8 << 20),
            volume_capabilities=[capability],
            parameters=parameters,
        )
        return (await self._control("CreateVolume", request, pb.CreateVolumeResponse)).volume.volume_id

    async def expand(self, volume_id: str, size: int) -> None:
        """Have the driver give a volume this size in bytes, as the controllers of a cluster do."""
        request = pb.ControllerExpandVolumeRequest(
            volume_id=volume_id, capacity_range=pb.CapacityRange(required_bytes=size)
        )
        await self._control("ControllerExpandVolume", request, pb.ControllerExpandVolumeResponse)

    async def _control(self, method: str, request: PluginMessage, answer: type[R]) -> R:
        channel = plugin_channel(str(self.endpoint), LIMITS)
        try:
            return await call_plugin(channel, f"/csi.v1.Controller/{method}", request, answer, 60)
        finally:
            channel.close()

    def volumes(self) -> list[str]:
        """The ids of the volumes that the driver keeps."""
        return sorted(path.name for path in (self.data / "volumes").glob("*"))


@asynccontextmanager
async def csi_driver(
    root: Path,
    data: Path,
    name: str = DRIVER,
    *,
    node: str = "node-1",
    limit: int = 0,
    behavior: dict[str, Any] | None = None,
    points: Mapping[str, str] | None = None,
) -> AsyncIterator[CsiProcess]:
    """Run a driver whose sockets are below the agent's root directory, and whose volumes are in `data`.

    `points`: the variables of `support/crashing_agent.py`.
    """
    data.mkdir(parents=True, exist_ok=True)
    log, registration = data / "calls.jsonl", root / "plugins_registry" / f"{name}-reg.sock"
    options = ["--name", name, "--root", str(root), "--data", str(data), "--node", node, "--log", str(log)]
    options += ["--max", str(limit), "--behavior", json.dumps(behavior or {})]
    path = os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))
    environment = {**os.environ, "PYTHONPATH": path, **(points or {})}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "support.csi_driver",
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    driver = CsiProcess(process, name, registration, log)
    driver.data, driver.endpoint = data, root / "plugins" / name / "csi.sock"
    try:
        await driver._line("ready")
        yield driver
    finally:
        await driver.kill()


@contextmanager
def csi_folder() -> Iterator[Path]:
    """A folder for a driver, with the agent's root directory `root`; emptied at the end. Its path is short enough for sockets."""
    with TemporaryDirectory(prefix="csi-") as made:
        (Path(made) / "root").mkdir()
        yield Path(made)
        unmount_all(Path(made))


def unmount_all(path: Path) -> None:
    """Unmount everything below `path` that a failed test has left."""
    for mount in mounts_below(str(path)):
        unmount(mount.target, detach=True)
