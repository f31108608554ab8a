"""The programs of process extensions, started for real: their environment, their pipes and their end."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.processes import wait_end

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import start_program
from pykubelet.edges.plugins.extension_launch import (
    LAST_LINES,
    LOG_LINE_BYTES,
    LOG_LINES_AT_ONCE,
    LOG_LINES_PER_S,
    LOG_READS_AT_ONCE,
    QUEUE_BYTES,
    LaunchedProgram,
    LoggedErrors,
    ProcessLauncher,
    ProcessPipes,
)
from pykubelet.edges.plugins.extension_limits import MEMORY_BYTES, ExtensionLimits
from pykubelet.edges.plugins.extension_messages import LINE_BYTES
from pykubelet.edges.plugins.extension_process import ChannelEndedError

Launch = Callable[[str], Awaitable[ProcessPipes]]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Starts a script of the shell, without a cgroup. The test ends it."""

    async def start(script: str) -> ProcessPipes:
        path = tmp_path / "ext"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        limits = ExtensionLimits("", None)
        return await ProcessLauncher("ext", str(path), limits, SingleFlight("extensions"), SystemClock())()

    return start


async def ended(pipes: ProcessPipes) -> str:
    """Why there is no further line."""
    with pytest.raises(ChannelEndedError) as caught:
        while True:
            await pipes.read_line()
    return str(caught.value)


async def test_a_program_gets_lines_and_sends_lines(launch: Launch) -> None:
    pipes = await launch("while read -r line; do echo got $line; done")
    assert pipes.send(b"a\n")
    assert pipes.send(b"b\n")
    assert [await pipes.read_line(), await pipes.read_line()] == [b"got a", b"got b"]
    await pipes.end(at_once=False)


async def test_a_program_has_only_a_path_a_session_of_its_own_and_limits(launch: Launch) -> None:
    pipes = await launch(
        "env -0 | tr '\\0' ' '; echo; cut -d' ' -f6 /proc/self/stat; echo $$; ulimit -v; ulimit -c; pwd"
    )
    lines = [(await pipes.read_line()).decode() for _ in range(6)]
    names = {entry.partition("=")[0] for entry in lines[0].split()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH"}  # a shell adds some itself
    assert lines[1] == lines[2]
    assert lines[3:] == [str(MEMORY_BYTES >> 10), "0", "/"]
    await pipes.end(at_once=True)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "it has ended: exit status 3"),
        ("kill -9 $$", "it has ended: signal 9"),
        ("exec >&-; read -r _; read -r _", "it has closed its standard output"),
    ],
)
async def test_how_a_program_has_ended(launch: Launch, script: str, why: str) -> None:
    pipes = await launch(script)
    assert await ended(pipes) == why
    await pipes.end(at_once=True)


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """The shell that would become the program ends."""
    limits = ExtensionLimits("", None)
    pipes = await ProcessLauncher("ext", str(tmp_path / "gone"), limits, SingleFlight("extensions"), SystemClock())()
    assert await ended(pipes) == "it has ended: exit status 127"
    await pipes.end(at_once=True)


async def test_a_line_of_two_mebibytes_is_refused(launch: Launch) -> None:
    pipes = await launch("head -c 2097152 /dev/zero | tr '\\0' x; echo; sleep 3600")
    assert await ended(pipes) == f"it has sent a line of more than {LINE_BYTES} bytes"
    await pipes.end(at_once=True)


async def test_a_line_of_one_mebibyte_is_read(launch: Launch) -> None:
    pipes = await launch(f"head -c {LINE_BYTES} /dev/zero | tr '\\0' x; echo; echo next")
    assert await pipes.read_line() == b"x" * LINE_BYTES
    assert await pipes.read_line() == b"next"
    await pipes.end(at_once=True)


async def test_endless_output_is_not_read_ahead(launch: Launch) -> None:
    pipes = await launch("yes")
    for _ in range(100_000):
        assert await pipes.read_line() == b"y"
    await pipes.end(at_once=True)


async def test_what_waits_for_a_program_that_does_not_read_is_limited(launch: Launch) -> None:
    pipes = await launch("echo ready; exec sleep 3600")
    await pipes.read_line()
    line = b"x" * 65535 + b"\n"
    sent = 0
    while pipes.send(line):
        sent += len(line)
    assert QUEUE_BYTES - len(line) < sent <= QUEUE_BYTES + (1 << 20)  # and what is in the pipe
    await pipes.end(at_once=True)


async def test_a_large_line_reaches_a_program_that_reads_slowly(launch: Launch) -> None:
    pipes = await launch("while read -r line; do echo ${#line}; done")
    for size in (10, 300_000, 20):
        assert pipes.send(b"x" * size + b"\n")
    assert [await pipes.read_line() for _ in range(3)] == [b"10", b"300000", b"20"]
    await pipes.end(at_once=True)


async def test_a_program_ends_by_itself_when_its_input_ends(launch: Launch, tmp_path: Path) -> None:
    pipes = await launch(f"while read -r line; do :; done; echo bye >{tmp_path}/bye")
    await pipes.end(at_once=False)
    assert (tmp_path / "bye").read_text() == "bye\n"


async def test_a_program_that_ignores_everything_is_killed_with_its_children(launch: Launch) -> None:
    pipes = await launch("trap '' TERM HUP INT; sleep 3600 & echo $$ $!; while :; do sleep 3600; done")
    pids = [int(pid) for pid in (await pipes.read_line()).split()]
    await pipes.end(at_once=False)
    for pid in pids:
        wait_end(pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)  # not even its exit code is left


async def test_a_cancelled_end_kills(launch: Launch) -> None:
    pipes = await launch("trap '' TERM; echo $$; while :; do sleep 3600; done")
    pid = int(await pipes.read_line())
    ending = asyncio.ensure_future(pipes.end(at_once=False))
    await asyncio.sleep(0)
    ending.cancel()
    with suppress(asyncio.CancelledError):
        await ending
    wait_end(pid)


async def test_standard_error_is_logged_within_limits(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    began = time.monotonic()
    pipes = await launch(
        "for i in $(seq 1000); do echo line $i >&2; done; head -c 5000 /dev/zero | tr '\\0' z >&2; echo >&2"
    )
    assert await ended(pipes) == "it has ended: exit status 0"
    await pipes.end(at_once=True)
    lines = [fields["line"] for record in caplog.records if "line" in (fields := getattr(record, "fields", {}))]
    assert lines[:2] == ["line 1", "line 2"]
    more = LOG_LINES_PER_S * (time.monotonic() - began) + LAST_LINES
    assert LOG_LINES_AT_ONCE <= len(lines) <= LOG_LINES_AT_ONCE + more
    assert lines[-1] == LOG_LINE_BYTES * "z"


async def test_the_last_of_the_dropped_lines_are_logged(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pipes = await launch("seq -f 'line %g' 1000 >&2")
    assert await ended(pipes) == "it has ended: exit status 0"
    await pipes.end(at_once=True)
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    logged, dropped = (
        [found["line"] for found in fields if "line" in found],
        sum(found.get("lines", 0) for found in fields),
    )
    assert logged[-LAST_LINES:] == [f"line {number}" for number in range(1001 - LAST_LINES, 1001)]
    assert len(logged) + dropped == 1000


async def test_the_last_words_of_a_process_are_logged(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    """Also if it has written line by line, faster than its standard error is read."""
    caplog.set_level(logging.INFO)
    lines = LOG_READS_AT_ONCE + 20
    pipes = await launch(
        f"for i in $(seq {lines}); do echo line $i >&2; sleep 0.002; done; echo no more space >&2; exit 3"
    )
    assert await ended(pipes) == "it has ended: exit status 3"
    await pipes.end(at_once=True)
    logged = [fields["line"] for record in caplog.records if "line" in (fields := getattr(record, "fields", {}))]
    assert logged == [*(f"line {number}" for number in range(1, lines + 1)), "no more space"]


async def test_nothing_runs_before_the_limits_hold(tmp_path: Path) -> None:
    class Failing(ExtensionLimits):
        def apply(self, pid: int) -> None:
            raise HostError("mkdir", "/cgroup", "EIO", "input/output error")

    path = tmp_path / "ext"
    path.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    path.chmod(0o755)
    with pytest.raises(HostError):
        await ProcessLauncher("ext", str(path), Failing("", None), SingleFlight("x"), SystemClock())()
    assert not (tmp_path / "ran").exists()


async def test_descriptors_do_not_stay_open(launch: Launch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        pipes = await launch("echo ready; exec sleep 3600")
        await pipes.read_line()
        await pipes.end(at_once=True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_limits_are_those_of_the_protocol_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "extensions" / "protocol.md").read_text()
    assert "256 MiB" in page and MEMORY_BYTES == 256 << 20
    assert "1 MiB" in page and LINE_BYTES == 1 << 20


async def test_what_it_has_started_is_cleared_although_the_end_is_cancelled_again() -> None:
    cleared: list[str] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def clear() -> None:
        begun.set()
        await may_end.wait()
        cleared.append("its children")

    process = LaunchedProgram(start_program(("/bin/cat",), {}, "/"), "/bin/cat")
    pipes = ProcessPipes(process, LoggedErrors("ext", process.errors, SystemClock()), clear)
    ending = asyncio.create_task(pipes.end(at_once=False))
    await begun.wait()
    ending.cancel()  # an agent that ends cancels again what has not ended within two seconds
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert cleared == ["its children"]
