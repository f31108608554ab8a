"""Helper programs: their answer, their limits, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.processes import wait_end

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import run_program


async def test_input_output_code_and_environment() -> None:
    done = await run_program(
        ("sh", "-c", "cat; echo $WHO >&2; exit 3"), stdin=b"hello", env={"WHO": "me", "PATH": os.environ["PATH"]}
    )
    assert (done.code, done.out, done.err) == (3, b"hello", b"me\n")


async def test_program_that_reads_nothing_of_a_large_input() -> None:
    assert (await run_program(("true",), stdin=b"x" * (1 << 20))).code == 0


async def test_missing_program_is_an_error() -> None:
    with pytest.raises(HostError) as caught:
        await run_program(("/nothing/here",))
    assert caught.value.is_not_found


@pytest.mark.parametrize("path", ["", ":", ".", ":/usr/bin:/bin", "bin:../bin", "."])
async def test_no_program_comes_from_the_current_directory(tmp_path: Path, path: str) -> None:
    """Root may start the agent in a directory where others write. What the program starts itself is not found there either."""
    (tmp_path / "bin").mkdir()
    for folder in (tmp_path, tmp_path / "bin"):
        for name in ("id", "own-tool"):
            (folder / name).write_text("#!/bin/sh\necho trap\n")
            (folder / name).chmod(0o755)
    done = await run_program(("id", "-u"), env={"PATH": path}, cwd=str(tmp_path))
    assert done.out == b"%d\n" % os.getuid()
    done = await run_program(("sh", "-c", "id -u; own-tool"), env={"PATH": path}, cwd=str(tmp_path))
    assert (done.code, done.out) == (127, b"%d\n" % os.getuid())
    for name in ("own-tool", "./own-tool", "bin/own-tool"):
        with pytest.raises(HostError):
            await run_program((name,), env={"PATH": path}, cwd=str(tmp_path))


async def test_a_program_keeps_its_name_and_is_found_in_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "own-tool").write_text("#!/bin/sh\necho $PATH\n")
    (tmp_path / "own-tool").chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    assert (await run_program(("own-tool",), env={"PATH": path})).out.decode() == f"{path}\n"
    assert (await run_program(("sh", "-c", "echo $0"))).out == b"sh\n"


async def test_large_output_is_cut_and_does_not_block() -> None:
    done = await run_program(("sh", "-c", "head -c 3000000 /dev/zero"), limit=1000)
    assert (done.code, len(done.out), done.out_cut) == (0, 1000, True)


async def test_timeout_kills_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(HostError) as caught:
        await run_program(("sh", "-c", script), timeout_s=2.0)
    assert caught.value.errno_name == "ETIMEDOUT"
    wait_end(int((tmp_path / "pid").read_text()))


async def test_child_that_keeps_the_pipes_open_does_not_keep_us(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; echo done"
    done = await run_program(("sh", "-c", script), timeout_s=20)
    assert (done.code, done.out) == (0, b"done\n")
    wait_end(int((tmp_path / "pid").read_text()))


async def test_cancelled_run_leaves_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    task = asyncio.get_running_loop().create_task(run_program(("sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 1000")))
    pid = int(await asyncio.to_thread((tmp_path / "pid").read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_end(pid)


async def test_cancelled_at_any_step_leaves_no_descriptor(tmp_path: Path) -> None:
    await run_program(("true",))  # what the event loop opens for the first program stays
    before = set(os.listdir("/proc/self/fd"))
    for steps in range(12):
        task = asyncio.get_running_loop().create_task(run_program(("sleep", "1000"), cwd=str(tmp_path)))
        for _step in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert set(os.listdir("/proc/self/fd")) <= before, f"after {steps} steps"
        gc.collect()


async def test_child_that_left_the_group_costs_a_second_at_most(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # The shell waits until the child has a session of its own; before that it would be killed with the group.
    script = f"setsid sh -c 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 100' & "
    script += f"until [ -e {pid} ]; do sleep 0.05; done; echo done"
    async with asyncio.timeout(50):
        done = await run_program(("sh", "-c", script), timeout_s=80)
    assert (done.code, done.out) == (0, b"done\n")
    os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    "scenario",
    [
        test_program_that_reads_nothing_of_a_large_input,
        test_missing_program_is_an_error,
        test_large_output_is_cut_and_does_not_block,
        test_input_output_code_and_environment,
    ],
)
def test_the_same_on_uvloop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize(
    "scenario",
    [
        test_timeout_kills_the_whole_group,
        test_child_that_keeps_the_pipes_open_does_not_keep_us,
        test_cancelled_run_leaves_nothing,
        test_cancelled_at_any_step_leaves_no_descriptor,
    ],
)
def test_endings_on_uvloop(scenario: Callable[[Path], Coroutine[Any, Any, None]], tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario(tmp_path))
