"""The gRPC probe: `grpc.health.v1.Health/Check`, with TLS if the pod asks for it.

Owns: a new connection for each probe, as in the reference, so that the probe of a server that accepts none fails.

Source: the gRPC health checking protocol; the Kubernetes documentation "Define a gRPC liveness probe"; KEP-4939 (TLS).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError

from pykubelet.base.kit.durations import format_seconds
from pykubelet.edges.cri.errors import translated
from pykubelet.edges.probing import grpc_health_pb2 as pb
from pykubelet.edges.probing.connection import Connector
from pykubelet.edges.probing.dial import DialError, join_host_port
from pykubelet.edges.probing.http import USER_AGENT
from pykubelet.edges.probing.outcome import Outcome, failed, passed
from pykubelet.edges.probing.transport import ConnectionTransport
from pykubelet.net.grpc.channel import LATE, Channel, Dial, Session
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, RpcError

_METHOD = "/grpc.health.v1.Health/Check"
_NOT_DECODED = translated(Code.INTERNAL, "grpc: failed to unmarshal the received message", _METHOD)
_Status = pb.HealthCheckResponse.ServingStatus
REDIAL_S = 0.1
#: The server is the container itself and not trusted. An answer of `grpc.health.v1.Health/Check` is two bytes, in about five
#: frames. Together these limits keep the cost of a probe below 50 ms of CPU and 1 MiB, whatever its server sends.
PROBE_LIMITS = Http2Limits(
    header_list=8 << 10,
    message=32 << 10,
    stream_window=65535,
    connection_window=65535,
    all_headers=16 << 10,
    steps=500,
    empty_frames=500,
)


async def probe_grpc(
    host: str,
    port: int,
    service: str,
    timeout_s: float,
    user_agent: str = USER_AGENT,
    *,
    redials: bool = True,
    is_tls: bool = False,
    connector: Connector | None = None,
) -> Outcome:
    """Connect and call Check within `timeout_s`. SERVING passes. TLS accepts any certificate.

    `host`: an address, not a name. `redials`: as in `Behavior`. `connector`: limits what
    it and other probes cost together.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    address = join_host_port(host, port)
    dial = _dial(connector or Connector(), host, port, is_tls=is_tls)
    channel = Channel(dial, PROBE_LIMITS, address, user_agent)
    try:
        answer = await _ask(channel, pb.HealthCheckRequest(service=service).SerializeToString(), deadline, redials)
    except RpcError as error:
        is_silent = channel.has_settings or not redials
        return _failure(error, address, timeout_s, is_silent, loop.time() - deadline)
    finally:
        channel.close()
    try:
        status = pb.HealthCheckResponse.FromString(answer).status
    except DecodeError:
        return failed(f"error: health rpc probe failed: {_NOT_DECODED}")
    if status != pb.HealthCheckResponse.SERVING:
        name = _Status.Name(status) if status in _Status.values() else str(status)
        return failed(f'service unhealthy (responded with "{name}")')
    return passed("service healthy")


def _dial(connector: Connector, host: str, port: int, *, is_tls: bool) -> Dial:
    async def dial(make: Callable[[], Session]) -> tuple[asyncio.BaseTransport, Session]:
        try:
            if is_tls:
                connection = await connector.connect_tls(host, port, protocol="h2")
            else:
                connection = await connector.connect(host, port)
        except DialError as error:
            text = f'connection error: desc = "transport: Error while dialing: {error}"'
            raise RpcError(Code.UNAVAILABLE, text) from error
        except OSError as error:  # an SSLError is one, too
            why = str(error) or type(error).__name__
            text = f'connection error: desc = "transport: authentication handshake failed: {why}"'
            raise RpcError(Code.UNAVAILABLE, text) from error
        session = make()
        return ConnectionTransport(connection, session), session

    return dial


async def _ask(channel: Channel, request: bytes, deadline: float, redials: bool) -> bytes:
    """Call Check. With `redials`, a server that cannot be reached is retried until the deadline, as in the reference until 1.37."""
    loop = asyncio.get_running_loop()
    method = channel.method(_METHOD)
    while (left := deadline - loop.time()) > 0:
        try:
            return await channel.unary(method, request, left)
        except RpcError as error:
            if error.code is not Code.UNAVAILABLE or channel.has_settings or not redials:
                raise
        await asyncio.sleep(min(REDIAL_S, max(0.0, deadline - loop.time())))
    raise RpcError(Code.DEADLINE_EXCEEDED, LATE)


def _failure(error: RpcError, address: str, timeout_s: float, is_silent: bool, late_s: float) -> Outcome:
    within = format_seconds(timeout_s)
    match error.code:
        case Code.UNIMPLEMENTED:
            what = "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
            return failed(f"error: {what}: {error.message}")
        case Code.DEADLINE_EXCEEDED if is_silent:
            return failed(f"timeout: health rpc did not complete within {within}", late_s)
        case Code.DEADLINE_EXCEEDED:
            return failed(f'timeout: failed to connect service "{address}" within {within}: {error.message}', late_s)
        case _:
            reason = translated(error.code, error.message, _METHOD)
            return failed(f"error: health rpc probe failed: {reason}")
