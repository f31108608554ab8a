"""Containers that are created ahead: while those before them in the pod are being created and started.

Owns: the tasks that prepare and create them, and the limits of their number. What has an order keeps it: a container is prepared after
those before it, the sync starts them one after the other, and none is prepared before a postStart hook ahead of it has ended. Init
containers, sidecars and ephemeral containers are never created ahead. So what is created has nothing to wait for but calls of the runtime.
Where no slot is free, a container is created when it is next to start; thus a runtime that hangs for one pod delays no other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Generic, TypeVar

from pykubelet.act.pods.decide import find_container
from pykubelet.act.pods.hooks import has_post_start
from pykubelet.act.runtime.render.context import AnyContainer
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.supervise import Supervisor

#: So many containers of one pod are created ahead, beside the one that is next to start. More would gain nothing: containers are started
#: one after the other, and a creation has ended in the time of so many starts.
MOST_OF_POD = 4
#: So many containers of all pods are being created ahead at once. A burst of pods has one call of each pod under way anyway.
MOST_OF_NODE = 16

R = TypeVar("R")
C = TypeVar("C")


class AheadSlots:
    """The slots of the node for creations ahead."""

    def __init__(self, free: int = MOST_OF_NODE) -> None:
        self.free = free


class Early(Generic[R, C]):
    """One container that is prepared and created ahead. `ready`: its preparation. `is_next`: set when it is next to start."""

    def __init__(self, container: AnyContainer) -> None:
        self.container = container
        self.is_next = asyncio.Event()
        self.is_being_created = False
        self.ready: asyncio.Task[R]
        self._creation: asyncio.Task[C | None]

    def begin(self, ready: asyncio.Task[R], creation: asyncio.Task[C | None]) -> None:
        """Keep the tasks that make it."""
        self.ready, self._creation = ready, creation

    async def created(self) -> C:
        """Wait until it is created. Raises the error of its creation. Its preparation has succeeded."""
        self.is_next.set()
        created = await self._creation
        assert created is not None
        return created

    def cancel(self, *, calls: bool) -> list[asyncio.Task[R] | asyncio.Task[C | None]]:
        """Cancel what was begun, and return it. `calls` False: a call of the runtime goes on."""
        self.ready.cancel()
        if calls or not self.is_being_created:
            self._creation.cancel()
        return [self.ready, self._creation]


class Ahead(Generic[R, C]):
    """What one sync makes ahead. Use `async with`: nothing runs on afterwards. A container that was created in vain is left, and the
    next plan removes it.

    `names`: the regular containers of `pod` that it starts, in order. `prepare`, `create`: make one of them. A ContainerStartError of
    these is raised when the container is next to start.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        slots: AheadSlots,
        pod: Pod,
        names: Sequence[str],
        prepare: Callable[[AnyContainer], Awaitable[R]],
        create: Callable[[AnyContainer, R], Awaitable[C]],
    ) -> None:
        self._supervisor = supervisor
        self._slots = slots
        self._pod = pod
        self._names = names
        self._places = {name: place for place, name in enumerate(names)}
        self._prepare = prepare
        self._create = create
        self._begun: dict[str, Early[R, C]] = {}
        self._next: Early[R, C] | None = None

    async def __aenter__(self) -> Ahead[R, C]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what was begun in vain: calls of the runtime are awaited, unless the sync itself was cancelled."""
        left = [*self._begun.values(), *([self._next] if self._next is not None else [])]
        tasks = [task for early in left for task in early.cancel(calls=kind is not None)]
        await asyncio.gather(*tasks, return_exceptions=True)

    def take(self, name: str) -> Early[R, C] | None:
        """The container that is next to start, if it was begun ahead."""
        self._next = self._begun.pop(name, None)
        return self._next

    @property
    def names(self) -> frozenset[str]:
        """The containers that were begun ahead and are not started yet."""
        return frozenset(self._begun if self._next is None else (*self._begun, self._next.container.name))

    def begin(self, container: AnyContainer) -> bool:
        """Begin to make the next containers after `container`, which is next to start and is prepared: up to one with a hook.

        Returns whether there are more than before.
        """
        place = self._places.get(container.name)
        if place is None:
            return False  # an init or ephemeral container
        before, last, known = container, None, len(self._begun)
        for name in self._names[place + 1 : place + 1 + MOST_OF_POD]:
            if has_post_start(before):
                break
            early = self._begun.get(name)
            if early is None:
                early = self._begun[name] = self._begin(find_container(self._pod, name), last)
            before, last = early.container, early
        return len(self._begun) > known

    def _begin(self, container: AnyContainer, last: Early[R, C] | None) -> Early[R, C]:
        early, start = Early[R, C](container), self._supervisor.start_child
        task = f"ahead-{self._pod.metadata.uid}-{container.name}"
        ready = start(f"{task}-ready", self._prepare_after(last.ready if last is not None else None, container))
        early.begin(ready, start(task, self._create_ready(early, ready)))
        return early

    async def _prepare_after(self, before: asyncio.Task[R] | None, container: AnyContainer) -> R:
        """Prepare a container once the one before it is prepared, or cannot be. An interruption of that one ends this one too."""
        if before is not None:
            with contextlib.suppress(ContainerStartError):
                await asyncio.shield(before)
        return await self._prepare(container)

    async def _create_ready(self, early: Early[R, C], ready: asyncio.Task[R]) -> C | None:
        """Create a prepared container: at once if a slot is free, else when it is next to start. None: its preparation has failed."""
        await asyncio.wait((ready,))
        if ready.cancelled() or ready.exception() is not None:
            return None
        if self._slots.free <= 0:
            await early.is_next.wait()
            early.is_being_created = True
            return await self._create(early.container, ready.result())
        self._slots.free -= 1
        early.is_being_created = True
        try:
            return await self._create(early.container, ready.result())
        finally:
            self._slots.free += 1
