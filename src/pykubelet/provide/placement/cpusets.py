"""Keeps the cpuset of running containers as placement has decided it (UpdateContainerResources).

A container gets its cpuset when it is created. It changes when the shared pool does, because another pod has got CPUs or has given
them back; and it may be another one after a restart. What the runtime reports of a container counts until this loop has changed it.
Containers that ran before the loop did are updated once whatever is reported: after its own restart, CRI-O reports what they had
when they were created. A change of one pod checks only that pod; a change of the placements, and each period, all of them.
Reads: `Placements`, `Observed`, `Roster`. A failed update is tried again in the next period (`cpuManagerReconcilePeriod`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pykubelet.base.kit.cells import Cell, set_on_change, within
from pykubelet.base.kit.cpuset import format_cpuset, parse_cpuset
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import changed_keys
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.observed import ContainerView, Observed
from pykubelet.base.model.placement import NO_CPUS, Placements
from pykubelet.base.model.roster import Roster, has_ended_in_api
from pykubelet.base.model.sizing import QOSClass, qos_class
from pykubelet.edges.cri import cri_pb2
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.provide.placement.cpu_manager import CpusetUpdate, RunningContainer, cpuset_updates

log = Log("placement")
CALLS_AT_ONCE = 8
MIN_PERIOD_S = 0.05  # the configuration may have 0


class CpusetLoop:
    """Updates containers. `run` never returns. `period_s`: seconds between complete checks."""

    def __init__(
        self,
        placements: Cell[Placements],
        roster: Cell[Roster],
        observed: Cell[Observed],
        cri: CriClient,
        period_s: float = 10.0,
    ) -> None:
        self._placements = placements
        self._roster = roster
        self._observed = observed
        self._cri = cri
        self._period_s = max(period_s, MIN_PERIOD_S)
        self._applied: dict[str, frozenset[int]] = {}
        self._older = _running(observed.get())
        self._seen: tuple[Observed, Roster, Placements] | None = None
        self._answered: set[PodUID] = set()
        self._under_way: set[str] = set()
        self._failed: set[str] = set()
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self._changed = asyncio.Event()
        self._supervisor = Supervisor("cpusets")

    async def run(self) -> None:
        """Follow the cells until a task fails, and raise its error."""
        async with self._supervisor as supervisor:
            supervisor.start_root("cpusets", self._follow())
            raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        complete_at = loop.time() + self._period_s
        with set_on_change(self._changed, self._placements, self._roster, self._observed):
            while True:
                await within(complete_at - loop.time(), self._changed.wait())
                self._changed.clear()
                if loop.time() >= complete_at:
                    complete_at = loop.time() + self._period_s
                    self._failed.clear()
                    self._seen = None
                self._check()

    def _check(self) -> None:
        """Check the pods that have changed since the last check, or all."""
        observed, roster, placements = self._observed.get(), self._roster.get(), self._placements.get()
        before, self._seen = self._seen, (observed, roster, placements)
        if placements.shared is None:
            return
        if self._older is None:
            self._older = _running(observed)
        if before is None or before[2] is not placements:
            self._check_pods(observed.pods, observed, placements)
            shown = {container.id for view in observed.pods.values() for container in view.running}
            self._applied = {id_: cpus for id_, cpus in self._applied.items() if id_ in shown}
        else:
            changed = (*changed_keys(before[0].pods, observed.pods), *changed_keys(before[1].pods, roster.pods))
            self._check_pods({*changed, *self._answered}, observed, placements)
        self._answered.clear()

    def _check_pods(self, uids: Iterable[PodUID], observed: Observed, placements: Placements) -> None:
        running: dict[str, RunningContainer] = {}
        applied: dict[str, frozenset[int]] = {}
        for uid in uids:
            view = observed.pods.get(uid)
            if view is None or not self._is_admitted(uid, placements):
                continue
            for container in view.running:
                running[container.id] = RunningContainer(container.id, uid, container.name)
                applied[container.id] = self._applied.get(container.id) or self._reported(container)
        for update in cpuset_updates(placements.cpus_of, running.values(), applied):
            if update.id not in self._under_way and update.id not in self._failed:
                self._under_way.add(update.id)
                self._supervisor.start_root(f"cpuset-{update.id}", self._update(update, PodUID(running[update.id].uid)))

    def _is_admitted(self, uid: PodUID, placements: Placements) -> bool:
        """Whether it is decided what the pod has. One that needs nothing of its own has no placement, and one that leaves gets none:
        if it is Guaranteed, it keeps the CPUs that it has."""
        if (placement := placements.pods.get(uid)) is not None:
            return placement.rejection is None
        item = self._roster.get().pods.get(uid)
        if item is None or item.rejection is not None or item.admission_wait is not None:
            return False
        is_leaving = item.pod.metadata.deletionTimestamp or has_ended_in_api(item.pod)
        return not is_leaving or qos_class(item.pod) is not QOSClass.GUARANTEED

    async def _update(self, update: CpusetUpdate, uid: PodUID) -> None:
        cpus = format_cpuset(update.cpus)
        try:
            async with self._slots:
                resources = cri_pb2.LinuxContainerResources(cpuset_cpus=cpus)
                await self._cri.update_container_resources(update.id, resources)
            self._applied[update.id] = update.cpus
            log.debug("the cpuset of a container is updated", id=update.id, cpus=cpus)
        except CriError as error:
            self._failed.add(update.id)
            if not error.is_not_found:
                log.warning("the cpuset of a container cannot be updated", id=update.id, cpus=cpus, error=error)
        finally:
            self._under_way.discard(update.id)
            self._answered.add(uid)  # the decision may have changed during the call
            self._changed.set()

    def _reported(self, container: ContainerView) -> frozenset[int]:
        """The CPUs that the runtime reports; empty if it reports none, or nothing that can be read or relied on."""
        if container.resources is None or self._older is None or container.id in self._older:
            return NO_CPUS
        try:
            return parse_cpuset(container.resources.cpuset_cpus)
        except ValueError:
            return NO_CPUS


def _running(observed: Observed) -> frozenset[str] | None:
    """The ids of all running containers; None as long as the runtime has not been listed."""
    if observed.listed_at is None:
        return None
    return frozenset(container.id for view in observed.pods.values() for container in view.running)
