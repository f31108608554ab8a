"""The waits of one pod: those of the running work, and those that follow from the pod's state.

Owns: the list of open waits of one pod. A wait that is clearly shorter than `SHOW_AFTER_S` is never published, so the hot
path publishes no waits. The end of a wait is published with the next change, at most `SHOW_AFTER_S` later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from pykubelet.act.pods.model import PodFailure, PodWorkerState, Work
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import Stage
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
#: Waits that become due within this time are published together.
TOGETHER_S = 0.05
ENDING = "containers to end"
#: What a pod waits for after its last try failed, by the reason of the failure.
FAILED_WORK = {
    CREATE_POD_SANDBOX_ERROR: "sandbox",
    EVENT_FAILED_CREATE_POD_CONTAINER: "pod cgroup",
    KILL_CONTAINER_ERROR: ENDING,
    EVENT_FAILED_KILL_POD: ENDING,
    FAILED_CLEAN_UP: "clean-up",
}


class WaitsChanged:
    """Posted to the pod worker when its waits have changed."""


class WaitBook:
    """The open waits of one pod. `mailbox` gets `WaitsChanged` when they must be published again."""

    def __init__(self, clock: Clock, mailbox: Post[WaitsChanged]) -> None:
        self._clock = clock
        self._mailbox = mailbox
        self._open: dict[int, tuple[Wait, float]] = {}
        self._notes: dict[tuple[str, str], Wait] = {}
        self._shown: frozenset[int] = frozenset()
        self._is_general = False
        self._is_stale = False
        self._next = 0
        self._since: dict[tuple[str, str], float] = {}
        self._quiet: tuple[str, float] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[None]:
        """A context manager: `wait` is open while the block runs. Sets its `since`."""
        self._next += 1
        key = self._next
        self._open[key] = replace(wait, since=self._clock.wall()), self._clock.monotonic()
        self._wake_in(SHOW_AFTER_S)
        try:
            yield
        finally:
            del self._open[key]
            if key in self._shown:
                self._is_stale = True
                self._wake_in(SHOW_AFTER_S)

    def note(self, wait: Wait, next_at: float | None) -> None:
        """Publish a wait of a later step of the running work, until `forget_notes`. `next_at`: monotonic seconds."""
        wall = self._clock.wall()
        at = None if next_at is None else wall + max(0.0, next_at - self._clock.monotonic())
        self._notes[wait.what, wait.subject] = replace(wait, since=wall, next_at=at)
        self.notify()

    def forget_notes(self) -> None:
        """Drop the notes when the work has ended: its outcome replaces them."""
        self._notes.clear()

    def notify(self) -> None:
        """Post that the waits of the pod have changed."""
        self._mailbox.post(WaitsChanged())

    def snapshot(self, state: PodWorkerState, policy: BackoffPolicy) -> tuple[Wait, ...]:
        """All waits of the pod, oldest first; the general wait if there is no specific one. `policy`: of crash back-off."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        shown = waits_of(state, policy, now, wall)
        self._shown = self._due(now)
        opened = [*self._notes.values(), *(self._open[key][0] for key in sorted(self._shown))]
        if opened:
            named = {(wait.what, wait.subject) for wait in shown}
            opened = [wait for wait in opened if (wait.what, wait.subject) not in named]
            if any(wait.what != ENDING for wait in opened):
                opened = [wait for wait in opened if wait.what != ENDING]  # the waits of its steps are more specific
        general = self._in_general(state, now, wall, is_shown=bool(shown or opened))
        self._is_general = bool(general)
        shown.extend(general)
        fresh: dict[tuple[str, str], float] = {}
        for wait in shown:
            key = (wait.what, wait.subject)
            since = fresh[key] = self._since.get(key, wait.since)
            opened.append(replace(wait, since=since))
        self._since, self._is_stale = fresh, False
        self._wake_when_due(now)
        return tuple(sorted(opened, key=lambda wait: wait.since))

    def _in_general(self, state: PodWorkerState, now: float, wall: float, *, is_shown: bool) -> list[Wait]:
        """The general wait, if it has lasted long enough and no more specific wait is published."""
        wait = general_wait(state, wall)
        if wait is None or is_shown:
            self._quiet = None
            return []
        if self._quiet is None or self._quiet[0] != wait.what:
            self._quiet = (wait.what, now)
        return [wait] if _is_due(self._quiet[1], now) else []

    # When to publish

    def _due(self, now: float) -> frozenset[int]:
        return frozenset(key for key, (_, begun) in self._open.items() if _is_due(begun, now))

    def _wake_in(self, seconds: float) -> None:
        """Set the timer, unless it is set. A set timer fires earlier, and is then set again."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _wake_when_due(self, now: float) -> None:
        """Set the timer for when the next wait has lasted long enough to be published."""
        begun = [since for _, since in self._open.values() if not _is_due(since, now)]
        if self._quiet is not None and not _is_due(self._quiet[1], now):
            begun.append(self._quiet[1])
        if begun:
            self._wake_in(min(begun) + SHOW_AFTER_S - now)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        is_due = self._quiet is not None and not self._is_general and _is_due(self._quiet[1], now)
        if self._is_stale or is_due or self._due(now) != self._shown:
            self.notify()
        else:
            self._wake_when_due(now)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_due(begun: float, now: float) -> bool:
    return now - begun >= SHOW_AFTER_S - TOGETHER_S


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
        step = "being started again" if is_tried else "start again"
        waits.append(Wait("container start", Owner.POD_WORKER, wall, name, error.reason, detail, step, at))
    return waits


def _last_end(state: PodWorkerState, container: ContainerView) -> str:
    """How an instance ended, and why it was killed if it was, because the back-off message does not show this."""
    if container.state is not ObservedState.EXITED:
        return ""
    killed = state.killed.get(container.id)
    why = f", killed: {killed}" if killed else ""
    if container.reason == START_ERROR:
        why = f": {container.message}"
    return f"{end_in_words(container)}{why}"
