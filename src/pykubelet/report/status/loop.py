"""The status room's loop: keeps `Statuses` equal to the projection of everything else.

Owns: the cell `Statuses`. Reads: `Roster`, `Lifecycles`, `Observed`, `ProbeResults`, `NodeView`, `RuntimeReady`; the
termination messages of ended containers; what was told before a restart. It sleeps until one of its cells changes, then
looks at the pods whose inputs are other objects than the last time. What is new is told at once; only what comes right
after that is told together. A look at the runtime that began before the one already told is passed over; one in which a
container runs beside its successor waits for the next, which knows how it ended. Until the runtime
was looked at for the first time, and has said how the pod is, what was told before a restart is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.cells import Cell, CellWriter, ringing
from pykubelet.base.kit.changes import changed_keys
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Flight
from pykubelet.base.kit.precedence import let_others_act
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field, replace
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
from pykubelet.report.status.news import (
    begins_anew,
    has_told_all,
    is_cleared,
    is_nothing,
    shows_the_same,
    tells_the_same,
    was_last_word,
)
from pykubelet.report.status.project import project_status
from pykubelet.report.status.tally import count_ends

SETTLE_S = 0.015
#: So long a container that must have ended may be shown running beside its successor before that is told.
BETWEEN_S = 5.0


class StatusInputs(Value):
    """The cells this room reads. `tells_stop_signals`: gate ContainerStopSignals. `tells_sandbox`: gate PodReadyToStartContainersCondition.

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
    tells_sandbox: bool = True


class _Shared(Value):
    """The inputs that all pods have in common."""

    probes: ProbeResults = field(default_factory=ProbeResults)
    host_ips: tuple[str, ...] = ()
    runtime: str = ""
    handlers: Mapping[str, HandlerFeatures] = field(default_factory=dict)


class _Inputs(Value):
    """What the pods were looked at with."""

    roster: Mapping[PodUID, RosterPod] = field(default_factory=dict)
    lifecycles: Mapping[PodUID, PodLifecycle] = field(default_factory=dict)
    observed: Observed = field(default_factory=Observed)
    shared: _Shared = field(default_factory=_Shared)

    def pod(self, uid: PodUID) -> Pod | None:
        """One that is desired, or still being ended."""
        lifecycle, entry = self.lifecycles.get(uid), self.roster.get(uid)
        return lifecycle.pod if lifecycle is not None else entry.pod if entry is not None else None

    def changed_since(self, before: _Inputs) -> list[PodUID]:
        """The pods of which something is new, or gone."""
        if self.shared is not before.shared:
            return [*self.lifecycles, *self.roster, *before.lifecycles, *before.roster]
        return [
            *changed_keys(before.lifecycles, self.lifecycles),
            *changed_keys(before.roster, self.roster),
            *changed_keys(before.observed.pods, self.observed.pods),
        ]


class _Told(Struct):
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
            self._remembered = {uid: replace(s, startTime=now) for uid, s in self._remembered.items()}
        self._told: dict[PodUID, _Told] = {}
        self._reading: set[PodUID] = set()
        self._between: dict[PodUID, float] = {}
        self._seen = _Inputs()
        self._unsettled: set[PodUID] = set()
        self._bell = asyncio.Event()
        self._supervisor = Supervisor("status")

    async def run(self) -> None:
        if self._remembered:
            self._statuses.publish(
                Statuses(self._remembered, frozenset(self._remembered))
            )  # before anybody can ask for a pod
        async with self._supervisor as supervisor:
            cells = self._inputs
            with ringing(
                self._bell, cells.roster, cells.lifecycles, cells.observed, cells.probes, cells.node, cells.runtime
            ):
                supervisor.start_root("status-project", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        told_at = float("-inf")
        while True:
            await self._bell.wait()
            busy = told_at + self._settle_s - self._clock.monotonic()
            if busy > 0:
                await asyncio.sleep(busy)
            elif not self._has_seen():
                await let_others_act()  # what was decided is told once it has begun
            self._bell.clear()
            listed_at = self._seen.observed.listed_at
            if (news := self._look()) is None:
                told, is_full = self._statuses.get().pods, self._seen.observed.listed_at != listed_at
                if self._memory is not None and is_full and self._memory.is_behind(told):
                    await self._memory.keep(told)
                continue
            told_at = self._clock.monotonic()
            if self._memory is not None and self._memory.lacks(news.pods):
                await self._memory.keep(news.pods)
            self._statuses.publish(news)

    def _has_seen(self) -> bool:
        """Whether something new was seen of the machine, which is told before anybody acts on it."""
        inputs, seen = self._inputs, self._seen
        return inputs.observed.get() is not seen.observed or inputs.probes.get() is not seen.shared.probes

    def _look(self) -> Statuses | None:
        """Look at the pods of which something is new, and at those that could not be told as they are; what is to be told,
        if it is news."""
        before, now = self._seen, self._inputs_now()
        self._seen = now
        changed = False
        for uid in dict.fromkeys([*now.changed_since(before), *self._unsettled]):
            changed |= self._look_at(uid, now)
            if self._is_settled(uid, now):
                self._unsettled.discard(uid)
            else:
                self._unsettled.add(uid)
        if self._remembered and now.observed.listed_at is not None and self._inputs.roster.get().sources_ready:
            self._remembered = {
                uid: status
                for uid, status in self._remembered.items()
                if now.pod(uid) is not None and uid not in self._told
            }
            changed = True
        if len(self._messages.known) > 2 * len(self._told) + 64:
            self._messages.keep_only(now.observed.pods)
        if not changed:
            return None
        statuses = {uid: entry.status for uid, entry in self._told.items()}
        remembered = frozenset(self._remembered.keys() - statuses.keys())
        return Statuses(self._remembered | statuses, remembered)

    def _inputs_now(self) -> _Inputs:
        """`shared` is the same object as before when nothing in it has changed."""
        inputs, runtime = self._inputs, self._inputs.runtime.get()
        shared = _Shared(inputs.probes.get(), inputs.node.get().host_ips, runtime.name, runtime.handlers)
        return _Inputs(
            inputs.roster.get().pods,
            inputs.lifecycles.get().pods,
            inputs.observed.get(),
            self._seen.shared if self._seen.shared == shared else shared,
        )

    def _is_settled(self, uid: PodUID, now: _Inputs) -> bool:
        """What is told of the pod was made from all that there is."""
        told, view = self._told.get(uid), now.observed.pods.get(uid)
        if told is None:
            return now.pod(uid) is None
        return told.view is view or (is_nothing(told.view) and is_nothing(view))

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
            return replace(old, initContainerStatuses=())
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

    def _look_at(self, uid: PodUID, now: _Inputs) -> bool:
        """Project one pod if its inputs are new; whether there is something to tell."""
        pod, told = now.pod(uid), self._told.get(uid)
        if pod is None:
            self._told.pop(uid, None)
            self._between.pop(uid, None)
            return told is not None
        lifecycle, observed, shared = self._lifecycle(uid, pod, now), now.observed, now.shared
        is_unknown = observed.listed_at is None or observed.is_unread(uid)
        if told is None and is_unknown and (before := self._before(pod)) is not None:
            self._remembered[uid] = before
            return before is not self._statuses.get().pods.get(uid)
        if rest := self._rests(pod, told, observed):
            if told is None or told.lifecycle is not lifecycle or told.pod is not pod:
                status = told.status if told is not None and has_ended(told.status) else rest
                self._told[uid] = _Told(pod, lifecycle, None, shared, status)
            return self._told[uid].status is not self._statuses.get().pods.get(uid)
        if told is not None and uid not in now.roster and has_told_all(told.status, lifecycle):
            return False
        is_new_life = told is not None and begins_anew(told.lifecycle, lifecycle)
        if is_new_life:
            self._told[uid] = _Told(pod, lifecycle, None, shared, PodStatus(), self._clock.monotonic())
        view = self._newest_view(pod, lifecycle, observed)
        entry = now.roster.get(uid)
        pending = entry.pending if entry is not None else None
        if told is not None and not is_new_life and told.pod is pod and told.pending is pending:
            is_same = shows_the_same(told.view, view) or is_cleared(told.view, view, told.lifecycle)
            is_same = is_same or was_last_word(told.status, lifecycle)
            is_same = is_same and tells_the_same(told.lifecycle, lifecycle, view)
            if is_same and _same_for(view, told.shared, shared):
                told.lifecycle, told.view, told.shared = lifecycle, view, shared
                return False
        if view is not None and not view.is_gone and not shared.runtime:
            return False  # ids of containers cannot be spelled before the runtime has told its name
        if view is not None and is_unread(view, self._messages.known):
            self._read_messages(view)
            return False
        if self._awaits_end(uid, view):
            return False
        old = self._old_status(pod, view)
        status = project_status(self._facts(pod, lifecycle, view, shared, old, pending))
        if status == old:
            status = old
        else:
            count_ends(old, status)
        not_before = self._told[uid].not_before if uid in self._told else 0.0
        self._told[uid] = _Told(pod, lifecycle, view, shared, status, not_before, pending)
        return status is not self._statuses.get().pods.get(uid)

    def _awaits_end(self, uid: PodUID, view: PodView | None) -> bool:
        """Whether it is still to come how a container has ended whose successor is there: what is told next has both."""
        if view is None or not view.is_between:
            self._between.pop(uid, None)
            return False
        now = self._clock.monotonic()
        return now - self._between.setdefault(uid, now) < BETWEEN_S

    def _lifecycle(self, uid: PodUID, pod: Pod, now: _Inputs) -> PodLifecycle:
        """That of a desired pod that nobody has taken up yet is made up, once."""
        if (lifecycle := now.lifecycles.get(uid)) is not None:
            return lifecycle
        told = self._told.get(uid)
        return told.lifecycle if told is not None and told.pod is pod else _before_lifecycle(now.roster[uid])

    def _facts(
        self,
        pod: Pod,
        lifecycle: PodLifecycle,
        view: PodView | None,
        shared: _Shared,
        old: PodStatus | None,
        pending: PendingResize | None,
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
            pending=pending,
            tells_stop_signals=self._inputs.tells_stop_signals,
            tells_sandbox=self._inputs.tells_sandbox,
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


def _same_for(view: PodView | None, before: _Shared, now: _Shared) -> bool:
    """Whether what changed for all pods means nothing to this one."""
    if before is now:
        return True
    if (before.host_ips, before.runtime, before.handlers) != (now.host_ips, now.runtime, now.handlers):
        return False
    if before.probes.watched != now.probes.watched:
        return False
    return view is None or all(
        before.probes.get(c.id, kind) is now.probes.get(c.id, kind) for c in view.containers for kind in ProbeKind
    )
