"""Keeps one object of the API server up to date, by a watch of its own or by periodic reads.

Owns: one list-watch restricted to the object's name, because the API server allows a node no other, or the time of the next read.
An immutable object is neither watched nor read any longer. Before a missing object of a watch is first reported, it is read with GET,
because the first list may be older than the pod that refers to the object.
Source: KEP-1412 (immutable Secrets and ConfigMaps); `configMapAndSecretChangeDetectionStrategy`.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import deque
from contextlib import aclosing
from enum import StrEnum

from pykubelet.base.api.selectors import field_selector
from pykubelet.base.kit.cells import Cell, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.attachments import attachment_names
from pykubelet.base.model.content import Absent, ContentKey, Found, ObjectKey, Present, Unreadable, wait_label
from pykubelet.base.model.ids import is_object_name
from pykubelet.base.model.node import ApiNode
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import Listed, follow
from pykubelet.provide.objects.decide import is_settled, retry_delay_s, unsettled_delay_s
from pykubelet.provide.objects.excess import REQUESTS_OF_MANY, ExcessKeys
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


class KeeperTools(Value):
    """What all keepers of objects use."""

    client: ApiClient
    clock: Clock
    settings: ContentSettings
    answers: Post[Answered]


class ObjectKeeper(ABC):
    """What is known of one object. Posts every new answer."""

    def __init__(self, key: ObjectKey, tools: KeeperTools) -> None:
        self.key = key
        self._client = tools.client
        self._clock = tools.clock
        self._settings = tools.settings
        self._answers = tools.answers
        self._resource = RESOURCES[key.kind]
        self._answered: Found | None = None
        self._error = TIMED_OUT
        self._timeout: asyncio.TimerHandle | None = None

    @property
    def is_current(self) -> bool:
        """Whether the answer stays up to date without another read."""
        return False

    def start(self) -> None:
        """Begin to keep the object."""
        if is_object_name(self.key.name):
            self._begin()
        else:
            self._answer(self._absent())

    def cancel(self) -> None:
        """End it."""
        self._stop_waiting()

    @abstractmethod
    def read_again(self) -> None:
        """Read the object again, unless it is watched, because another pod refers to it."""

    @abstractmethod
    def node_changed(self) -> None:
        """Take notice of another version of the Node."""

    @abstractmethod
    def _begin(self) -> None:
        """Begin to keep an object that can exist."""

    async def _get(self) -> ApiObject:
        return await self._client.get(f"{collection_path(self.key)}/{self.key.name}", self._resource.kind)

    def _absent(self) -> Absent:
        return Absent(f'{self._resource.noun} "{self.key.name}" not found')

    def _expect_answer(self) -> None:
        """Report the object as unreadable unless an answer comes in time."""
        self._stop_waiting()
        self._timeout = asyncio.get_running_loop().call_later(self._settings.answer_timeout_s, self._report_unreadable)

    def _stop_waiting(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _failed(self, error: ApiError) -> None:
        """Keep the last answer; without one, report the error when `answer_timeout_s` is over."""
        self._error = error.message
        if isinstance(self._answered, Unreadable):
            self._report_unreadable()

    def _report_unreadable(self) -> None:
        if self._answered is None or isinstance(self._answered, Unreadable):
            since = self._answered.since if isinstance(self._answered, Unreadable) else self._clock.wall()
            self._answer(Unreadable(self._problem(), since))

    def _problem(self) -> str:
        return self._error

    def _answer(self, found: Found) -> None:
        if isinstance(found, Present) and isinstance(self._answered, Present) and found.value is self._answered.value:
            return
        if found == self._answered:
            return
        self._answered = found
        self._answers.post(Answered(self.key, found))


class WatchedObject(ObjectKeeper):
    """An object that is watched, in a task of `tasks`."""

    def __init__(self, key: ObjectKey, tools: KeeperTools, tasks: Supervisor) -> None:
        super().__init__(key, tools)
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None

    @property
    def is_current(self) -> bool:
        """Whether the answer stays up to date without another read: an immutable object is not watched any longer."""
        return not _is_immutable(self._answered)

    def cancel(self) -> None:
        """End the watch."""
        super().cancel()
        if self._task is not None:
            self._task.cancel()
            self._task = None  # it keeps the frames in which it was cancelled, and these this object

    def read_again(self) -> None:
        """Nothing: the watch has the newest version."""

    def node_changed(self) -> None:
        """Nothing: it does not depend on the Node."""

    def _begin(self) -> None:
        self._expect_answer()
        self._task = self._tasks.start_root(task_name(self.key), self._watch())

    async def _watch(self) -> None:
        """Watch the object. Returns when the answer cannot change any more."""
        path, kind = collection_path(self.key), self._resource.kind
        selector = field_selector(("metadata.name", self.key.name))
        periods = replace(self._settings.watch, retry=RETRY_S)
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
            value = await self._get()
        except ApiError as error:
            if error.is_not_found:
                self._answer(self._absent())
            else:
                self._failed(error)
        else:
            self._answer(Present(value))

    def _problem(self) -> str:
        if self._resource.access is Access.STRATEGY:
            return f"failed to sync {self._resource.noun} cache: {self._error}"
        return self._error


class Reading(StrEnum):
    """What becomes of an object that is read now and then. AGAIN: it is being read, and is to be read once more.

    DROPPED: it is being read, and the answer is not wanted any more.
    """

    OFF = "off"
    WAITING = "waiting"
    NOW = "now"
    AGAIN = "again"
    DROPPED = "dropped"


class ReadObject(ObjectKeeper):
    """An object that is read now and then. Between two reads it is only a timer, because a pod may refer to thousands.

    A VolumeAttachment is read only while the Node lists its volume as attached. Without that there is no answer.
    """

    def __init__(self, key: ObjectKey, tools: KeeperTools, node: Cell[ApiNode], reads: ReadQueue) -> None:
        super().__init__(key, tools)
        self._node = node
        self._reads = reads
        self._failures, self._settled_at = 0, tools.clock.monotonic()
        self._state = Reading.OFF
        self._timer: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        """Read it no more."""
        super().cancel()
        self._cancel_timer()
        is_being_read = self._state in (Reading.NOW, Reading.AGAIN, Reading.DROPPED)
        self._state = Reading.DROPPED if is_being_read else Reading.OFF

    def read_again(self) -> None:
        """Read the object again, because another pod refers to it."""
        if not is_object_name(self.key.name):
            return
        if self._resource.access is Access.STRATEGY:
            self._forget()
            self._expect_answer()
        if self._is_readable():
            self._read_now()

    def node_changed(self) -> None:
        """Read a VolumeAttachment if the Node lists its volume as attached; have no answer otherwise."""
        if self._resource.access is not Access.ATTACHED:
            return
        if self._is_readable():
            if self._state in (Reading.OFF, Reading.DROPPED):
                self._begin()
            else:
                self._read_now()
        elif self._state not in (Reading.OFF, Reading.DROPPED):
            self.cancel()
            self._forget()

    async def read(self) -> None:
        """Read the object once, and begin to wait for the next time. Called by the queue."""
        if self._state is Reading.DROPPED:
            self._state = Reading.OFF
            return
        self._state = Reading.NOW
        try:
            value = await self._get()
        except ApiError as error:  # not kept: it refers to this frame, and only a garbage collection would free both
            pause_s = self._refused(error)
        else:
            pause_s = self._take(Present(value))
        match self._state:
            case Reading.DROPPED:
                self._state = Reading.OFF
            case Reading.AGAIN:
                self._reads.add(self)
            case _:
                self._state = Reading.WAITING
                if not _is_immutable(self._answered):
                    self._timer = asyncio.get_running_loop().call_later(pause_s, self._read_now)

    def _begin(self) -> None:
        if self._is_readable():
            self._expect_answer()
            self._failures, self._settled_at = 0, self._clock.monotonic()
            self._read_now()

    def _read_now(self) -> None:
        self._cancel_timer()
        if self._state in (Reading.OFF, Reading.WAITING):
            self._state = Reading.NOW
            self._reads.add(self)
        else:
            self._state = Reading.AGAIN

    def _refused(self, error: ApiError) -> float:
        """Note that the object could not be read, or does not exist. Returns the seconds until the next read."""
        if error.is_not_found:
            return self._take(Absent(error.message))
        self._failures += 1
        if self._state is not Reading.DROPPED:
            self._failed(error)
        return retry_delay_s(self._failures, RETRY_S, RETRY_CAP_S, random.random(), error.retry_after_s)

    def _take(self, found: Found) -> float:
        """Publish what was read. Returns the seconds until the next read."""
        self._failures = 0
        if self._state is not Reading.DROPPED:
            self._answer(found)
        access, now = self._resource.access, self._clock.monotonic()
        if access is not Access.STRATEGY and not is_settled(self._answered):
            return unsettled_delay_s(now - self._settled_at, UNSETTLED_S, UNSETTLED_CAP_S, random.random())
        self._settled_at = now
        pause_s = self._settings.reread_s * random.uniform(1.0, 1.5)
        if access is Access.STRATEGY and self._settings.strategy is Strategy.CACHE:
            return max(pause_s, self._node.get().object_ttl_s)
        return pause_s

    def _is_readable(self) -> bool:
        if self._resource.access is not Access.ATTACHED:
            return True
        return self.key.name in attachment_names(self._node.get().volumes_attached, self._settings.node)

    def _forget(self) -> None:
        """Have no answer."""
        self._answered = None
        self._answers.post(Answered(self.key, None))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ReadQueue:
    """Reads objects: those of pods that refer to many a few at a time, all others at once."""

    def __init__(self, tasks: Supervisor, excess: ExcessKeys) -> None:
        self._tasks = tasks
        self._excess = excess
        self._due: deque[ReadObject] = deque()
        self._readers = 0

    def add(self, item: ReadObject) -> None:
        """Read the object as soon as it may be read."""
        if not self._excess.is_of_many(item.key):
            self._tasks.start_root(task_name(item.key), item.read())
            return
        self._due.append(item)
        if self._readers < REQUESTS_OF_MANY:
            self._readers += 1
            self._tasks.start_root("content of many", self._read_due())

    async def _read_due(self) -> None:
        while self._due:
            item = self._due.popleft()
            async with self._excess.slot(item.key):
                await item.read()
        self._readers -= 1


def is_watched(key: ObjectKey, strategy: Strategy) -> bool:
    """Whether the object is watched, not read now and then."""
    access = RESOURCES[key.kind].access
    return access is Access.WATCH or (access is Access.STRATEGY and strategy is Strategy.WATCH)


def task_name(key: ContentKey) -> str:
    """The name of a task that keeps the answer for a key."""
    return " ".join(("content", *wait_label(key)))


def _is_immutable(found: Found | None) -> bool:
    return isinstance(found, Present) and bool(getattr(found.value, "immutable", None))
