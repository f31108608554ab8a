"""Starts CSI drivers for tests (`support/csi_driver.py`), each a process of its own, and sets how they behave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from support import csi_driver as csi
from support.drivers import DriverProcess, LocalDriver, child_driver, is_virtual
from support.grpc_services import of_methods

from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import LIMITS
from pykubelet.edges.host.fs.mounts import mounts_below, unmount
from pykubelet.edges.plugins.channels import plugin_channel
from pykubelet.net.grpc.call import Message, call
from pykubelet_csi_local.driver import build_methods
from pykubelet_csi_local.registration import RegistrationService

R = TypeVar("R", bound=Message)
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
                await self._running.wait()
        except TimeoutError:
            return False
        return True

    def names(self, what: str = "begun") -> list[str]:
        """The names of the calls that have begun, are `done`, or have `failed`, in order; without queries."""
        queries = ("NodeGetCapabilities", "NodeGetInfo", "NodeGetVolumeStats", "CreateVolume")
        return [entry["call"] for entry in self.calls() if entry["is"] == what and entry["call"] not in queries]

    def requests(self, call: str) -> list[dict[str, Any]]:
        """The requests of one method."""
        return [entry["request"] for entry in self.calls(call) if entry["is"] == "begun"]

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

    async def _control(self, method: str, request: Message, answer: type[R]) -> R:
        channel = plugin_channel(str(self.endpoint), LIMITS)
        try:
            return await call(channel, f"/csi.v1.Controller/{method}", request, answer, 60)
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
    """Run a driver with its sockets below the agent's root directory, and its volumes in `data`.

    `points`: the variables of `support/crashing_agent.py`.
    """
    data.mkdir(parents=True, exist_ok=True)
    log, registration = data / "calls.jsonl", root / "plugins_registry" / f"{name}-reg.sock"
    options = ["--name", name, "--root", str(root), "--data", str(data), "--node", node, "--log", str(log)]
    options += ["--max", str(limit), "--behavior", json.dumps(behavior or {})]
    process = _local_csi_driver(options) if is_virtual() else child_driver("csi_driver", options, points)
    async with process as running:
        driver = CsiProcess(running, name, registration, log)
        driver.data, driver.endpoint = data, root / "plugins" / name / "csi.sock"
        yield driver


@asynccontextmanager
async def _local_csi_driver(arguments: Sequence[str]) -> AsyncIterator[LocalDriver]:
    options, observed = csi.prepare(csi.parse_options(arguments), lambda: running.end())
    running = LocalDriver(observed.take)
    for path, methods in (
        (options.endpoint, observed.wrapped(build_methods(options))),
        (options.registration, RegistrationService(options.name, options.endpoint).methods()),
    ):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        await running.serve(path, of_methods(methods))
    try:
        yield running
    finally:
        running.end()


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
