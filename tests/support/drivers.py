"""Starts DRA drivers for tests (`support/dra_driver.py`), each a process of its own, and sets how they behave."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.agent import WAIT_S

TESTS = Path(__file__).parents[1]


class DriverProcess:
    """One running driver."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, socket: Path, log: Path) -> None:
        self.name = name
        self.socket = socket
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def behave(self, devices: list[dict[str, Any]] | None = None, **behavior: Any) -> None:
        """Change how calls are answered; see `Driver`. Returns when it is in force."""
        health = behavior.pop("health_of", None)
        command: dict[str, Any] = {"behavior": behavior}
        if devices is not None:
            command["devices"] = devices
        if health is not None:
            command["health"] = health
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self._line("done")

    def calls(self, call: str = "") -> list[dict[str, Any]]:
        """The calls so far, of one method or of all."""
        if not self._log.exists():
            return []
        found: list[dict[str, Any]] = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [one for one in found if call in ("", one["call"])]

    def claims(self, call: str) -> list[str]:
        """The names of the claims in the calls of one method, in order."""
        return [claim[1] for one in self.calls(call) for claim in one["claims"]]

    async def wait_calls(self, call: str, count: int, within_s: float = 30.0) -> list[dict[str, Any]]:
        """Wait until a method was called `count` times."""
        async with asyncio.timeout(within_s):
            while len(self.calls(call)) < count:  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.02)
        return self.calls(call)

    async def stop(self) -> None:
        """End it in order: it removes its sockets."""
        if self._process.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()

    async def kill(self) -> None:
        """End it at once; its sockets stay."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _line(self, expected: str) -> None:
        assert self._process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = await self._process.stdout.readline()
        assert line.decode().strip() == expected, line


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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "support.dra_driver",
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    driver = DriverProcess(process, name, socket, log)
    try:
        await driver._line("ready")
        yield driver
    finally:
        await driver.kill()
