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
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pykubelet.base.kit.backoff import Retries
from pykubelet.base.kit.clock import Clock
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
#: Seconds after which the loop looks at the clocks again.
MAX_SLEEP_S = 30.0
#: A difference between the clocks, in seconds, by which the wall clock was set.
CLOCK_JUMP_S = 5.0
#: Seconds that a change which failed waits, at first and at most.
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 60.0
_TOO_LATE = (404, 409)


class Writer(Protocol):
    """Makes the changes of reconcilers."""

    async def apply(self, change: ObjectChange) -> None:
        """Make one change. Raises StatusError."""


class ReconcileLoop:
    """The reconcilers in one task. `view`: the objects now; called for every decision."""

    def __init__(
        self, reconcilers: Sequence[Reconciler], view: Callable[[], View], writer: Writer, clock: Clock
    ) -> None:
        self._reconcilers = tuple(reconcilers)
        self._view = view
        self._writer = writer
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._written: dict[str, set[tuple[str, str]]] = {}
        self._due = {reconciler.name for reconciler in self._reconcilers}
        self._wakes: dict[str, float | None] = {}
        self._retries: Retries[str] = Retries(RETRY_FIRST_S, RETRY_MOST_S)
        self._failing: dict[str, set[str]] = {}
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
        self._find_due()
        for reconciler in self._reconcilers:
            budget = self._budgets[reconciler.name]
            if reconciler.name in self._due and budget.wait_s(self._clock.monotonic()) <= 0:
                spent = await self._ask(reconciler)
                budget.spend(spent, self._clock.monotonic())

    def is_idle(self) -> bool:
        """Whether nothing is due and no write waits; what time alone will bring is not counted."""
        return not self._due and not self._written

    def _find_due(self) -> None:
        written, self._written = self._written, {}
        wall, mono = self._clock.wall(), self._clock.monotonic()
        if abs(wall - mono - self._offset) > CLOCK_JUMP_S:
            self._offset = wall - mono
            self._due.update(reconciler.name for reconciler in self._reconcilers)
        view = self._view()
        for reconciler in self._reconcilers:
            name, wakes = reconciler.name, self._wakes.get(reconciler.name)
            if name in self._due:
                continue
            is_time = wakes is not None and wakes <= wall
            is_retry = any(self._retries.free_at(key) <= mono for key in self._failing.get(name, ()))
            if is_time or is_retry or self._is_concerned(reconciler, view, written):
                self._due.add(name)

    def _is_concerned(self, reconciler: Reconciler, view: View, written: dict[str, set[tuple[str, str]]]) -> bool:
        try:
            return any(
                reconciler.concerns(view, resource, namespace, name)
                for resource in reconciler.reads & written.keys()
                for namespace, name in written[resource]
            )
        except Exception as error:  # a defect in one reconciler leaves the others alone
            log.error("a reconciler cannot look at a write", reconciler=reconciler.name, exc_info=error)
            return True

    async def _ask(self, reconciler: Reconciler) -> float:
        """Ask one reconciler and make its changes. Returns the seconds that the decision took, for each of its changes."""
        started, name = self._clock.monotonic(), reconciler.name
        self._due.discard(name)
        try:
            view = self._view()
            wanted = reconciler.reconcile(view)
            self._wakes[name] = reconciler.wakes_at(view)
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
