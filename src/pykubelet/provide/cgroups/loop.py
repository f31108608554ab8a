"""The loop of provide/cgroups: updates the cgroups when pods change.

Reads `Lifecycles` and `Roster` (which pods are active), and also `Observed` and `Mounts` (which pods are still known).
The QoS groups are updated at most once a second. Every minute all QoS limits are set again, refused node limits are
tried again, and groups of pods that are gone are removed. Such groups are also looked for soon after a pod has gone, and
then at growing intervals: an abandoned call for the pod may still run in the runtime and make the group again. A group that stays
because of volumes gets the least CPU time. Until all pods are known, nothing is lowered or removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value, missing_keys
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import ENDED_STAGES, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.roster import Roster
from pykubelet.provide.cgroups.execute import PodCgroups

log = Log("resources")
MIN_PERIOD_S = 1.0
PERIOD_S = 60.0
#: Seconds from the end of a pod to the first search for its group; the interval doubles each time.
SWEEP_S = 2.0
SWEEP = BackoffPolicy(SWEEP_S, inf)


class ResourceInputs(Value):
    """The cells that the loop reads."""

    lifecycles: Cell[Lifecycles]
    roster: Cell[Roster]
    observed: Cell[Observed]
    mounts: Cell[Mounts]

    def known(self) -> frozenset[PodUID]:
        """Pods that keep their group."""
        cells = (self.lifecycles.get().pods, self.roster.get().pods, self.observed.get().pods, self.mounts.get().pods)
        unread = (ref.uid for ref in self.observed.get().unread)
        return frozenset(uid for pods in cells for uid in pods).union(unread)

    def lingering(self) -> frozenset[PodUID]:
        """Pods that have ended or are unknown and still have volumes: their groups stay, as memory of volumes is charged to them."""
        lives, roster, observed = self.lifecycles.get().pods, self.roster.get().pods, self.observed.get()
        unread = {ref.uid for ref in observed.unread}
        left = (uid for uid, pod in self.mounts.get().pods.items() if pod.volumes and uid not in unread)
        return frozenset(uid for uid in left if _has_ended(lives.get(uid), uid in roster, observed.pods.get(uid)))

    def may_sweep(self) -> bool:
        """Whether groups of unknown pods may be removed. An unknown pod may be running until all sources have reported and the
        runtime was listed."""
        return self.roster.get().sources_ready and self.observed.get().listed_at is not None


def active_pods(lifecycles: Lifecycles, roster: Roster) -> dict[PodUID, Pod]:
    """The pods whose requests count: those that are syncing or terminating, and admitted pods that have not started yet.

    What a rejected pod requests may be too much to be summed up, and none of it is used.
    """
    stages = (Stage.SYNCING, Stage.TERMINATING)
    active = {uid: item.pod for uid, item in roster.pods.items() if item.rejection is None}
    rejected = roster.pods.keys() - active.keys()
    for uid, entry in lifecycles.pods.items():
        if entry.stage in stages and not entry.terminal and uid not in rejected:
            active[uid] = entry.pod
        else:
            active.pop(uid, None)
    return active


class ResourcesLoop:
    """Updates the QoS groups and removes groups of pods that are gone. `min_period_s`: the minimum seconds between updates;
    `period_s`: seconds between complete updates."""

    def __init__(
        self,
        cgroups: PodCgroups,
        inputs: ResourceInputs,
        min_period_s: float = MIN_PERIOD_S,
        period_s: float = PERIOD_S,
    ) -> None:
        self._cgroups = cgroups
        self._inputs = inputs
        self._min_period_s = min_period_s
        self._period_s = period_s
        self._seen: dict[PodUID, Pod] | None = None
        self._lingering: frozenset[PodUID] = frozenset()
        self._lowered: frozenset[PodUID] = frozenset()

    async def run(self) -> None:
        """Update the groups when pods change; never returns."""
        loop = asyncio.get_running_loop()
        complete_at, sweep_at, pause_s = loop.time() + self._period_s, -inf, SWEEP_S
        while True:
            seen = self._inputs.lifecycles.get()
            if self._inputs.may_sweep():
                await self._follow()
                await self._lower()
                if loop.time() >= sweep_at:
                    await self._cgroups.sweep(self._inputs.known)
                    sweep_at, pause_s = loop.time() + pause_s, SWEEP.next_s(pause_s)
            await asyncio.sleep(self._min_period_s)
            next_at = max(sweep_at, loop.time()) if self._inputs.may_sweep() else inf
            if not self._lingering <= self._lowered:
                next_at = min(next_at, loop.time() + SWEEP_S)
            try:
                async with asyncio.timeout_at(min(complete_at, next_at)):
                    await self._wait_change(seen)
            except TimeoutError:
                if loop.time() >= complete_at:
                    complete_at = loop.time() + self._period_s
                    await self._complete()
            if missing_keys(seen.pods, self._inputs.lifecycles.get().pods):
                sweep_at, pause_s = min(sweep_at, loop.time() + SWEEP_S), SWEEP_S

    async def _wait_change(self, seen: Lifecycles) -> None:
        """Until other pods are there than `seen`; before all pods are known, which may take as long as the API server is away,
        until they are."""
        inputs = self._inputs
        if inputs.may_sweep():
            await inputs.lifecycles.wait_for(_other_than(seen))
            return
        wakeup = asyncio.Event()
        with set_on_change(wakeup, inputs.roster, inputs.observed):
            while not inputs.may_sweep():
                await wakeup.wait()
                wakeup.clear()

    async def _follow(self) -> None:
        pods = self._active()
        if self._seen is not None and _same(self._seen, pods):
            return
        await self._cgroups.update_qos(pods.values())
        self._seen = pods

    async def _lower(self) -> None:
        """Lower the CPU time of groups that stay because of volumes. Those of most pods are gone by the second look."""
        here = self._inputs.lingering()
        again = (here & self._lingering) - self._lowered
        for uid in sorted(again):
            log.info("CPU time lowered until the volumes of the pod are removed", uid=uid)
            await self._cgroups.lower_pod(uid)
        self._lingering, self._lowered = here, (self._lowered | again) & here

    async def _complete(self) -> None:
        if self._inputs.observed.get().listed_at is not None:  # earlier, the groups may not exist yet
            await self._cgroups.retry_node_limits()
        if self._inputs.may_sweep():
            self._seen = self._active()
            await self._cgroups.update_qos(self._seen.values(), force=True)
            await self._cgroups.sweep(self._inputs.known)

    def _active(self) -> dict[PodUID, Pod]:
        return active_pods(self._inputs.lifecycles.get(), self._inputs.roster.get())


def _has_ended(life: PodLifecycle | None, is_desired: bool, view: PodView | None) -> bool:
    """Whether nothing of a pod runs, and nothing of it is about to."""
    if life is None:
        return not is_desired and (view is None or not view.running)
    return life.stage in ENDED_STAGES


def _same(before: dict[PodUID, Pod], now: dict[PodUID, Pod]) -> bool:
    return before.keys() == now.keys() and all(now[uid] is pod for uid, pod in before.items())


def _other_than(seen: Lifecycles) -> Callable[[Lifecycles], bool]:
    return lambda now: now is not seen
