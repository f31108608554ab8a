"""Notifications of the service manager, on a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.logs import logging_restored

from pykubelet.base.kit.log import set_up_logging
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.notify import notify, watchdog_interval_s
from pykubelet.serve.endpoints.watchdog import notify_service_manager


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    with logging_restored():
        yield


async def heard(end: socket.socket, number: int) -> list[str]:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        return [(await loop.sock_recv(end, 100)).decode() for _ in range(number)]


@pytest.mark.virtual_time
async def test_ready_and_then_well_until_a_check_fails(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    problem = ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.setblocking(False)
        end.bind(path)
        environ = {"NOTIFY_SOCKET": path}
        async with Supervisor("test") as supervisor:
            checks = {"ping": lambda: problem}
            telling = notify_service_manager(checks, 0.04, lambda state: notify(state, environ))
            supervisor.start_root("telling", telling)
            assert await heard(end, 4) == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]
            problem = "stuck"
            await asyncio.sleep(0.1)
            while True:
                try:
                    end.recv(100)
                except BlockingIOError:
                    break
            await asyncio.sleep(0.1)
            with pytest.raises(BlockingIOError):
                end.recv(100)


@pytest.mark.virtual_time
async def test_a_failing_check_leaves_the_stack_of_every_task_in_the_log_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problem, sent = "", list[str]()

    def send(state: str) -> bool:
        sent.append(state)
        return True

    set_up_logging(0)
    async with Supervisor("test") as supervisor:
        supervisor.start_child("stuck", asyncio.Event().wait())
        work = notify_service_manager({"syncloop": lambda: problem}, 60.0, send)
        supervisor.start_root("service-manager", work)
        await asyncio.sleep(31)
        assert sent == ["READY=1", "WATCHDOG=1"]
        problem = "stuck"
        await asyncio.sleep(90)
        assert sent == ["READY=1", "WATCHDOG=1"]
        problem = ""
        await asyncio.sleep(30)
        assert sent == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
    text = capsys.readouterr().err
    assert text.count('failing="syncloop"') == 3
    assert text.count("\ntask stuck\n") == 1


def test_without_a_service_manager() -> None:
    assert notify("READY=1", {}) is False
    assert watchdog_interval_s({}) == 0.0
    assert watchdog_interval_s({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}) == 0.0


def test_intervals() -> None:
    assert watchdog_interval_s({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}) == 3.0
    for wrong in ("soon", "900000"):
        with pytest.raises(HostError):
            watchdog_interval_s({"WATCHDOG_USEC": wrong})
    with pytest.raises(HostError):
        notify("READY=1", {"NOTIFY_SOCKET": "/nowhere/socket"})
