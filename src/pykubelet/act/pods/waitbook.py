"""What one pod waits for right now: the waits of the work under way, and those that its state tells.

Owns: the list of open waits of one pod. A wait shorter than `TELL_AFTER_S` is never told, so the hot path publishes
nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pykubelet.act.pods.model import PodState, Work
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.waits import Wait

TELL_AFTER_S = 0.1


class WaitsChanged:
    """Posted to the pod's actor when there is something new to tell."""


class WaitBook:
    """Open waits of one pod."""

    def __init__(self, clock: Clock, mailbox: Post[WaitsChanged]) -> None:
        self._clock = clock
        self._mailbox = mailbox
        self._open: dict[int, Wait] = {}
        self._told: set[int] = set()
        self._next = 0
        self._since: dict[tuple[str, str, str], float] = {}

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[None]:
        """The block waits for `wait`; its `since` is set here."""
        self._next += 1
        key = self._next
        self._open[key] = Wait(
            wait.what,
            wait.owner,
            self._clock.wall(),
            wait.subject,
            wait.reason,
            wait.detail,
            wait.next_step,
            wait.next_at,
        )
        timer = asyncio.get_running_loop().call_later(TELL_AFTER_S, self._tell, key)
        try:
            yield
        finally:
            timer.cancel()
            del self._open[key]
            if key in self._told:
                self._told.discard(key)
                self._mailbox.post(WaitsChanged())

    def _tell(self, key: int) -> None:
        self._told.add(key)
        self._mailbox.post(WaitsChanged())

    def snapshot(self, state: PodState) -> tuple[Wait, ...]:
        """All waits of the pod, oldest first."""
        waits = [self._open[key] for key in sorted(self._told)]
        now, wall = self._clock.monotonic(), self._clock.wall()
        fresh: dict[tuple[str, str, str], float] = {}
        for wait in waits_of(state, now, wall):
            key = (wait.what, wait.subject, wait.reason)
            since = fresh[key] = self._since.get(key, wait.since)
            waits.append(
                Wait(wait.what, wait.owner, since, wait.subject, wait.reason, wait.detail, wait.next_step, wait.next_at)
            )
        self._since = fresh
        return tuple(sorted(waits, key=lambda wait: wait.since))


def waits_of(state: PodState, now: float, wall: float) -> list[Wait]:
    """The waits that a pod's state tells by itself. Pure; `since` is the present for those that begin now."""
    waits: list[Wait] = []
    if state.view is None and state.stage is Stage.SYNCING:
        waits.append(Wait("container runtime", "observe/pleg", wall, detail="its pods have not been listed yet"))
    pause = state.retry_at.get("")
    if state.pod_error is not None and pause is not None and pause > now:
        error = state.pod_error
        waits.append(
            Wait("retry", "act/pods", wall, "pod", error.reason, error.message, "try again", wall + pause - now)
        )
    if state.stage is not Stage.SYNCING or state.work is Work.STOP:
        return waits
    for name, error in state.start_errors.items():
        free_at = state.retry_at.get(name)
        newest = state.view.newest(name) if state.view is not None else None
        if newest is not None and newest.id in state.exits and name in state.holds:
            held = state.exits[newest.id] + state.holds[name].entry.delay_s
            free_at = max(held, free_at or 0.0)
        at = None if free_at is None else wall + max(0.0, free_at - now)
        waits.append(Wait("container start", "act/pods", wall, name, error.reason, error.message, "start again", at))
    return waits
