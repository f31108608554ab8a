"""What DRA drivers and registration sockets answer to the agent's calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hostile.servers import Script, serving
from hostile.test_grpc_answers import (
    ANSWERS,
    END_STREAM,
    HEAD,
    TRAILERS,
    answering,
    block,
    message,
)
from support.cost import check_cost

from pykubelet.edges.plugins import dra_health_pb2 as health_pb
from pykubelet.edges.plugins import dra_pb2 as pb
from pykubelet.edges.plugins.dra_client import MAX_DEVICES, MAX_HEALTH, DraClaim, DraConnection
from pykubelet.edges.plugins.registration import PluginRegistration
from pykubelet.net.grpc.status import RpcError

LONGEST_S = 0.5
CLAIMS = [DraClaim("default", "uid", "one")]


def whole(payload: bytes) -> Script:
    return answering(block(HEAD) + message(payload) + block(TRAILERS, END_STREAM))


def devices(count: int, names: int = 1, claims: int = 1) -> bytes:
    device = pb.Device(
        pool_name="pool", device_name="d" * 60, request_names=["r"] * names, cdi_device_ids=["c"] * names
    )
    answer = pb.NodePrepareResourceResponse(devices=[device] * count)
    named = {f"uid{number or ''}": answer for number in range(claims)}
    return pb.NodePrepareResourcesResponse(claims=named).SerializeToString()


def reports(count: int) -> bytes:
    made = [
        health_pb.DeviceHealth(device=health_pb.DeviceIdentifier(pool_name="p", device_name=f"d{number}"))
        for number in range(count)
    ]
    return health_pb.NodeWatchResourcesResponse(devices=made).SerializeToString()


PREPARED: dict[str, Script] = {
    **ANSWERS,
    "as many devices as are accepted": whole(devices(MAX_DEVICES, 5)),
    "one device too many": whole(devices(MAX_DEVICES + 1)),
    "20,000 devices": whole(devices(20_000)),
    "100,000 devices": whole(devices(100_000)),
    "devices with 100,000 names": whole(devices(100, 1000)),
    "10,000 claims": whole(devices(0, claims=10_000)),
    "an error of a mebibyte": whole(
        pb.NodePrepareResourcesResponse(
            claims={"uid": pb.NodePrepareResourceResponse(error="e" * 1_000_000)}
        ).SerializeToString()
    ),
    "no protobuf": whole(b"\xff" * 100_000),
}


@pytest.mark.parametrize("name", PREPARED)
def test_no_answer_of_a_driver_costs_much(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "dra.sock")

    async def attack() -> None:
        connection = DraConnection(path, "v1.DRAPlugin")
        try:
            async with asyncio.timeout(LONGEST_S):
                await connection.prepare("driver", CLAIMS)
        except (RpcError, TimeoutError):
            pass
        finally:
            connection.close()

    with serving(PREPARED[name], path):
        check_cost(name, attack)


HEALTH: dict[str, Script] = {
    "as many reports as are accepted, without end": answering(block(HEAD), message(reports(MAX_HEALTH)), 4 << 20),
    "60,000 reports": answering(block(HEAD) + message(reports(60_000)[: 1 << 20])),
    "empty reports without end": answering(block(HEAD), message(b"")),
}


@pytest.mark.parametrize("name", HEALTH)
def test_no_report_on_devices_costs_much(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "dra.sock")

    async def attack() -> None:
        connection = DraConnection(path, "v1.DRAPlugin")
        try:
            async with asyncio.timeout(LONGEST_S):
                async for _ in connection.watch_health("v1.DRAResourceHealth"):
                    await asyncio.sleep(0.01)
        except (RpcError, TimeoutError):
            pass
        finally:
            connection.close()

    with serving(HEALTH[name], path):
        check_cost(name, attack)


@pytest.mark.parametrize("name", ["a good answer", "a message of 16 MiB", "PING without end", "DATA of one byte"])
def test_no_registration_socket_costs_much(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "reg.sock")

    async def attack() -> None:
        with PluginRegistration(path) as registration:
            try:
                async with asyncio.timeout(LONGEST_S):
                    await registration.get_info()
            except (RpcError, TimeoutError):
                pass

    with serving(ANSWERS[name], path):
        check_cost(name, attack)
