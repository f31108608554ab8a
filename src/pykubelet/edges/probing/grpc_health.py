"""The gRPC probe: `grpc.health.v1.Health/Check`, without TLS.

Owns: a connection per probe, as the reference has it, so that a server which takes no new ones is found out. The two
messages have one field each and are coded by hand.

Source: the gRPC health checking protocol; the Kubernetes documentation "Define a gRPC liveness probe".
"""

from __future__ import annotations

import asyncio

import grpc

from pykubelet.base.kit.durations import format_duration
from pykubelet.edges.cri.errors import translated
from pykubelet.edges.probing.dial import join_host_port
from pykubelet.edges.probing.outcome import Outcome, failed, passed

USER_AGENT = "kube-probe/1.36"
_METHOD = "/grpc.health.v1.Health/Check"
_SERVING = 1
_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_OPTIONS = (
    ("grpc.primary_user_agent", USER_AGENT),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 10),
)


async def probe_grpc(host: str, port: int, service: str, timeout_s: float) -> Outcome:
    """Connect and ask within `timeout_s`; SERVING passes. `host` is an address, not a name."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    address = join_host_port(host, port)
    family = "ipv6" if ":" in host else "ipv4"
    channel = grpc.aio.insecure_channel(f"{family}:{address}", options=_OPTIONS)
    try:
        check = channel.unary_unary(_METHOD, request_serializer=encode_request, response_deserializer=bytes)
        try:
            answer: bytes = await check(service, timeout=timeout_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            connected = channel.get_state() is grpc.ChannelConnectivity.READY
            return _failure(error, address, timeout_s, connected, loop.time() - deadline)
    finally:
        await channel.close(grace=None)
    try:
        status = decode_status(answer)
    except ValueError as error:
        return failed(f"error: health rpc probe failed: rpc error: code = Internal desc = {error}")
    if status != _SERVING:
        return failed(f'service unhealthy (responded with "{_NAMES.get(status, str(status))}")')
    return passed("service healthy")


def _failure(error: grpc.aio.AioRpcError, address: str, timeout_s: float, connected: bool, late_s: float) -> Outcome:
    within = format_duration(timeout_s)
    match error.code():
        case grpc.StatusCode.UNIMPLEMENTED:
            what = "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
            return failed(f"error: {what}: {error.details()}")
        case grpc.StatusCode.DEADLINE_EXCEEDED if connected:
            return failed(f"timeout: health rpc did not complete within {within}", late_s)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            reason = "context deadline exceeded"
            return failed(f'timeout: failed to connect service "{address}" within {within}: {reason}', late_s)
        case grpc.StatusCode.UNAVAILABLE if not connected:
            return failed(f'error: failed to connect service at "{address}": {error.details()}')
        case _:
            told = translated(error.code(), error.details() or "", _METHOD)
            return failed(f"error: health rpc probe failed: {told}")


def encode_request(service: str) -> bytes:
    """HealthCheckRequest{service = 1}."""
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def _varint(number: int) -> bytes:
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    coded.append(number)
    return bytes(coded)


def decode_status(message: bytes) -> int:
    """HealthCheckResponse{status = 1}; other fields are passed over. ValueError when it is no such message."""
    position, status = 0, 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        match tag & 7:
            case 0:
                value, position = _read_varint(message, position)
                if tag == 8:
                    status = value
            case 1:
                position += 8
            case 2:
                length, position = _read_varint(message, position)
                position += length
            case 5:
                position += 4
            case _:
                raise ValueError("unknown wire type in a health answer")
    if position > len(message):
        raise ValueError("a health answer is cut short")
    return status


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number in a health answer is cut short")
