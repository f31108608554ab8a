"""The client of one DRA driver: prepares and unprepares claims, and watches the health of devices, on one connection.

A driver is not trusted: its answers have bounds, and every call but the stream has a deadline.
Source: KEP-4381 (`DRAPlugin` v1 and v1beta1), KEP-4680 (`DRAResourceHealth` v1 and v1alpha1).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

from pykubelet.base.kit.values import Value
from pykubelet.base.model.claims import ClaimDevice
from pykubelet.edges.plugins import dra_health_pb2 as health_pb
from pykubelet.edges.plugins import dra_pb2 as pb
from pykubelet.edges.plugins.channels import plugin_channel
from pykubelet.net.grpc.call import Message, R, call, decoded
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, RpcError

CALL_S = 45.0
CONNECT_S = 10.0
#: A claim has at most 32 allocated devices; a pod has a few claims.
MAX_DEVICES = 1000
#: Request names and CDI devices of one answer.
MAX_NAMES = 10_000
MAX_HEALTH = 2000
#: Characters of an error and of a claim's UID, which are shown in Events and by `explain`.
MAX_ERROR = 4096
MAX_UID = 256
_HEALTH_METHOD = "NodeWatchResources"
DRA_LIMITS = Http2Limits(header_list=16 << 10, message=1 << 20, stream_window=2 << 20, connection_window=4 << 20)


class DraClaim(Value):
    """A claim as a driver knows it."""

    namespace: str
    uid: str
    name: str


class PreparedClaim(Value):
    """The answer for one claim: its devices, or why it could not be prepared."""

    devices: tuple[ClaimDevice, ...] = ()
    error: str = ""


class DeviceReport(Value):
    """The health of one device. `health`: `Unknown`, `Healthy` or `Unhealthy`. `timeout_s`: 0 if the driver gave none."""

    pool: str
    device: str
    health: str
    timeout_s: int = 0
    message: str = ""


_HEALTH = {health_pb.HEALTHY: "Healthy", health_pb.UNHEALTHY: "Unhealthy"}


class DraConnection:
    """The connection to one driver. `service`: `v1.DRAPlugin` or `v1beta1.DRAPlugin`. Raises RpcError for a bad endpoint."""

    def __init__(self, endpoint: str, service: str) -> None:
        self._channel = plugin_channel(endpoint, DRA_LIMITS)
        self._service = f"/k8s.io.kubelet.pkg.apis.dra.{service}/"

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open."""
        return self._channel.is_connected

    def method(self, name: str) -> str:
        """The full name of a method of the service."""
        return self._service + name

    async def connect(self) -> None:
        """Open the connection, unless it is open. Raises RpcError."""
        await self._channel.connect(CONNECT_S)

    async def wait_lost(self) -> None:
        """Wait until an open connection is lost. For one task only."""
        await self._channel.wait_lost()

    def close(self) -> None:
        """Close the connection. Calls in flight fail with code Canceled."""
        self._channel.close()

    async def prepare(self, driver: str, claims: Sequence[DraClaim]) -> dict[str, PreparedClaim]:
        """Prepare claims. `driver`: its name. Returns the answers by the claims' UIDs. Raises RpcError."""
        request = pb.NodePrepareResourcesRequest(claims=_claims(claims))
        answer = await self._call("NodePrepareResources", request, pb.NodePrepareResourcesResponse)
        _check_size(answer.claims, len(claims))
        return {
            uid[:MAX_UID]: PreparedClaim(
                tuple(_device(driver, device) for device in claim.devices), claim.error[:MAX_ERROR]
            )
            for uid, claim in answer.claims.items()
        }

    async def unprepare(self, claims: Sequence[DraClaim]) -> dict[str, str]:
        """Unprepare claims. Returns the errors by the claims' UIDs, empty for success. Raises RpcError."""
        request = pb.NodeUnprepareResourcesRequest(claims=_claims(claims))
        answer = await self._call("NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse)
        if len(answer.claims) > len(claims) + MAX_DEVICES:
            raise _too_many(f"{len(answer.claims)} claims")
        return {uid[:MAX_UID]: claim.error[:MAX_ERROR] for uid, claim in answer.claims.items()}

    async def _call(self, name: str, request: Message, answer: type[R]) -> R:
        return await call(self._channel, self.method(name), request, answer, CALL_S)

    async def watch_health(self, service: str) -> AsyncGenerator[tuple[DeviceReport, ...], None]:
        """Yield the reports of the driver until it ends the stream. `service`: of `DRA_HEALTH_SERVICES`. Raises RpcError."""
        request = health_pb.NodeWatchResourcesRequest().SerializeToString()
        stream = await self._channel.stream(self._channel.method(f"/{service}/{_HEALTH_METHOD}"), request)
        try:
            while (data := await stream.read()) is not None:
                answer = decoded(health_pb.NodeWatchResourcesResponse, data)
                if len(answer.devices) > MAX_HEALTH:
                    raise _too_many(f"{len(answer.devices)} devices")
                yield tuple(_report(device) for device in answer.devices)
        finally:
            stream.close()


def grpc_code(error: RpcError | None) -> str:
    """The status of a call as metrics have it; `OK` for None."""
    return (Code.OK if error is None else error.code).words


def _claims(claims: Iterable[DraClaim]) -> list[pb.Claim]:
    return [pb.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]


def _check_size(answers: Mapping[str, pb.NodePrepareResourceResponse], asked: int) -> None:
    if len(answers) > asked + MAX_DEVICES:
        raise _too_many(f"{len(answers)} claims")
    devices = sum(len(answer.devices) for answer in answers.values())
    if devices > MAX_DEVICES:
        raise _too_many(f"{devices} devices")
    names = sum(
        len(device.request_names) + len(device.cdi_device_ids)
        for answer in answers.values()
        for device in answer.devices
    )
    if names > MAX_NAMES:
        raise _too_many(f"{names} request names and CDI devices")


def _too_many(what: str) -> RpcError:
    return RpcError(Code.RESOURCE_EXHAUSTED, f"the driver's message has {what}, more than are accepted")


def _device(driver: str, device: pb.Device) -> ClaimDevice:
    requests, cdi = tuple(device.request_names), tuple(device.cdi_device_ids)
    return ClaimDevice(driver, device.pool_name, device.device_name, requests, cdi, device.share_id)


def _report(health: health_pb.DeviceHealth) -> DeviceReport:
    return DeviceReport(
        health.device.pool_name,
        health.device.device_name,
        _HEALTH.get(health.health, "Unknown"),
        max(0, health.health_check_timeout_seconds),
        health.message,
    )
