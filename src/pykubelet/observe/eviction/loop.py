"""The eviction manager: measures the node, publishes its pressure, and evicts pods before a resource runs out.

Owns: `EvictionState`, and the cells `NodePressure`, `Evictions` and `SignalStates`. Reads: `Roster`, `Lifecycles`, `Usage`,
`Reclaimed`. Every 10 s it measures only the node, which means reading a few small files. Pods are measured only when one must be
evicted. In between it reads memory, more often when less is left, so that a fast leak is noticed before the kernel's OOM killer
acts. One pod is evicted at a time. In addition, every pod that exceeds a limit of local storage is evicted. What is decided is in
`decide*.py`, `rank.py`, `signals.py` and `limits.py`; the loop measures, waits, publishes and asks for what is decided on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pykubelet.base.kit.cells import Cell, CellWriter, Post, within
from pykubelet.base.kit.clock import Clock, moment_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.evictions import (
    EVICTION_SIGNALS,
    Evictions,
    NodePressure,
    Reclaimed,
    ReclaimWanted,
    SignalStates,
    node_pressure,
)
from pykubelet.base.model.ids import PodUID, pods_of
from pykubelet.base.model.kube_events import EventType, KubeEvent, warning
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.reasons import EVENT_EVICTION_THRESHOLD_MET, EVICTED
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.usage import Usage, UsageWanted
from pykubelet.config.eviction import Threshold
from pykubelet.observe.eviction.decide import assess, is_relieved, signal_states, still_short
from pykubelet.observe.eviction.decide_evictions import (
    END_WAIT_S,
    Decision,
    PodsSeen,
    evict_for,
    evict_over_limits,
    evictions_of,
    has_ended,
    is_ending,
    layers_are_older,
    without_gone,
)
from pykubelet.observe.eviction.decide_memory import MEMORY_SIGNALS, crossings, hard_memory, pause_s
from pykubelet.observe.eviction.limits import has_storage_limits
from pykubelet.observe.eviction.messages import reclaim_message
from pykubelet.observe.eviction.meter import NodeMeter
from pykubelet.observe.eviction.metrics import EVICTIONS, STATS_AGE
from pykubelet.observe.eviction.model import (
    Assessment,
    EvictionPeriods,
    EvictionSettings,
    EvictionState,
    FsLayout,
    Observations,
    Reclaim,
)
from pykubelet.observe.eviction.signals import SIGNAL_RULES, SignalRules, observe, stalls_since
from pykubelet.observe.eviction.thresholds import met_thresholds, node_thresholds

log = Log("eviction")
LAYOUT_PERIOD_S = 300.0
USAGE_DEADLINE_S = 12.0
#: How long the removal of images and containers may take before a pod is evicted, and the pause between checks.
RECLAIM_DEADLINE_S, RECLAIM_PAUSE_S = 60.0, 0.2
#: Container runtimes measure writable layers every 10 s.
LAYERS_WAIT_S, LAYERS_PAUSE_S = 12.0, 4.0


class EvictionInputs(Value):
    """The cells that the manager reads, and the mailboxes of its requests. `reclaims`: for each kind, the mailbox and the answer."""

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    usage: Cell[Usage]
    usage_wanted: Post[UsageWanted]
    reclaims: dict[Reclaim, tuple[Post[ReclaimWanted], Cell[Reclaimed]]]


class EvictionOutputs(Value):
    """The cells that the manager writes, and the mailbox of its Events."""

    pressure: CellWriter[NodePressure]
    evictions: CellWriter[Evictions]
    signals: CellWriter[SignalStates]
    recorder: Post[KubeEvent]


class EvictionLoop:
    """`run` never returns."""

    def __init__(
        self,
        inputs: EvictionInputs,
        outputs: EvictionOutputs,
        settings: EvictionSettings,
        meter: NodeMeter,
        clock: Clock,
        periods: EvictionPeriods | None = None,
    ) -> None:
        self._periods = periods or EvictionPeriods()
        self._inputs = inputs
        self._outputs = outputs
        self._settings = settings
        self._meter = meter
        self._clock = clock
        self._state = EvictionState()
        self._memory_low = asyncio.Event()

    async def run(self) -> None:
        """Measure and evict until a root task fails, and raise its error."""
        async with Supervisor("eviction") as supervisor:
            supervisor.start_root("eviction-passes", self._pass_forever())
            supervisor.start_root("eviction-memory", self._follow_memory())
            if self._settings.isolates_storage:
                supervisor.start_root("eviction-limits", self._keep_to_limits())
            raise await supervisor.wait_failed()

    async def _pass_forever(self) -> None:
        while True:
            self._memory_low.clear()
            victim = await self._pass()
            if victim is not None:
                await self._wait_ended(victim)
                # the stalls until now were the evicted pod's, and no other pod is evicted for them
                stalls = await self._meter.stalls()
                self._state = replace(self._state, stalls_before=stalls)
                continue
            await within(self._periods.pass_s, self._memory_low.wait())

    async def _pass(self) -> PodUID | None:
        """Measure the node once and act on the first actionable threshold. Returns the pod that was evicted."""
        roster, lifecycles = self._inputs.roster, self._inputs.lifecycles
        self._take(Decision(without_gone(self._state, {*roster.get().pods, *lifecycles.get().pods})))
        if self._clock.monotonic() - self._state.file_systems.read_at >= LAYOUT_PERIOD_S:
            found_at = await self._meter.file_systems()
            self._state = replace(self._state, file_systems=found_at or self._state.file_systems)
        if self._state.file_systems.layout is FsLayout.SPLIT and not self._settings.separates_disks:
            log.error("KubeletSeparateDiskGC is turned off but we still have a split filesystem")
            return None
        before, observations = self._state.observations, await self._observe()
        now, transition_s = self._clock.monotonic(), self._settings.transition_s
        found = assess(self._state, self._thresholds(), observations, now, transition_s)
        self._state, due = found.state, found.actionable
        self._publish(found, before)
        if not due or is_ending(self._state, due[0], lifecycles.get(), self._clock.monotonic()):
            return None
        if due[0].signal not in MEMORY_SIGNALS and (over := await self._end_pods_over_limits()):
            return over
        return await self._relieve(due, observations)

    def _thresholds(self) -> tuple[Threshold, ...]:
        settings, layout = self._settings, self._state.file_systems.layout
        return node_thresholds(settings.thresholds, enforces_pods=settings.enforces_pods, layout=layout)

    async def _observe(self) -> Observations:
        """Measure the node, without the stalls of pods that were evicted."""
        measures = await self._meter.node(self._state.file_systems)
        before = self._state.stalls_before
        return observe(stalls_since(before, measures) if before is not None else measures)

    async def _follow_memory(self) -> None:
        """Start a pass as soon as a hard threshold of memory is crossed."""
        crossed = asyncio.Event()
        was_met = False
        while True:
            crossed.clear()
            hard = hard_memory(self._thresholds())
            if not hard:
                await asyncio.sleep(self._periods.pass_s)
                continue
            measures = await self._meter.memory()
            observations = observe(measures) if measures is not None else {}
            is_met = bool(met_thresholds(hard, observations))
            if is_met and not was_met:
                self._memory_low.set()
            was_met = is_met
            pause = pause_s(hard, observations, self._periods, is_met=is_met)
            if measures is not None and self._meter.notify_of_memory(crossings(hard, measures), crossed):
                pause = self._periods.pass_s
            await within(pause, crossed.wait())

    # Acting

    async def _relieve(self, due: Sequence[Threshold], observations: Observations) -> PodUID | None:
        threshold, layout = due[0], self._state.file_systems.layout
        signal, rules = EVICTION_SIGNALS[threshold.signal], SIGNAL_RULES[threshold.signal]
        log.warning("an eviction threshold is met", signal=signal.name, available=observations[signal.name].available)
        self._outputs.recorder.post(warning(EVENT_EVICTION_THRESHOLD_MET, reclaim_message(signal.resource)))
        reclaims = rules.reclaims.get(layout, ())
        for kind in reclaims:
            await self._reclaim(kind)
        if reclaims and is_relieved(self._thresholds(), await self._observe()):
            log.info("enough was reclaimed; no pod is evicted", signal=signal.name)
            return None
        since = self._clock.wall() - (self._clock.monotonic() - self._state.met_since[threshold])
        usage = await self._measure_pods(rules, since)
        if usage is None:
            return None
        self._state = still_short(self._state, signal.condition, self._clock.monotonic())
        for met in due:
            STATS_AGE.observe(max(0.0, self._clock.wall() - observations[met.signal].at), met.signal)
        pods, settings = self._pods(usage), self._settings
        return self._take(evict_for(self._state, due, observations, pods, settings, moment_of(self._clock)))

    async def _reclaim(self, kind: Reclaim) -> None:
        """Reclaim and wait for the result, but not when memory becomes low or `RECLAIM_DEADLINE_S` has passed."""
        if kind not in self._inputs.reclaims:
            return
        wanted, answer = self._inputs.reclaims[kind]
        at = self._clock.monotonic()
        wanted.post(ReclaimWanted(at))
        while answer.get().at < at:
            if self._memory_low.is_set() or self._clock.monotonic() - at > RECLAIM_DEADLINE_S:
                log.warning("reclaiming takes long, and is not waited for", what=kind)
                return
            await _wait_change(answer, RECLAIM_PAUSE_S)
        if error := answer.get().error:
            log.warning("not everything could be reclaimed", what=kind, error=error)

    async def _measure_pods(self, rules: SignalRules, since: float) -> Usage | None:
        """Measure all pods now. If writable layers count, wait for values from after `since` (wall seconds): the runtime measures
        them seldom, so that older values may not show which pod has just filled the disk."""
        has_layers = rules.counts_layers(self._state.file_systems.layout)
        until = self._clock.monotonic() + LAYERS_WAIT_S
        while True:
            usage = await self._newest_usage(with_files=rules.needs_files, with_new_files=rules.needs_files)
            if usage is None or not has_layers or not layers_are_older(usage, since):
                return usage
            if self._clock.monotonic() >= until:
                return usage
            await asyncio.sleep(LAYERS_PAUSE_S)

    async def _newest_usage(self, *, with_files: bool, with_new_files: bool) -> Usage | None:
        at = self._clock.monotonic()
        self._inputs.usage_wanted.post(UsageWanted(at, with_files, with_new_files=with_new_files))
        try:
            async with asyncio.timeout(USAGE_DEADLINE_S):
                usage = await self._inputs.usage.wait_for(
                    lambda usage: usage.taken_at is not None and usage.taken_at >= at
                )
        except TimeoutError:
            log.warning("no pod is evicted, because pods cannot be measured")
            return None
        if usage.error:
            log.warning("no pod is evicted, because pods cannot be measured", error=usage.error)
            return None
        return usage

    async def _keep_to_limits(self) -> None:
        """Check the limits of local storage periodically. Separate from the passes, so that it never delays memory evictions."""
        while True:
            await self._end_pods_over_limits()
            await asyncio.sleep(self._periods.pass_s)

    async def _end_pods_over_limits(self) -> PodUID | None:
        """Evict every pod that exceeds a limit of local storage. Returns the first of them.

        The sizes are those of the last walk over each pod's files, which `observe/stats` makes in its own threads. Nothing is
        measured while no pod has such a limit.
        """
        limited = any(has_storage_limits(lifecycle.pod) for lifecycle in self._inputs.lifecycles.get().pods.values())
        if not self._settings.isolates_storage or not limited:
            return None
        usage = await self._newest_usage(with_files=True, with_new_files=False)
        if usage is None:
            return None
        return self._take(evict_over_limits(self._state, self._pods(usage), self._settings, moment_of(self._clock)))

    async def _wait_ended(self, uid: PodUID) -> None:
        if not await within(END_WAIT_S, self._inputs.lifecycles.entry(pods_of, uid).wait_for(has_ended)):
            log.warning("an evicted pod has not ended yet", uid=uid)

    def _pods(self, usage: Usage) -> PodsSeen:
        return PodsSeen(self._inputs.roster.get(), self._inputs.lifecycles.get(), usage)

    # Publishing

    def _take(self, decision: Decision) -> PodUID | None:
        """Make the state that of the decision, and log and publish what it changes. Returns the first pod that is evicted."""
        outputs, before, self._state = self._outputs, self._state, decision.state
        for note in decision.notes:
            log.note(note)
        for order in decision.orders:
            message, ref = order.eviction.message, order.eviction.ref
            outputs.recorder.post(KubeEvent(EventType.WARNING, EVICTED, message, ref, annotations=order.annotations))
            EVICTIONS.inc(order.signal)
        if self._state.evicted is not before.evicted:
            outputs.evictions.publish(evictions_of(self._state))
        if self._state.would_evict is not before.would_evict:
            shown = replace(outputs.signals.get(), would_evict=self._state.would_evict)
            outputs.signals.publish(shown, wake_readers=False)
        return decision.first

    def _publish(self, found: Assessment, before: Observations) -> None:
        """Publish what a pass has found. `before`: the observations of the pass before it."""
        outputs, pressure, now = self._outputs, node_pressure(found.conditions), moment_of(self._clock)
        if pressure != outputs.pressure.get():
            log.warning("the pressure on the node has changed", conditions=[str(kind) for kind in found.conditions])
            outputs.pressure.publish(pressure)
        states = signal_states(self._thresholds(), before, found.state, now.wall - now.mono)
        layout, would_evict = self._state.file_systems.layout, self._state.would_evict
        shown = SignalStates(now.wall, states, layout, self._settings.dry_run, would_evict)
        outputs.signals.publish(shown, wake_readers=False)


async def _wait_change(cell: Cell[Reclaimed], longest_s: float) -> None:
    before = cell.get()
    await within(longest_s, cell.wait_for(lambda now: now is not before))
