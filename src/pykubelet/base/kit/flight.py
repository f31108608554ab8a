"""Synchronous work: an executor that runs blocking work in threads, and a record of which pod each piece of work is for.

`SingleFlight` delays no other work. A thread cannot be cancelled: a `mount` or `stat` on a dead file system hangs. So blocking work runs
in daemon threads, at most one per key. The waiter gives up at its deadline with `Uncertain`. Until the stuck thread returns, every
further call for that key is `Uncertain` at once, so that two pieces of work never overlap. Threads that are stuck, or merely slow while
others wait for a worker, do not count against the limit of workers: volumes that hang never delay others, not even before their deadline.
For each slow one, two more workers may start, so a crowd of them delays others for about a second, and not for a time that grows with the
crowd; these workers end soon after it. Work that may take long calls `renew`. Daemon threads do not hold up the end of the process.

`WORK` traces the agent's end to a pod. Like a log line, a record is made where something happens, on the event loop or in a thread, and no
decision of that place reads it:

    with WORK.on(uid):
        state, commands = step(state, event)

The records are kept in a buffer that `attach` replaces with memory that outlives the process (`edges/host/services/run_record.py`). A block
costs about a microsecond. It must not await anything: its time counts as the event loop's. An exception that leaves the block gets a note.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from struct import Struct
from types import TracebackType
from typing import Generic, TypeVar

from pykubelet.base.kit.causes import causes
from pykubelet.base.kit.values import Value

T = TypeVar("T")
IDLE_END_S = 30.0
AGAIN_S = 0.02
#: The time for which a piece of work may occupy a worker that others wait for: seconds.
HOLD_S = 0.25
#: The part of it that is enough: threads begin a moment after the timers that find them slow.
_NEARLY = 0.9
#: Workers that may start for each slow piece of work: of a crowd, three times as many pieces have begun after each `HOLD_S`.
WORKERS_PER_SLOW = 2


def start_thread(work: Callable[[], None], name: str) -> None:
    """Start a daemon thread. Raises OSError (EAGAIN) while the system has no thread left (`pids.max`, memory)."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error


class Done(Value, Generic[T]):
    """The work ended and returned `value`."""

    value: T


class Failed(Value):
    """The work raised an error."""

    error: Exception


class Uncertain(Value):
    """The work did not end in time and may still be running."""

    since: float


Outcome = Done[T] | Failed | Uncertain


def value_of(outcome: Outcome[T], late: Callable[[float], Exception]) -> T:
    """What the work returned. Raises its error, or for work that is not done in time `late` of the time since when it runs.

    Pass an outcome that no variable has: a function that raises an error which one of its variables has would be kept by it, and would
    keep it, until a garbage collection.
    """
    if isinstance(outcome, Done):
        return outcome.value
    try:
        raise outcome.error if isinstance(outcome, Failed) else late(outcome.since)
    finally:
        del outcome


class SingleFlight:
    """Runs blocking callables in up to `workers` threads, not counting stuck and slow ones; one at a time per key."""

    def __init__(self, name: str, workers: int = 8) -> None:
        self._name = name
        self._workers = workers
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._live = 0
        self._made = 0
        self._running: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._threads: dict[str, int] = {}
        self._aside: set[str] = set()
        self._marked: set[str] = set()
        self._renewed: set[str] = set()

    def stuck(self) -> dict[str, float]:
        """The keys of work that missed its deadline and still runs, with the loop time at which `run` was called."""
        with self._lock:
            return {key: self._running[key] for key in self._marked if key in self._running}

    def thread(self, key: str) -> int | None:
        """The kernel's number of the thread that runs the work of `key`; None if none does."""
        return self._threads.get(key)

    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        """Run `work` in a thread and await it for `deadline_s` seconds at most; at most one piece runs per key."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome[T]] = loop.create_future()
        since = loop.time()
        with self._lock:
            if key in self._running:
                return Uncertain(self._running[key])
            self._running[key] = since
            self._queue.put(partial(self._carry_out, loop, key, work, future))
            self._grow()
            # a new worker may take earlier work, which waits since no thread could start
            is_served = len(self._running) <= self._live
        if not is_served:
            loop.call_later(HOLD_S, self._relieve, loop, key)
        timer = loop.call_later(deadline_s, self._expire, loop, key, since, future, deadline_s)
        try:
            return await future
        finally:
            timer.cancel()

    def _carry_out(
        self,
        loop: asyncio.AbstractEventLoop,
        key: str,
        work: Callable[[], T],
        future: asyncio.Future[Outcome[T]],
    ) -> None:
        """Run `work` in this thread, and hand over its outcome."""
        outcome: Outcome[T]
        with self._lock:
            self._begun[key] = loop.time()
            self._threads[key] = threading.get_native_id()
        try:
            outcome = Done(work())
        except Exception as error:  # noqa: BLE001 - handed to the caller as a value
            _forget_locals(error)
            outcome = Failed(error)
        self._end(key)
        try:
            loop.call_soon_threadsafe(_settle, future, outcome)
        except RuntimeError:
            return  # the loop has ended; nothing waits for the result
        finally:
            del work, future, outcome  # an error refers to this frame: it would wait for a garbage collection

    def renew(self, key: str) -> None:
        """Note that the work of `key` makes progress: it misses its deadline only if it makes none for that long. Thread-safe."""
        with self._lock:
            if key in self._running:
                self._renewed.add(key)

    async def run_next(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        """As `run`, but retry for up to `deadline_s` while earlier work, whose caller has given up, still runs under the key."""
        loop = asyncio.get_running_loop()
        while True:
            outcome = await self.run(key, work, deadline_s)
            if not isinstance(outcome, Uncertain) or loop.time() - outcome.since >= deadline_s:
                return outcome
            await asyncio.sleep(AGAIN_S)

    def _end(self, key: str) -> None:
        with self._lock:
            del self._running[key], self._begun[key], self._threads[key]
            self._aside.discard(key)
            self._marked.discard(key)
            self._renewed.discard(key)

    def _expire(
        self,
        loop: asyncio.AbstractEventLoop,
        key: str,
        since: float,
        future: asyncio.Future[Outcome[T]],
        deadline_s: float,
    ) -> None:
        """Let the waiter give up, unless the work makes progress, or has just ended and its outcome is already scheduled."""
        with self._lock:
            if self._running.get(key) != since or future.done():
                return
            if key in self._renewed:
                self._renewed.discard(key)
                loop.call_later(deadline_s, self._expire, loop, key, since, future, deadline_s)
                return
            self._marked.add(key)
            self._aside.add(key)
            self._grow()
        _settle(future, Uncertain(since))

    def _relieve(self, loop: asyncio.AbstractEventLoop, key: str) -> None:
        """If `key` still waits for a worker, stop counting the workers that were busy for `HOLD_S`, and start others."""
        with self._lock:
            if key not in self._running or key in self._begun:
                return
            now = loop.time()
            latest = now - _NEARLY * HOLD_S
            slow = [other for other, since in self._begun.items() if since <= latest and other not in self._aside]
            self._aside.update(slow)
            while self._grow():
                pass
        loop.call_later(HOLD_S, self._relieve, loop, key)

    @property
    def _limit(self) -> int:
        """How many workers may be at work beside those that are slow. Work that has missed its deadline allows no more."""
        return max(self._workers, WORKERS_PER_SLOW * (len(self._aside) - len(self._marked)))

    def _grow(self) -> bool:
        """Start one more worker if there is work for it and the limit allows it. Returns whether one was started.

        While the system has no thread left, the work stays in the queue, and `_relieve` tries again.
        """
        if len(self._running) <= self._live or self._live - len(self._aside) >= self._limit:
            return False
        try:
            start_thread(self._work, f"{self._name}-{self._made + 1}")
        except OSError:
            return False
        self._live += 1
        self._made += 1
        return True

    def _work(self) -> None:
        while True:
            with self._lock:
                beside = self._live - len(self._aside)
                is_needed = len(self._running) == self._live  # a piece of work that this one has to take may be queued
                if beside > self._limit and not is_needed:
                    self._live -= 1
                    return
            try:
                job = self._queue.get(timeout=HOLD_S if beside > self._workers else IDLE_END_S)
            except Empty:
                with self._lock:
                    if self._queue.empty():
                        self._live -= 1
                        return
                continue
            job()
            del job  # otherwise the objects that it refers to stay in memory until the next job


def _forget_locals(error: BaseException) -> None:
    """Clear the local variables that the traceback refers to: an error is kept longer than what its work had in memory."""
    for cause in causes(error):
        traceback.clear_frames(cause.__traceback__)


def _settle(future: asyncio.Future[Outcome[T]], outcome: Outcome[T]) -> None:
    if not future.done():
        future.set_result(outcome)


# Which pod each piece of synchronous work is for

#: The pieces of work that can be recorded at a time: one of the event loop, those within it, and one in each of a few threads.
SLOTS = 16
SLOT_BYTES = 512
SIZE = SLOTS * SLOT_BYTES
#: Whether the work is under way, whether it is in the main thread, the length of the key, and when it began (monotonic seconds).
_HEAD = Struct("<BBHxxxxd")
MAX_KEY_BYTES = SLOT_BYTES - _HEAD.size
_NOTE = "while it worked on "


class OpenWork(Value):
    """A piece of work that is under way, or was when the process ended. `key`: a pod's UID, or another text that names its source.

    `since`: monotonic seconds. `is_main`: in the thread of the event loop.
    """

    key: str
    since: float
    is_main: bool


class WorkRecord:
    """The pieces of work that are under way. `on` may be called in any thread."""

    def __init__(self) -> None:
        self._buffer: bytearray | memoryview = bytearray(SIZE)
        self._free = [number * SLOT_BYTES for number in range(SLOTS)]
        self._main = threading.main_thread().ident

    def attach(self, buffer: memoryview) -> None:
        """Keep the records in `buffer`, of `SIZE` bytes, from now on. No work may be under way."""
        self._buffer = buffer

    def on(self, key: str) -> _Block:
        """A context manager for work that is for a pod, or for the source `key` of pods. It may be used again after its end."""
        return _Block(self, record_key(key))

    @property
    def is_idle(self) -> bool:
        """Whether no work is under way."""
        return len(self._free) == SLOTS

    def current(self) -> OpenWork | None:
        """The innermost piece of work that the event loop is at; None: none is recorded."""
        works = [work for work in open_works(self._buffer) if work.is_main]
        return max(works, key=lambda work: work.since, default=None)

    def _begin(self, key: bytes) -> int:
        """Record a piece of work. Returns its slot; -1 if there is none."""
        try:
            at = self._free.pop()
        except IndexError:
            return -1
        start = at + _HEAD.size
        self._buffer[start : start + len(key)] = key
        is_main = threading.get_ident() == self._main
        _HEAD.pack_into(self._buffer, at, 1, is_main, len(key), time.monotonic())
        return at

    def _end(self, at: int) -> None:
        if at >= 0:
            self._buffer[at] = 0
            self._free.append(at)


class _Block:
    """One piece of work as a context manager."""

    __slots__ = ("_at", "_key", "_record")

    def __init__(self, record: WorkRecord, key: bytes) -> None:
        self._record = record
        self._key = key

    def __enter__(self) -> None:
        self._at = self._record._begin(self._key)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._record._end(self._at)
        if isinstance(error, Exception):
            error.add_note(_NOTE + key_text(self._key))


WORK = WorkRecord()


def record_key(key: str) -> bytes:
    """The bytes by which work is recorded. The end of a key that is too long is replaced by a checksum."""
    data = key.encode("utf-8", "surrogateescape")
    if len(data) <= MAX_KEY_BYTES:
        return data
    digest = hashlib.sha256(data).hexdigest().encode()
    return data[: MAX_KEY_BYTES - len(digest)] + digest


def key_text(key: bytes) -> str:
    """The key that was recorded, as text."""
    return key.decode("utf-8", "surrogateescape")


def open_works(buffer: bytes | bytearray | memoryview) -> Iterator[OpenWork]:
    """The pieces of work that are under way by a buffer, which may be damaged. Pure."""
    for at in range(0, min(len(buffer), SIZE) - SLOT_BYTES + 1, SLOT_BYTES):
        is_open, is_main, length, since = _HEAD.unpack_from(buffer, at)
        if is_open and 0 < length <= MAX_KEY_BYTES:
            start = at + _HEAD.size
            yield OpenWork(key_text(bytes(buffer[start : start + length])), since, bool(is_main))


def noted_key(error: BaseException) -> str:
    """The key of the work in which an exception, or one that led to it, was raised; empty if there is none."""
    for cause in causes(error):
        for note in getattr(cause, "__notes__", ()):
            if isinstance(note, str) and note.startswith(_NOTE):
                return note.removeprefix(_NOTE)
    return ""
