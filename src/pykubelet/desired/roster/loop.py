"""The loop of the roster: takes the pod sets of the sources, decides on admission, publishes `Roster`.

Owns: the cells `Roster` and `roster-heartbeat`. Reads: `NodeView`, `RuntimeReady`, `Observed`, `Lifecycles`,
`NodeShutdown`, `NodePressure`, `Placements`. A change of these cells leads to a pass only while pods or resizes are undecided, or
rejected pods may be admitted later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, Post, Sink, set_on_change, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.heartbeat import Heartbeat, resync_forever
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, changed_keys, field, replace
from pykubelet.base.model.evictions import NodePressure, NodeShutdown
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import NodeView, NodeWanted, RuntimeReady
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.reasons import EVENT_PREEMPTING
from pykubelet.base.model.roster import NameHolder, Roster, SourceChanged, pod_ref
from pykubelet.desired.roster.decide import reject_at_limit, settle
from pykubelet.desired.roster.kept_size import KeptSize
from pykubelet.desired.roster.merge import apply_quarantine, apply_source, roster_of
from pykubelet.desired.roster.metrics import (
    count_admission,
    count_preemptions,
    count_rejection,
    count_resizes,
    time_deferred_resizes,
)
from pykubelet.desired.roster.model import AdmissionFacts, AdmissionRules, AdmissionVerdict, RosterState, unusual
from pykubelet.desired.roster.readmission import free_at, readmit
from pykubelet.desired.roster.resize import settle_sizes

log = Log("roster")
#: Between two looks at whether rejected pods can be admitted, because the cells change often on a busy node.
READMISSION_PAUSE_S = 0.1


class RosterInputs(Value):
    """The cells that the roster reads. `kept`: the allocated sizes of pods from before the agent's start; `holders`: the manifests of
    static pods from then. `node_wanted`: takes requests to read the Node again. `heartbeat`: where the loop reports that it runs."""

    node: Cell[NodeView]
    runtime: Cell[RuntimeReady]
    observed: Cell[Observed]
    lifecycles: Cell[Lifecycles]
    shutdown: Cell[NodeShutdown]
    pressure: Cell[NodePressure]
    kept: Mapping[PodUID, KeptSize] = field(default_factory=dict)
    node_wanted: Post[NodeWanted] = field(default_factory=Sink)
    heartbeat: CellWriter[Heartbeat] | None = None
    placements: Cell[Placements] = field(default_factory=lambda: Cell("placements", Placements()))
    mounts: Cell[Mounts] = field(default_factory=lambda: Cell("mounts", Mounts()))
    holders: Mapping[str, NameHolder] = field(default_factory=dict)


class RosterLoop:
    """Keeps `Roster`. `run` never returns. `expected_sources`: the names of sources that must post their set once."""

    def __init__(
        self,
        mailbox: Mailbox[SourceChanged],
        expected_sources: frozenset[str],
        inputs: RosterInputs,
        rules: AdmissionRules,
        roster: CellWriter[Roster],
        recorder: Post[KubeEvent],
        clock: Clock,
    ) -> None:
        self._mailbox = mailbox
        self._expected = expected_sources
        self._inputs = inputs
        self._rules = rules
        self._roster = roster
        self._recorder = recorder
        self._clock = clock
        self._state = RosterState(kept=inputs.kept, holders=inputs.holders)
        self._wakeup = mailbox.wakeup
        #: The cells on which the next decision depends.
        self._awaited: tuple[Cell[Any], ...] = ()
        self._asked_at: float | None = None

    async def run(self) -> None:
        """Follow the sources and the cells. Never returns."""
        async with Supervisor("roster") as supervisor:
            supervisor.start_root("roster", self._follow())
            supervisor.start_root("roster-volumes", self._follow_limits())
            if (heartbeat := self._inputs.heartbeat) is not None:
                supervisor.start_root(
                    "roster-heartbeat", resync_forever(lambda: self._update([]), heartbeat, self._clock)
                )
            raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        """Decide when a source posts, and while something is undecided, when a cell changes or a preemption has taken too long."""
        events: list[SourceChanged] = []
        while True:
            self._update(events)
            events = await self._next_events()
            if not events and self._state.is_settled:  # only rejected pods wait, for what becomes free
                with suppress(TimeoutError):
                    async with asyncio.timeout(READMISSION_PAUSE_S):
                        events = await self._mailbox.get_all()

    async def _next_events(self) -> list[SourceChanged]:
        """Wait for the next pass. Returns the events of sources; there may be none."""
        with set_on_change(self._wakeup, *self._awaited):
            self._wakeup.clear()  # the pass has just read them
            if self._mailbox:
                return self._mailbox.take_all()
            await within(self._next_pass_s() if self._awaited else None, self._wakeup.wait())
        return self._mailbox.take_all()

    def _next_pass_s(self) -> float | None:
        """Seconds until the next pass without a change of a cell."""
        entries, now = unusual(self._state.entries), self._clock.monotonic()
        ends = [e.until for e in entries if e.verdict is AdmissionVerdict.PREEMPTING or e.is_held]
        ends += [at for e in entries if (e.tried is not None or e.is_refused) and (at := free_at(e)) > now]
        return max(0.0, min(ends) - now) if ends else None

    async def _follow_limits(self) -> None:
        """Reject pods that cannot start because of a limit of volumes. Never returns."""
        known = self._inputs.mounts.get().at_limit
        async for mounts in self._inputs.mounts.changes():
            if mounts.at_limit is not known:
                known = mounts.at_limit
                self._update([])

    def _update(self, events: list[SourceChanged]) -> None:
        """Take these events, and decide by the present snapshots."""
        wall = self._clock.wall()
        state = self._state
        resized = {entry.ref.uid: entry for entry in unusual(state.entries) if entry.may_resize}
        kube_events: list[KubeEvent] = []
        for event in events:
            state, more = apply_source(state, event, wall)
            kube_events.extend(more)
        state, more = apply_quarantine(state)
        kube_events.extend(more)
        state, more = reject_at_limit(state, self._inputs.mounts.get().at_limit)
        kube_events.extend(more)
        facts = self._facts()
        if state.has_readmissible:
            state = readmit(state, facts, self._clock.monotonic(), wall)
        state, more = settle(state, facts, self._clock.monotonic(), wall)
        kube_events.extend(more)
        if any(kube_event.reason == EVENT_PREEMPTING for kube_event in more):
            count_preemptions(self._state.entries, state.entries)
        if facts.node.allocatable and state.may_resize:
            entries, counted, more = settle_sizes(state.entries, state.counted, facts, wall)
            kube_events.extend(more)
            if more:
                count_resizes(state.entries, entries)
            state = replace(state, entries=entries, counted=counted)
        if resized:
            time_deferred_resizes(resized, state.entries, wall)
        self._state = state
        awaited = self._cells_awaited(state)
        if awaited:
            self._ask_for_node(state.node_asked_at)
        if awaited != self._awaited:
            self._awaited = awaited
            self._wakeup.set()  # it waits for other things now
        before = self._roster.get()
        now = roster_of(state, self._expected, before)
        if now is not before:
            self._roster.publish(now)
            _log_change(before, now)
        for kube_event in kube_events:
            self._recorder.post(kube_event)

    def _cells_awaited(self, state: RosterState) -> tuple[Cell[Any], ...]:
        inputs = self._inputs
        if state.has_readmissible or not (state.is_settled or state.awaits_only_placement):
            cells = (inputs.node, inputs.runtime, inputs.observed, inputs.lifecycles, inputs.shutdown, inputs.pressure)
            return *cells, inputs.placements
        return () if state.is_settled else (inputs.placements,)

    def _ask_for_node(self, at: float | None) -> None:
        if at is not None and at != self._asked_at:
            self._asked_at = at
            self._inputs.node_wanted.post(NodeWanted())

    def _facts(self) -> AdmissionFacts:
        inputs = self._inputs
        return AdmissionFacts(
            inputs.node.get(),
            inputs.runtime.get(),
            inputs.observed.get(),
            inputs.lifecycles.get(),
            self._rules,
            shutting_down=inputs.shutdown.get().active,
            pressure=inputs.pressure.get(),
            placements=inputs.placements.get(),
        )


def _log_change(before: Roster, now: Roster) -> None:
    for uid in changed_keys(before.pods, now.pods):
        old, item = before.pods.get(uid), now.pods.get(uid)
        if old is None and item is not None:
            log.info("pod is desired", pod=pod_ref(item.pod), uid=uid, source=item.source)
            if item.rejection is None:
                count_admission(item.pod)
        if old is not None and item is None:
            log.debug("pod is no longer desired", pod=pod_ref(old.pod), uid=uid)
        if item is not None and item.rejection is not None and (old is None or old.rejection is None):
            count_rejection(item.rejection.reason)
            why = item.rejection
            log.warning("pod is rejected", pod=pod_ref(item.pod), uid=uid, reason=why.reason, why=why.message)
    if now.sources_ready and not before.sources_ready:
        log.info("all sources have reported", pods=len(now.pods))
