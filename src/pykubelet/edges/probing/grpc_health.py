"""The gRPC probe: `grpc.health.v1.Health/Check`, without TLS.

Owns: a connection per probe, as the reference has it, so that a server which takes no new ones is found out. The two
messages have one field each and are coded by hand.

Source: the gRPC health checking protocol; the Kubernetes documentation "Define a gRPC liveness probe".
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.durations import format_seconds
from pykubelet.edges.cri.errors import translated
from pykubelet.edges.probing.dial import join_host_port
from pykubelet.edges.probing.outcome import Outcome, failed, passed
from pykubelet.edges.rpc.channel import LATE, Channel, tcp_dial
from pykubelet.edges.rpc.limits import PROBE
from pykubelet.edges.rpc.status import Code, RpcError

USER_AGENT = "kube-probe/1.36"
_METHOD = "/grpc.health.v1.Health/Check"
_SERVING = 1
_NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
REDIAL_S = 0.1


async def probe_grpc(host: str, port: int, service: str, timeout_s: float) -> Outcome:
    """Connect and ask within `timeout_s`; SERVING passes. `host` is an address, not a name."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    address = join_host_port(host, port)
    channel = Channel(tcp_dial(host, port), address, USER_AGENT, PROBE)
    try:
        answer = await _ask(channel, encode_request(service), deadline)
    except RpcError as error:
        return _failure(error, address, timeout_s, channel.is_greeted, loop.time() - deadline)
    finally:
        channel.close()
    try:
        status = decode_status(answer)
    except ValueError as error:
        return failed(f"error: health rpc probe failed: rpc error: code = Internal desc = {error}")
    if status != _SERVING:
        return failed(f'service unhealthy (responded with "{_NAMES.get(status, str(status))}")')
    return passed("service healthy")


async def _ask(channel: Channel, request: bytes, deadline: float) -> bytes:
    """A server that cannot be reached is tried again until the deadline, as the reference does."""
    loop = asyncio.get_running_loop()
    method = channel.method(_METHOD)
    while (left := deadline - loop.time()) > 0:
        try:
            return await channel.unary(method, request, left)
        except RpcError as error:
            if error.code is not Code.UNAVAILABLE or channel.is_greeted:
                raise
        await asyncio.sleep(min(REDIAL_S, max(0.0, deadline - loop.time())))
    raise RpcError(Code.DEADLINE_EXCEEDED, LATE)


def _failure(error: RpcError, address: str, timeout_s: float, connected: bool, late_s: float) -> Outcome:
    within = format_seconds(timeout_s)
    match error.code:
        case Code.UNIMPLEMENTED:
            what = "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
            return failed(f"error: {what}: {error.message}")
        case Code.DEADLINE_EXCEEDED if connected:
            return failed(f"timeout: health rpc did not complete within {within}", late_s)
        case Code.DEADLINE_EXCEEDED:
            return failed(f'timeout: failed to connect service "{address}" within {within}: {error.message}', late_s)
        case _:
            told = translated(error.code, error.message, _METHOD)
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
