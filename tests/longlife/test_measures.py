"""What the month rests on: time that waits for work, and measures that see what grows."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from longlife.churn import MEMORY, Left, stayed
from longlife.sizes import Sizes, exceeded, grown
from support.allocator import Allocated
from support.reachable import container_sizes, holders
from support.virtual_time import Stuck, VirtualClock, VirtualLoop

from pykubelet.base.kit.flight import Done, SingleFlight, Uncertain
from pykubelet.edges.host.services.process import run_program

MONTH_S = 30 * 86400.0


def run(loop: VirtualLoop, work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work)


def test_a_month_of_waiting_is_over_at_once() -> None:
    loop = VirtualLoop(lasts_s=2 * MONTH_S)
    clock = VirtualClock(loop, 1_700_000_000.0)
    run(loop, asyncio.sleep(MONTH_S))
    clock.jump_wall(-3600)
    assert clock.monotonic() >= 1000 + MONTH_S
    assert clock.wall() == pytest.approx(1_700_000_000 + MONTH_S - 3600, abs=1)
    assert loop.iterations < 100


def test_a_deadline_does_not_pass_while_a_thread_works() -> None:
    flight = SingleFlight("test")

    async def work() -> tuple[object, object]:
        of_flight = await flight.run("slow", lambda: time.sleep(0.3), deadline_s=0.1)
        async with asyncio.timeout(0.1):
            sleep: asyncio.Future[object] = asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.3)
            of_executor = await sleep
        return of_flight, of_executor

    assert run(VirtualLoop(), work()) == (Done(None), None)


def test_time_stands_still_until_the_loop_has_the_outcome_of_a_thread() -> None:
    """Between the end of the work and that, nothing is at work."""
    flight, loop = SingleFlight("test"), VirtualLoop()

    async def work() -> None:
        for _ in range(1000):
            await flight.run("quick", lambda: None, deadline_s=10.0)

    began = loop.now
    run(loop, work())
    assert loop.now - began < 1.0


def test_a_deadline_does_not_pass_while_a_child_works() -> None:
    assert run(VirtualLoop(), run_program(("sleep", "0.3"), timeout_s=0.1)).code == 0


def again(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(again, loop)


def test_work_without_end_is_an_error() -> None:
    async def spin() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(again, loop)
        await asyncio.Event().wait()

    loop = VirtualLoop()
    with pytest.raises(Stuck, match="no end of work"):
        loop.run_until_complete(spin())
    loop.close()


def test_a_wait_for_what_never_comes_is_an_error() -> None:
    async def wait() -> None:
        def tick() -> None:
            loop.call_later(10, tick)

        tick()
        await asyncio.Event().wait()

    loop = VirtualLoop(lasts_s=3600)
    with pytest.raises(Stuck, match=r"too much time has passed.*wait\(\)"):
        run(loop, wait())
    assert loop.iterations < 2000


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        writer.write(await reader.readline())
    finally:
        writer.close()


def test_connections_stay_within_the_process_and_break_with_their_server() -> None:
    loop = VirtualLoop()

    def serving() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), echo)

    async def work() -> bytes:
        server = await loop.serve_in_memory(serving, 6443)
        reader, writer = await asyncio.open_connection("127.0.0.1", 6443)
        writer.write(b"hello\n")
        answer = await reader.read()
        writer.close()
        waiting, waiter = await asyncio.open_connection("127.0.0.1", 6443)
        server.close()
        server.abort_clients()
        with pytest.raises(ConnectionResetError):
            await waiting.read()
        waiter.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", 6443)
        return answer

    assert run(loop, work()) == b"hello\n"


def test_unix_sockets_are_files_that_are_found_renamed_and_refuse_connections_without_a_server(tmp_path: Path) -> None:
    loop = VirtualLoop()
    first, second = str(tmp_path / "first"), str(tmp_path / "second")

    async def ask(path: str) -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"hello\n")
        answer = await reader.read()
        writer.close()
        return answer

    async def work() -> tuple[bytes, bytes]:
        server = await asyncio.start_unix_server(echo, first)
        answer = await ask(first)
        os.rename(first, second)
        with pytest.raises(FileNotFoundError):
            await ask(first)
        moved = await ask(second)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await ask(second)
        async with await asyncio.start_unix_server(echo, second):  # in place of the file that is left
            await ask(second)
        return answer, moved

    assert run(loop, work()) == (b"hello\n", b"hello\n")


def test_time_passes_while_a_thread_is_known_to_hang() -> None:
    loop = VirtualLoop()
    release = threading.Event()

    async def work() -> object:
        loop.hung.add("dead")
        return await SingleFlight("test").run("dead", release.wait, 60.0)

    began = time.monotonic()
    assert isinstance(run(loop, work()), Uncertain)
    release.set()
    assert time.monotonic() - began < 30.0


class Hoard:
    def __init__(self) -> None:
        self._kept: dict[int, str] = {}

    async def run(self) -> None:
        while True:
            self._kept[len(self._kept)] = "more"
            await asyncio.sleep(1)


def test_what_only_a_task_holds_is_counted_by_its_owner() -> None:
    async def work() -> tuple[int, int]:
        task = asyncio.get_running_loop().create_task(Hoard().run())
        await asyncio.sleep(3.5)
        before = container_sizes()["Hoard._kept"]
        await asyncio.sleep(5)
        after = container_sizes()["Hoard._kept"]
        task.cancel()
        return before, after

    assert run(VirtualLoop(), work()) == (4, 9)


def test_the_holders_of_what_is_counted_are_shown() -> None:
    async def work() -> tuple[list[str], list[str]]:
        task = asyncio.get_running_loop().create_task(Hoard().run(), name="hoarding")
        await asyncio.sleep(1)
        found = holders("Hoard._kept"), holders(f"{__name__}.Hoard")
        task.cancel()
        return found

    way = "1 held by loop.tasks > loop.tasks[] (hoarding) > loop.tasks > Hoard.run.self"
    assert run(VirtualLoop(), work()) == ([f"{way} > Hoard._kept"], [way])


def sizes(day: int, **entries: int) -> Sizes:
    return Sizes(
        day=day,
        life=1,
        tasks=Counter({"pleg": 1}),
        timers=9,
        objects=1000,
        resident=50_000_000,
        descriptors=Counter(),
        files=9,
        mounts=9,
        lines=9,
        log_bytes=900,
        requests=9,
        calls=9,
        cpu_s=0.1,
        sizes=Counter(entries),
    )


def test_what_grows_day_by_day_is_found_and_what_goes_up_and_down_is_not() -> None:
    days = [sizes(day, leak=day, busy=day % 3 * 50, steady=7) for day in range(2, 12)]
    assert [line.split(":")[0] for line in grown(days)] == ["entries of leak"]
    assert exceeded(days) == []


def left(pods: int, types: int = 9, garbage: int = 0, resident: int = 90 << 20, **entries: int) -> Left:
    memory = Allocated(1, 1, 1, 1, 1)
    found = {"pykubelet.act.pods.worker.PodWorker": types}, {"pykubelet.net.http.exchange.HttpConnection": garbage}
    return Left(pods, sizes(1, **entries), resident, 0, resident, 0.1, memory, Counter(found[0]), Counter(found[1]))


@pytest.mark.parametrize(
    ("last", "found"),
    [
        (left(900, steady=9, leak=40), "entries of leak"),
        (left(900, types=30, steady=9), "objects pykubelet.act.pods.worker.PodWorker"),
        (left(900, garbage=30, steady=9), "left to the garbage collector"),
        (left(900, resident=(91 << 20) + MEMORY, steady=9), "memory"),
        (left(900, resident=(89 << 20) + MEMORY, steady=18), ""),
    ],
)
def test_what_grows_with_pods_that_have_gone_is_found(last: Left, found: str) -> None:
    assert [line.split(":")[0] for line in stayed(left(400, steady=9), last)] == ([found] if found else [])
