"""The stacks of tasks and threads as text."""

from __future__ import annotations

import asyncio
import threading

from pykubelet.base.kit.stacks import MAX_LINES, all_stacks, stack_of_thread
from pykubelet.base.kit.supervise import Supervisor


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def outer(event: asyncio.Event) -> None:
    await inner(event)


async def test_a_task_is_shown_with_its_name_and_all_that_it_awaits() -> None:
    event = asyncio.Event()
    async with Supervisor("test") as tasks:
        tasks.start_child("pod-1", outer(event))
        await asyncio.sleep(0)
        text = all_stacks(asyncio.get_running_loop())
    stack = text.partition("task pod-1\n")[2]
    assert stack.index(" outer") < stack.index(" inner") < stack.index(" Event.wait")
    assert "test_stacks.py:" in stack


async def test_tasks_with_one_stack_are_shown_once() -> None:
    event = asyncio.Event()
    async with Supervisor("test") as tasks:
        for number in range(100):
            tasks.start_child(f"pod-{number:02d}", inner(event))
        await asyncio.sleep(0)
        text = all_stacks(asyncio.get_running_loop())
    assert "task pod-00, pod-01, pod-02, pod-03, pod-04 and 95 more\n" in text
    assert text.count(" inner") == 1


async def test_a_thread_is_shown_with_its_name() -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait()

    thread = threading.Thread(target=work, name="work-1")
    thread.start()
    begun.wait()
    try:
        lines = all_stacks(None).splitlines()
        assert "thread work-1" in lines and "thread MainThread" in lines
        assert any(line.endswith(".work") for line in lines)
        assert " work" in stack_of_thread(thread.ident) or ".work" in stack_of_thread(thread.ident)
    finally:
        end.set()
        thread.join()
    assert stack_of_thread(thread.ident) == ""


async def test_the_text_has_a_limit() -> None:
    async def deep(level: int) -> None:
        if level:
            await deep(level - 1)
        else:
            await asyncio.Event().wait()

    async with Supervisor("test") as tasks:
        for level in range(100):
            tasks.start_child(f"task-{level}", deep(level))
        await asyncio.sleep(0)
        lines = all_stacks(asyncio.get_running_loop()).splitlines()
    assert len(lines) == MAX_LINES + 1
    assert lines[-1].endswith(" more lines are left out")
