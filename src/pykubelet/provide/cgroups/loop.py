"""The loop of provide/cgroups: updates the cgroups when pods change.

Reads `Lifecycles` and `Roster` (which pods are active), and also `Observed` and `Mounts` (which pods are still known).
The QoS groups are updated at most once a second. Every minute all QoS limits are set again, refused node limits are
tried again, and groups of pods that are gone are removed. The group of a pod is also looked for soon after the pod has gone, and
then at growing intervals: an abandoned call for the pod may still run in the runtime and make the group again. A group that stays
because of volumes gets the least CPU time. Until all pods are known, nothing is lowered or removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import inf

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import Cell, set_on_change
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value, changed_keys, with_changes
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import ENDED_STAGES, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.mounts import Mounts, PodMounts
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster, RosterPod
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

    def unknown(self, uids: frozenset[PodUID]) -> frozenset[PodUID]:
        """Those of the pods that do not keep their group."""
        lives, observed = self.lifecycles.get().pods, self.observed.get()
        unread = (ref.uid for ref in observed.unread)
        return uids.difference(lives, self.roster.get().pods, observed.pods, self.mounts.get().pods, unread)

    def may_sweep(self) -> bool:
        """Whether groups of unknown pods may be removed. An unknown pod may be running until all sources have reported and the
        runtime was listed."""
        return self.roster.get().sources_ready and self.observed.get().listed_at is not None


class PodGroups:
    """Which pods are active, and which have ended but keep their group because of their volumes. It looks only at changed pods.

    `active`: the pods whose requests count. Those are syncing or terminating, or they are admitted and have not started yet. What a
    rejected pod requests may be too much to be summed up, and none of it is used.
    """

    def __init__(self, inputs: ResourceInputs) -> None:
        self._inputs = inputs
        self._lives: Mapping[PodUID, PodLifecycle] = {}
        self._wanted: Mapping[PodUID, RosterPod] = {}
        self._mounts: Mapping[PodUID, PodMounts] = {}
        #: Pods with volumes that no pod worker has, or that have ended.
        self._left: dict[PodUID, None] = {}
        self.active: Mapping[PodUID, Pod] = {}

    def follow(self) -> None:
        """Look at the pods that have changed."""
        inputs = self._inputs
        lives, wanted, mounts = inputs.lifecycles.get().pods, inputs.roster.get().pods, inputs.mounts.get().pods
        changed = dict.fromkeys(changed_keys(self._lives, lives))
        left = {**changed, **dict.fromkeys(changed_keys(self._mounts, mounts))}
        changed |= dict.fromkeys(changed_keys(self._wanted, wanted))
        self._lives, self._wanted, self._mounts = lives, wanted, mounts
        news = {uid: pod for uid in changed if (pod := self._active_pod(uid)) is not self.active.get(uid)}
        if news:
            self.active = with_changes(self.active, news)
        for uid in left:
            mounted, life = mounts.get(uid), lives.get(uid)
            if mounted is not None and mounted.volumes and (life is None or life.stage in ENDED_STAGES):
                self._left[uid] = None
            else:
                self._left.pop(uid, None)

    def _active_pod(self, uid: PodUID) -> Pod | None:
        item, life = self._wanted.get(uid), self._lives.get(uid)
        if item is not None and item.rejection is not None:
            return None
        if life is None:
            return item.pod if item is not None else None
        return life.pod if life.stage in (Stage.SYNCING, Stage.TERMINATING) and not life.terminal else None

    def lingering(self) -> frozenset[PodUID]:
        """Pods that have ended or are unknown and still have volumes: their groups stay, as memory of volumes is charged to them."""
        observed = self._inputs.observed.get()
        unread = {ref.uid for ref in observed.unread}
        return frozenset(uid for uid in self._left if uid not in unread and not self._may_run(uid, observed))

    def _may_run(self, uid: PodUID, observed: Observed) -> bool:
        """Whether something of a pod that has not ended runs, or is about to."""
        view = observed.pods.get(uid)
        return uid not in self._lives and (uid in self._wanted or (view is not None and bool(view.running)))


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
        self._pods = PodGroups(inputs)
        #: When the group of a pod that has gone is looked for, as the runtime may make it again, and the seconds before that.
        self._looks: dict[PodUID, tuple[float, float]] = {}
        self._seen: Mapping[PodUID, Pod] | None = None
        self._lingering: frozenset[PodUID] = frozenset()
        self._lowered: frozenset[PodUID] = frozenset()

    async def run(self) -> None:
        """Update the groups when pods change; never returns."""
        loop = asyncio.get_running_loop()
        complete_at, has_swept = loop.time() + self._period_s, False
        while True:
            seen = self._inputs.lifecycles.get()
            if self._inputs.may_sweep():
                await self._follow()
                await self._lower()
                if has_swept:
                    await self._look_for_gone()
                else:
                    await self._cgroups.sweep(self._inputs.unknown)
                    has_swept = True
            await asyncio.sleep(self._min_period_s)
            looks = (at for at, _ in self._looks.values())
            next_at = max(min(looks, default=inf), loop.time()) if self._inputs.may_sweep() else inf
            if not self._lingering <= self._lowered:
                next_at = min(next_at, loop.time() + SWEEP_S)
            try:
                async with asyncio.timeout_at(min(complete_at, next_at)):
                    await self._wait_change(seen)
            except TimeoutError:
                if loop.time() >= complete_at:
                    complete_at = loop.time() + self._period_s
                    await self._complete()
            lives = self._inputs.lifecycles.get().pods
            gone = [uid for uid in changed_keys(seen.pods, lives) if uid not in lives]
            self._looks |= dict.fromkeys(gone, (loop.time() + SWEEP_S, SWEEP_S))

    async def _look_for_gone(self) -> None:
        """Look for the groups of gone pods that are due. After a minute, all groups are looked through anyway."""
        loop = asyncio.get_running_loop()
        due = [uid for uid, (at, _) in self._looks.items() if at <= loop.time()]
        if not due:
            return
        await self._cgroups.sweep(self._inputs.unknown, due)
        for uid in due:
            pause_s = SWEEP.next_s(self._looks.pop(uid)[1])
            if pause_s < self._period_s:
                self._looks[uid] = loop.time() + pause_s, pause_s

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
        self._pods.follow()
        pods = self._pods.active
        if self._seen is pods:
            return
        await self._cgroups.update_qos(pods)
        self._seen = pods

    async def _lower(self) -> None:
        """Lower the CPU time of groups that stay because of volumes. Those of most pods are gone by the second look."""
        here = self._pods.lingering()
        again = (here & self._lingering) - self._lowered
        for uid in sorted(again):
            log.info("CPU time lowered until the volumes of the pod are removed", uid=uid)
            await self._cgroups.lower_pod(uid)
        self._lingering, self._lowered = here, (self._lowered | again) & here

    async def _complete(self) -> None:
        if self._inputs.observed.get().listed_at is not None:  # earlier, the groups may not exist yet
            await self._cgroups.retry_node_limits()
        if self._inputs.may_sweep():
            self._pods.follow()
            self._seen = self._pods.active
            await self._cgroups.update_qos(self._seen, force=True)
            await self._cgroups.sweep(self._inputs.unknown)


def _other_than(seen: Lifecycles) -> Callable[[Lifecycles], bool]:
    return lambda now: now is not seen
