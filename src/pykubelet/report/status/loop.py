"""The loop of the status manager: projects the status of each pod and publishes `Statuses`.

Owns: the cell `Statuses`, and one record per pod. Reads: `Roster`, `Lifecycles`, `Observed`, `ProbeResults`, `NodeView`,
`RuntimeReady`, `Placements`, `Claims`; the termination messages of exited containers; the statuses from before the agent's restart.

The loop waits until a cell changes or a deferred status is due. Then it carries out the step of `decide` for each pod with
new inputs, and for each pod whose status does not reflect its inputs yet. A change is published at once; changes within
`settle_s` after it are published together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pykubelet.base.api.core import PodStatus
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.cells import Cell, CellWriter, set_on_change, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import WORK, SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, changed_keys, edited, field, replace
from pykubelet.base.kit.yields import Yields
from pykubelet.base.model.claims import Claims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.report.status.decide import (
    Defer,
    Keep,
    PodRecord,
    PodSnapshot,
    Project,
    Projected,
    Publish,
    ReadMessages,
    SharedInputs,
    Snapshot,
    Step,
    plan_status,
    with_status,
    without_pod,
)
from pykubelet.report.status.device_health import ContainerHealth, claim_health, device_health, merged_health
from pykubelet.report.status.memory import StatusMemory
from pykubelet.report.status.messages import TerminationMessages
from pykubelet.report.status.metrics import count_ends
from pykubelet.report.status.model import StatusFacts
from pykubelet.report.status.project import project_status

SETTLE_S = 0.015
#: Pods whose status is made before other tasks go on.
AT_ONCE = 64


class StatusInputs(Value):
    """The cells that the loop reads.

    `reports_stop_signals`: gate ContainerStopSignals. `reports_sandbox`: gate PodReadyToStartContainersCondition. `explains_sandbox`: as
    in `Behavior`.
    `in_cluster`: there is an API server, which has the pods' start times. Without one, a pod's start time is when this run of
    the agent has first seen it, as in the reference kubelet, so it changes when the agent restarts.
    `reports_health`: gate ResourceHealthStatus. `pods`: the directory of all pods' directories.
    """

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]
    probes: Cell[ProbeResults]
    node: Cell[NodeView]
    runtime: Cell[RuntimeReady]
    reports_stop_signals: bool = False
    in_cluster: bool = True
    reports_sandbox: bool = True
    placements: Cell[Placements] = field(default_factory=lambda: Cell("placements", Placements()))
    reports_health: bool = True
    claims: Cell[Claims] = field(default_factory=lambda: Cell("claims", Claims()))
    pods: str = ""
    explains_sandbox: bool = True


class StatusLoop:
    """The status manager. `run` never returns. `flight`: reads the termination messages. `memory` None: no status is stored.

    `settle_s`: the time in which changes are published together, and the longest wait until `act/pods` has a new manifest.
    """

    def __init__(
        self,
        inputs: StatusInputs,
        statuses: CellWriter[Statuses],
        clock: Clock,
        flight: SingleFlight,
        memory: StatusMemory | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._inputs = inputs
        self._statuses = statuses
        self._clock = clock
        self._messages = TerminationMessages(flight, inputs.pods)
        self._memory = memory
        self._settle_s = settle_s
        self._records: dict[PodUID, PodRecord] = {
            uid: PodRecord(remembered=status) for uid, status in self._remembered_statuses().items()
        }
        self._snapshot = Snapshot()
        #: Pods whose records may have changed since the last publication.
        self._unpublished: dict[PodUID, None] = dict.fromkeys(self._records)
        #: Pods whose status does not reflect all inputs yet, with the time of the next try, if it has one (monotonic seconds).
        self._unsettled: dict[PodUID, float | None] = {}
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._supervisor = Supervisor("status")

    def _remembered_statuses(self) -> Mapping[PodUID, PodStatus]:
        found = self._memory.load() if self._memory is not None else {}
        if self._inputs.in_cluster:
            return found
        now = format_time(self._clock.wall())
        return {uid: replace(status, startTime=now) for uid, status in found.items()}

    async def run(self) -> None:
        """Publish the `PodStatus` of each pod whenever one of the cells changes. Never returns."""
        if self._records:
            self._statuses.publish(self._collect())  # before a port is opened
        async with self._supervisor as supervisor:
            cells = self._inputs
            with set_on_change(
                self._changed,
                cells.roster,
                cells.lifecycles,
                cells.observed,
                cells.probes,
                cells.node,
                cells.runtime,
                cells.placements,
                cells.claims,
            ):
                supervisor.start_root("status-project", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        published_at = float("-inf")
        while True:
            await self._changed.wait()
            await self._settle(published_at + self._settle_s)
            self._changed.clear()
            listed_at = self._snapshot.observed.listed_at
            statuses = await self._update()
            self._set_timer()
            if statuses is None:
                if self._snapshot.observed.listed_at != listed_at:
                    await self._keep_removals()
                continue
            published_at = self._clock.monotonic()
            if self._memory is not None and self._memory.lacks(statuses.pods):
                await self._memory.keep(statuses.pods)
            self._statuses.publish(statuses)

    async def _settle(self, until: float) -> None:
        """Wait until then for more changes, but not once a resize has ended, for which clients wait."""
        seen = self._snapshot.lifecycles
        while (left_s := until - self._clock.monotonic()) > 0:
            before, seen = seen, self._inputs.lifecycles.get().pods
            if any(_has_ended_resize(before.get(uid), seen.get(uid)) for uid in changed_keys(before, seen)):
                return
            self._changed.clear()
            await within(left_s, self._changed.wait())

    async def _keep_removals(self) -> None:
        """Write the removals of pods to the journal, after a relist. They alone do not cause a write earlier."""
        pods = self._statuses.get().pods
        if self._memory is not None and self._memory.is_behind(pods):
            await self._memory.keep(pods)

    async def _update(self) -> Statuses | None:
        """Take a step for each pod that needs one. Returns the statuses to publish, None if they are unchanged."""
        before, now = self._snapshot, self._read_cells()
        self._snapshot = now
        changed, yields = False, Yields(AT_ONCE)
        for uid in dict.fromkeys([*now.changed_since(before), *self._unsettled]):
            self._unpublished[uid] = None
            with WORK.on(uid):
                changed |= self._update_pod(uid, now.pod(uid))
            await yields.done()
        changed |= self._forget_remembered(now)
        self._forget_messages(now)
        return self._collect() if changed else None

    def _read_cells(self) -> Snapshot:
        """A snapshot of the cells. Its `shared` is the same object as before if it has not changed."""
        inputs, runtime = self._inputs, self._inputs.runtime.get()
        shared = SharedInputs(inputs.probes.get(), inputs.node.get().host_ips, runtime.name, runtime.handlers)
        return Snapshot(
            inputs.roster.get().pods,
            inputs.lifecycles.get().pods,
            inputs.observed.get(),
            self._snapshot.shared if self._snapshot.shared == shared else shared,
            self._read_health() if inputs.reports_health else {},
        )

    def _read_health(self) -> Mapping[PodUID, ContainerHealth]:
        before = self._snapshot.health
        devices = device_health(self._inputs.placements.get(), before)
        return merged_health(devices, claim_health(self._inputs.claims.get(), before), before)

    def _update_pod(self, uid: PodUID, pod: PodSnapshot | None) -> bool:
        """Take the next step for one pod. True if there is something to publish."""
        before = self._records.get(uid)
        if pod is None:
            self._unsettled.pop(uid, None)
            return before is not None and self._drop(uid, before)
        known = self._messages.known
        step = plan_status(before or PodRecord(), pod, known, self._clock.monotonic(), self._settle_s)
        after = self._records[uid] = self._take(uid, step)
        if isinstance(step, Defer):
            self._unsettled[uid] = step.until
        elif after.reflects(pod.view):
            self._unsettled.pop(uid, None)
        else:
            self._unsettled[uid] = None
        if not isinstance(step, Publish | Project):
            return False
        published = self._statuses.get()
        return after.newest is not published.pods.get(uid) or (uid in published.remembered) != after.is_remembered

    def _take(self, uid: PodUID, step: Step) -> PodRecord:
        """Carry out a step. Returns the record after it."""
        match step:
            case Keep(record) | Publish(record) | Defer(record):
                return record
            case ReadMessages(record, view):
                if record.is_reading:
                    return record
                self._supervisor.start_root(f"status-messages-{uid}", self._read_messages(uid, view))
                return replace(record, is_reading=True)
            case Project(_, inputs, old):
                status = project_status(self._facts(inputs, old))
                if old is not None and status == old:
                    return with_status(step, old)
                count_ends(old, status)
                return with_status(step, status)

    def _drop(self, uid: PodUID, record: PodRecord) -> bool:
        """Forget a pod. True if its published status must be removed."""
        kept = without_pod(record)
        if kept is None:
            del self._records[uid]
        else:
            self._records[uid] = kept
        return record.made_from is not None

    def _forget_remembered(self, now: Snapshot) -> bool:
        """Of the statuses from before the restart, forget those of pods that are gone. True if there were any."""
        if now.observed.listed_at is None or not self._inputs.roster.get().sources_ready:
            return False
        gone = [uid for uid in self._statuses.get().remembered if not now.has(uid)]
        for uid in gone:
            self._records.pop(uid, None)
        self._unpublished.update(dict.fromkeys(gone))
        return bool(gone)

    def _forget_messages(self, now: Snapshot) -> None:
        if len(self._messages.known) > 2 * len(self._records) + 64:
            self._messages.keep_only(now.observed.pods)

    def _collect(self) -> Statuses:
        """The statuses to publish now."""
        published = self._statuses.get()
        pods, remembered = edited(published.pods), set(published.remembered)
        for uid in self._unpublished:
            record = self._records.get(uid)
            status = record.newest if record is not None else None
            if status is not None:
                if pods.get(uid) is not status:
                    pods[uid] = status
            else:
                pods.discard(uid)
            if record is not None and record.is_remembered:
                remembered.add(uid)
            else:
                remembered.discard(uid)
        self._unpublished.clear()
        return Statuses(pods, frozenset(remembered))

    def _facts(self, inputs: Projected, old: PodStatus | None) -> StatusFacts:
        shared = inputs.shared
        return StatusFacts(
            pod=inputs.pod,
            lifecycle=inputs.lifecycle,
            view=inputs.view,
            probes=shared.probes,
            host_ips=shared.host_ips,
            runtime=shared.runtime,
            handlers=shared.handlers,
            messages=self._messages.known,
            old=old,
            now_wall=self._clock.wall(),
            pending=inputs.pending,
            reports_stop_signals=self._inputs.reports_stop_signals,
            reports_sandbox=self._inputs.reports_sandbox,
            explains_sandbox=self._inputs.explains_sandbox,
            health=inputs.health,
        )

    async def _read_messages(self, uid: PodUID, view: PodView) -> None:
        await self._messages.read(view)
        if (record := self._records.get(uid)) is not None:
            self._records[uid] = replace(record, is_reading=False)
        self._changed.set()

    def _set_timer(self) -> None:
        """Set the timer for the first deferred status."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min((until for until in self._unsettled.values() if until is not None), default=None)
        if due is not None:
            delay_s = max(0.0, due - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._changed.set)


def _has_ended_resize(before: PodLifecycle | None, now: PodLifecycle | None) -> bool:
    return before is not None and now is not None and before.resize is not None and now.resize is None
