"""Supervision: named tasks, one end; a root's crash is everybody's, a child's is its own."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from pykubelet.base.kit.supervise import Supervisor, run_until


async def raises() -> None:
    raise ValueError("boom")


async def test_leaving_cancels_and_awaits_all_that_run() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async with Supervisor("test") as supervisor:
        supervisor.start_root("root", work("root"))
        supervisor.start_child("child", work("child"))
        await asyncio.sleep(0)
    assert sorted(ended) == ["child", "root"]


async def test_all_but_one_are_stopped_and_then_that_one() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async with Supervisor("test") as supervisor:
        for name in ("port", "loop"):
            supervisor.start_root(name, work(name))
        supervisor.start_child("child", work("child"))
        await asyncio.sleep(0)
        await supervisor.stop(but="port")
        assert sorted(ended) == ["child", "loop"]
    assert ended[-1] == "port"


async def test_a_root_that_crashes_is_reported_with_its_error() -> None:
    async with Supervisor("test") as supervisor:
        supervisor.start_root("loop", raises())
        error = await asyncio.wait_for(supervisor.wait_failed(), 30)
    assert isinstance(error, ValueError)


async def test_the_first_crash_is_the_one_that_is_reported() -> None:
    async def later() -> None:
        await asyncio.sleep(0)
        raise KeyError("second")

    async with Supervisor("test") as supervisor:
        supervisor.start_root("first", raises())
        supervisor.start_root("second", later())
        for _ in range(5):
            await asyncio.sleep(0)
        assert isinstance(await supervisor.wait_failed(), ValueError)


async def test_a_root_that_ends_or_is_cancelled_is_no_failure() -> None:
    async with Supervisor("test") as supervisor:
        supervisor.start_root("ends", asyncio.sleep(0))
        supervisor.start_root("cancelled", asyncio.sleep(0)).cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(supervisor.wait_failed(), 0.02)


async def test_a_childs_error_comes_out_of_its_task_and_harms_no_other() -> None:
    async with Supervisor("test") as supervisor:
        child = supervisor.start_child("child", raises())
        other = supervisor.start_child("other", asyncio.sleep(0, "fine"))
        with pytest.raises(ValueError, match="boom"):
            await child
        assert await other == "fine"


async def test_on_crash_gets_errors_and_no_cancellation() -> None:
    reported: list[BaseException] = []
    async with Supervisor("test") as supervisor:
        supervisor.start_child("child", raises(), reported.append)
        supervisor.start_child("cancelled", asyncio.Event().wait(), reported.append).cancel()
        supervisor.start_child("ends", asyncio.sleep(0), reported.append)
        for _ in range(5):
            await asyncio.sleep(0)
    assert [repr(error) for error in reported] == ["ValueError('boom')"]


async def test_tasks_carry_their_names() -> None:
    async with Supervisor("test") as supervisor:
        assert supervisor.start_root("pods-desired", asyncio.sleep(0)).get_name() == "pods-desired"


async def test_a_task_may_stop_its_own_supervisor() -> None:
    supervisor = Supervisor("test")
    task = supervisor.start_child("self", supervisor.stop())
    await asyncio.wait_for(task, 30)


@pytest.mark.looptime
async def test_stop_cancels_again_what_swallows_a_cancellation() -> None:
    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
        await asyncio.sleep(1000)

    supervisor = Supervisor("test")
    task = supervisor.start_root("stubborn", stubborn())
    await asyncio.sleep(0)
    await supervisor.stop()
    assert task.cancelled()
    assert asyncio.get_running_loop().time() < 10


async def test_a_program_runs_until_a_part_crashes_or_it_is_stopped() -> None:
    async def crash() -> None:
        raise AssertionError("a bug")

    async def serve() -> None:
        await asyncio.Event().wait()

    stop = asyncio.Event()
    assert str(await run_until(stop, {"serve": serve(), "provision": crash()})) == "a bug"
    stop.set()
    assert await run_until(stop, {"serve": serve()}) is None
