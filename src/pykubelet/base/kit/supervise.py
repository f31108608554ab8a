"""Supervision: the only place that creates tasks.

A `Supervisor` owns named tasks. When a root task (the loop of a component) ends with an error, `wait_failed` returns that
error so that the process ends: an agent without one of its loops would fail unnoticed. A child task (one pod's work)
reports its error through the returned task, or to `on_crash`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from pykubelet.base.kit.log import Log

T = TypeVar("T")
#: A library may swallow a cancellation; the second one reaches the task.
CANCEL_AGAIN_S = 2.0
log = Log("supervise")


class Supervisor:
    """Named tasks that end together. Use `async with`; leaving the block cancels and awaits all that still run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they were started
        self._failed: asyncio.Event = asyncio.Event()
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Supervisor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start_root(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a loop that must not end with an error. If it does, `wait_failed` returns the error."""
        task = self._start(name, work)
        task.add_done_callback(self._root_ended)
        return task

    def start_child(
        self, name: str, work: Coroutine[Any, Any, T], on_crash: Callable[[BaseException], None] | None = None
    ) -> asyncio.Task[T]:
        """Start one piece of work. With `on_crash`, an error is logged and passed to it; otherwise await the task."""
        task = self._start(name, work)
        if on_crash is not None:
            task.add_done_callback(lambda done: _report_crash(done, on_crash))
        return task

    async def outlive(self, name: str, work: Coroutine[Any, Any, T], least_s: float) -> T:
        """Await work that should not be cut off while it begins. A cancelled caller returns at once, and the work is cancelled
        when it has had `least_s` seconds.
        """
        loop = asyncio.get_running_loop()
        until, task = loop.time() + least_s, self._start(name, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            loop.call_at(until, task.cancel)
            raise

    async def wait_ended(self, limit_s: float) -> None:
        """Wait until no task is left, for `limit_s` seconds at most."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=limit_s)

    async def wait_failed(self) -> BaseException:
        """Wait until a root task ends with an error, and return the first such error."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    async def stop(self, *, but: str = "") -> None:
        """Cancel all tasks, `but` one by its name, and wait for them to end."""
        current = asyncio.current_task()
        left = [task for task in self._tasks if task is not current and task.get_name() != but]
        while left:
            for task in left:
                task.cancel()
            ended, _ = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
            await asyncio.gather(*ended, return_exceptions=True)  # errors were reported where they were awaited
            left = [task for task in left if task not in ended]
            for task in left:
                log.warning("a task does not end when cancelled; cancelling it again", task=task.get_name())

    def _start(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
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


async def run_until(stop: asyncio.Event, parts: Mapping[str, Coroutine[Any, Any, None]]) -> BaseException | None:
    """Run the parts of a program until `stop` is set or one of them ends with an error, which is returned."""
    async with Supervisor("program") as tasks:
        for name, part in parts.items():
            tasks.start_root(name, part)
        stopping = tasks.start_child("signal", stop.wait())
        failing = tasks.start_child("failure", tasks.wait_failed())
        await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
        return failing.result() if failing.done() else None


async def finish(work: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Await work that should not be cut off.

    When cancelled, first wait for its end, for `limit_s` seconds at most or until cancelled again.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait((task,), timeout=limit_s)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # a caller that cancels does not need the outcome
        raise


async def beside(other: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T:
    """Await `work` in this task while `other` runs in a task of its own, then await that one too, also after an error of `work`.

    A cancellation ends both.
    """
    task = asyncio.ensure_future(other)
    try:
        try:
            result = await work
        except Exception:
            await task
            raise
        await task
        return result
    finally:
        task.cancel()
