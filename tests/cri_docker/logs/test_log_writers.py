"""All containers: what wakes the copying, rotation, the end of a container, restarts, and disks that fail."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from cri_docker.logs.docker_file import DockerFile
from support.virtual_time import VirtualLoop

from pykubelet.base.kit.flight import Outcome, SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.logs.log_writers import DEADLINE_S, FREE_ROUNDS, PAUSE_S, REST_S, RETRY_S, LogWriters

T = TypeVar("T")
pytestmark = pytest.mark.virtual_time


class Container:
    """A container of a node, with both of its logs."""

    def __init__(self, top: Path, name: str) -> None:
        self.name = name
        self.docker = DockerFile(top / name)
        self.path = top / "pods" / "pod" / name / "0.log"
        self.path.parent.mkdir(parents=True)

    @property
    def cri(self) -> bytes:
        return self.path.read_bytes()

    @property
    def is_copied(self) -> bool:
        return self.path.exists() and self.cri == self.docker.lines


@asynccontextmanager
async def running(
    top: Path,
    *containers: Container,
    flight: SingleFlight | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[LogWriters]:
    """A run of the adapter that follows these containers."""
    logs = LogWriters(str(top / "state"), flight or SingleFlight("logs"), clock)
    async with Supervisor("test") as tasks:
        logs.start(tasks)
        for container in containers:
            logs.follow(container.name, str(container.docker.path), str(container.path))
        yield logs
    await logs.close()


async def settled() -> None:
    """Let all that can be done now be done."""
    await asyncio.sleep(0.2)


async def until_copied(container: Container, pause_s: float = 0.006) -> None:
    """Wait for a container, for a minute at most."""
    for _ in range(10_000):
        if container.is_copied:
            return
        await asyncio.sleep(pause_s)
    raise AssertionError("it is not copied")


async def test_what_is_written_is_copied_at_once(tmp_path: Path) -> None:
    containers = [Container(tmp_path, name) for name in ("a", "b", "c")]
    containers[0].docker.write("before\n")
    async with running(tmp_path, *containers):
        await settled()
        for number in range(5):
            for container in containers[number % 3 :]:
                container.docker.write(f"text {number}\n")
            containers[number % 2].docker.rotate()
            containers[number % 2].docker.write("after a rotation\n")
            await settled()
            assert all(container.is_copied for container in containers)


async def test_nothing_happens_while_nothing_is_written(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with running(tmp_path, container):
        await settled()
        container.docker.write("text\n")
        await settled()
        before = loop.iterations
        await asyncio.sleep(3600)
        assert loop.iterations - before < 10


async def test_a_container_that_writes_much_does_not_delay_the_others(tmp_path: Path) -> None:
    busy, quiet = Container(tmp_path, "busy"), Container(tmp_path, "quiet")
    busy.docker.write(("x" * 10_000 + "\n") * 3_000)
    quiet.docker.write("text\n")
    async with running(tmp_path, busy, quiet):
        await until_copied(quiet)
        await until_copied(busy)
    assert quiet.path.stat().st_mtime_ns < busy.path.stat().st_mtime_ns, "it has not waited for the other's last line"


async def test_all_is_copied_that_was_written_before_it_was_asked_for(tmp_path: Path) -> None:
    """Also while containers that write all the time are copied with pauses."""
    busy, container = Container(tmp_path, "busy"), Container(tmp_path, "a")
    loop = asyncio.get_running_loop()
    async with running(tmp_path, busy, container) as logs:
        await logs.catch_up("a", 60)
        for number in range(3 * FREE_ROUNDS[1]):
            busy.docker.write(f"text {number}\n")
            await asyncio.sleep(0.001)
            container.docker.write(f"text {number}\n")
            began = loop.time()
            await logs.catch_up("a", 60)
            assert container.is_copied
            assert loop.time() - began < REST_S[0] / 2
        await logs.catch_up("a", 60)
        await logs.catch_up("unknown", 60)


async def test_the_lines_after_some_silence_are_copied_without_a_pause(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    loop = asyncio.get_running_loop()
    async with running(tmp_path, container):
        for number in range(20):
            for word in ("first", "second"):
                container.docker.write(f"{word} {number}\n")
                began = loop.time()
                await until_copied(container, 0.0005)
                assert loop.time() - began < REST_S[0]
            await asyncio.sleep(3 / FREE_ROUNDS[0])


async def test_the_first_lines_of_a_container_are_copied_at_once_while_others_write_all_the_time(
    tmp_path: Path,
) -> None:
    """Clients read the log as soon as the container is shown as running, such as 20 ms after its start."""
    busy = [Container(tmp_path, f"busy {number}") for number in range(3)]
    loop = asyncio.get_running_loop()
    async with running(tmp_path, *busy) as logs:
        for number in range(2 * FREE_ROUNDS[1]):
            for each in busy:
                each.docker.write(f"text {number}\n")
            await asyncio.sleep(0.001)
        for number in range(10):
            started = Container(tmp_path, f"started {number}")
            logs.follow(started.name, str(started.docker.path), str(started.path))
            for word in ("first", "second", "third"):
                busy[number % 3].docker.write(f"text {number} {word}\n")
                await asyncio.sleep(0.002)
                started.docker.write(f"{word}\n")
                began = loop.time()
                await until_copied(started, 0.0005)
                assert loop.time() - began < PAUSE_S


async def test_a_round_of_those_that_write_much_ends_when_another_has_written(tmp_path: Path) -> None:
    busy, quiet = Container(tmp_path, "busy"), Container(tmp_path, "quiet")
    calls = 0

    def never_late() -> float:
        """Let a round go on as long as there is something to copy, which there is until the other one is copied."""
        nonlocal calls
        calls += 1
        if calls == 100:
            quiet.docker.write("text\n")
        if calls < 10_000 and not (calls > 100 and quiet.is_copied):
            busy.docker.write(("x" * 10_000 + "\n") * 10)
        return 0.0

    async with running(tmp_path, busy, quiet, clock=never_late) as logs:
        await logs.catch_up("quiet", 60)
        busy.docker.write("text\n")
        await until_copied(busy)
        assert quiet.is_copied
        assert calls < 10_000


async def test_who_asks_for_what_is_written_does_not_wait_for_what_is_written_later(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    loop = asyncio.get_running_loop()

    class WrittenMeanwhile(SingleFlight):
        """The container has written again whenever something is copied."""

        async def run_next(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
            outcome = await super().run_next(key, work, deadline_s)
            if len(container.docker.lines) < 10_000:
                container.docker.write("more\n")
            return outcome

    async with running(tmp_path, container, flight=WrittenMeanwhile("logs")) as logs:
        container.docker.write("text\n")
        written, began = bytes(container.docker.lines), loop.time()
        await logs.catch_up("a", 60)
        assert container.cri.startswith(written)
        assert loop.time() - began < PAUSE_S
        assert container.docker.lines.count(b"\n") < 5


async def test_a_disk_that_hangs_holds_up_who_asks_until_the_deadline(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    flight, answers = SingleFlight("logs"), threading.Event()
    async with running(tmp_path, container, flight=flight) as logs:
        await settled()
        loop.hung.add("container logs")
        hanging = asyncio.ensure_future(flight.run("container logs", answers.wait, 1.0))
        await asyncio.sleep(2)
        container.docker.write("text\n")
        began = loop.time()
        await logs.catch_up("a", 0.2)
        assert loop.time() - began == pytest.approx(0.2, abs=0.01)
        answers.set()
        await hanging
        loop.hung.clear()
        await until_copied(container)


async def test_a_restart_goes_on_where_the_last_run_stopped(tmp_path: Path) -> None:
    containers = [Container(tmp_path, name) for name in ("a", "b")]
    for number in range(3):
        async with running(tmp_path, *containers) as logs:
            await settled()
            assert sorted(await logs.stored()) == ["a", "b"]
            containers[0].docker.write(f"text {number}\n")
            await settled()
        for container in containers:
            container.docker.write("while it was away\n")
            container.docker.rotate()
    async with running(tmp_path, *containers):
        await settled()
        assert all(container.is_copied for container in containers)


async def test_the_kubelet_rotates_a_log(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    async with running(tmp_path, container) as logs:
        container.docker.write("old\n" * 1000)
        old = container.path.rename(f"{container.path}.20260102-030405") if container.path.exists() else None
        await settled()
        old = old or container.path.rename(f"{container.path}.20260102-030405")
        await logs.reopen("a")
        size = old.stat().st_size
        container.docker.write("new\n")
        await settled()
        assert old.read_bytes() + container.cri == container.docker.lines
        assert old.stat().st_size == size


async def test_a_log_is_reopened_at_once_when_it_is_followed(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    container.docker.write("text\n")
    async with running(tmp_path, container) as logs:
        await logs.reopen("a")
        await settled()
        assert container.is_copied


async def test_a_log_cannot_be_reopened_without_its_directory(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    async with running(tmp_path, container) as logs:
        await settled()
        moved = container.path.parent.rename(tmp_path / "moved")
        with pytest.raises(HostError, match=r"a/0\.log: no such file or directory"):
            await logs.reopen("a")
        with pytest.raises(HostError, match="not written any more"):
            await logs.reopen("unknown")
        moved.rename(container.path.parent)


async def test_all_is_copied_when_the_container_has_ended(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    async with running(tmp_path, container) as logs:
        await settled()
        container.docker.write("text\n" * 50_000)
        container.docker.rotate()
        container.docker.write("last words")
        assert await logs.finish("a")
        assert container.is_copied
        assert await logs.finish("a")
        with pytest.raises(HostError):
            await logs.reopen("a")
        assert await logs.stored() == ["a"]
        await logs.forget("a")
        await logs.forget("a")
        assert await logs.stored() == []


async def test_a_container_that_ended_while_the_adapter_was_away(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    async with running(tmp_path, container) as logs:
        container.docker.write("text\n")
        assert await logs.finish("a")
    async with running(tmp_path, container) as logs:
        assert await logs.finish("a")
    container.docker.write("more\n")
    async with running(tmp_path, container) as logs:
        assert await logs.finish("a")
        assert container.is_copied


async def test_a_container_that_is_forgotten_is_not_copied_any_more(tmp_path: Path) -> None:
    container = Container(tmp_path, "a")
    async with running(tmp_path, container) as logs:
        await settled()
        await logs.forget("a")
        container.docker.write("text\n")
        await settled()
        assert container.cri == b""
        assert await logs.stored() == []


async def test_docker_removes_a_container(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    container = Container(tmp_path, "a")
    async with running(tmp_path, container) as logs:
        container.docker.write("text\n")
        await settled()
        container.docker.path.unlink()
        container.docker.path.parent.rmdir()
        await asyncio.sleep(100)
        assert await logs.finish("a")
        assert container.is_copied
    assert caplog.records == []


async def test_a_log_that_cannot_be_written_is_reported_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    container = Container(tmp_path, "a")
    container.docker.write("text\n")
    container.path.parent.rmdir()
    with caplog.at_level(logging.INFO, "pykubelet"):
        async with running(tmp_path, container) as logs:
            await asyncio.sleep(100)
            assert not await logs.finish("a", 20)
            container.path.parent.mkdir()
            await asyncio.sleep(RETRY_S + 1)
            assert container.is_copied
    assert [record.getMessage() for record in caplog.records] == [
        "a container's log cannot be copied; trying again",
        "the container's log is copied again",
    ]


async def test_damaged_entries_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    container = Container(tmp_path, "a")
    async with running(tmp_path, container):
        for _ in range(3):
            container.docker.write_raw(b"damaged\n")
            container.docker.write("text\n")
            await settled()
        assert container.is_copied
    assert len(caplog.records) == 1
    assert "entries that cannot be read" in caplog.text


async def test_a_disk_that_hangs_does_not_stop_the_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    container = Container(tmp_path, "a")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    flight, answers = SingleFlight("logs"), threading.Event()
    async with running(tmp_path, container, flight=flight) as logs:
        await settled()
        loop.hung.add("container logs")
        hanging = asyncio.ensure_future(flight.run("container logs", answers.wait, 1.0))
        await asyncio.sleep(2)
        container.docker.write("text\n")
        await asyncio.sleep(2 * DEADLINE_S)
        with pytest.raises(HostError, match="the disk does not answer"):
            await logs.reopen("a")
        assert not await logs.finish("a", 3 * DEADLINE_S)
        answers.set()
        await hanging
        loop.hung.clear()
        await until_copied(container)
    assert [record.getMessage() for record in caplog.records] == [
        "the disk of the containers' logs does not answer; trying again"
    ]
