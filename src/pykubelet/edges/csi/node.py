"""The client of a CSI driver's Node service: typed calls with a deadline, and one error.

A driver is not trusted: its answers are bounded in size. Source: Container Storage Interface 1.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pykubelet.base.kit.metrics import Histogram
from pykubelet.base.kit.values import Value
from pykubelet.base.model.plugins import CsiNodeInfo
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.plugins.channels import plugin_channel
from pykubelet.net.grpc.call import Message, R, call
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import RpcError

CALLS = Histogram(
    "csi_operations_seconds",
    "Container Storage Interface operation duration with gRPC error code status total",
    ("driver_name", "method_name", "grpc_status_code", "migrated"),
    (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600),
)


SERVICE = "/csi.v1.Node/"
#: CSINode has the limit of volumes as a 32-bit number.
MAX_LIMIT = 2**31 - 1
#: The reference's limit for every call.
CALL_S = 120.0
LIMITS = Http2Limits(
    header_list=16 << 10,
    message=64 << 10,
    stream_window=64 << 10,
    connection_window=64 << 10,
    all_headers=64 << 10,
    steps=2000,
    empty_frames=500,
)
Capability = pb.NodeServiceCapability.RPC.Type


class CsiNode:
    """The Node service of the driver `driver` at `endpoint`, on one connection. Use it as a context manager.

    `is_migrated`: the volume is of an in-tree cloud plugin, for metrics. All calls raise RpcError.
    """

    def __init__(self, driver: str, endpoint: str, timeout_s: float = CALL_S, *, is_migrated: bool = False) -> None:
        self._driver = driver
        self._is_migrated = is_migrated
        self._channel = plugin_channel(endpoint, LIMITS)
        self._timeout_s = timeout_s

    def __enter__(self) -> CsiNode:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    async def info(self) -> CsiNodeInfo:
        """The driver's id of this node, its limit of volumes, and where the node is."""
        found = await self._call("NodeGetInfo", pb.NodeGetInfoRequest(), pb.NodeGetInfoResponse)
        limit = min(max(found.max_volumes_per_node, 0), MAX_LIMIT)
        return CsiNodeInfo(found.node_id, limit, dict(found.accessible_topology.segments))

    async def capabilities(self) -> frozenset[int]:
        """The optional calls that the driver serves, as numbers of `NodeServiceCapability.RPC.Type`."""
        request = pb.NodeGetCapabilitiesRequest()
        answer = await self._call("NodeGetCapabilities", request, pb.NodeGetCapabilitiesResponse)
        return frozenset(capability.rpc.type for capability in answer.capabilities)

    async def stage(self, request: pb.NodeStageVolumeRequest) -> None:
        """Mount a volume once for the whole node."""
        await self._call("NodeStageVolume", request, pb.NodeStageVolumeResponse)

    async def unstage(self, volume_id: str, staging_path: str) -> None:
        """Undo `stage`."""
        request = pb.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=staging_path)
        await self._call("NodeUnstageVolume", request, pb.NodeUnstageVolumeResponse)

    async def publish(self, request: pb.NodePublishVolumeRequest) -> None:
        """Mount a volume for one pod."""
        await self._call("NodePublishVolume", request, pb.NodePublishVolumeResponse)

    async def unpublish(self, volume_id: str, target_path: str) -> None:
        """Undo `publish`."""
        request = pb.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=target_path)
        await self._call("NodeUnpublishVolume", request, pb.NodeUnpublishVolumeResponse)

    async def stats(self, volume_id: str, path: str) -> pb.NodeGetVolumeStatsResponse:
        """The usage of a mounted volume."""
        request = pb.NodeGetVolumeStatsRequest(volume_id=volume_id, volume_path=path)
        return await self._call("NodeGetVolumeStats", request, pb.NodeGetVolumeStatsResponse)

    async def expand(self, request: pb.NodeExpandVolumeRequest) -> int:
        """Grow the file system of a volume. Returns its capacity in bytes, 0 if the driver does not report it."""
        answer = await self._call("NodeExpandVolume", request, pb.NodeExpandVolumeResponse)
        return answer.capacity_bytes

    async def _call(self, name: str, request: Message, answer: type[R]) -> R:
        method = SERVICE + name
        with _measured(self._driver, method, self._is_migrated), _listed(self._driver, name, request, self._timeout_s):
            return await call(self._channel, method, request, answer, self._timeout_s)


class RunningCall(Value):
    """A call that the driver has not answered. `paths`: those that it names. `since`, `until`: when it began and is given up, in
    seconds of the event loop."""

    driver: str
    name: str
    paths: tuple[str, ...]
    since: float
    until: float


_running: list[RunningCall] = []


def running_calls(driver: str = "") -> tuple[RunningCall, ...]:
    """The calls of this process that the driver, or any driver, has not answered yet."""
    return tuple(known for known in _running if driver in ("", known.driver))


@contextmanager
def _listed(driver: str, name: str, request: Message, timeout_s: float) -> Iterator[None]:
    """Keep the call among those that run."""
    fields = ("staging_target_path", "target_path", "volume_path")
    paths = tuple(path for field in fields if (path := getattr(request, field, "")))
    now = asyncio.get_running_loop().time()
    running = RunningCall(driver, name, paths, now, now + timeout_s)
    _running.append(running)
    try:
        yield
    finally:
        _running.remove(running)


@contextmanager
def _measured(driver: str, method: str, is_migrated: bool) -> Iterator[None]:
    loop, code = asyncio.get_running_loop(), "OK"
    began = loop.time()
    try:
        yield
    except RpcError as error:
        code = error.code.words
        raise
    finally:
        CALLS.observe(loop.time() - began, driver, method, code, str(is_migrated).lower())
