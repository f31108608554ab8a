"""The resources room's loop: keeps the groups in step with the pods.

Reads: `Lifecycles` (which pods are active), and for sweeping `Roster`, `Observed` and `Mounts` (which pods anybody still
knows). The QoS groups follow the pods at most once a second; every minute everything is set again, refused node limits
are tried again, and groups of pods that are gone are removed. That is looked at after a pod has gone too, soon and then ever
more rarely: a call for it that was given up goes on in the runtime for some time, and may make the group once more. Until
all pods are known nothing is lowered or removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from pykubelet.act.resources.execute import PodCgroups
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.changes import missing_keys
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles, Stage
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster

QUIET_S = 1.0
PERIOD_S = 60.0
#: So long after a pod has gone its group is looked for, and again after twice as long each time.
SWEEP_S = 2.0
SWEEP = BackoffPolicy(SWEEP_S, inf)


class ResourceInputs(Value):
    """The cells this room reads."""

    lifecycles: Cell[Lifecycles]
    roster: Cell[Roster]
    observed: Cell[Observed]
    mounts: Cell[Mounts]

    def known(self) -> frozenset[PodUID]:
        """Pods whose group must stay."""
        cells = (self.lifecycles.get().pods, self.roster.get().pods, self.observed.get().pods, self.mounts.get().pods)
        unread = (ref.uid for ref in self.observed.get().unread)
        return frozenset(uid for pods in cells for uid in pods).union(unread)

    def may_sweep(self) -> bool:
        """Before all sources have reported and the runtime was looked at, an unknown pod may be one that just runs."""
        return self.roster.get().sources_ready and self.observed.get().listed_at is not None


def active_pods(lifecycles: Lifecycles, roster: Roster) -> dict[PodUID, Pod]:
    """The pods that use what they request, and those that are about to because they were admitted."""
    stages = (Stage.SYNCING, Stage.TERMINATING)
    active = {uid: item.pod for uid, item in roster.pods.items() if item.rejection is None}
    for uid, entry in lifecycles.pods.items():
        if entry.stage in stages and not entry.terminal:
            active[uid] = entry.pod
        else:
            active.pop(uid, None)
    return active


class ResourcesLoop:
    """`run` never returns. `quiet_s` between two updates, `period_s` between two complete ones."""

    def __init__(
        self, cgroups: PodCgroups, inputs: ResourceInputs, quiet_s: float = QUIET_S, period_s: float = PERIOD_S
    ) -> None:
        self._cgroups = cgroups
        self._inputs = inputs
        self._quiet_s = quiet_s
        self._period_s = period_s
        self._seen: dict[PodUID, Pod] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        complete_at, sweep_at, pause_s = loop.time() + self._period_s, -inf, SWEEP_S
        while True:
            seen = self._inputs.lifecycles.get()
            if self._inputs.may_sweep():
                await self._follow()
                if loop.time() >= sweep_at:
                    await self._cgroups.sweep(self._inputs.known)
                    sweep_at, pause_s = loop.time() + pause_s, SWEEP.next_s(pause_s)
            await asyncio.sleep(self._quiet_s)
            try:
                async with asyncio.timeout_at(min(complete_at, max(sweep_at, loop.time()))):
                    await self._inputs.lifecycles.wait_for(_other_than(seen))
            except TimeoutError:
                if loop.time() >= complete_at:
                    complete_at = loop.time() + self._period_s
                    await self._complete()
            if missing_keys(seen.pods, self._inputs.lifecycles.get().pods):
                sweep_at, pause_s = min(sweep_at, loop.time() + SWEEP_S), SWEEP_S

    async def _follow(self) -> None:
        pods = self._active()
        if self._seen is not None and _same(self._seen, pods):
            return
        await self._cgroups.update_qos(pods.values())
        self._seen = pods

    async def _complete(self) -> None:
        if self._inputs.observed.get().listed_at is not None:  # before it, the groups may not be there yet
            await self._cgroups.retry_node_limits()
        if self._inputs.may_sweep():
            self._seen = self._active()
            await self._cgroups.update_qos(self._seen.values(), force=True)
            await self._cgroups.sweep(self._inputs.known)

    def _active(self) -> dict[PodUID, Pod]:
        return active_pods(self._inputs.lifecycles.get(), self._inputs.roster.get())


def _same(before: dict[PodUID, Pod], now: dict[PodUID, Pod]) -> bool:
    return before.keys() == now.keys() and all(now[uid] is pod for uid, pod in before.items())


def _other_than(seen: Lifecycles) -> Callable[[Lifecycles], bool]:
    return lambda now: now is not seen
