"""SIGTERM ends the agent whatever its event loop and its threads do: at the second signal, and five seconds after the first one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.blocking import LAUNCHER, MOST_S, BlockingAgent
from testbed import host
from testbed.fuse import HangingFileSystem
from testbed.private_runtime import Testbed

from pykubelet.edges.host.services.ending import END_S

pytestmark = pytest.mark.integration

KILLED, NOT_ENDED = -signal.SIGTERM, 1
#: States in which the event loop does not run, with the exit code after one SIGTERM: the monitor thread ends the process, or,
#: if C code keeps the interpreter's lock, the kernel.
BLOCKED = {"compute": NOT_ENDED, "wait_unlocked": NOT_ENDED, "match": KILLED, "deadlock": KILLED}


MakeBlocking = Callable[..., BlockingAgent]
_numbers = iter(range(1, 10_000))


@pytest.fixture(params=["uvloop", "asyncio"])
async def make_blocking(testbed: Testbed, request: pytest.FixtureRequest) -> AsyncIterator[MakeBlocking]:
    made: list[BlockingAgent] = []

    def make(state: str) -> BlockingAgent:
        folder = Path(testbed.folder) / f"blocking-{next(_numbers)}"
        environment = {"PYKUBELET_BLOCK": state, "PYKUBELET_BLOCK_LOOP": request.param}
        settings = {"containerRuntimeEndpoint": "unix:///nonexistent.sock"}
        made.append(BlockingAgent(testbed, folder, settings, environment=environment))
        made[-1].start()
        return made[-1]

    yield make
    for agent in made:
        await agent.clear()


def test_one_signal_ends_an_agent_with_a_blocked_event_loop(make_blocking: MakeBlocking) -> None:
    agents = {state: make_blocking(state) for state in BLOCKED}
    for agent in agents.values():
        agent.block()
        agent.signal(signal.SIGTERM)
    assert {state: agent.wait() for state, agent in agents.items()} == BLOCKED


def test_a_second_signal_ends_it_at_once(make_blocking: MakeBlocking) -> None:
    agents = [make_blocking(state) for state in BLOCKED]
    for agent in agents:
        agent.block()
        agent.signal(signal.SIGTERM)
    time.sleep(0.2)  # two signals that are waiting at the same time are one
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.wait() for agent in agents] == [KILLED] * len(agents), "by the kernel, not by the monitor thread"


def test_a_file_system_that_does_not_answer(make_blocking: MakeBlocking, tmp_path: Path) -> None:
    with HangingFileSystem(tmp_path / "mount", tmp_path / "files") as hanging:
        agents = [make_blocking(f"stat:{hanging.path}/file") for _ in range(2)]
        hanging.stop()
        for agent in agents:
            agent.block()
            agent.signal(signal.SIGTERM)
        assert agents[0].wait() == NOT_ENDED
        assert agents[1].wait() == NOT_ENDED


def test_threads_that_never_end(make_blocking: MakeBlocking) -> None:
    agent = make_blocking("hang_thread")
    agent.block()
    agent.signal(signal.SIGTERM)
    assert agent.wait() in (0, NOT_ENDED)


@pytest.mark.parametrize("state", ["compute", "deadlock"])
def test_the_csi_driver_ends_too(tmp_path_factory: pytest.TempPathFactory, state: str) -> None:
    tmp_path = tmp_path_factory.mktemp("d")  # paths of sockets are short
    folders = ["--root-dir", str(tmp_path / "root"), "--data-dir", str(tmp_path / "data")]
    command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, str(LAUNCHER), "csi-local", *folders]
    environment = os.environ | {"PYKUBELET_BLOCK": state}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stderr is not None
        while "serving plugin registration" not in (line := driver.stderr.readline()):
            assert line, "the driver has ended"
        driver.send_signal(signal.SIGUSR1)
        while "==== state begins" not in driver.stderr.readline():
            continue
        driver.terminate()
        try:
            assert driver.wait(MOST_S) == BLOCKED[state]
        finally:
            driver.kill()


def test_a_task_that_never_ends(make_blocking: MakeBlocking) -> None:
    agent = make_blocking("keep_task")
    agent.block()
    agent.signal(signal.SIGTERM)
    assert agent.wait() == NOT_ENDED
    log = agent.log_text()
    assert "the agent does not end by itself" in log and "task stubborn" in log


def test_an_agent_that_is_well_ends_with_0(make_blocking: MakeBlocking) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        agent = make_blocking("")
        agent.signal(number)
        assert agent.wait() == 0


def test_an_agent_that_did_not_run_for_a_time_goes_on_and_ends_with_0(make_blocking: MakeBlocking) -> None:
    blocked = [make_blocking(state) for state in ("keep:7", "compute_for:7")]
    stopped = make_blocking("")
    assert stopped.process is not None
    with host.paused(stopped.process.pid):
        for agent in blocked * 2:  # the second time they are still blocked for the first one
            agent.block()
        time.sleep(END_S)
    for agent in (*blocked, stopped):
        agent.wait_healthy()
    time.sleep(2)  # the monitor thread looks once a second
    logs = [agent.log_text() for agent in (*blocked, stopped)]
    reports = ("the agent did not run", "the event loop is blocked", "the agent did not run")
    for report, log in zip(reports, logs, strict=True):
        assert report in log and "stopping" not in log, log
    assert "compute_for" in logs[1].partition("the event loop is blocked")[2], "the stack of the event loop"
    for agent in (*blocked, stopped):
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 0
