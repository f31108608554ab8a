"""The eviction manager: measures the node, publishes its pressure, and evicts pods before a resource runs out.

Owns: the cells `NodePressure`, `Evictions` and `SignalStates`. Reads: `Roster`, `Lifecycles`, `Usage`, `Reclaimed`. Every
10 s it measures only the node, which means reading a few small files. Pods are measured only when one must be evicted. In
between it reads memory, more often when less is left, so that a fast leak is noticed before the kernel's OOM killer acts.
One pod is evicted at a time. In addition, every pod that exceeds a limit of local storage is evicted. `decide.py`,
`rank.py`, `signals.py` and `limits.py` have the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from pykubelet.base.kit.cells import Cell, CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.evictions import Evictions, PodEviction, SignalStates, WouldEvict
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import EventType, KubeEvent, warning
from pykubelet.base.model.lifecycle import Lifecycles, Stage
from pykubelet.base.model.pressure import NodePressure, node_pressure
from pykubelet.base.model.reasons import EVENT_EVICTION_THRESHOLD_MET, EVICTED
from pykubelet.base.model.reclaim import Reclaimed, ReclaimWanted
from pykubelet.base.model.roster import Roster, is_critical, pod_ref
from pykubelet.base.model.signals import EVICTION_SIGNALS
from pykubelet.base.model.usage import FileSystemUse, Usage, UsageWanted
from pykubelet.config.eviction import Threshold
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.observe.eviction.decide import (
    assess,
    candidates_of,
    eviction_grace_s,
    headroom,
    is_relieved,
    layers_are_older,
    look_after_s,
    signal_states,
    still_short,
)
from pykubelet.observe.eviction.limits import excesses, has_storage_limits
from pykubelet.observe.eviction.messages import Annotations, eviction_message, reclaim_message
from pykubelet.observe.eviction.metrics import EVICTIONS, STATS_AGE
from pykubelet.observe.eviction.model import (
    IMMEDIATE_GRACE_S,
    Assessment,
    Candidate,
    EvictionPeriods,
    EvictionSettings,
    EvictionState,
    FsLayout,
    NodeMeasures,
    Observations,
    Reclaim,
)
from pykubelet.observe.eviction.read import NodeSources, read_layout, read_memory, read_processes
from pykubelet.observe.eviction.signals import SIGNAL_RULES, SignalRules, observe, stalls_since
from pykubelet.observe.eviction.thresholds import (
    ALLOCATABLE_MEMORY,
    MEMORY,
    limit_amount,
    met_thresholds,
    node_thresholds,
)

T = TypeVar("T")
log = Log("eviction")
LAYOUT_PERIOD_S = 300.0
READ_DEADLINE_S = 5.0
USAGE_DEADLINE_S = 12.0
#: How long the removal of images and containers may take before a pod is evicted, and the pause between checks.
RECLAIM_DEADLINE_S, RECLAIM_PAUSE_S = 60.0, 0.2
#: How long the manager waits for the end of an evicted pod before it measures the node again.
END_WAIT_S = 30.0
#: Container runtimes measure writable layers every 10 s.
LAYERS_WAIT_S, LAYERS_PAUSE_S = 12.0, 4.0
SHOWN_DRY_RUNS = 20
_MEMORY_SIGNALS = (MEMORY, ALLOCATABLE_MEMORY)


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


class _FileSystems(Value):
    """Where the runtime keeps images and writable layers. `read_at`: monotonic seconds."""

    images: str = ""
    containers: str = ""
    layout: FsLayout = FsLayout.SHARED
    read_at: float = float("-inf")


class EvictionLoop:
    """`run` never returns."""

    def __init__(
        self,
        inputs: EvictionInputs,
        outputs: EvictionOutputs,
        settings: EvictionSettings,
        sources: NodeSources,
        cri: CriClient,
        flight: SingleFlight,
        clock: Clock,
        periods: EvictionPeriods | None = None,
    ) -> None:
        self._periods = periods or EvictionPeriods()
        self._inputs = inputs
        self._outputs = outputs
        self._settings = settings
        self._sources = sources
        self._cri = cri
        self._flight = flight
        self._clock = clock
        self._state = EvictionState()
        self._file_systems = _FileSystems()
        self._observations: Observations = {}
        self._ending: dict[PodUID, float] = {}
        self._last_end: NodeMeasures | None = None
        self._memory_low = asyncio.Event()
        groups = {MEMORY: sources.memory_root, ALLOCATABLE_MEMORY: sources.pods_root} if sources.with_notifiers else {}
        self._notifiers = {signal: sources.reader.memory_notifier(path) for signal, path in groups.items()}

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
            victim = await self.run_pass()
            if victim is not None:
                await self._wait_ended(victim)
                await self._mark_stalls()
                continue
            try:
                async with asyncio.timeout(self._periods.pass_s):
                    await self._memory_low.wait()
            except TimeoutError:
                continue

    async def run_pass(self) -> PodUID | None:
        """Measure the node once and act on the first actionable threshold. Returns the pod that was evicted."""
        self._forget_ended()
        await self._find_file_systems()
        if self._file_systems.layout is FsLayout.SPLIT and not self._settings.separates_disks:
            log.error("KubeletSeparateDiskGC is turned off but we still have a split filesystem")
            return None
        observations = observe(await self._measure())
        found = assess(
            self._state, self._thresholds(), observations, self._clock.monotonic(), self._settings.transition_s
        )
        self._state = found.state
        self._publish(found, observations)
        if not found.actionable or self._is_ending(found.actionable[0]):
            return None
        if found.actionable[0].signal not in _MEMORY_SIGNALS and (over := await self._end_pods_over_limits()):
            return over
        return await self._relieve(found.actionable, observations)

    # Measuring

    def _thresholds(self) -> tuple[Threshold, ...]:
        settings, layout = self._settings, self._file_systems.layout
        return node_thresholds(settings.thresholds, enforces_pods=settings.enforces_pods, layout=layout)

    async def _find_file_systems(self) -> None:
        """Find the file systems of images and writable layers; repeated every `LAYOUT_PERIOD_S`."""
        now = self._clock.monotonic()
        if now - self._file_systems.read_at < LAYOUT_PERIOD_S:
            return
        try:
            info = await self._cri.image_fs_info()
        except CriError as error:
            log.debug("the runtime does not report where its images are", error=error)
            return
        images = next((one.fs_id.mountpoint for one in info.image_filesystems), "")
        containers = next((one.fs_id.mountpoint for one in info.container_filesystems), images)
        root = self._sources.root_dir
        if not images:
            return
        layout = await self._read("layout", lambda: read_layout(root, images, containers))
        if layout is not None:
            self._file_systems = _FileSystems(images, containers, layout, now)

    async def _measure(self) -> NodeMeasures:
        """Measure the node. Each part runs in its own thread, so that a disk that hangs does not delay the others."""
        at, sources, places = self._clock.wall(), self._sources, self._file_systems
        memory, processes, node_fs, image_fs, container_fs = await asyncio.gather(
            self._read("memory", lambda: read_memory(sources, at)),
            self._read("processes", lambda: read_processes(sources, at)),
            self._read_fs(sources.root_dir, at),
            self._read_fs(places.images, at),
            self._read_fs(places.containers, at) if places.containers != places.images else _nothing(),
        )
        measures = processes or NodeMeasures(at)
        if self._last_end is not None:
            measures = stalls_since(self._last_end, measures)
        if memory is not None:
            measures = replace(measures, memory=memory.memory, memory_capacity=memory.memory_capacity, pods=memory.pods)
        return replace(measures, node_fs=node_fs, image_fs=image_fs, container_fs=container_fs or image_fs)

    async def _mark_stalls(self) -> None:
        """Remember the stalls until now: they were the evicted pod's, and no other pod is evicted for them."""
        if self._sources.with_stalls:
            at, sources = self._clock.wall(), self._sources
            self._last_end = await self._read("stalls", lambda: read_processes(sources, at))

    async def _read_fs(self, path: str, at: float) -> FileSystemUse | None:
        return await self._read(f"fs:{path}", partial(self._sources.measure_fs, path, at)) if path else None

    async def _read(self, key: str, work: Callable[[], T]) -> T | None:
        outcome = await self._flight.run(f"eviction-{key}", work, READ_DEADLINE_S)
        if isinstance(outcome, Done):
            return outcome.value
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        log.warning("a part of the node cannot be measured", part=key)
        return None

    # Memory between the passes

    async def _follow_memory(self) -> None:
        """Start a pass as soon as a hard threshold of memory is crossed."""
        crossed = asyncio.Event()
        was_met = False
        while True:
            crossed.clear()
            hard = [one for one in self._thresholds() if one.signal in _MEMORY_SIGNALS and not one.is_soft]
            if not hard:
                await asyncio.sleep(self._periods.pass_s)
                continue
            at, sources = self._clock.wall(), self._sources
            measures = await self._read("memory-alone", partial(read_memory, sources, at))
            observations = observe(measures) if measures is not None else {}
            is_met = bool(met_thresholds(hard, observations))
            if is_met and not was_met:
                self._memory_low.set()
            was_met = is_met
            pause = self._pause_s(hard, observations, is_met=is_met)
            if measures is not None and self._arm(hard, measures, crossed):
                pause = self._periods.pass_s
            try:
                async with asyncio.timeout(pause):
                    await crossed.wait()
            except TimeoutError:
                continue

    def _pause_s(self, hard: Sequence[Threshold], observations: Observations, *, is_met: bool) -> float:
        if is_met:
            return 1.0
        spare = [headroom(hard, observations, signal) for signal in _MEMORY_SIGNALS]
        return min(look_after_s(one, self._periods.memory_s, self._periods.pass_s) for one in spare)

    def _arm(self, hard: Sequence[Threshold], measures: NodeMeasures, crossed: asyncio.Event) -> bool:
        """Request notifications from the kernel; False if it does not support them."""
        armed = True
        for signal, memory, capacity in (
            (MEMORY, measures.memory, measures.memory_capacity),
            (ALLOCATABLE_MEMORY, measures.pods, measures.pods.limit if measures.pods is not None else None),
        ):
            limits = [limit_amount(one.limit, capacity).value() for one in hard if capacity and one.signal == signal]
            notifier = self._notifiers.get(signal)
            if memory is None or capacity is None or not limits:
                continue
            if notifier is None:
                armed = False
                continue
            try:
                notifier.arm(capacity - max(limits) + memory.usage - memory.working_set, crossed)
            except HostError as error:
                log.warning("the kernel does not notify of memory", signal=signal, error=error)
                armed = False
        return armed

    # Acting

    async def _relieve(self, due: Sequence[Threshold], observations: Observations) -> PodUID | None:
        threshold = due[0]
        signal, rules, layout = (
            EVICTION_SIGNALS[threshold.signal],
            SIGNAL_RULES[threshold.signal],
            self._file_systems.layout,
        )
        log.warning("an eviction threshold is met", signal=signal.name, available=observations[signal.name].available)
        self._outputs.recorder.post(warning(EVENT_EVICTION_THRESHOLD_MET, reclaim_message(signal.resource)))
        reclaims = rules.reclaims.get(layout, ())
        for kind in reclaims:
            await self._reclaim(kind)
        if reclaims and is_relieved(self._thresholds(), observe(await self._measure())):
            log.info("enough was reclaimed; no pod is evicted", signal=signal.name)
            return None
        since = self._clock.wall() - (self._clock.monotonic() - self._state.met_since[threshold])
        usage = await self._measure_pods(rules, since)
        if usage is None:
            return None
        self._state = still_short(self._state, signal.condition, self._clock.monotonic())
        for met in due:
            STATS_AGE.observe(max(0.0, self._clock.wall() - observations[met.signal].at), met.signal)
        evicted = self._outputs.evictions.get().pods
        here = candidates_of(self._inputs.roster.get(), self._inputs.lifecycles.get(), usage, evicted)
        for one in sorted(here, key=lambda one: rules.rank(one, layout)):
            if is_critical(one.pod):
                log.info("a critical pod is not evicted", pod=pod_ref(one.pod), signal=signal.name)
                continue
            return self._evict(one, due, observations)
        log.warning("no pod can be evicted", signal=signal.name)
        return None

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
        has_layers = rules.counts_layers(self._file_systems.layout)
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

    def _evict(self, victim: Candidate, due: Sequence[Threshold], observations: Observations) -> PodUID | None:
        settings, ref, threshold = self._settings, pod_ref(victim.pod), due[0]
        message, annotations = eviction_message(
            threshold, due, observations, (victim.pod, victim.use), pod_level=settings.pod_level_resources
        )
        grace_s = eviction_grace_s(threshold, victim.pod, settings.max_pod_grace_s)
        eviction = PodEviction(ref, EVICTED, message, grace_s)
        return ref.uid if self._order(eviction, threshold.signal, annotations) else None

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
        limited = any(has_storage_limits(one.pod) for one in self._inputs.lifecycles.get().pods.values())
        if not self._settings.isolates_storage or not limited:
            return None
        usage = await self._newest_usage(with_files=True, with_new_files=False)
        if usage is None:
            return None
        evicted = self._outputs.evictions.get().pods
        here = candidates_of(self._inputs.roster.get(), self._inputs.lifecycles.get(), usage, evicted)
        ordered = []
        for one in excesses(here, self._file_systems.layout):
            eviction = PodEviction(pod_ref(one.pod), EVICTED, one.message, IMMEDIATE_GRACE_S, disrupts=False)
            if self._order(eviction, one.signal):
                ordered.append(eviction.ref.uid)
        return next(iter(ordered), None)

    def _order(self, eviction: PodEviction, signal: str, annotations: Annotations = ()) -> bool:
        """Order the eviction of a pod; False in a dry run."""
        outputs, ref, message = self._outputs, eviction.ref, eviction.message
        if self._settings.dry_run:
            self._note_dry_run(eviction, signal)
            return False
        log.warning("a pod is evicted", pod=ref, signal=signal, grace_s=eviction.grace_s, why=message)
        outputs.recorder.post(KubeEvent(EventType.WARNING, EVICTED, message, ref, annotations=annotations))
        EVICTIONS.inc(signal)
        self._ending[ref.uid] = self._clock.monotonic() + (eviction.grace_s or 0) + END_WAIT_S
        outputs.evictions.publish(Evictions({**outputs.evictions.get().pods, ref.uid: eviction}))
        return True

    def _note_dry_run(self, eviction: PodEviction, signal: str) -> None:
        shown = self._outputs.signals.get()
        if any(one.eviction.ref == eviction.ref and one.signal == signal for one in shown.would_evict):
            return
        log.warning("dry run: a pod would be evicted", pod=eviction.ref, signal=signal, why=eviction.message)
        would = (*shown.would_evict, WouldEvict(self._clock.wall(), eviction, signal))[-SHOWN_DRY_RUNS:]
        self._outputs.signals.publish(replace(shown, would_evict=would), wake_readers=False)

    # Evicted pods

    async def _wait_ended(self, uid: PodUID) -> None:
        try:
            async with asyncio.timeout(END_WAIT_S):
                await self._inputs.lifecycles.wait_for(lambda lifecycles: _has_ended(lifecycles, uid))
        except TimeoutError:
            log.warning("an evicted pod has not ended yet", uid=uid)

    def _is_ending(self, threshold: Threshold) -> bool:
        """Whether an evicted pod has not ended yet, so that no other pod is evicted before it has freed its resources.

        Thresholds of memory do not wait for pods that exceeded a limit of local storage.
        """
        now, lifecycles = self._clock.monotonic(), self._inputs.lifecycles.get()
        held = self._outputs.evictions.get().pods
        frees_any = threshold.signal not in _MEMORY_SIGNALS
        return any(
            now < until and not _has_ended(lifecycles, uid)
            for uid, until in self._ending.items()
            if frees_any or (uid in held and held[uid].disrupts)
        )

    def _forget_ended(self) -> None:
        """Forget evictions of pods that are gone from the node."""
        held = self._outputs.evictions.get().pods
        known = {*self._inputs.roster.get().pods, *self._inputs.lifecycles.get().pods}
        gone = [uid for uid in held if uid not in known]
        if gone:
            self._outputs.evictions.publish(Evictions({uid: one for uid, one in held.items() if uid in known}))
        for uid in [uid for uid in self._ending if uid not in known]:
            del self._ending[uid]

    def _publish(self, found: Assessment, observations: Observations) -> None:
        outputs, pressure = self._outputs, node_pressure(found.conditions)
        before = outputs.pressure.get()
        if pressure != before:
            log.warning("the pressure on the node has changed", conditions=[str(kind) for kind in found.conditions])
            outputs.pressure.publish(pressure)
        states = signal_states(
            self._thresholds(),
            observations,
            self._observations,
            found.state,
            self._clock.wall() - self._clock.monotonic(),
        )
        shown = SignalStates(
            self._clock.wall(),
            states,
            self._file_systems.layout,
            self._settings.dry_run,
            outputs.signals.get().would_evict,
        )
        outputs.signals.publish(shown, wake_readers=False)
        self._observations = observations


async def _wait_change(cell: Cell[Reclaimed], longest_s: float) -> None:
    before = cell.get()
    try:
        async with asyncio.timeout(longest_s):
            await cell.wait_for(lambda now: now is not before)
    except TimeoutError:
        return


def _has_ended(lifecycles: Lifecycles, uid: PodUID) -> bool:
    found = lifecycles.pods.get(uid)
    return found is None or found.stage is Stage.FINISHED


async def _nothing() -> None:
    return None
