"""Notifies one process extension of the transitions and statuses of pods, as best it can.

Owns: what the process was sent. A process that does not read in time loses notifications, which are counted, and a pod that changes
quickly may skip some of its states. A process that was started again gets the newest state of all pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from pykubelet.base.api.codec import encode
from pykubelet.base.api.core import PodStatus
from pykubelet.base.api.times import format_micro_time
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import changed_keys, missing_keys
from pykubelet.base.kit.yields import Yields
from pykubelet.base.model.extension_process import ExtensionProcessState, Point
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.plugins.extension_process import ExtensionProcess

#: Notifications that are made before other tasks go on.
AT_ONCE = 16
#: The stage in the last transition of a pod: nothing is known of it any more.
GONE = "gone"


def _observes(state: ExtensionProcessState) -> bool:
    return state.is_running and state.offered(Point.OBSERVER)


class ObserverLoop:
    """The notifications of one process. `run` never returns."""

    def __init__(
        self, process: ExtensionProcess, lifecycles: Cell[Lifecycles], statuses: Cell[Statuses], clock: Clock
    ) -> None:
        self._process = process
        self._lifecycles = lifecycles
        self._statuses = statuses
        self._clock = clock
        self._run = 0
        self._sent_lives: Mapping[PodUID, PodLifecycle] = {}
        self._sent_statuses: Mapping[PodUID, PodStatus] = {}
        self._refs: dict[PodUID, PodRef] = {}

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        while True:
            await self._process.state.wait_for(_observes)
            await self._follow()

    async def _follow(self) -> None:
        """Follow the pods while the process observes them. Processes that do not are not woken by pods."""
        wakeup = asyncio.Event()
        with set_on_change(wakeup, self._process.state, self._lifecycles, self._statuses):
            while _observes(state := self._process.state.get()):
                if state.run != self._run:
                    self._run, self._sent_lives, self._sent_statuses = state.run, {}, {}
                wakeup.clear()
                await self._notify(Yields(AT_ONCE))
                await wakeup.wait()

    async def _notify(self, made: Yields) -> None:
        """Send what has changed."""
        lives, statuses = self._lifecycles.get().pods, self._statuses.get().pods
        sent_lives, self._sent_lives = self._sent_lives, lives
        sent_statuses, self._sent_statuses = self._sent_statuses, statuses
        self._refs |= {uid: lives[uid].ref for uid in missing_keys(lives, self._refs)}
        for uid in changed_keys(sent_lives, lives):
            life, before = lives.get(uid), sent_lives.get(uid)
            if life is None:
                self._process.notify({"transition": self._transition(uid, GONE, self._clock.wall())})
            elif before is None or before.stage is not life.stage:
                reason = life.kill_reason or ""
                self._process.notify({"transition": self._transition(uid, life.stage, life.stage_since, reason)})
            await made.done()
        for uid in changed_keys(sent_statuses, statuses):
            if (status := statuses.get(uid)) is not None and uid in self._refs:
                self._process.notify({"status": {"pod": self._pod(uid), "status": Raw(encode(status))}})
                await made.done()
        for uid in missing_keys(missing_keys(self._refs, lives), statuses):
            del self._refs[uid]

    def _pod(self, uid: PodUID) -> Mapping[str, Any]:
        ref = self._refs[uid]
        return {"metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}}

    def _transition(self, uid: PodUID, stage: str, at: float, reason: str = "") -> Mapping[str, Any]:
        return {"pod": self._pod(uid), "stage": stage, "at": format_micro_time(at), "reason": reason}
