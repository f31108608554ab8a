"""The prober's loop: runs the probe workers of all pods with one timer, and publishes the results.

Owns: the cell `ProbeResults`, the workers and their `Diagnostics`, the running probes. Reads: `Lifecycles` (the pods and their
probes), `Observed` (the running containers), `NodeView` (addresses of pods with hostNetwork), `Starts`. It restarts no container:
`act/pods` and `report/status` read the results.

Results are published once in each pass, and only if they have changed. Each probe runs in a task of its own, limited by
the bulkhead of its kind, so that one that hangs delays no other.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from pykubelet.base.kit.bulkhead import BulkheadSlot
from pykubelet.base.kit.cells import Cell, CellWriter, LazyCellWriter, Post, set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import WORK
from pykubelet.base.kit.log import DETAILS, Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, changed_keys, field, replace
from pykubelet.base.kit.yields import Yields
from pykubelet.base.model.diagnostics import Diagnostics, of_waits
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Starts
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.probes import ProbeKind, ProbeResults
from pykubelet.edges.probing.outcome import Outcome, errored
from pykubelet.observe.probes import decide
from pykubelet.observe.probes.decide import EarlierResults
from pykubelet.observe.probes.execute import Prober, ProbeRequest
from pykubelet.observe.probes.limiter import ProbeLimiter, ProbeLimits
from pykubelet.observe.probes.messages import probe_event
from pykubelet.observe.probes.metrics import FAILED, SUCCESSFUL, UNKNOWN
from pykubelet.observe.probes.plan_workers import ProbeId, address_of
from pykubelet.observe.probes.running import RunningProbe
from pykubelet.observe.probes.workers import AT_WORK_S, ProbeRecord, ProbeWorkers

log = Log("probes")
#: So many probes begin before other tasks go on: each may have thousands of headers.
BEGUN_AT_ONCE = 16


class ProbeInputs(Value):
    """The cells that the loop reads, and the results from before the agent's start.

    `inherits`: rule 7 of `decide`; otherwise all containers begin without results (gate ChangeContainerStatusOnKubeletRestart).
    """

    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]
    node: Cell[NodeView]
    starts: Cell[Starts]
    remembered: Mapping[ContainerID, EarlierResults] = field(default_factory=dict)
    inherits: bool = True


class ProbesLoop:
    """The prober. `run` never returns. `fraction`: returns random numbers in [0, 1)."""

    def __init__(
        self,
        inputs: ProbeInputs,
        outputs: tuple[CellWriter[ProbeResults], LazyCellWriter[Diagnostics]],
        prober: Prober,
        clock: Clock,
        recorder: Post[KubeEvent],
        limits: ProbeLimits | None = None,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        self._inputs = inputs
        self._results, diagnostics = outputs
        self._prober = prober
        self._clock = clock
        self._recorder = recorder
        self._limits = limits or ProbeLimits()
        self._limiter = ProbeLimiter(self._limits)
        self._workers = ProbeWorkers(inputs.remembered, inputs.inherits, clock.monotonic(), fraction)
        self._followed: tuple[Mapping[PodUID, PodLifecycle], Observed] = {}, Observed()
        self._wake = asyncio.Event()
        self._due = DueTimes[ProbeId](self._wake)
        self._supervisor = Supervisor("probes")
        diagnostics.answer_with(self._diagnostics)
        found, assumed = self._workers.results(Observed())
        self._results.publish(
            ProbeResults(found, frozenset(ProbeKind), learning=True, assumed=assumed, keeps=inputs.inherits)
        )

    async def run(self) -> None:
        """Follow the cells, run due probes, publish results. Never returns."""
        async with self._supervisor as supervisor:
            with set_on_change(self._wake, self._inputs.lifecycles, self._inputs.observed):
                supervisor.start_root("probes-loop", self._follow())
                raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            now = self._clock.monotonic()
            self._follow_cells(now)
            self._enter_armed()
            await self._start_due(now)
            self._publish()
            self._arm(now)

    # Following the snapshots

    def _follow_cells(self, now: float) -> None:
        observed, lifecycles = self._inputs.observed.get(), self._inputs.lifecycles.get().pods
        lifecycles_before, before = self._followed
        if observed.listed_at is None or (lifecycles_before is lifecycles and before is observed):
            return
        self._followed = lifecycles, observed
        wall = self._clock.wall()
        self._workers.inherit(observed, now, wall)
        changed = [*changed_keys(lifecycles_before, lifecycles), *changed_keys(before.pods, observed.pods)]
        for uid in dict.fromkeys(changed):
            lifecycle, view = lifecycles.get(uid), observed.pods.get(uid)
            if lifecycle is None:
                self._forget(self._workers.drop_pod(uid))
                continue
            with WORK.on(uid):
                started, stopped = self._workers.update_pod(lifecycle, view, now, wall)
            self._forget(stopped)
            for record in started:
                if record.is_exec:
                    self._limiter.add(record.id, record.worker.terms.period_s)
        if changed:
            is_starting = self._inputs.starts.get().any_long(wall, AT_WORK_S)
            self._limiter.pods_changed(now, at_work=is_starting or self._workers.ends_pods(now))
        self._workers.remember(observed)

    def _forget(self, stopped: Iterable[ProbeRecord]) -> None:
        for record in stopped:
            self._limiter.forget(record.id)
            record.metrics.forget()

    def _enter_armed(self) -> None:
        """Add the times of newly armed workers to the due times."""
        for at, probe_id in self._workers.armed:
            self._due.add(at, probe_id)
        self._workers.armed.clear()

    def _arm(self, now: float) -> None:
        """Set the timer, including newly armed workers."""
        self._enter_armed()
        self._due.arm(now)

    # Probing

    async def _start_due(self, now: float) -> None:
        begun = Yields(BEGUN_AT_ONCE)
        for probe_id in self._due.take(now + decide.EARLY_S):
            record = self._workers.find(probe_id)
            if record is None:
                continue
            if decide.is_due(record.worker, now):
                self._start(record)
                await begun.done()

    def _start(self, record: ProbeRecord) -> None:
        pod, worker, probe_id = self._workers.pod(record.id.uid), record.worker, record.id
        assert worker.container is not None
        address = address_of(pod.lifecycle, pod.view, self._inputs.node.get().ips)
        timeout_s = worker.timeout_s
        request = ProbeRequest(pod.lifecycle.ref, record.container, record.probe, worker.container, address, timeout_s)
        record.worker = decide.start(worker)
        slot = self._limiter.slot(probe_id, is_exec=record.is_exec, is_first=worker.last is None)
        task = self._supervisor.start_child(
            f"probe-{probe_id.kind}",
            self._probe(record, request, slot),
            lambda error: self._crashed(record, request, error),
        )
        record.running = RunningProbe(worker.container, timeout_s, slot.waits_at_most_s, task.cancel)

    async def _probe(self, record: ProbeRecord, request: ProbeRequest, slot: BulkheadSlot) -> None:
        is_exec = record.is_exec
        async with slot:
            began = self._clock.monotonic()
            record.worker = decide.begin(record.worker, began)
            request = replace(request, timeout_s=record.worker.timeout_s)
            if is_exec:
                assert record.running is not None
                record.running.began_at = began
            outcome = await self._prober.probe(request)
        now = self._clock.monotonic()
        if is_exec:
            outcome = self._limiter.judge(record.id, outcome, now - began, request.timeout_s, now)
        self._take_outcome(record, request, outcome, now - began)

    def _crashed(self, record: ProbeRecord, request: ProbeRequest, error: BaseException) -> None:
        """Handle an unexpected exception in a prober as a probe without an outcome."""
        self._take_outcome(record, request, errored(f"internal error: {error!r}"), 0.0)

    def _take_outcome(self, record: ProbeRecord, request: ProbeRequest, outcome: Outcome, took_s: float) -> None:
        running = record.running
        if running is None or running.container != request.id:
            return
        record.running = None
        now, before, probe_id = self._clock.monotonic(), record.worker, record.id
        after = decide.take_outcome(before, request.id, outcome, now)
        self._workers.set_worker(record, after)
        if decide.counts(outcome):
            record.metrics.count(SUCCESSFUL if decide.is_pass(outcome) else FAILED, took_s)
        elif outcome.error:
            record.metrics.count(UNKNOWN, took_s)
        lifecycle = self._workers.pod(probe_id.uid).lifecycle
        event = probe_event(probe_id.kind, outcome, lifecycle, probe_id.container)
        if event is not None and not decide.is_ignored(before, outcome):
            self._recorder.post(event)
        if after.result is not before.result:
            log.at(
                0 if record.lines.take(now) else DETAILS,
                "a probe result changed",
                pod=lifecycle.ref,
                container=probe_id.container,
                probe=probe_id.kind,
                result=after.result,
                cause=outcome.output[:200] or None,
            )
        if probe_id.kind is ProbeKind.STARTUP and (after.result, after.assumed) != (before.result, before.assumed):
            self._workers.observe(probe_id.uid, probe_id.container, now)  # the other probes wait for it
        self._reschedule(now)

    def _reschedule(self, now: float) -> None:
        """Run a pass at once if there is something to publish, else set the timer."""
        if self._workers.results_changed:
            self._wake.set()
        else:
            self._arm(now)

    # Publishing

    def _publish(self) -> None:
        if not self._workers.results_changed:
            return
        self._workers.results_changed = False
        results, assumed = self._workers.results(self._inputs.observed.get())
        published = self._results.get()
        news = replace(published, results=results, learning=self._workers.is_learning, assumed=assumed)
        if news != published:
            self._results.publish(news)

    def _diagnostics(self) -> Diagnostics:
        """The waits of pods for their probes, with the last message of failing probes."""
        return of_waits(self._workers.waits(self._clock.monotonic(), self._clock.wall(), self._limits.answer_s))


K = TypeVar("K")


class DueTimes(Generic[K]):
    """Times with keys. `due` is set when the earliest has come. Times are monotonic seconds. A key may have several times."""

    def __init__(self, due: asyncio.Event) -> None:
        self._due = due
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def add(self, at: float, key: K) -> None:
        """Add a time for `key`. `arm` must be called afterwards."""
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def take(self, until: float) -> Iterator[K]:
        """The keys that are due by `until`, earliest first, including those that are added meanwhile."""
        while self._heap and self._heap[0][0] <= until:
            yield heapq.heappop(self._heap)[2]

    def arm(self, now: float) -> None:
        """Set the timer for the earliest time, unless it fires early enough."""
        if not self._heap:
            return
        at = self._heap[0][0]
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._due.set()
