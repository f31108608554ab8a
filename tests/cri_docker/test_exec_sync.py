"""The end of a command that runs for too long, in virtual time."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cri_docker.test_engine import ok, serving

from pykubelet_cri_docker.exec_sync import end_exec

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as started:
        yield started
        started.kill()


async def test_a_command_is_killed_although_it_is_not_started_yet_and_its_end_is_awaited(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    running = ok(b'{"Running":true,"Pid":%d}' % process.pid)
    states = [ok(b'{"Running":true,"Pid":0}'), running, running, ok(b'{"Running":false,"ExitCode":137}')]
    async with serving(tmp_path, {"/exec/": states}) as (_, engine):
        await end_exec(engine, "e1")
        assert states == []
    assert process.wait(10) == -signal.SIGKILL
