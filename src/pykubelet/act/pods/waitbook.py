"""The waits of one pod: those of the running work, and those that follow from the pod's state.

Owns: the list of open waits of one pod. A wait that is clearly shorter than `SHOW_AFTER_S` is never shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, assert_never

from pykubelet.act.pods.model import PodFailure, PodWorkerState, Work
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Post, Waitable
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import Stage, StartError
from pykubelet.base.model.observed import ContainerView, ObservedState, end_in_words
from pykubelet.base.model.reasons import (
    CRASH_LOOP_BACK_OFF,
    CREATE_POD_SANDBOX_ERROR,
    EVENT_FAILED_CREATE_POD_CONTAINER,
    EVENT_FAILED_KILL_POD,
    FAILED_CLEAN_UP,
    KILL_CONTAINER_ERROR,
    START_ERROR,
)
from pykubelet.base.model.waits import Owner, Wait

SHOW_AFTER_S = 0.3
#: A timer for `SHOW_AFTER_S` may be this early.
EARLY_S = 0.05
ENDING = "containers to end"
#: What a container waits for that an extension delays.
IMAGE_PULL, CONTAINER_RESTART = "image pull", "container restart"
#: What a pod waits for after its last try failed, by the reason of the failure.
FAILED_WORK = {
    CREATE_POD_SANDBOX_ERROR: "sandbox",
    EVENT_FAILED_CREATE_POD_CONTAINER: "pod cgroup",
    KILL_CONTAINER_ERROR: ENDING,
    EVENT_FAILED_KILL_POD: ENDING,
    FAILED_CLEAN_UP: "clean-up",
}


S = TypeVar("S")


class Unless(Protocol):
    """Awaits something, or raises because it is interrupted."""

    def __call__(self, work: Awaitable[S]) -> Awaitable[S]: ...


class LifecycleChanged:
    """Posted to the pod worker when the pod's lifecycle has changed though no event has changed its state."""


class WaitBook:
    """The open waits of one pod. `mailbox` gets `LifecycleChanged` when a failure begins or ceases to hold the pod up."""

    def __init__(self, clock: Clock, mailbox: Post[LifecycleChanged]) -> None:
        self._clock = clock
        self._mailbox = mailbox
        self._open: dict[int, tuple[Wait, float]] = {}
        self._notes: dict[tuple[str, str], Wait] = {}
        self._next = 0
        self._followed: tuple[PodWorkerState, BackoffPolicy] | None = None
        #: Since when (wall seconds) the pod waits for something, by its state.
        self._since: dict[tuple[str, str], float] = {}
        #: The general wait, and since when (wall and monotonic seconds); None: there is none.
        self._general: tuple[str, float, float] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def until(self, cell: Waitable[S], missing: Callable[[S], Wait | None], unless: Unless | None = None) -> None:
        """Wait until nothing is `missing` in the cell: what is, is the open wait. `unless`: awaits the end, or is interrupted."""
        wait = missing(cell.get())
        if wait is None:
            return
        with self.waiting(wait) as show:

            def is_over(now: S) -> bool:
                if (left := missing(now)) is not None:
                    show(left)
                return left is None

            end = cell.wait_for(is_over)
            await (end if unless is None else unless(end))

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[Callable[[Wait], None]]:
        """A context manager: `wait` is open while the block runs. Sets its `since`. A call of the result replaces what else it states."""
        self._next += 1
        key, begun = self._next, self._clock.monotonic()
        self._open[key] = replace(wait, since=self._clock.wall()), begun
        if wait.reason:
            self._notify_in(SHOW_AFTER_S)

        def show(changed: Wait) -> None:
            known, _ = self._open[key]
            self._open[key] = replace(changed, since=known.since), begun
            if bool(changed.reason) != bool(known.reason):
                self.notify()

        try:
            yield show
        finally:
            last, _ = self._open.pop(key)
            if last.reason and _is_due(begun, self._clock.monotonic()):
                self._notify_in(SHOW_AFTER_S)  # not at once: the next wait often has a reason too

    def note(self, wait: Wait, next_at: float | None) -> None:
        """Show a wait of a later step of the running work, until `forget_notes`. `next_at`: monotonic seconds."""
        wall = self._clock.wall()
        at = None if next_at is None else wall + max(0.0, next_at - self._clock.monotonic())
        self._notes[wait.what, wait.subject] = replace(wait, since=wall, next_at=at)
        self.notify()

    def forget_notes(self) -> None:
        """Drop the notes when the work has ended: its outcome replaces them."""
        self._notes.clear()

    def notify(self) -> None:
        """Post that the lifecycle of the pod has changed."""
        self._mailbox.post(LifecycleChanged())

    def follow(self, state: PodWorkerState, policy: BackoffPolicy) -> bool:
        """Take over the pod's state after each event. `policy`: of crash back-off. Returns whether the pod waits because of a failure."""
        self._followed = state, policy
        now, wall = self._clock.monotonic(), self._clock.wall()
        waits = waits_of(state, policy, now, wall)
        self._since = {_key(wait): self._since.get(_key(wait), wall) for wait in waits}
        general = general_wait(state, wall)
        if general is None:
            self._general = None
        elif self._general is None or self._general[0] != general.what:
            self._general = general.what, wall, now
        begun = [since for wait, since in self._open.values() if wait.reason]
        if later := [since for since in begun if not _is_due(since, now)]:
            self._notify_in(min(later) + SHOW_AFTER_S - now)
        return any(wait.reason for wait in (*waits, *self._notes.values())) or len(later) < len(begun)

    def snapshot(self) -> tuple[Wait, ...]:
        """All waits of the pod, oldest first; the general wait if there is no specific one."""
        if self._followed is None:
            return ()
        state, policy = self._followed
        now, wall = self._clock.monotonic(), self._clock.wall()
        shown = [replace(wait, since=self._since.get(_key(wait), wall)) for wait in waits_of(state, policy, now, wall)]
        named = set(map(_key, shown))
        opened = [*self._notes.values(), *(wait for wait, begun in self._open.values() if _is_due(begun, now))]
        opened = [wait for wait in opened if _key(wait) not in named]
        if any(wait.what != ENDING for wait in opened):
            opened = [wait for wait in opened if wait.what != ENDING]  # the waits of its steps are more specific
        shown = [*opened, *shown]
        general = general_wait(state, wall)
        if not shown and general is not None and self._general is not None and _is_due(self._general[2], now):
            shown.append(replace(general, since=self._general[1]))
        return tuple(sorted(shown, key=lambda wait: wait.since))

    def _notify_in(self, seconds: float) -> None:
        """Set the timer, unless it is set. A set timer fires earlier; `follow` then sets it again if it has to."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.notify()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _key(wait: Wait) -> tuple[str, str]:
    return wait.what, wait.subject


def _is_due(begun: float, now: float) -> bool:
    return now - begun >= SHOW_AFTER_S - EARLY_S


def waits_of(state: PodWorkerState, policy: BackoffPolicy, now: float, wall: float) -> list[Wait]:
    """The waits that follow from the pod's state alone. Pure. `policy`: of crash back-off. `since` is `wall` for all of them."""
    waits: list[Wait] = []
    if state.view is None and state.stage is Stage.SYNCING:
        detail = "its pods have not been listed yet"
        waits.append(Wait("container runtime", Owner.PLEG, wall, detail=detail, next_step="list them"))
    if state.failure is not None:
        waits.append(_pod_failure(state, state.failure, now, wall))
    if state.stage is Stage.SYNCING and state.work is not Work.STOP:
        waits.extend(_start_waits(state, policy, now, wall))
    return waits


def general_wait(state: PodWorkerState, wall: float) -> Wait | None:
    """The wait of a pod without a more specific one: for the running work, or for the next view of the runtime. Pure."""
    match state.work:
        case Work.NONE:
            if state.stage is not Stage.SYNCING or state.view is None or state.view.read_at >= state.read_after:
                return None
            detail = "the pod is read again after the last work on it"
            return Wait("container runtime", Owner.PLEG, wall, detail=detail, next_step="decide on the next step")
        case Work.SYNC if state.stage is Stage.SYNCING:
            detail = "what the pod lacks is being made"
            return Wait("sync", Owner.POD_WORKER, wall, detail=detail, next_step="read the pod again")
        case Work.SYNC | Work.STOP:
            return Wait(ENDING, Owner.POD_WORKER, wall, next_step="release volumes and cgroup")
        case Work.CLEAN:
            detail = "volumes, cgroup and sandboxes are released"
            return Wait("clean-up", Owner.POD_WORKER, wall, detail=detail, next_step="forget the pod")
        case _:
            assert_never(state.work)


def _pod_failure(state: PodWorkerState, failure: PodFailure, now: float, wall: float) -> Wait:
    """The wait for the retry of a step that failed for the whole pod."""
    error, pause = failure.error, failure.retry_at
    what = FAILED_WORK.get(error.reason, "retry")
    if state.work is not Work.NONE or pause is None:
        return Wait(what, Owner.POD_WORKER, wall, "", error.reason, error.message, "being tried again")
    return Wait(
        what, Owner.POD_WORKER, wall, "", error.reason, error.message, "try again", wall + max(0.0, pause - now)
    )


def _start_waits(state: PodWorkerState, policy: BackoffPolicy, now: float, wall: float) -> list[Wait]:
    waits: list[Wait] = []
    inputs = state.back_off_inputs(policy)
    for name, error in state.start_errors.items():
        free_at = state.back_offs.next_start(name, inputs)
        newest = state.view.newest(name) if state.view is not None else None
        is_tried = state.work is Work.SYNC and free_at is not None and free_at <= now
        at = None if free_at is None or is_tried else wall + max(0.0, free_at - now)
        detail = error.message
        if error.reason == CRASH_LOOP_BACK_OFF and newest is not None:
            detail = "; ".join(part for part in (detail, _last_end(state, newest)) if part)
        wait = replace(start_wait(name, error, wall), detail=detail, next_at=at)
        waits.append(replace(wait, next_step="being started again") if is_tried else wait)
    return waits


def start_wait(container: str, error: StartError, wall: float) -> Wait:
    """The wait of a container that could not be started, or that an extension delays. Pure."""
    if not error.extension:
        return Wait("container start", Owner.POD_WORKER, wall, container, error.reason, error.message, "start again")
    what = CONTAINER_RESTART if error.reason == CRASH_LOOP_BACK_OFF else IMAGE_PULL
    step = "start again" if what is CONTAINER_RESTART else "ask the extension again"
    return Wait(what, Owner.EXTENSION, wall, container, error.reason, error.message, step)


def _last_end(state: PodWorkerState, container: ContainerView) -> str:
    """How an instance ended, and why it was killed if it was, because the back-off message does not show this."""
    if container.state is not ObservedState.EXITED:
        return ""
    killed = state.killed.get(container.id)
    why = f", killed: {killed}" if killed else ""
    if container.reason == START_ERROR:
        why = f": {container.message}"
    return f"{end_in_words(container)}{why}"
