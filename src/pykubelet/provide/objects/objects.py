"""Keeps one object of the API server up to date, by a watch of its own or by periodic reads.

Owns: one list-watch restricted to the object's name, because the API server allows a node no other. An immutable object
is not watched any longer. Before a missing object is first reported, it is read with GET, because the first list may be
older than the pod that refers to the object.
Source: KEP-1412 (immutable Secrets and ConfigMaps); `configMapAndSecretChangeDetectionStrategy`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext

from pykubelet.base.api.selectors import field_selector
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.values import replace
from pykubelet.base.model.attachments import attachment_names
from pykubelet.base.model.content import Absent, Found, ObjectKey, Present, Unreadable
from pykubelet.base.model.ids import is_object_name
from pykubelet.base.model.node import ApiNode
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import Listed, follow
from pykubelet.provide.objects.decide import is_settled, retry_delay_s, unsettled_delay_s
from pykubelet.provide.objects.model import (
    RESOURCES,
    Access,
    Answered,
    ApiObject,
    ContentSettings,
    Strategy,
    collection_path,
)

RETRY_S = 0.05
RETRY_CAP_S = 10.0
#: Between two reads of a claim or volume that is missing or not bound yet: at first, because the binding controller needs about a
#: second, and at most.
UNSETTLED_S = 0.1
UNSETTLED_CAP_S = 15.0
TIMED_OUT = "timed out waiting for the condition"


class ObjectWatcher:
    """Keeps one object. `run` posts every new answer, and returns when the answer cannot change any more.

    `slot`: entered for each read.
    """

    def __init__(
        self,
        key: ObjectKey,
        client: ApiClient,
        clock: Clock,
        settings: ContentSettings,
        answers: Post[Answered],
        node: Cell[ApiNode],
        slot: AbstractAsyncContextManager[object] | None = None,
    ) -> None:
        self._slot = slot or nullcontext()
        self._node = node
        self._key = key
        self._client = client
        self._clock = clock
        self._settings = settings
        self._answers = answers
        self._resource = RESOURCES[key.kind]
        access = self._resource.access
        self._is_watched = access is Access.WATCH or (access, settings.strategy) == (Access.STRATEGY, Strategy.WATCH)
        self._answered: Found | None = None
        self._error = TIMED_OUT
        self._again = asyncio.Event()
        self._patience: asyncio.TimerHandle | None = None

    @property
    def is_current(self) -> bool:
        """Whether the answer stays up to date without another read: the object is watched."""
        return self._is_watched and not _is_immutable(self._answered)

    def read_again(self) -> None:
        """Read the object again, unless it is watched, because another pod refers to it."""
        if self._is_watched or not is_object_name(self._key.name):
            return
        if self._resource.access is Access.STRATEGY:
            self._answered = None
            self._answers.post(Answered(self._key, None))
            self._wait_patiently()
        self._again.set()

    async def run(self) -> None:
        """Watch or read the object. Returns when the answer cannot change any more."""
        if not is_object_name(self._key.name):
            self._answer(self._absent())
            return
        try:
            if self._resource.access is Access.ATTACHED:
                await self._read_while_attached()
            self._wait_patiently()
            await (self._watch() if self._is_watched else self._read_for_ever())
        finally:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _wait_patiently(self) -> None:
        """Restart the patience timer."""
        self._stop_waiting()
        self._patience = asyncio.get_running_loop().call_later(self._settings.patience_s, self._lose_patience)

    # Watched

    async def _watch(self) -> None:
        path, kind = collection_path(self._key), self._resource.kind
        selector, periods = (
            field_selector(("metadata.name", self._key.name)),
            replace(self._settings.watch, retry=RETRY_S),
        )
        changes = follow(self._client, path, kind, self._clock, field_selector=selector, periods=periods)
        async with aclosing(changes) as listings:
            async for listed in listings:
                await self._take(listed)
                if _is_immutable(self._answered):
                    return

    async def _take(self, listed: Listed[ApiObject]) -> None:
        for value in listed.items.values():
            self._answer(Present(value))
            return
        if listed.error is not None:
            self._failed(listed.error)
        if not listed.synced:
            return
        if self._answered is None or isinstance(self._answered, Unreadable):
            await self._ask_store()
        else:
            self._answer(self._absent())

    async def _ask_store(self) -> None:
        try:
            value = await self._read()
        except ApiError as error:
            if error.is_not_found:
                self._answer(self._absent())
            else:
                self._failed(error)
        else:
            self._answer(Present(value))

    # Read

    async def _read(self) -> ApiObject:
        async with self._slot:
            return await self._client.get(f"{collection_path(self._key)}/{self._key.name}", self._resource.kind)

    async def _read_while_attached(self) -> None:
        """Read the object as long as the Node lists its volume as attached. Without that there is no answer. Never returns."""
        with set_on_change(self._again, self._node):
            while True:
                await self._node.wait_for(lambda _: self._is_attached())
                self._wait_patiently()
                await self._read_for_ever(self._is_attached)
                self._stop_waiting()
                self._answered = None
                self._answers.post(Answered(self._key, None))

    def _is_attached(self) -> bool:
        return self._key.name in attachment_names(self._node.get().volumes_attached, self._settings.node)

    async def _read_for_ever(self, while_: Callable[[], bool] = lambda: True) -> None:
        """Read the object, again after a pause or when `_again` is set, as long as `while_` holds."""
        failures, settled_at = 0, self._clock.monotonic()
        while while_():
            self._again.clear()
            pause = self._settings.reread_s * random.uniform(1.0, 1.5)
            if (self._resource.access, self._settings.strategy) == (Access.STRATEGY, Strategy.CACHE):
                pause = max(pause, self._node.get().object_ttl_s)
            try:
                value = await self._read()
            except ApiError as error:
                if error.is_not_found:
                    failures = 0
                    self._answer(Absent(error.message))
                else:
                    failures += 1
                    self._failed(error)
                    pause = retry_delay_s(failures, RETRY_S, RETRY_CAP_S, random.random(), error.retry_after_s)
            else:
                failures = 0
                self._answer(Present(value))
            if not failures and self._resource.access in (Access.READ, Access.ATTACHED):
                now = self._clock.monotonic()
                if is_settled(self._answered):
                    settled_at = now
                else:
                    pause = unsettled_delay_s(now - settled_at, UNSETTLED_S, UNSETTLED_CAP_S, random.random())
            try:
                async with asyncio.timeout(None if _is_immutable(self._answered) else pause):
                    await self._again.wait()
            except TimeoutError:
                continue

    # Answers

    def _absent(self) -> Absent:
        return Absent(f'{self._resource.noun} "{self._key.name}" not found')

    def _failed(self, error: ApiError) -> None:
        """Keep the last answer; without one, report the error when `patience_s` is over."""
        self._error = error.message
        if isinstance(self._answered, Unreadable):
            self._lose_patience()

    def _lose_patience(self) -> None:
        if self._answered is not None and not isinstance(self._answered, Unreadable):
            return
        text = self._error
        if self._resource.access is Access.STRATEGY and self._is_watched:
            text = f"failed to sync {self._resource.noun} cache: {text}"
        since = self._answered.since if isinstance(self._answered, Unreadable) else self._clock.wall()
        self._answer(Unreadable(text, since))

    def _answer(self, found: Found) -> None:
        if isinstance(found, Present) and isinstance(self._answered, Present) and found.value is self._answered.value:
            return
        if found == self._answered:
            return
        self._answered = found
        self._answers.post(Answered(self._key, found))


def _is_immutable(found: Found | None) -> bool:
    return isinstance(found, Present) and bool(getattr(found.value, "immutable", None))
