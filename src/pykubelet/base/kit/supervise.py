"""Supervision: the only place that makes tasks.

A `Supervisor` owns named tasks. A root task (a room's loop) that ends with an error ends the supervisor, and with it the
process: half an agent is worse than none. A child task (one pod's work) reports its error to whoever asked through the
returned task, or to `on_crash`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pykubelet.base.kit.log import Log

T = TypeVar("T")
#: A library may swallow a cancellation; the second one reaches the task.
CANCEL_AGAIN_S = 2.0
log = Log("supervise")


class Supervisor:
    """Named tasks with one end. Use `async with`; leaving cancels and awaits all that still run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Event = asyncio.Event()
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Supervisor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start_root(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a loop that must not end by an error: if it does, `wait_failed` returns it."""
        task = self._start(name, work)
        task.add_done_callback(self._root_ended)
        return task

    def start_child(
        self, name: str, work: Coroutine[Any, Any, T], on_crash: Callable[[BaseException], None] | None = None
    ) -> asyncio.Task[T]:
        """Start one piece of work. With `on_crash`, its error is handed there and logged; else await the task."""
        task = self._start(name, work)
        if on_crash is not None:
            task.add_done_callback(lambda done: _report_crash(done, on_crash))
        return task

    async def wait_failed(self) -> BaseException:
        """The first error that ended a root task."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    async def stop(self) -> None:
        """Cancel all tasks and wait for their ends."""
        current = asyncio.current_task()
        left = {task for task in self._tasks if task is not current}
        while left:
            for task in left:
                task.cancel()
            ended, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
            await asyncio.gather(*ended, return_exceptions=True)  # errors were told where they were awaited
            for task in left:
                log.warning("a task does not end when cancelled; cancelling it again", task=task.get_name())

    def _start(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _root_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("a root task crashed", task=task.get_name(), error=repr(error), exc_info=error)
        if self._failure is None:
            self._failure = error
        self._failed.set()


def _report_crash(task: asyncio.Task[Any], on_crash: Callable[[BaseException], None]) -> None:
    if task.cancelled() or (error := task.exception()) is None:
        return
    log.error("a task crashed", task=task.get_name(), error=repr(error), exc_info=error)
    on_crash(error)
