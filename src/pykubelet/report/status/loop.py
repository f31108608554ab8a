"""The status room's loop: keeps `Statuses` equal to the projection of everything else.

Owns: the cell `Statuses`. Reads: `Roster`, `Lifecycles`, `Observed`, `ProbeResults`, `NodeView`, `RuntimeReady`; the
termination messages of ended containers; what was told before a restart. It sleeps until one of its cells changes, then
looks at the pods whose inputs are other objects than the last time. A look at the runtime that began before the one
already told is passed over. Until the runtime was looked at for the first time, what was told before a restart is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter

from msgspec.structs import replace as with_fields

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.cells import Cell, CellWriter, ringing
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Flight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.node import HandlerFeatures, NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.phase import Phase, pod_phase
from pykubelet.base.model.probes import ProbeKind, ProbeResults
from pykubelet.base.model.roster import TERMINAL_PHASES, Roster, RosterPod, has_ended_in_api, is_static, pod_ref
from pykubelet.base.model.sizing import PendingResize
from pykubelet.base.model.statuses import Statuses
from pykubelet.report.status.memory import StatusMemory
from pykubelet.report.status.messages import TerminationMessages, is_unread
from pykubelet.report.status.model import StatusFacts
from pykubelet.report.status.project import project_status
from pykubelet.report.status.tally import count_ends

SETTLE_S = 0.015
QUIET_SETTLE_S = 0.002


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """The cells this room reads. `tells_stop_signals`: gate ContainerStopSignals.

    `in_cluster`: there is an API server, which knows the pods' start times. Without one a pod's start is the time when
    this agent, since its own start, has taken it up: so it is with the reference, and people see from it that the agent
    was restarted.
    """

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]
    probes: Cell[ProbeResults]
    node: Cell[NodeView]
    runtime: Cell[RuntimeReady]
    tells_stop_signals: bool = False
    in_cluster: bool = True


@dataclass(frozen=True, slots=True)
class _Shared:
    """The inputs that all pods have in common."""

    probes: ProbeResults
    host_ips: tuple[str, ...]
    runtime: str
    handlers: Mapping[str, HandlerFeatures]


@dataclass(slots=True)
class _Told:
    """What one pod's newest status was made from. Looks that began before `not_before` are of an earlier life."""

    pod: Pod
    lifecycle: PodLifecycle
    view: PodView | None
    shared: _Shared
    status: PodStatus
    not_before: float = 0.0
    pending: PendingResize | None = None


class StatusLoop:
    """`run` never returns. `flight` reads the termination messages. `memory` None: nothing outlives the agent."""

    def __init__(
        self,
        inputs: StatusInputs,
        statuses: CellWriter[Statuses],
        clock: Clock,
        flight: Flight,
        memory: StatusMemory | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._inputs = inputs
        self._statuses = statuses
        self._clock = clock
        self._messages = TerminationMessages(flight)
        self._memory = memory
        self._settle_s = settle_s
        self._remembered = memory.load() if memory is not None else {}
        if not inputs.in_cluster:
            now = format_time(clock.wall())
            self._remembered = {uid: with_fields(s, startTime=now) for uid, s in self._remembered.items()}
        self._told: dict[PodUID, _Told] = {}
        self._reading: set[PodUID] = set()
        self._shared: _Shared | None = None
        self._bell = asyncio.Event()
        self._supervisor = Supervisor("status")

    async def run(self) -> None:
        if self._remembered:
            self._statuses.publish(
                Statuses(self._remembered, frozenset(self._remembered))
            )  # before anybody can ask for a pod
        async with self._supervisor as supervisor:
            if self._memory is not None:
                supervisor.start_root("status-memory", self._memory.follow(self._statuses.cell))
            cells = self._inputs
            with ringing(
                self._bell, cells.roster, cells.lifecycles, cells.observed, cells.probes, cells.node, cells.runtime
            ):
                supervisor.start_root("status-project", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        looked_at = float("-inf")
        while True:
            await self._bell.wait()
            # a look at the runtime and what the pods make of it come right after each other: project them once, and in
            # busy times more of them together
            busy = looked_at + self._settle_s - self._clock.monotonic()
            await asyncio.sleep(max(min(QUIET_SETTLE_S, self._settle_s), busy))
            self._bell.clear()
            looked_at = self._clock.monotonic()
            self._look()

    def _look(self) -> None:
        shared = self._shared_now()
        observed = self._inputs.observed.get()
        pods = self._pods()
        roster = self._inputs.roster.get().pods
        changed = False
        for uid, (pod, lifecycle) in pods.items():
            told = self._told.get(uid)
            if told is not None and told.shared is shared and told.pod is pod and told.view is observed.pods.get(uid):
                entry = roster.get(uid)
                if told.lifecycle is lifecycle and told.pending is (entry.pending if entry is not None else None):
                    continue  # nothing is new: what most looks find of most pods
            changed |= self._look_at(uid, pod, lifecycle, observed, shared)
        for uid in [uid for uid in self._told if uid not in pods]:
            del self._told[uid]
            changed = True
        if self._remembered and observed.listed_at is not None and self._inputs.roster.get().sources_ready:
            self._remembered = {uid: s for uid, s in self._remembered.items() if uid in pods and uid not in self._told}
            changed = True
        if len(self._messages.known) > 2 * len(pods) + 64:
            self._messages.keep_only(observed.pods)
        if changed:
            statuses = {uid: entry.status for uid, entry in self._told.items()}
            remembered = frozenset(self._remembered.keys() - statuses.keys())
            self._statuses.publish(Statuses(self._remembered | statuses, remembered))

    def _pods(self) -> dict[PodUID, tuple[Pod, PodLifecycle]]:
        """Desired pods, and those that are still being ended."""
        lifecycles, roster = self._inputs.lifecycles.get().pods, self._inputs.roster.get().pods
        pods = {uid: (lifecycle.pod, lifecycle) for uid, lifecycle in lifecycles.items()}
        for uid, entry in roster.items():
            if uid in pods:
                continue
            told = self._told.get(uid)
            known = told is not None and told.pod is entry.pod
            pods[uid] = (entry.pod, told.lifecycle if told is not None and known else _before_lifecycle(entry))
        return pods

    def _shared_now(self) -> _Shared:
        """The same object as before when nothing in it has changed."""
        runtime = self._inputs.runtime.get()
        now = _Shared(self._inputs.probes.get(), self._inputs.node.get().ips, runtime.name, runtime.handlers)
        if self._shared is None or self._shared != now:
            self._shared = now
        return self._shared

    def _newest_view(self, pod: Pod, lifecycle: PodLifecycle, observed: Observed) -> PodView | None:
        """The newest look at a pod, never one older than the one already told. None: it was not looked at yet."""
        uid = PodUID(pod.metadata.uid)
        view = observed.pods.get(uid)
        told = self._told.get(uid)
        if told is None:
            was_there = self._before(pod) is not None and observed.listed_at is not None
            return PodView(lifecycle.ref, read_at=observed.listed_at or 0.0) if view is None and was_there else view
        seen = told.view
        if seen is None:
            return view if view is not None and view.read_at >= told.not_before else None
        if view is None and observed.listed_at is not None and observed.listed_at > seen.read_at and not seen.is_gone:
            return PodView(seen.ref, read_at=observed.listed_at)
        return seen if view is None or view.read_at < seen.read_at else view

    def _old_status(self, pod: Pod, view: PodView | None) -> PodStatus | None:
        """What the new status follows on from.

        For a static pod an end told before the agent was restarted counts while the runtime shows it too: otherwise the
        pod begins anew, as one does whose manifest was removed and put back meanwhile.
        """
        uid = PodUID(pod.metadata.uid)
        told = self._told.get(uid)
        if told is not None:
            return told.status if told.status.phase else None
        old = self._before(pod)
        if old is None or not is_static(pod):
            return old
        if old.phase not in (Phase.SUCCEEDED, Phase.FAILED):
            # no API server vouches for it: of an init container that is gone only that it must have succeeded is told
            return with_fields(old, initContainerStatuses=())
        is_over = view is not None and view.containers and pod_phase(pod, view, {}, ended=False).is_terminal
        return old if is_over else None

    def _before(self, pod: Pod) -> PodStatus | None:
        """What was told before a restart: as this node kept it, else as the API server has it."""
        old = self._remembered.get(PodUID(pod.metadata.uid))
        if old is None and not is_static(pod) and (pod.status.startTime or has_ended_in_api(pod)):
            return pod.status
        return old

    def _rests(self, pod: Pod, told: _Told | None, observed: Observed) -> PodStatus | None:
        """The status of a pod that has ended in the API, and of which nothing is there that could tell more."""
        if is_static(pod) or not has_ended_in_api(pod):
            return None
        if told is not None and told.view is not None and not told.view.is_gone:
            return None
        view = observed.pods.get(PodUID(pod.metadata.uid))
        return pod.status if view is None or view.is_gone else None

    def _look_at(self, uid: PodUID, pod: Pod, lifecycle: PodLifecycle, observed: Observed, shared: _Shared) -> bool:
        """Project one pod if its inputs are new; whether its status changed."""
        told = self._told.get(uid)
        if told is None and observed.listed_at is None and (before := self._before(pod)) is not None:
            self._remembered[uid] = before
            return self._remembered[uid] is not self._statuses.get().pods.get(uid)
        if rest := self._rests(pod, told, observed):
            if told is None or told.lifecycle is not lifecycle or told.pod is not pod:
                status = told.status if told is not None and has_ended(told.status) else rest
                self._told[uid] = _Told(pod, lifecycle, None, shared, status)
            return self._told[uid].status is not self._statuses.get().pods.get(uid)
        if told is not None and _begins_anew(told.lifecycle, lifecycle):
            told = None
            self._told[uid] = _Told(pod, lifecycle, None, shared, PodStatus(), self._clock.monotonic())
        view = self._newest_view(pod, lifecycle, observed)
        pending = self._pending(uid)
        same_inputs = told is not None and told.pod is pod and told.view is view and told.pending is pending
        if told is not None and same_inputs and _tells_the_same(told.lifecycle, lifecycle):
            told.lifecycle = lifecycle
            if told.shared is shared:
                return False
            if _same_for(view, told.shared, shared):
                told.shared = shared
                return False
        if view is not None and not view.is_gone and not shared.runtime:
            return False  # ids of containers cannot be spelled before the runtime has told its name
        if view is not None and is_unread(view, self._messages.known):
            self._read_messages(view)
            return False
        old = self._old_status(pod, view)
        status = project_status(replace(self._facts(pod, lifecycle, view, shared, old), pending=pending))
        if status == old:
            status = old
        else:
            count_ends(old, status)
        not_before = self._told[uid].not_before if uid in self._told else 0.0
        self._told[uid] = _Told(pod, lifecycle, view, shared, status, not_before, pending)
        return status is not self._statuses.get().pods.get(uid)

    def _pending(self, uid: PodUID) -> PendingResize | None:
        entry = self._inputs.roster.get().pods.get(uid)
        return entry.pending if entry is not None else None

    def _facts(
        self, pod: Pod, lifecycle: PodLifecycle, view: PodView | None, shared: _Shared, old: PodStatus | None
    ) -> StatusFacts:
        return StatusFacts(
            pod=pod,
            lifecycle=lifecycle,
            view=view,
            probes=shared.probes,
            host_ips=shared.host_ips,
            runtime=shared.runtime,
            handlers=shared.handlers,
            messages=self._messages.known,
            old=old,
            now_wall=self._clock.wall(),
            tells_stop_signals=self._inputs.tells_stop_signals,
        )

    def _read_messages(self, view: PodView) -> None:
        uid = view.ref.uid
        if uid not in self._reading:
            self._reading.add(uid)
            self._supervisor.start_root(f"status-messages-{uid}", self._read(view))

    async def _read(self, view: PodView) -> None:
        await self._messages.read(view)
        self._reading.discard(view.ref.uid)
        self._bell.set()


def _before_lifecycle(entry: RosterPod) -> PodLifecycle:
    """A desired pod that nobody has taken up yet."""
    return PodLifecycle(pod_ref(entry.pod), entry.pod, Stage.SYNCING, entry.seen_at, entry.seen_at)


def has_ended(status: PodStatus) -> bool:
    return status.phase in TERMINAL_PHASES


def _begins_anew(before: PodLifecycle, now: PodLifecycle) -> bool:
    """Stages only go forward in one life of a pod."""
    return before.stage is not Stage.SYNCING and now.stage is Stage.SYNCING and now.kill_reason is None


#: Waits and story are for people to ask for; no status has them.
_telling = attrgetter(*(field.name for field in fields(PodLifecycle) if field.name not in ("waits", "story")))


def _tells_the_same(before: PodLifecycle, now: PodLifecycle) -> bool:
    return bool(_telling(before) == _telling(now))


def _same_for(view: PodView | None, before: _Shared, now: _Shared) -> bool:
    """Whether what changed for all pods means nothing to this one."""
    if (before.host_ips, before.runtime, before.handlers) != (now.host_ips, now.runtime, now.handlers):
        return False
    if before.probes.watched != now.probes.watched:
        return False
    return view is None or all(
        before.probes.get(c.id, kind) is now.probes.get(c.id, kind) for c in view.containers for kind in ProbeKind
    )
