"""What one pod waits for right now: the waits of the work under way, and those that its state tells.

Owns: the list of open waits of one pod. A wait that is clearly shorter than `TELL_AFTER_S` is never told, so the hot path
publishes nothing for it. That one is over is told with whatever comes up next, at most so much later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from pykubelet.act.pods.model import PodState, Work
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import Stage, StartError
from pykubelet.base.model.observed import ContainerState, ContainerView
from pykubelet.base.model.reasons import (
    COMPLETED,
    CRASH_LOOP_BACK_OFF,
    CREATE_POD_SANDBOX_ERROR,
    ERROR,
    EVENT_FAILED_CREATE_POD_CONTAINER,
    EVENT_FAILED_KILL_POD,
    FAILED_CLEAN_UP,
    KILL_CONTAINER_ERROR,
    START_ERROR,
)
from pykubelet.base.model.waits import Wait

OWNER = "act/pods"
TELL_AFTER_S = 0.3
#: What is to be told so soon after something else is told with it.
TOGETHER_S = 0.05
ENDING = "containers to end"
#: What a pod waits for while the last try of it failed so.
TROUBLES = {
    CREATE_POD_SANDBOX_ERROR: "sandbox",
    EVENT_FAILED_CREATE_POD_CONTAINER: "pod cgroup",
    KILL_CONTAINER_ERROR: ENDING,
    EVENT_FAILED_KILL_POD: ENDING,
    FAILED_CLEAN_UP: "clean-up",
}


class WaitsChanged:
    """Posted to the pod worker when its waits have changed."""


class WaitBook:
    """Open waits of one pod."""

    def __init__(self, clock: Clock, mailbox: Post[WaitsChanged]) -> None:
        self._clock = clock
        self._mailbox = mailbox
        self._open: dict[int, tuple[Wait, float]] = {}
        self._notes: dict[tuple[str, str], Wait] = {}
        self._told: frozenset[int] = frozenset()
        self._is_general = False
        self._is_stale = False
        self._next = 0
        self._since: dict[tuple[str, str], float] = {}
        self._quiet: tuple[str, float] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[None]:
        """The block waits for `wait`; its `since` is set here."""
        self._next += 1
        key = self._next
        self._open[key] = replace(wait, since=self._clock.wall()), self._clock.monotonic()
        self._ring_in(TELL_AFTER_S)
        try:
            yield
        finally:
            del self._open[key]
            if key in self._told:
                self._is_stale = True
                self._ring_in(TELL_AFTER_S)

    def note(self, wait: Wait, next_at: float | None) -> None:
        """Tell what is known already of a later step of the work under way, until `forget_notes`. `next_at`: monotonic."""
        wall = self._clock.wall()
        at = None if next_at is None else wall + max(0.0, next_at - self._clock.monotonic())
        self._notes[wait.what, wait.subject] = replace(wait, since=wall, next_at=at)
        self.tell()

    def forget_notes(self) -> None:
        """The work has ended: its outcome tells more."""
        self._notes.clear()

    def tell(self) -> None:
        """There is something new to tell of the work under way."""
        self._mailbox.post(WaitsChanged())

    def snapshot(self, state: PodState) -> tuple[Wait, ...]:
        """All waits of the pod, oldest first. Where nothing exact is known, what the pod waits for in general."""
        now, wall = self._clock.monotonic(), self._clock.wall()
        told = waits_of(state, now, wall)
        self._told = self._ripe(now)
        opened = [*self._notes.values(), *(self._open[key][0] for key in sorted(self._told))]
        if opened:
            named = {(wait.what, wait.subject) for wait in told}
            opened = [wait for wait in opened if (wait.what, wait.subject) not in named]
            if any(wait.what != ENDING for wait in opened):
                opened = [wait for wait in opened if wait.what != ENDING]  # the steps of it tell more
        general = self._in_general(state, now, wall, is_told=bool(told or opened))
        self._is_general = bool(general)
        told.extend(general)
        fresh: dict[tuple[str, str], float] = {}
        for wait in told:
            key = (wait.what, wait.subject)
            since = fresh[key] = self._since.get(key, wait.since)
            opened.append(replace(wait, since=since))
        self._since, self._is_stale = fresh, False
        self._ring_when_due(now)
        return tuple(sorted(opened, key=lambda wait: wait.since))

    def _in_general(self, state: PodState, now: float, wall: float, *, is_told: bool) -> list[Wait]:
        """The general wait, when it has lasted long enough and nothing better is told."""
        wait = general_wait(state, wall)
        if wait is None or is_told:
            self._quiet = None
            return []
        if self._quiet is None or self._quiet[0] != wait.what:
            self._quiet = (wait.what, now)
        return [wait] if _is_ripe(self._quiet[1], now) else []

    # When there is something new to tell

    def _ripe(self, now: float) -> frozenset[int]:
        return frozenset(key for key, (_, begun) in self._open.items() if _is_ripe(begun, now))

    def _ring_in(self, seconds: float) -> None:
        """An alarm that is set already rings earlier, and is set again then."""
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(seconds, self._rang)

    def _ring_when_due(self, now: float) -> None:
        """When the next wait has lasted long enough to be told."""
        begun = [since for _, since in self._open.values() if not _is_ripe(since, now)]
        if self._quiet is not None and not _is_ripe(self._quiet[1], now):
            begun.append(self._quiet[1])
        if begun:
            self._ring_in(min(begun) + TELL_AFTER_S - now)

    def _rang(self) -> None:
        self._alarm = None
        now = self._clock.monotonic()
        is_due = self._quiet is not None and not self._is_general and _is_ripe(self._quiet[1], now)
        if self._is_stale or is_due or self._ripe(now) != self._told:
            self.tell()
        else:
            self._ring_when_due(now)

    def close(self) -> None:
        """Drop the timer."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def _is_ripe(begun: float, now: float) -> bool:
    return now - begun >= TELL_AFTER_S - TOGETHER_S


def waits_of(state: PodState, now: float, wall: float) -> list[Wait]:
    """The waits that a pod's state tells by itself. Pure; `since` is the present for those that begin now."""
    waits: list[Wait] = []
    if state.view is None and state.stage is Stage.SYNCING:
        detail = "its pods have not been listed yet"
        waits.append(Wait("container runtime", "observe/pleg", wall, detail=detail, next_step="list them"))
    if state.pod_error is not None:
        waits.append(_pod_trouble(state, state.pod_error, now, wall))
    if state.stage is Stage.SYNCING and state.work is not Work.STOP:
        waits.extend(_start_waits(state, now, wall))
    return waits


def general_wait(state: PodState, wall: float) -> Wait | None:
    """What a pod waits for when nothing more exact is known: the work under way, or the next look at the runtime. Pure."""
    match state.work:
        case Work.NONE:
            if state.stage is not Stage.SYNCING or state.view is None or state.view.read_at >= state.read_after:
                return None
            detail = "the pod is looked at again after what was done to it"
            return Wait("container runtime", "observe/pleg", wall, detail=detail, next_step="go on from there")
        case Work.SYNC if state.stage is Stage.SYNCING:
            detail = "what the pod lacks is being made"
            return Wait("sync", OWNER, wall, detail=detail, next_step="look at the pod again")
        case Work.SYNC | Work.STOP:
            return Wait(ENDING, OWNER, wall, next_step="release volumes and cgroup")
        case Work.CLEAN:
            detail = "volumes, cgroup and sandboxes are given back"
            return Wait("clean-up", OWNER, wall, detail=detail, next_step="forget the pod")
        case _:
            assert_never(state.work)


def _pod_trouble(state: PodState, error: StartError, now: float, wall: float) -> Wait:
    """What failed for the pod as a whole, until it is done."""
    what = TROUBLES.get(error.reason, "retry")
    pause = state.retry_at.get("")
    if state.work is not Work.NONE or pause is None:
        return Wait(what, OWNER, wall, "", error.reason, error.message, "being tried again")
    return Wait(what, OWNER, wall, "", error.reason, error.message, "try again", wall + max(0.0, pause - now))


def _start_waits(state: PodState, now: float, wall: float) -> list[Wait]:
    waits: list[Wait] = []
    for name, error in state.start_errors.items():
        free_at = state.retry_at.get(name)
        newest = state.view.newest(name) if state.view is not None else None
        if newest is not None and newest.id in state.exits and name in state.holds:
            held = state.exits[newest.id] + state.holds[name].entry.delay_s
            free_at = max(held, free_at or 0.0)
        if state.reset is not None and state.reset.container == name:
            free_at = max(state.reset.free_at, free_at or 0.0)
        is_tried = state.work is Work.SYNC and free_at is not None and free_at <= now
        at = None if free_at is None or is_tried else wall + max(0.0, free_at - now)
        detail = error.message
        if error.reason == CRASH_LOOP_BACK_OFF and newest is not None:
            detail = "; ".join(part for part in (detail, _last_end(state, newest)) if part)
        step = "being started again" if is_tried else "start again"
        waits.append(Wait("container start", OWNER, wall, name, error.reason, detail, step, at))
    return waits


def _last_end(state: PodState, container: ContainerView) -> str:
    """How an instance ended, and why it was killed if it was: what the back-off itself does not say."""
    if container.state is not ContainerState.EXITED:
        return ""
    reason = container.reason or (COMPLETED if container.exit_code == 0 else ERROR)
    killed = state.killed.get(container.id)
    why = f", killed: {killed}" if killed else ""
    if reason == START_ERROR:
        why = f": {container.message}"
    return f"it ended with {container.exit_code} ({reason}){why}"
