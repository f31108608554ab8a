"""Blocking work: one at a time for each key, given up at its deadline, and never in the way of other keys; and the record of work."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import uuid
import weakref
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.virtual_time import VirtualLoop

from pykubelet.base.kit import flight as flight_module
from pykubelet.base.kit.flight import (
    MAX_KEY_BYTES,
    SIZE,
    SLOTS,
    WORK,
    Done,
    Failed,
    OpenWork,
    SingleFlight,
    Uncertain,
    WorkRecord,
    key_text,
    noted_key,
    open_works,
    record_key,
    value_of,
)


async def test_value_and_error_come_back_as_values() -> None:
    flight = SingleFlight("test")
    assert await flight.run("a", lambda: 7, 60) == Done(7)
    error = OSError(28, "full")

    def fail() -> None:
        raise error

    assert await flight.run("a", fail, 60) == Failed(error)
    assert await flight.run("a", lambda: 8, 60) == Done(8)


def test_the_value_of_an_outcome() -> None:
    assert value_of(Done(7), lambda _: TimeoutError()) == 7
    with pytest.raises(ValueError, match="wrong"):
        value_of(Failed(ValueError("wrong")), lambda _: TimeoutError())
    with pytest.raises(TimeoutError, match=r"since 3\.5"):
        value_of(Uncertain(3.5), lambda since: TimeoutError(f"since {since}"))


async def test_an_error_keeps_nothing_of_its_work_in_memory() -> None:
    """Errors are kept until the next try; what the work had made may be large."""
    alive: list[weakref.ref[object]] = []

    class Large:
        pass

    def fail() -> None:
        large = Large()
        alive.append(weakref.ref(large))
        try:
            raise OSError(28, "full")
        except OSError as error:
            raise ValueError("cannot write") from error

    outcome = await SingleFlight("test").run("a", fail, 60)
    assert isinstance(outcome, Failed)
    assert outcome.error.__traceback__ is not None, "the lines are kept"
    assert alive[0]() is None


async def test_an_error_is_gone_with_its_outcome() -> None:
    """No collection of garbage is needed for it: a pod may have thousands of volumes that cannot be set up."""
    flight = SingleFlight("test")

    class Refused(Exception):
        pass

    def fail() -> None:
        try:
            raise OSError(28, "full")
        except OSError as error:
            raise Refused from error

    gc.collect()
    gc.disable()
    try:
        outcome = await flight.run("a", fail, 60)
        assert isinstance(outcome, Failed)
        error = weakref.ref(outcome.error)
        await flight.run("a", lambda: 7, 60)
        del outcome
        assert error() is None
        try:
            value_of(await flight.run("a", fail, 60), lambda _: TimeoutError())
        except Refused as refused:
            error = weakref.ref(refused)
        await flight.run("a", lambda: 7, 60)
        assert error() is None, "also if it was raised again"
    finally:
        gc.enable()


async def test_work_of_one_key_never_overlaps() -> None:
    flight = SingleFlight("test")
    gate = threading.Event()
    first = asyncio.get_running_loop().create_task(flight.run("mount", gate.wait, 60))
    await asyncio.sleep(0)
    second = await flight.run("mount", lambda: "ran beside the first", 60)
    assert isinstance(second, Uncertain)
    gate.set()
    assert await first == Done(True)
    assert await flight.run("mount", lambda: "now", 60) == Done("now")


async def test_deadline_leaves_it_uncertain_until_the_thread_is_back() -> None:
    flight = SingleFlight("test")
    gate = threading.Event()
    outcome = await flight.run("nfs", gate.wait, 0.02)
    assert isinstance(outcome, Uncertain)
    assert list(flight.stuck()) == ["nfs"]
    assert await flight.run("nfs", lambda: 1, 60) == outcome
    gate.set()
    async with asyncio.timeout(60):
        while flight.stuck():  # noqa: ASYNC110 - the end of a thread has no event
            await asyncio.sleep(0)
    assert await flight.run("nfs", lambda: 1, 60) == Done(1)


async def test_work_that_makes_progress_does_not_miss_its_deadline() -> None:
    flight = SingleFlight("test")
    gate = threading.Event()
    loop = asyncio.get_running_loop()
    work = loop.create_task(flight.run("walk", gate.wait, 0.02))
    late = loop.create_task(flight.run("hung", gate.wait, 0.02))
    until = loop.time() + 60
    while not late.done() and loop.time() < until:
        flight.renew("walk")
        await asyncio.sleep(0)
    assert isinstance(await late, Uncertain) and not work.done()
    outcome = await asyncio.wait_for(work, 60)
    assert isinstance(outcome, Uncertain), "it made no progress any more"
    gate.set()


async def test_slow_work_keeps_others_waiting_for_a_moment_only() -> None:
    """A dead file system must not hold up the living ones until its deadline, which may be minutes away."""
    flight = SingleFlight("test", workers=2)
    gate = threading.Event()
    loop = asyncio.get_running_loop()
    slow = [loop.create_task(flight.run(f"slow-{n}", gate.wait, 60)) for n in range(6)]
    await asyncio.sleep(0)
    began = loop.time()
    assert await flight.run("quick", lambda: 1, 60) == Done(1)
    assert loop.time() - began < 30
    assert flight.stuck() == {}, "nothing has missed a deadline"
    gate.set()
    assert await asyncio.gather(*slow) == [Done(True)] * 6
    outcomes = await asyncio.gather(*(flight.run(f"more-{n}", lambda n=n: n, 60) for n in range(20)))  # type: ignore[misc]
    assert outcomes == [Done(n) for n in range(20)]


@pytest.mark.virtual_time
@pytest.mark.parametrize("count", [50, 200])
async def test_a_crowd_of_slow_work_keeps_others_waiting_for_about_a_second(count: int) -> None:
    """As many pods with mounts that hang, and then one with a volume that is quick."""
    name = uuid.uuid4().hex
    loop, flight = asyncio.get_running_loop(), SingleFlight(name, workers=2)
    assert isinstance(loop, VirtualLoop)
    gate, begun = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        begun.release()
        gate.wait()

    loop.hung = {"quick", *(f"slow-{n}" for n in range(count))}
    slow = [loop.create_task(flight.run(f"slow-{n}", hang, 60)) for n in range(count)]
    quick = loop.create_task(flight.run("quick", begun.release, 60))
    await asyncio.sleep(0)
    seen, until = 0, loop.time() + 1.6
    while loop.time() < until:
        threads = sum(thread.name.startswith(name) for thread in threading.enumerate())
        while seen < threads and begun.acquire(timeout=60):  # time passes only when each thread has begun its work
            seen += 1
        await asyncio.sleep(flight_module.HOLD_S)
    assert seen == count + 1
    gate.set()
    loop.hung.clear()
    assert await asyncio.gather(quick, *slow) == [Done(None)] * (count + 1)


async def test_the_threads_that_a_crowd_has_needed_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_module, "HOLD_S", 0.01)
    name = uuid.uuid4().hex
    flight, together = SingleFlight(name, workers=2), threading.Barrier(20)
    assert len(await asyncio.gather(*(flight.run(f"slow-{n}", together.wait, 60) for n in range(20)))) == 20
    async with asyncio.timeout(10):  # idle threads that are not too many stay for longer
        while sum(thread.name.startswith(name) for thread in threading.enumerate()) > 2:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_thread_that_is_one_too_many_leaves_no_work_to_those_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work comes between the end of a thread's work and the moment at which the thread sees that a crowd is over."""
    monkeypatch.setattr(flight_module, "HOLD_S", 0.01)
    name = uuid.uuid4().hex
    loop, flight = asyncio.get_running_loop(), SingleFlight(name, workers=1)
    slow, ends, hangs, ended, come = (threading.Event() for _ in range(5))
    begun = threading.Barrier(4)

    def work(until: threading.Event) -> None:
        begun.wait(60)
        until.wait(60)

    tasks = [
        loop.create_task(flight.run(str(n), partial(work, until), 60)) for n, until in enumerate((slow, ends, hangs))
    ]
    await asyncio.to_thread(begun.wait, 60)
    slow.set()
    await tasks[0]
    async with asyncio.timeout(60):
        while sum(thread.name.startswith(name) for thread in threading.enumerate()) > 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    hand_over = loop.call_soon_threadsafe

    def hand_over_late(*call: Any, **context: Any) -> asyncio.Handle:
        ended.set()
        come.wait(60)
        return hand_over(*call, **context)

    monkeypatch.setattr(loop, "call_soon_threadsafe", hand_over_late)
    ends.set()
    ended.wait(60)
    new = loop.create_task(flight.run("new", lambda: 7, 60))
    await asyncio.sleep(0)
    come.set()
    assert await asyncio.wait_for(new, 30) == Done(7)
    hangs.set()
    await asyncio.gather(*tasks)


async def test_work_is_looked_after_if_a_new_thread_takes_earlier_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier work waits because the system had no thread left for a moment."""
    loop, flight, gate = asyncio.get_running_loop(), SingleFlight(uuid.uuid4().hex, workers=2), threading.Event()
    begun = threading.Barrier(3)
    start_thread, refused = threading.Thread.start, ["no thread is left"]

    def start(thread: threading.Thread) -> None:
        if flight.thread("first") is not None and refused:
            raise RuntimeError(refused.pop())
        start_thread(thread)

    def hang() -> None:
        begun.wait(60)
        gate.wait(60)

    tasks = [loop.create_task(flight.run("first", hang, 60))]
    async with asyncio.timeout(60):
        while flight.thread("first") is None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    monkeypatch.setattr(threading.Thread, "start", start)
    tasks.append(loop.create_task(flight.run("refused", hang, 60)))
    new = loop.create_task(flight.run("new", lambda: 7, 60))
    await asyncio.sleep(0)
    assert not refused
    await asyncio.to_thread(begun.wait, 60)
    assert await asyncio.wait_for(new, 30) == Done(7)
    gate.set()
    await asyncio.gather(*tasks)


async def test_stuck_threads_do_not_take_the_place_of_others() -> None:
    flight = SingleFlight("test", workers=2)
    gate = threading.Event()
    stuck = await asyncio.gather(*(flight.run(f"dead-{n}", gate.wait, 0.02) for n in range(6)))
    assert all(isinstance(outcome, Uncertain) for outcome in stuck)
    outcomes = await asyncio.gather(*(flight.run(f"alive-{n}", lambda n=n: n, 60) for n in range(20)))  # type: ignore[misc]
    assert outcomes == [Done(n) for n in range(20)]
    gate.set()


async def test_cancelled_waiter_leaves_the_key_taken_until_the_end() -> None:
    flight = SingleFlight("test")
    gate = threading.Event()
    waiter = asyncio.get_running_loop().create_task(flight.run("a", gate.wait, 60))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert isinstance(await flight.run("a", lambda: 1, 60), Uncertain)
    gate.set()
    async with asyncio.timeout(60):
        while await flight.run("a", lambda: 1, 60) != Done(1):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)


async def test_at_most_the_given_number_of_workers_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_module, "HOLD_S", 600.0)  # however slow the machine is, no work counts as slow
    flight = SingleFlight("test", workers=3)
    lock = threading.Lock()
    running = 0
    most = 0
    together = threading.Barrier(3)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(60)
        with lock:
            running -= 1

    await asyncio.gather(*(flight.run(str(n), work, 60) for n in range(12)))
    assert most == 3


@pytest.mark.parametrize("iterations", range(6))
async def test_a_cancellation_that_meets_the_end_of_the_work_is_not_lost(iterations: int) -> None:
    """The loop learns of the end over several iterations; whenever the cancellation comes before the waiter is done, it counts."""
    flight = SingleFlight("test")
    ended = threading.Event()
    task = asyncio.get_running_loop().create_task(flight.run("key", ended.set, 60))
    await asyncio.sleep(0)
    ended.wait()
    threading.Event().wait(0.01)
    for _ in range(iterations):
        await asyncio.sleep(0)
    if task.done():
        return
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


WITHOUT_THREADS = """
import asyncio, resource
from pykubelet.base.kit.flight import Done, SingleFlight

async def main():
    flight = SingleFlight("t", workers=2)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, hard))  # below what the process has: no stack for a thread
    waiting = asyncio.ensure_future(flight.run("k", lambda: 7, 20.0))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    assert await waiting == Done(7)
    assert await flight.run("k", lambda: 8, 20.0) == Done(8), "the key is free"

asyncio.run(main())
"""


def test_work_waits_while_the_system_has_no_thread_left() -> None:
    """The limit is one of the whole process, so it has one of its own."""
    ended = subprocess.run([sys.executable, "-c", WITHOUT_THREADS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def record() -> tuple[WorkRecord, bytearray]:
    made, buffer = WorkRecord(), bytearray(SIZE)
    made.attach(memoryview(buffer))
    return made, buffer


def test_work_is_recorded_while_it_is_under_way() -> None:
    work, buffer = record()
    began = time.monotonic()
    with work.on("uid-1"):
        (found,) = open_works(buffer)
        assert (found.key, found.is_main) == ("uid-1", True)
        assert began <= found.since <= time.monotonic()
        assert work.current() == found and not work.is_idle
    assert list(open_works(buffer)) == [] and work.current() is None and work.is_idle


def test_the_innermost_work_of_the_event_loop_is_the_current_one() -> None:
    work, buffer = record()
    begun = time.monotonic()
    with work.on("outer"):
        while time.monotonic() <= begun:
            pass  # what begins later has a later time
        with work.on("inner"):
            assert {opened.key for opened in open_works(buffer)} == {"outer", "inner"}
            current = work.current()
            assert current is not None and current.key == "inner"
        current = work.current()
        assert current is not None and current.key == "outer"


def test_work_of_another_thread_is_recorded_and_is_not_the_event_loops() -> None:
    work, buffer = record()
    begun, end = threading.Event(), threading.Event()

    def run() -> None:
        with work.on("manifest /a"):
            begun.set()
            end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    assert [(opened.key, opened.is_main) for opened in open_works(buffer)] == [("manifest /a", False)]
    assert work.current() is None
    end.set()
    thread.join()
    assert work.is_idle


def test_more_work_than_can_be_recorded_is_done_all_the_same() -> None:
    work, buffer = record()
    blocks = [work.on(f"uid-{number}") for number in range(SLOTS + 2)]
    for block in blocks:
        block.__enter__()
    assert len(list(open_works(buffer))) == SLOTS
    for block in reversed(blocks):
        block.__exit__(None, None, None)
    assert work.is_idle


@pytest.mark.parametrize("key", ["manifest /etc/\udcff.yaml", "manifest /" + "a" * 5000, "ü" * 400])
def test_any_path_can_be_a_key(key: str) -> None:
    work, buffer = record()
    with work.on(key):
        (found,) = open_works(buffer)
    assert record_key(found.key) == record_key(key) and len(record_key(key)) <= MAX_KEY_BYTES
    assert found.key == key_text(record_key(key))


def test_an_exception_notes_the_work_in_which_it_was_raised() -> None:
    work, _ = record()
    with pytest.raises(ValueError) as raised, work.on("uid-1"):
        raise ValueError("a bug")
    assert noted_key(raised.value) == "uid-1"
    try:
        raise RuntimeError("the loop has ended") from raised.value
    except RuntimeError as error:
        assert noted_key(error) == "uid-1"
    assert noted_key(ValueError("elsewhere")) == ""


@given(st.binary(max_size=SIZE + 8))
def test_a_damaged_buffer_is_read_without_an_error(data: bytes) -> None:
    for work in open_works(data):
        assert isinstance(work, OpenWork)


def test_the_process_has_a_record_from_the_start() -> None:
    with WORK.on("uid-1"):
        current = WORK.current()
    assert current is not None and current.key == "uid-1"
