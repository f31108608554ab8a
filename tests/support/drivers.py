"""Starts drivers for tests and sets how they behave: each a process of its own, or in virtual time within this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from support import dra_driver as dra
from support.agent import WAIT_S
from support.grpc_services import Service, serve_in_process
from support.memory_transport import MemoryServer
from support.virtual_time import VirtualLoop

TESTS = Path(__file__).parents[1]


class RunningDriver(Protocol):
    """A driver that runs."""

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    async def order(self, command: dict[str, Any]) -> None:
        """Have the driver carry out a command."""
        ...

    async def stop(self) -> None:
        """End it in order: it removes its sockets."""
        ...

    async def kill(self) -> None:
        """End it at once; its sockets stay."""
        ...

    async def wait(self) -> None:
        """Wait until it has ended."""
        ...


class ChildDriver:
    """A driver that is a process of its own. It answers each line on its standard input."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def order(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self.line("done")

    async def line(self, expected: str) -> None:
        """Wait for this line of its output."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = await self._process.stdout.readline()
        assert line.decode().strip() == expected, line

    async def stop(self) -> None:
        if self._process.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()
        await self.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self.wait()

    async def wait(self) -> None:
        await self._process.wait()


class LocalDriver:
    """A driver that is served within this process, on an event loop of virtual time. `take`: carries out a command."""

    pid = 0

    def __init__(self, take: Callable[[dict[str, Any]], Awaitable[None] | None]) -> None:
        self._take = take
        self._servers: dict[str, MemoryServer] = {}
        self._ended = asyncio.Event()

    async def serve(self, path: str, service: Service) -> None:
        """Serve on a socket."""
        self._servers[path] = await serve_in_process(path, service)

    def leave(self) -> None:
        """Serve no longer on any socket; the files stay."""
        for server in self._servers.values():
            server.close()
            server.abort_clients()

    def end(self) -> None:
        """End it at once; its sockets stay."""
        self.leave()
        self._ended.set()

    async def order(self, command: dict[str, Any]) -> None:
        if (work := self._take(command)) is not None:
            await work

    async def stop(self) -> None:
        if not self._ended.is_set():
            for path in self._servers:
                os.unlink(path)
        self.end()

    async def kill(self) -> None:
        self.end()

    async def wait(self) -> None:
        await self._ended.wait()


@asynccontextmanager
async def child_driver(
    module: str, options: Sequence[str], environment: Mapping[str, str] | None = None
) -> AsyncIterator[ChildDriver]:
    """Run a module of `support` as a driver. `environment`: variables beside those of this process."""
    path = os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"support.{module}",
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )
    driver = ChildDriver(process)
    try:
        await driver.line("ready")
        yield driver
    finally:
        await driver.kill()


class DriverProcess:
    """One running driver."""

    def __init__(self, running: RunningDriver, name: str, socket: Path, log: Path) -> None:
        self.name = name
        self.socket = socket
        self._running = running
        self._log = log

    @property
    def pid(self) -> int:
        """The process."""
        return self._running.pid

    async def behave(self, devices: list[dict[str, Any]] | None = None, **behavior: Any) -> None:
        """Change how calls are answered; see `Driver`. Returns when it is in force."""
        health = behavior.pop("health_of", None)
        command: dict[str, Any] = {"behavior": behavior}
        if devices is not None:
            command["devices"] = devices
        if health is not None:
            command["health"] = health
        await self._running.order(command)

    def calls(self, call: str = "") -> list[dict[str, Any]]:
        """The calls so far, of one method or of all."""
        if not self._log.exists():
            return []
        found: list[dict[str, Any]] = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [entry for entry in found if call in ("", entry["call"])]

    def claims(self, call: str) -> list[str]:
        """The names of the claims in the calls of one method, in order."""
        return [claim[1] for entry in self.calls(call) for claim in entry["claims"]]

    async def wait_calls(self, call: str, count: int, within_s: float = 30.0) -> list[dict[str, Any]]:
        """Wait until a method was called `count` times."""
        async with asyncio.timeout(within_s):
            while len(self.calls(call)) < count:  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.02)
        return self.calls(call)

    async def stop(self) -> None:
        """End it in order: it removes its sockets."""
        await self._running.stop()

    async def kill(self) -> None:
        """End it at once; its sockets stay."""
        await self._running.kill()


@asynccontextmanager
async def dra_driver(
    root: Path,
    name: str = "gpu.example.com",
    *,
    kind: str = "DRAPlugin",
    versions: str = "v1.DRAPlugin",
    instance: str = "",
    health: bool = False,
    deaf: bool = False,
) -> AsyncIterator[DriverProcess]:
    """Run a driver whose sockets are below the agent's root directory. `instance`: to run several of one name."""
    registry, own = root / "plugins_registry", root / "plugins" / f"{name}{instance}"
    registry.mkdir(parents=True, exist_ok=True)
    own.mkdir(parents=True, exist_ok=True)
    socket, endpoint, log = registry / f"{name}{instance}-reg.sock", own / "dra.sock", own / "calls.jsonl"
    options = ["--name", name, "--type", kind, "--versions", versions, "--socket", str(socket)]
    options += ["--endpoint", str(endpoint), "--log", str(log)]
    options += ["--health"] * health + ["--deaf"] * deaf
    running = _local_dra_driver(options) if is_virtual() else child_driver("dra_driver", options)
    async with running as started:
        yield DriverProcess(started, name, socket, log)


def is_virtual() -> bool:
    """Whether the running event loop is one of virtual time, so that a driver has to be in this process."""
    return isinstance(asyncio.get_running_loop(), VirtualLoop)


@asynccontextmanager
async def _local_dra_driver(options: Sequence[str]) -> AsyncIterator[LocalDriver]:
    driver = dra.Driver(dra.parse_options(options), lambda: running.end())
    running = LocalDriver(driver.take)
    if not driver.options.deaf:
        await running.serve(driver.options.endpoint, driver.services())
    await running.serve(driver.options.socket, driver.registration())
    try:
        yield running
    finally:
        running.end()
