"""The client of one device plugin (`v1beta1.DevicePlugin`), and the message with which it registers.

A plugin is not trusted: each call has a deadline, and a connection has limits.
Source: the Kubernetes documentation "Device Plugins".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import TypeVar

from google.protobuf.message import DecodeError

from pykubelet.base.kit.values import Value
from pykubelet.edges.plugins import deviceplugin_pb2 as pb
from pykubelet.edges.plugins.channels import plugin_channel
from pykubelet.net.grpc.call import Message, call
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, RpcError

REGISTER = "/v1beta1.Registration/Register"
SERVICE = "/v1beta1.DevicePlugin/"
OPTIONS_S = 10.0
PREFER_S = 10.0
ALLOCATE_S = 60.0
PRE_START_S = 30.0
#: The largest message, as in the reference.
MAX_MESSAGE = 4 << 20
DEVICE_LIMITS = Http2Limits(
    header_list=16 << 10,
    message=MAX_MESSAGE,
    stream_window=MAX_MESSAGE + (64 << 10),
    connection_window=2 * MAX_MESSAGE,
)
R = TypeVar("R", bound=Message)


class DevicePluginRegistration(Value):
    """What a plugin registers with. `endpoint`: the name of its socket beside the agent's."""

    version: str
    endpoint: str
    resource: str


class PluginOptions(Value):
    """What the agent must call. `needs_pre_start`: before each start of a container. `prefers`: before each allocation."""

    needs_pre_start: bool = False
    prefers: bool = False


def read_registration(data: bytes) -> DevicePluginRegistration:
    """The request of `Register`. Raises RpcError."""
    try:
        request = pb.RegisterRequest.FromString(data)
    except DecodeError as error:
        raise RpcError(Code.INTERNAL, f"grpc: error unmarshalling request: {error}") from None
    return DevicePluginRegistration(request.version, request.endpoint, request.resource_name)


def registered() -> bytes:
    """The answer of `Register`."""
    return pb.Empty().SerializeToString()


class DevicePluginClient:
    """One connection to a plugin; it is made with the first call. All methods raise RpcError."""

    def __init__(self, endpoint: str) -> None:
        self._channel = plugin_channel(endpoint, DEVICE_LIMITS)

    async def options(self) -> PluginOptions:
        """`GetDevicePluginOptions`."""
        answer = await self._call("GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions, OPTIONS_S)
        return PluginOptions(answer.pre_start_required, answer.get_preferred_allocation_available)

    async def watch(self) -> AsyncIterator[tuple[bytes, int]]:
        """`ListAndWatch`: the newest list, as it was sent, and how many older ones were skipped for it.

        Ends when the plugin ends the stream.
        """
        method = self._channel.method(f"{SERVICE}ListAndWatch")
        stream = await self._channel.stream(method, pb.Empty().SerializeToString())
        try:
            while (found := await stream.read_newest()) is not None:
                yield found
        finally:
            stream.close()

    async def prefer(self, available: Collection[str], must_include: Collection[str], size: int) -> frozenset[str]:
        """`GetPreferredAllocation` for one container: the devices that the plugin prefers."""
        wanted = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[wanted])
        answer = await self._call("GetPreferredAllocation", request, pb.PreferredAllocationResponse, PREFER_S)
        return frozenset(answer.container_responses[0].deviceIDs) if answer.container_responses else frozenset()

    async def allocate(self, ids: Collection[str]) -> bytes | None:
        """`Allocate` for one container: the `ContainerAllocateResponse`; None if the answer has none."""
        wanted = pb.ContainerAllocateRequest(devices_ids=sorted(ids))
        request = pb.AllocateRequest(container_requests=[wanted])
        answer = await self._call("Allocate", request, pb.AllocateResponse, ALLOCATE_S)
        found = answer.container_responses
        return found[0].SerializeToString(deterministic=True) if found else None

    async def pre_start(self, ids: Collection[str]) -> None:
        """`PreStartContainer` for one container."""
        request = pb.PreStartContainerRequest(devices_ids=sorted(ids))
        await self._call("PreStartContainer", request, pb.PreStartContainerResponse, PRE_START_S)

    def close(self) -> None:
        """Close the connection. Calls in flight fail."""
        self._channel.close()

    async def _call(self, name: str, request: Message, answer: type[R], timeout_s: float) -> R:
        return await call(self._channel, f"{SERVICE}{name}", request, answer, timeout_s)
