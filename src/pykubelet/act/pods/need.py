"""What every need of a pod has in common: the steps at which the pod worker calls it.

A need is something that a pod must have before its containers run, and that is given back when it ends: its images, its cgroup, its
volumes. Each is one class in `needs.py` or a module of its own, and one line in `NEEDS` there. What supplies it (`provide/volumes`,
`provide/claims` and so on) works on its own and knows nothing of this; the need is what the pod worker waits for, and what a container
gets of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TypeVar

from pykubelet.act.pods.metrics import PullTime
from pykubelet.act.pods.model import Sync
from pykubelet.act.pods.waitbook import Unless, WaitBook
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext, unanswered
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell, Waitable
from pykubelet.base.model.content import Content, Found, ObjectKey, answers_of, wait_for_key
from pykubelet.base.model.waits import Wait

#: `WaitBook.until` or `SyncRun.until`, of an answer in `Content`.
Until = Callable[[Waitable[Found | None], Callable[[Found | None], Wait | None]], Awaitable[None]]
S = TypeVar("S")
T = TypeVar("T")


class SyncRun:
    """One sync, as needs see it. `pulled`: takes the time of image pulls. Every wait of it may raise `Interrupted`."""

    def __init__(self, command: Sync, waits: WaitBook, unless: Unless, pulled: PullTime) -> None:
        self.command = command
        self.waits = waits
        self.pulled = pulled
        self._unless = unless

    @property
    def pod(self) -> Pod:
        """The pod as it is to run."""
        return self.command.pod

    async def until(self, cell: Waitable[S], missing: Callable[[S], Wait | None]) -> None:
        """Wait until nothing is `missing` in the cell: what is, is the open wait."""
        await self.waits.until(cell, missing, self._unless)

    async def wait_shown(self, work: Callable[[Callable[[Wait], None]], Awaitable[T]], wait: Wait) -> T:
        """Await `work` while `wait` is open. What `work` gets replaces it: a call with another wait."""
        with self.waits.waiting(wait) as show:
            return await self._unless(work(show))

    async def wait(self, work: Awaitable[T], wait: Wait) -> T:
        """Await `work` while `wait` is open. A task passed as `work` continues after an interruption."""
        with self.waits.waiting(wait):
            return await self._unless(work)


class PodNeed:
    """One need of one pod. The steps are methods that do nothing; a need overrides those at which it has something to do.

    A start calls each step for all needs, in the order of the registry; an end calls its steps in the reverse order. Any step may
    be repeated, and may come in an agent that has not made the earlier ones: what exists already is adopted, and what is gone
    already is no error. The steps of a start raise ContainerStartError if the need cannot be met now.
    """

    def begin(self, run: SyncRun) -> None:
        """Begin what takes long, without waiting for it. It may continue after an interruption, into the next `begin`, until `cancel`."""

    async def before_sandbox(self, run: SyncRun) -> None:
        """Wait for what the sandbox needs, whether it is made or adopted."""

    async def before_containers(self, run: SyncRun) -> None:
        """Wait for what every container needs."""

    async def before_container(self, run: SyncRun, container: AnyContainer, ctx: ContainerContext) -> ContainerContext:
        """Wait for what one container needs. Returns `ctx` with what the container gets.

        It may come while containers before it in the pod are being started.
        """
        return ctx

    def before_start(self, run: SyncRun, container: AnyContainer) -> None:
        """The container is created and started next: record what `before_container` has found. Not called if that was interrupted."""

    def cancel(self) -> None:
        """End what `begin` has begun: the sync is over, or the pod is being stopped."""

    @property
    def is_held(self) -> bool:
        """Whether something is left that may be given back only after the pod was seen without containers."""
        return False

    async def after_stop(self, waits: WaitBook) -> None:
        """Wait for what must be given back before the pod counts as terminated. Its containers have ended.

        Not called for a pod that the agent does not know any more.
        """

    async def release(self, waits: WaitBook) -> str:
        """Give the rest back. Returns the error, or an empty string."""
        return ""


async def wait_answered(cell: Cell[Content], keys: Collection[ObjectKey], until: Until) -> None:
    """Wait until all keys have an answer in `Content` at once: an answer may be dropped again. An error is also an answer."""
    while unanswered(keys, cell.get()) is not None:
        for key in keys:
            if cell.get().lacks(key):  # most of thousands may be answered together
                await until(cell.entry(answers_of, key), partial(_unanswered, key))


def _unanswered(key: ObjectKey, found: Found | None) -> Wait | None:
    return wait_for_key(key, 0.0) if found is None else None
