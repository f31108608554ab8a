"""A DRA driver for tests. `support/drivers.py` starts it: as a process of its own (`python -m support.dra_driver`), or in virtual
time within the process.

It serves plugin registration, dynamic resource allocation (v1 and v1beta1) and the health of devices. As a process, it
serves with grpcio on real sockets, and lines of JSON on its standard input change how it behaves; each is answered by a
line. All calls are written to a file of JSON lines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from support.grpc_services import Context, Rpc, Service, grpcio_handlers, named

from pykubelet.edges.plugins import dra_health_pb2 as health_pb
from pykubelet.edges.plugins import dra_pb2 as pb
from pykubelet.edges.plugins import pluginregistration_pb2 as registration_pb

HEALTH = {"Unknown": health_pb.UNKNOWN, "Healthy": health_pb.HEALTHY, "Unhealthy": health_pb.UNHEALTHY}


class Driver:
    """The state of the driver. `behavior`: by call (`info`, `notify`, `prepare`, `unprepare`), how it is answered.

    `end`: ends the driver at once, in the middle of a call.
    """

    def __init__(self, options: argparse.Namespace, end: Callable[[], object]) -> None:
        self.options = options
        self._end = end
        self.behavior: dict[str, Any] = {}
        self.devices: list[dict[str, Any]] = []
        self.health: list[dict[str, Any]] = []
        self.serves_health = True
        self.changed = asyncio.Event()
        self.connections: set[str] = set()

    def log(self, call: str, **fields: object) -> None:
        """Append a call to the file of calls."""
        with Path(self.options.log).open("a") as out:
            out.write(json.dumps({"call": call, **fields}) + "\n")

    async def behave(self, call: str, context: Context) -> str:
        """Hang, crash or fail as ordered. Returns the rest of the behavior."""
        how = str(self.behavior.get(call, ""))
        if how == "hang":
            await asyncio.sleep(3600)
        if how == "crash":
            self._end()
        if how.startswith("fail"):
            await context.abort(grpc.StatusCode.INTERNAL, how.removeprefix("fail").strip() or "ordered to fail")
        return how

    async def get_info(self, _: registration_pb.InfoRequest, context: Context) -> registration_pb.PluginInfo:
        self.log("GetInfo")
        await self.behave("info", context)
        options = self.options
        return registration_pb.PluginInfo(
            type=self.behavior.get("type", options.type),
            name=self.behavior.get("name", options.name),
            endpoint=options.endpoint,
            supported_versions=self.behavior.get("versions", options.versions.split(",") if options.versions else []),
        )

    async def notify(
        self, status: registration_pb.RegistrationStatus, context: Context
    ) -> registration_pb.RegistrationStatusResponse:
        self.log("NotifyRegistrationStatus", registered=status.plugin_registered, error=status.error)
        await self.behave("notify", context)
        return registration_pb.RegistrationStatusResponse()

    async def prepare(
        self, request: pb.NodePrepareResourcesRequest, context: Context
    ) -> pb.NodePrepareResourcesResponse:
        claims = [[claim.namespace, claim.name, claim.uid] for claim in request.claims]
        self.log("NodePrepareResources", claims=claims, peer=context.peer())
        how = await self.behave("prepare", context)
        answer = pb.NodePrepareResourcesResponse()
        for claim in request.claims if how != "skip" else ():
            found = answer.claims[claim.uid if how != "lie" else "unknown-claim"]
            if how.startswith("error"):
                found.error = how.removeprefix("error").strip()
                continue
            for device in self.devices * (50_000 if how == "flood" else 1):
                made = found.devices.add(
                    request_names=device.get("requests", []),
                    pool_name=device.get("pool", "pool"),
                    device_name=device.get("device", "dev-0"),
                    cdi_device_ids=[cdi.format(uid=claim.uid, name=claim.name) for cdi in device.get("cdi", [])],
                )
                if "share" in device:
                    made.share_id = device["share"]
        return answer

    async def unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        claims = [[claim.namespace, claim.name, claim.uid] for claim in request.claims]
        self.log("NodeUnprepareResources", claims=claims, peer=context.peer())
        how = await self.behave("unprepare", context)
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in request.claims if how != "skip" else ():
            error = how.removeprefix("error").strip() if how.startswith("error") else ""
            answer.claims[claim.uid if how != "lie" else "unknown-claim"].error = error
        return answer

    async def watch_health(
        self, _: health_pb.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[health_pb.NodeWatchResourcesResponse]:
        self.log("NodeWatchResources", peer=context.peer())
        if self.behavior.get("health") == "unimplemented":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no health")
        while True:
            self.changed.clear()
            if self.health:
                yield health_pb.NodeWatchResourcesResponse(devices=[_device_health(device) for device in self.health])
            await self.changed.wait()
            if self.behavior.get("health") == "end":
                return

    def take(self, command: dict[str, Any]) -> None:
        """Carry out one command of the test."""
        self.behavior.update(command.get("behavior", {}))
        self.devices = command.get("devices", self.devices)
        self.health = command.get("health", self.health)
        self.changed.set()

    def registration(self) -> Service:
        """The service on the registration socket."""
        methods = {
            "GetInfo": Rpc(self.get_info, registration_pb.InfoRequest),
            "NotifyRegistrationStatus": Rpc(self.notify, registration_pb.RegistrationStatus),
        }
        return named("pluginregistration.Registration", methods)

    def services(self) -> Service:
        """The services on the driver's own socket."""
        methods = {
            "NodePrepareResources": Rpc(self.prepare, pb.NodePrepareResourcesRequest),
            "NodeUnprepareResources": Rpc(self.unprepare, pb.NodeUnprepareResourcesRequest),
        }
        versions = [name.partition(".")[0] for name in self.options.versions.split(",") if name.endswith(".DRAPlugin")]
        served: dict[str, Rpc] = {}
        for version in versions:
            served |= named(f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin", methods)
        if self.options.health:
            watch = Rpc(self.watch_health, health_pb.NodeWatchResourcesRequest, streams=True)
            listed = [name for name in self.options.versions.split(",") if name.endswith(".DRAResourceHealth")]
            for name in listed or ["v1alpha1.DRAResourceHealth"]:
                served |= named(name, {"NodeWatchResources": watch})
        return served


def _device_health(device: dict[str, Any]) -> health_pb.DeviceHealth:
    return health_pb.DeviceHealth(
        device=health_pb.DeviceIdentifier(pool_name=device.get("pool", "pool"), device_name=device["device"]),
        health=HEALTH[device["health"]],
        last_updated_time=device.get("updated", 0),
        health_check_timeout_seconds=device.get("timeout", 0),
        message=device.get("message", ""),
    )


async def _serve(driver: Driver) -> None:
    options = driver.options
    service = grpc.aio.server(options=[("grpc.max_send_message_length", 256 << 20)])
    service.add_generic_rpc_handlers(grpcio_handlers(driver.services()))
    registrar = grpc.aio.server()
    registrar.add_generic_rpc_handlers(grpcio_handlers(driver.registration()))
    for path in (options.endpoint, options.socket):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    if not options.deaf:
        service.add_insecure_port(f"unix:{options.endpoint}")
        await service.start()
    registrar.add_insecure_port(f"unix:{options.socket}")
    await registrar.start()
    await _obey(driver)
    # the sockets go first, as with a driver that ends in order
    await registrar.stop(None)
    await service.stop(None)


async def _obey(driver: Driver) -> None:
    """Carry out commands until the test closes the standard input."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=16 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while line := await reader.readline():
        driver.take(json.loads(line))
        print("done", flush=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--type", default="DRAPlugin")
    parser.add_argument("--versions", default="v1.DRAPlugin")
    parser.add_argument("--socket", required=True, help="the registration socket")
    parser.add_argument("--endpoint", required=True, help="the socket of the service")
    parser.add_argument("--log", required=True, help="the file of calls")
    parser.add_argument("--health", action="store_true")
    parser.add_argument("--deaf", action="store_true", help="registers, but has no service")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(_serve(Driver(parse_options(), lambda: os._exit(3))))
