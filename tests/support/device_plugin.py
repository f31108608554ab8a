"""A device plugin for tests. `support/device_plugins.py` starts it: as a process of its own (`python -m support.device_plugin`), or in
virtual time within the process.

It serves `v1beta1.DevicePlugin`, and registers by the agent's socket each time that this socket is created anew. As a
process, it serves with grpcio on real sockets, and lines of JSON on its standard input change its devices and how it
behaves; each is answered by a line. All calls are written to a file of JSON lines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
from support.grpc_services import Context, Rpc, Service, grpcio_handlers, named

from pykubelet.edges.plugins import deviceplugin_pb2 as pb
from pykubelet.edges.plugins import pluginregistration_pb2 as registration_pb

#: The name of a call's behavior in the commands of a test, by method.
BEHAVIOR = {
    "GetDevicePluginOptions": "options",
    "ListAndWatch": "list",
    "GetPreferredAllocation": "prefer",
    "Allocate": "allocate",
    "PreStartContainer": "pre_start",
    "GetInfo": "info",
}


class Carrier(Protocol):
    """Serves a plugin, and calls the agent for it."""

    async def serve(self, paths: Sequence[str], service: Service) -> None:
        """Serve at these sockets, and no longer at those of an earlier call."""
        ...

    async def register(self, path: str, request: pb.RegisterRequest) -> str:
        """Register by the agent's socket at `path`; returns the error."""
        ...

    def end(self) -> None:
        """End the plugin at once, in the middle of a call."""
        ...


class Plugin:
    """The state of the plugin.

    `behavior`: by call, `hang`, `crash`, `fail TEXT` or what the call itself knows. `devices`: id, health, NUMA nodes.
    `response`: what `Allocate` adds to a container, as JSON of `ContainerAllocateResponse`; `{ids}` stands for the devices.
    """

    def __init__(self, options: argparse.Namespace, carrier: Carrier) -> None:
        self.options = options
        self._carrier = carrier
        self._follower: asyncio.Task[None] | None = None
        self.behavior: dict[str, Any] = {}
        self.devices: list[tuple[str, str, list[int] | None]] = []
        self.response: dict[str, Any] = {}
        self.changed = asyncio.Event()
        self.version = 0

    def log(self, call: str, **fields: object) -> None:
        """Append a call to the file of calls."""
        with Path(self.options.log).open("a") as out:
            out.write(json.dumps({"call": call, **fields}) + "\n")

    async def behave(self, call: str, context: Context) -> str:
        """Hang, crash or fail as ordered. Returns the rest of the behavior."""
        how = str(self.behavior.get(BEHAVIOR[call], ""))
        if how == "hang":
            await asyncio.sleep(3600)
        if how == "crash":
            self._carrier.end()
        if how.startswith("fail"):
            await context.abort(grpc.StatusCode.INTERNAL, how.removeprefix("fail").strip() or "ordered to fail")
        return how

    async def get_options(self, _: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        self.log("GetDevicePluginOptions")
        await self.behave("GetDevicePluginOptions", context)
        return pb.DevicePluginOptions(
            pre_start_required=self.options.pre_start, get_preferred_allocation_available=self.options.prefers
        )

    async def list_and_watch(self, _: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.log("ListAndWatch")
        while True:
            seen = self.version
            how = await self.behave("ListAndWatch", context)
            if how == "end":
                return
            yield self.listed()
            while how != "flood" and self.version == seen:
                self.changed.clear()
                await self.changed.wait()

    def listed(self) -> pb.ListAndWatchResponse:
        answer = pb.ListAndWatchResponse()
        for name, health, nodes in self.devices:
            device = answer.devices.add(ID=name, health=health)
            if nodes is not None:
                device.topology.SetInParent()
                for node in nodes:
                    device.topology.nodes.add(ID=node)
        return answer

    async def prefer(self, request: pb.PreferredAllocationRequest, context: Context) -> pb.PreferredAllocationResponse:
        (asked,) = request.container_requests
        available, must = sorted(asked.available_deviceIDs), sorted(asked.must_include_deviceIDs)
        self.log("GetPreferredAllocation", available=available[:10], must_include=must, size=asked.allocation_size)
        how = await self.behave("GetPreferredAllocation", context)
        chosen = must + [name for name in reversed(available) if name not in must]
        if how == "lie":
            chosen = ["no-such-device", *(f"other-{n}" for n in range(1000))]
        wanted = pb.ContainerPreferredAllocationResponse(deviceIDs=chosen[: max(asked.allocation_size, 1)])
        return pb.PreferredAllocationResponse(container_responses=[wanted] if how != "empty" else [])

    async def allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        ids = [sorted(container.devices_ids) for container in request.container_requests]
        self.log("Allocate", ids=ids)
        how = await self.behave("Allocate", context)
        if how == "empty":
            return pb.AllocateResponse()
        if how == "flood":
            flood = pb.ContainerAllocateResponse(envs={f"E{n}": "x" * 1000 for n in range(10_000)})
            return pb.AllocateResponse(container_responses=[flood])
        return pb.AllocateResponse(container_responses=[self.respond(device_ids) for device_ids in ids])

    def respond(self, ids: list[str]) -> pb.ContainerAllocateResponse:
        def fill(value: Any) -> Any:
            return value.replace("{ids}", ",".join(ids)) if isinstance(value, str) else value

        made = self.response
        return pb.ContainerAllocateResponse(
            envs={key: fill(value) for key, value in made.get("envs", {}).items()},
            mounts=[pb.Mount(**{key: fill(value) for key, value in mount.items()}) for mount in made.get("mounts", [])],
            devices=[pb.DeviceSpec(**device) for device in made.get("devices", [])],
            annotations={key: fill(value) for key, value in made.get("annotations", {}).items()},
            cdi_devices=[pb.CDIDevice(name=fill(name)) for name in made.get("cdi", [])],
        )

    async def pre_start(self, request: pb.PreStartContainerRequest, context: Context) -> pb.PreStartContainerResponse:
        self.log("PreStartContainer", ids=sorted(request.devices_ids))
        await self.behave("PreStartContainer", context)
        return pb.PreStartContainerResponse()

    # the plugin watcher

    async def get_info(self, _: registration_pb.InfoRequest, context: Context) -> registration_pb.PluginInfo:
        self.log("GetInfo")
        await self.behave("GetInfo", context)
        return registration_pb.PluginInfo(
            type="DevicePlugin",
            name=self.options.resource,
            endpoint=self.options.socket,
            supported_versions=[self.options.version],
        )

    async def notify(
        self, status: registration_pb.RegistrationStatus, _: Context
    ) -> registration_pb.RegistrationStatusResponse:
        self.log("NotifyRegistrationStatus", registered=status.plugin_registered, error=status.error)
        return registration_pb.RegistrationStatusResponse()

    # commands

    async def take(self, command: dict[str, Any]) -> None:
        """Carry out one command of the test."""
        self.behavior.update(command.get("behavior", {}))
        if "devices" in command:
            self.devices = [(name, health, nodes) for name, health, nodes in command["devices"]]
        if "many" in command:
            self.devices = [(f"device-{n:06}", "Healthy", [n % 2]) for n in range(command["many"])]
        self.response = command.get("response", self.response)
        self.version += 1
        self.changed.set()
        if command.get("register"):
            await self.register()
        if command.get("follow") and self._follower is None:
            self._follower = asyncio.create_task(self._follow_agent())
            self._follower.add_done_callback(_end_with)

    async def register(self) -> str:
        """Register by the agent's socket; returns the error."""
        options = self.options
        request = pb.RegisterRequest(
            version=options.version, endpoint=Path(options.socket).name, resource_name=options.resource
        )
        problem = await self._carrier.register(options.kubelet, request)
        self.log("Register", error=problem)
        return problem

    async def begin(self) -> None:
        """Serve, if the plugin watcher finds the plugin."""
        if self.options.watched:
            await self._serve()

    async def stop(self) -> None:
        """No longer register."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])

    async def _serve(self) -> None:
        """Serve on the plugin's socket, and on the registration socket if there is one."""
        await self._carrier.serve(
            [path for path in (self.options.socket, self.options.watched) if path], self.service()
        )

    async def _follow_agent(self) -> None:
        """Register whenever the agent's socket is a new one, as plugins have to. The agent removes the plugin's socket then."""
        registered: tuple[int, int] | None = None
        await self._serve()
        while True:
            found = _identity(self.options.kubelet)
            if found is not None and found != registered:
                if _identity(self.options.socket) is None:
                    await self._serve()
                if not await self.register():
                    registered = found
            await asyncio.sleep(0.05)

    def service(self) -> Service:
        """The services of the plugin's socket."""
        return {
            **named(
                "v1beta1.DevicePlugin",
                {
                    "GetDevicePluginOptions": Rpc(self.get_options, pb.Empty),
                    "ListAndWatch": Rpc(self.list_and_watch, pb.Empty, streams=True),
                    "GetPreferredAllocation": Rpc(self.prefer, pb.PreferredAllocationRequest),
                    "Allocate": Rpc(self.allocate, pb.AllocateRequest),
                    "PreStartContainer": Rpc(self.pre_start, pb.PreStartContainerRequest),
                },
            ),
            **named(
                "pluginregistration.Registration",
                {
                    "GetInfo": Rpc(self.get_info, registration_pb.InfoRequest),
                    "NotifyRegistrationStatus": Rpc(self.notify, registration_pb.RegistrationStatus),
                },
            ),
        }


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _end_with(follower: asyncio.Task[None]) -> None:
    """A plugin that cannot serve ends, so that its test fails at once."""
    if not follower.cancelled() and (error := follower.exception()) is not None:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(4)


class _GrpcioCarrier:
    """Serves with grpcio on real sockets."""

    def __init__(self) -> None:
        self._server: grpc.aio.Server | None = None

    async def serve(self, paths: Sequence[str], service: Service) -> None:
        await self.stop()
        server = grpc.aio.server(options=[("grpc.max_send_message_length", 256 << 20)])
        server.add_generic_rpc_handlers(grpcio_handlers(service))
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._server = server

    async def register(self, path: str, request: pb.RegisterRequest) -> str:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register", pb.RegisterRequest.SerializeToString, pb.Empty.FromString
            )
            try:
                await call(request, timeout=20)
            except grpc.aio.AioRpcError as error:
                return error.details() or str(error.code())
        return ""

    def end(self) -> None:
        os._exit(3)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)


async def _obey(plugin: Plugin) -> None:
    """Carry out commands until the test closes the standard input."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while line := await reader.readline():
        await plugin.take(json.loads(line))
        print("done", flush=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resource", required=True)
    parser.add_argument("--version", default="v1beta1")
    parser.add_argument("--kubelet", required=True, help="the agent's socket")
    parser.add_argument("--socket", required=True, help="the plugin's own socket, beside the agent's")
    parser.add_argument("--watched", default="", help="a registration socket for the plugin watcher")
    parser.add_argument("--log", required=True, help="the file of calls")
    parser.add_argument("--pre-start", action="store_true")
    parser.add_argument("--prefers", action="store_true")
    return parser.parse_args(arguments)


async def _main() -> None:
    carrier = _GrpcioCarrier()
    plugin = Plugin(parse_options(), carrier)
    await plugin.begin()
    await _obey(plugin)
    await plugin.stop()
    await carrier.stop()


if __name__ == "__main__":
    asyncio.run(_main())
