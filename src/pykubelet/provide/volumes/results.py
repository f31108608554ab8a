"""Posts the results of operations on volumes. Those of a pod on which many operations run are posted together.

Each posted result costs a decision about its pod, which takes longer the more volumes the pod has.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from pykubelet.base.kit.mailbox import Post
from pykubelet.base.model.ids import PodUID
from pykubelet.provide.volumes.model import Event

#: While so many operations of a pod run, so many results are posted at a time, or those of so many seconds.
MANY = 32
COLLECTED_S = 0.02


class Results:
    """The results that are not posted yet, and the number of operations that run, by pod."""

    def __init__(self, post: Post[Event]) -> None:
        self._post = post
        self._running: Counter[PodUID] = Counter()
        self._waiting: dict[PodUID, list[Event]] = {}
        self._timers: dict[PodUID, asyncio.TimerHandle] = {}

    def begun(self, uid: PodUID) -> None:
        """Note that an operation on a volume of the pod begins."""
        self._running[uid] += 1

    def ended(self, uid: PodUID, result: Event) -> None:
        """Post the result of an operation, now or soon."""
        self._running[uid] -= 1
        if self._running[uid] < MANY and uid not in self._waiting:
            self._post.post(result)
        else:
            self._collect(uid, result)
        if not self._running[uid]:
            del self._running[uid]

    def _collect(self, uid: PodUID, result: Event) -> None:
        waiting = self._waiting.setdefault(uid, [])
        waiting.append(result)
        if len(waiting) >= MANY or self._running[uid] < MANY:
            self._flush(uid)
        elif uid not in self._timers:
            self._timers[uid] = asyncio.get_running_loop().call_later(COLLECTED_S, self._flush, uid)

    def _flush(self, uid: PodUID) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer.cancel()
        for result in self._waiting.pop(uid, ()):
            self._post.post(result)

    def stop(self) -> None:
        """Post nothing more."""
        for timer in self._timers.values():
            timer.cancel()
