"""Runs the reconcilers: asks those that a write concerns, and makes the changes that they return.

Owns: which writes were not looked at yet, what is due, and the back-off of changes that fail. Nothing is remembered over a restart,
because every reconciler decides from the objects alone.

Rules:
- A reconciler is asked when a write concerns it, when its time has come, and at the start.
- The changes of one answer are made together. What is left above a bound is asked for again.
- A change that comes too late (404, 409) is dropped: the newer object wakes the reconciler. Another failure backs off, for this
  change of this version of the object alone, so that one object cannot stop the others.
- Each reconciler has a budget of CPU time, which it saves up while it is idle. So it answers at once to a write now and then, and costs a
  small share of a CPU at most, however many objects and writes there are; writes that come meanwhile are looked at together. A decision
  counts the less the more changes it gives: what the budget limits is looking in vain.
- A reconciler that reads much decides in a thread, from a snapshot: its decision takes longer than the event loop may be held. One at
  a time decides, wherever it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from pykubelet.base.kit.backoff import Retries
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.log import Log
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

log = Log("reconcile")
#: Changes of one reconciler that are made together.
MAX_CHANGES = 128
#: The share of a CPU that the decisions of one reconciler take, and the seconds that it saves up at most.
CPU_SHARE, CPU_SAVED_S = 0.02, 0.2
#: The longest that a reconciler waits for its share, in seconds: the machine may have been busy with something else meanwhile.
MAX_WAIT_S = 1.0
#: A reconciler whose resources have more bytes of JSON than this decides in a thread. A decision takes up to 0.1 ms for each KiB.
MAX_ON_LOOP_BYTES = 256 << 10
#: Seconds after which the loop looks at the clocks again.
MAX_SLEEP_S = 30.0
#: A difference between the clocks, in seconds, by which the wall clock was set.
CLOCK_JUMP_S = 5.0
#: Seconds that a change which failed waits, at first and at most.
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 60.0
_TOO_LATE = (404, 409)
_NO_LIMIT_S = 1e8
T = TypeVar("T")


class Writer(Protocol):
    """Makes the changes of reconcilers."""

    async def apply(self, change: ObjectChange) -> None:
        """Make one change. Raises StatusError."""


class ReconciledObjects(View, Protocol):
    """The objects now. A store is one."""

    def bytes_of(self, resources: frozenset[str]) -> int:
        """The bytes of JSON that the objects of these resources have."""

    def snapshot(self) -> View:
        """The objects as they are now, for a thread."""


class ReconcileLoop:
    """The reconcilers in one task. `objects`: what they read."""

    def __init__(
        self, reconcilers: Sequence[Reconciler], objects: ReconciledObjects, writer: Writer, clock: Clock
    ) -> None:
        self._reconcilers = tuple(reconcilers)
        self._objects = objects
        self._writer = writer
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._written: dict[str, set[tuple[str, str]]] = {}
        self._due = {reconciler.name for reconciler in self._reconcilers}
        self._wakes: dict[str, float | None] = {}
        self._retries: Retries[str] = Retries(RETRY_FIRST_S, RETRY_MOST_S)
        self._failing: dict[str, set[str]] = {}
        self._flight = SingleFlight("reconcile", workers=1)
        self._budgets = {name: _Budget(clock.monotonic()) for name in self._due}
        self._offset = clock.wall() - clock.monotonic()
        self._watched = frozenset().union(*(reconciler.reads for reconciler in self._reconcilers))

    def note(self, resource: str, namespace: str, name: str) -> None:
        """Note the write of an object: created, changed or gone. Costs little. `resource` is that of the storage."""
        if resource in self._watched:
            self._written.setdefault(resource, set()).add((namespace, name))
            self._wakeup.set()

    def note_all(self) -> None:
        """Note that any object may have been written."""
        self._due.update(reconciler.name for reconciler in self._reconcilers)
        self._wakeup.set()

    async def run(self) -> None:
        """Reconcile for ever."""
        while True:
            await self.step()
            await self._wait()

    async def step(self) -> None:
        """Ask every reconciler that is due and has CPU time left, once."""
        self._wakeup.clear()
        await self._find_due()
        for reconciler in self._reconcilers:
            budget = self._budgets[reconciler.name]
            if reconciler.name in self._due and budget.wait_s(self._clock.monotonic()) <= 0:
                spent = await self._ask(reconciler)
                budget.spend(spent, self._clock.monotonic())
                await asyncio.sleep(0)  # the next decision is another iteration of the event loop

    def is_idle(self) -> bool:
        """Whether nothing is due and no write waits; what time alone will bring is not counted."""
        return not self._due and not self._written

    async def _find_due(self) -> None:
        written, self._written = self._written, {}
        wall, mono = self._clock.wall(), self._clock.monotonic()
        if abs(wall - mono - self._offset) > CLOCK_JUMP_S:
            self._offset = wall - mono
            self._due.update(reconciler.name for reconciler in self._reconcilers)
        for reconciler in self._reconcilers:
            name, wakes = reconciler.name, self._wakes.get(reconciler.name)
            if name in self._due:
                continue
            is_time = wakes is not None and wakes <= wall
            is_retry = any(self._retries.free_at(key) <= mono for key in self._failing.get(name, ()))
            if is_time or is_retry:
                self._due.add(name)
        if written:
            asked = [reconciler for reconciler in self._reconcilers if reconciler.name not in self._due]
            self._due |= await self._decided(frozenset(written), partial(_concerned, asked, written))

    async def _decided(self, reads: frozenset[str], decide: Callable[[View], T]) -> T:
        """What `decide` returns. It runs in a thread if what it reads is large. Raises its error."""
        if self._objects.bytes_of(reads) <= MAX_ON_LOOP_BYTES:
            return decide(self._objects)
        work = partial(decide, self._objects.snapshot())
        return value_of(await self._flight.run("decide", work, _NO_LIMIT_S), _never)

    async def _ask(self, reconciler: Reconciler) -> float:
        """Ask one reconciler and make its changes. Returns the seconds that the decision took, for each of its changes."""
        started, name = self._clock.monotonic(), reconciler.name
        self._due.discard(name)
        try:
            wanted, self._wakes[name] = await self._decided(reconciler.reads, partial(_decision, reconciler))
        except Exception as error:  # a defect in one reconciler leaves the others alone
            now = self._clock.monotonic()
            key = f"{name} itself"
            count = self._retries.failed(key, now)
            self._failing[name] = {key}
            if count == 1:
                log.error("a reconciler fails", reconciler=name, error=repr(error), exc_info=error)
            return now - started
        spent = self._clock.monotonic() - started
        await self._make(name, wanted)
        return spent / (1 + min(len(wanted), MAX_CHANGES))

    async def _make(self, name: str, wanted: Sequence[ObjectChange]) -> None:
        now = self._clock.monotonic()
        keys = [_key(name, change) for change in wanted]
        for key in self._failing.pop(name, set()) - set(keys):
            self._retries.succeeded(key)
        waiting = {key for key in keys if self._retries.free_at(key) > now}
        ready = [(key, change) for key, change in zip(keys, wanted, strict=True) if key not in waiting]
        if len(ready) > MAX_CHANGES:
            self._due.add(name)
        batch = ready[:MAX_CHANGES]
        results = await asyncio.gather(*(self._apply(key, change) for key, change in batch))
        failed = {key for (key, _), is_made in zip(batch, results, strict=True) if not is_made}
        if waiting or failed:
            self._failing[name] = waiting | failed

    async def _apply(self, key: str, change: ObjectChange) -> bool:
        """Make a change. Returns whether it needs no retry."""
        try:
            await self._writer.apply(change)
        except StatusError as error:
            count = self._retries.failed(key, self._clock.monotonic(), error.retry_after_s)
            if error.code in _TOO_LATE:  # the newer object wakes the reconciler
                log.debug("a change came too late", change=key, error=error.message)
            elif count == 1:
                log.warning("a change of the control plane fails", change=key, error=error.message)
            return False
        except Exception as error:  # a defect in one kind leaves the others alone
            if self._retries.failed(key, self._clock.monotonic()) == 1:
                log.error("a change of the control plane fails", change=key, exc_info=error)
            return False
        if self._retries.succeeded(key):
            log.info("a change that failed is made", change=key)
        return True

    async def _wait(self) -> None:
        """Wait for a write, a retry, or the time of a reconciler."""
        wall, mono = self._clock.wall(), self._clock.monotonic()
        waits = [MAX_SLEEP_S, *(self._budgets[name].wait_s(mono) for name in self._due)]
        waits += [wakes - wall for wakes in self._wakes.values() if wakes is not None]
        waits += [self._retries.free_at(key) - mono for key in _all(self._failing.values())]
        try:
            async with asyncio.timeout(max(0.0, min(waits))):
                await self._wakeup.wait()
        except TimeoutError:
            pass


def _concerned(reconcilers: Sequence[Reconciler], written: Mapping[str, set[tuple[str, str]]], view: View) -> set[str]:
    """The names of those that the writes concern."""
    return {reconciler.name for reconciler in reconcilers if _is_concerned(reconciler, written, view)}


def _is_concerned(reconciler: Reconciler, written: Mapping[str, set[tuple[str, str]]], view: View) -> bool:
    try:
        return any(
            reconciler.concerns(view, resource, namespace, name)
            for resource in reconciler.reads & written.keys()
            for namespace, name in written[resource]
        )
    except Exception as error:  # a defect in one reconciler leaves the others alone
        log.error("a reconciler cannot look at a write", reconciler=reconciler.name, exc_info=error)
        return True


def _decision(reconciler: Reconciler, view: View) -> tuple[list[ObjectChange], float | None]:
    """The changes that are due, and when time alone will bring others."""
    return reconciler.reconcile(view), reconciler.wakes_at(view)


def _never(_: float) -> Exception:
    return AssertionError("a decision has no deadline")


class _Budget:
    """The CPU time that a reconciler may take: `left` seconds, which grow by its share of the time that passes."""

    def __init__(self, now: float) -> None:
        self._left = CPU_SAVED_S
        self._at = now

    def wait_s(self, now: float) -> float:
        """Seconds until some is left; 0: there is some now."""
        self._earn(now)
        return max(0.0, -self._left / CPU_SHARE)

    def spend(self, seconds: float, now: float) -> None:
        """Count the time that a decision took, also more than there was."""
        self._earn(now)
        self._left = max(self._left - seconds, -MAX_WAIT_S * CPU_SHARE)

    def _earn(self, now: float) -> None:
        self._left = min(CPU_SAVED_S, self._left + (now - self._at) * CPU_SHARE)
        self._at = now


def _all(sets: Iterable[set[str]]) -> Iterable[str]:
    return (key for keys in sets for key in keys)


def _key(reconciler: str, change: ObjectChange) -> str:
    meta = change.object["metadata"]
    place = f"{meta.get('namespace', '')}/{meta['name']} {meta.get('resourceVersion', '')}"
    return f"{reconciler} {change.verb} {change.resource} {place}"
