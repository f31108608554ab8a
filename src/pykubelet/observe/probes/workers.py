"""The probe workers of all pods: one record for each pod, with one record for each probe. Pure.

Results of containers from before the agent's start are kept until a worker takes them over (rule 7 of `decide`), and those of a pod that
is dropped, in case it is followed again.

The methods update the records from snapshots, and collect the consequences for the loop: the times at which workers are
due, and whether results have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from pykubelet.base.api.core import Container, Probe
from pykubelet.base.api.times import wall_to_monotonic
from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.base.model.waits import Wait
from pykubelet.observe.probes import decide
from pykubelet.observe.probes.decide import EarlierResults, Worker, WorkerPhase, inherit_results, with_result
from pykubelet.observe.probes.execute import extension_of
from pykubelet.observe.probes.messages import has_wait, probe_wait
from pykubelet.observe.probes.metrics import ProbeMetrics
from pykubelet.observe.probes.plan_workers import (
    ContainerStarts,
    ProbeId,
    WorkerPlan,
    observation_of,
    plan_workers,
)
from pykubelet.observe.probes.running import RunningProbe, expected_end, lateness

#: For so long a sandbox or container that is being made, or a pod that is being ended since its last change, keeps commands
#: waiting: one that is stuck does not.
AT_WORK_S = 2.0
Results = dict[tuple[ContainerID, ProbeKind], ProbeResult]
Assumed = frozenset[tuple[ContainerID, ProbeKind]]


#: Changes of a probe's result that are logged at verbosity 0: so many at once, and one in so many seconds. Others are details.
LOGGED_AT_ONCE = 5
LOGGED_EVERY_S = 60.0


class ProbeRecord(Struct):
    """One probe of one container. `running`: the probe that is running or queued now. `lines`: bounds the changes that are logged."""

    id: ProbeId
    container: Container
    probe: Probe
    worker: Worker
    metrics: ProbeMetrics
    running: RunningProbe | None = None
    lines: TokenBucket = field(default_factory=lambda: TokenBucket(1 / LOGGED_EVERY_S, LOGGED_AT_ONCE))

    @property
    def is_exec(self) -> bool:
        """True for a command of the runtime."""
        return self.probe.exec is not None and extension_of(self.probe) is None

    def late(self, now: float, answer_s: float) -> bool:
        """True if a command is late."""
        return self.is_exec and lateness(self.worker, self.running, now, answer_s) is not None

    def wait(self, now: float, wall: float, answer_s: float) -> Wait:
        """The wait of the container for this probe."""
        late = lateness(self.worker, self.running, now, answer_s) if self.is_exec else None
        ends_at = expected_end(self.worker, self.running, now)
        return probe_wait(self.worker, self.id.container, (now, wall), ends_at, late)


class ProbedPod(Struct):
    """One pod."""

    lifecycle: PodLifecycle
    view: PodView | None
    probes: dict[ProbeId, ProbeRecord] = field(default_factory=dict)


class ProbeWorkers:
    """The probe workers. `remembered`, `inherits`: see rule 7 of `decide`. `started`: the agent's start (monotonic seconds).
    `fraction`: returns random numbers in [0, 1)."""

    def __init__(
        self,
        remembered: Mapping[ContainerID, EarlierResults],
        inherits: bool,
        started: float,
        fraction: Callable[[], float],
    ) -> None:
        self._pods: dict[PodUID, ProbedPod] = {}
        self._ended_at: dict[PodUID, float] = {}  # the last change of each pod that is being ended (monotonic seconds)
        self._starts = ContainerStarts()
        self._inherited = InheritedResults(remembered, enabled=inherits)
        self._inherits = inherits
        self._started = started
        self._fraction = fraction
        self._wall_ahead_s = 0.0
        self.armed: list[tuple[float, ProbeId]] = []
        self.results_changed = True

    def pod(self, uid: PodUID) -> ProbedPod:
        """A followed pod; KeyError for others."""
        return self._pods[uid]

    def find(self, probe_id: ProbeId) -> ProbeRecord | None:
        """The record of a probe; None when its worker was stopped."""
        pod = self._pods.get(probe_id.uid)
        return pod.probes.get(probe_id) if pod is not None else None

    def ends_pods(self, now: float) -> bool:
        """True while some pod is being ended."""
        return any(at > now - AT_WORK_S for at in self._ended_at.values())

    # Following the snapshots

    def inherit(self, observed: Observed, now: float, wall: float) -> None:
        """Take the results that containers had before the agent's start, at the first snapshot of each pod."""
        if self._inherited.is_complete:
            return
        for view in self._inherited.unread_views(observed):
            self._starts.learn(view, now, wall)
        self._inherited.learn(observed, self._starts, self._started)
        self.results_changed = True

    def update_pod(
        self, lifecycle: PodLifecycle, view: PodView | None, now: float, wall: float
    ) -> tuple[list[ProbeRecord], list[ProbeRecord]]:
        """Take over a pod's newest snapshots. Returns the records of the workers that were started and stopped."""
        uid, self._wall_ahead_s = lifecycle.ref.uid, wall - now
        pod = self._pods.get(uid)
        if pod is None:
            pod = self._pods[uid] = ProbedPod(lifecycle, view)
        pod.lifecycle, pod.view = lifecycle, view
        if lifecycle.stage in (Stage.TERMINATING, Stage.TERMINATED):
            self._ended_at[uid] = now
        else:
            self._ended_at.pop(uid, None)
        plan = plan_workers(lifecycle, pod.probes)
        stopped = [self._stop(pod, probe_id) for probe_id in plan.stop]
        started = self._start_missing(pod, plan, now)
        if plan.wanted and view is not None:
            self._starts.learn(view, now, wall)
        for name in dict.fromkeys(probe_id.container for probe_id in plan.wanted):
            self.observe(uid, name, now)
        for container in view.running if view is not None else ():
            self.results_changed |= self._inherited.claim(container.id)
        return started, stopped

    def drop_pod(self, uid: PodUID) -> list[ProbeRecord]:
        """Forget a pod and stop its workers. Returns their records. If the pod is followed again, it keeps its results."""
        pod = self._pods.get(uid)
        if pod is None:
            return []
        stopped = [self._stop(pod, probe_id) for probe_id in tuple(pod.probes)]
        del self._pods[uid]
        self._ended_at.pop(uid, None)
        return stopped

    def remember(self, observed: Observed) -> None:
        """Remember this snapshot as the previous one."""
        self._starts.remember(observed)

    def observe(self, uid: PodUID, name: str, now: float) -> None:
        """Let the workers of a container observe it."""
        pod = self._pods[uid]
        earlier = self._inherited.results
        seen = observation_of(name, pod.lifecycle, pod.view, self._starts, earlier, self._started, self._inherits)
        if seen.earlier is not None and seen.earlier.unready_since:
            since = wall_to_monotonic(seen.earlier.unready_since, now, now + self._wall_ahead_s)
            seen = replace(seen, unready_since=since)
        records = {probe_id.kind: record for probe_id, record in pod.probes.items() if probe_id.container == name}
        workers = {kind: record.worker for kind, record in records.items()}
        for kind, worker in decide.observe_container(workers, seen, now).items():
            self.set_worker(records[kind], worker)

    def set_worker(self, record: ProbeRecord, after: Worker) -> None:
        """Set the next state of a record's worker. A probe that the worker no longer needs is cancelled."""
        before = record.worker
        if after is before:
            return
        record.worker = after
        self.results_changed |= decide.changes_result(before, after)
        if after.phase is not WorkerPhase.PROBING and record.running is not None:
            record.running.cancel()
            record.running = None
        if (at := decide.armed_at(before, after)) is not None:
            self.armed.append((at, record.id))

    def _start_missing(self, pod: ProbedPod, plan: WorkerPlan, now: float) -> list[ProbeRecord]:
        started: list[ProbeRecord] = []
        before, pod.probes = pod.probes, {}
        for probe_id, (container, probe) in plan.wanted.items():
            record = before.get(probe_id)
            if record is None:
                record = self._make_record(probe_id, pod, container, probe, now)
                started.append(record)
            record.container, record.probe = container, probe
            pod.probes[probe_id] = record
        return started

    def _make_record(
        self, probe_id: ProbeId, pod: ProbedPod, container: Container, probe: Probe, now: float
    ) -> ProbeRecord:
        terms, age_s = decide.schedule_of(probe), now - self._started
        worker = decide.make_worker(probe_id.kind, terms, now, age_s, self._fraction())
        metrics = ProbeMetrics(pod.lifecycle.ref, container.name, probe_id.kind)
        return ProbeRecord(probe_id, container, probe, worker, metrics)

    def _stop(self, pod: ProbedPod, probe_id: ProbeId) -> ProbeRecord:
        record = pod.probes.pop(probe_id)
        self._inherited.leave(record.worker)
        if record.running is not None:
            record.running.cancel()
            record.running = None
        self.results_changed = True
        return record

    # What others read

    @property
    def is_learning(self) -> bool:
        """Whether containers that ran at the agent's start are not known yet."""
        return not self._inherited.is_complete

    def results(self, observed: Observed) -> tuple[Results, Assumed]:
        """The results of all running containers, and those of them that are assumed. Containers that do not run any more are forgotten."""
        self._starts.forget_all_but(observed)
        self._inherited.forget_gone(self._starts)
        found: Results = {}
        assumed: set[tuple[ContainerID, ProbeKind]] = set()
        for container, earlier in self._inherited.results.items():
            for kind in ProbeKind:
                if (result := earlier.of(kind)) is not None:
                    found[container, kind] = result
                    if earlier.assumed:
                        assumed.add((container, kind))
        for pod in self._pods.values():
            for record in pod.probes.values():
                worker = record.worker
                if worker.container is not None and worker.result is not None:
                    key = (worker.container, record.id.kind)
                    found[key] = worker.result
                    if worker.assumed:
                        assumed.add(key)
                    else:
                        assumed.discard(key)
        return found, frozenset(assumed)

    def waits(self, now: float, wall: float, answer_s: float) -> dict[PodUID, tuple[Wait, ...]]:
        """The waits of all pods for their probes. `answer_s`: as in `ProbeLimits`."""
        return {
            uid: tuple(
                record.wait(now, wall, answer_s)
                for record in pod.probes.values()
                if has_wait(record.worker) or record.late(now, answer_s)
            )
            for uid, pod in self._pods.items()
        }


class InheritedResults:
    """The kept results. `remembered`: from the statuses of an earlier run. `enabled` False: containers begin without results."""

    def __init__(self, remembered: Mapping[ContainerID, EarlierResults], *, enabled: bool) -> None:
        self._remembered = remembered
        self._enabled = enabled
        self._results = dict(remembered)
        self._has_started = False
        #: Pods in the first snapshot that were not read yet.
        self._unread: frozenset[PodUID] = frozenset()

    @property
    def results(self) -> Mapping[ContainerID, EarlierResults]:
        """The results that no worker has taken over."""
        return self._results

    @property
    def is_complete(self) -> bool:
        """True once all pods of the first snapshot were read."""
        return self._has_started and not self._unread

    def unread_views(self, observed: Observed) -> list[PodView]:
        """The pods of a snapshot whose containers are seen for the first time since the agent's start."""
        return [view for uid, view in observed.pods.items() if not self._has_started or uid in self._unread]

    def learn(self, observed: Observed, starts: ContainerStarts, agent_started: float) -> None:
        """Take over a snapshot with pods that are seen for the first time. `starts`: when their containers started."""
        running = {
            container.id: starts[container.id] for view in self.unread_views(observed) for container in view.running
        }
        is_first, self._has_started = not self._has_started, True
        self._unread = frozenset(ref.uid for ref in observed.unread if is_first or ref.uid in self._unread)
        if is_first and not (self._unread and self._enabled):
            self._results = {}
        if self._enabled:
            self._results |= inherit_results(self._remembered, running, agent_started)

    def claim(self, container: ContainerID) -> bool:
        """Forget the results of a container whose workers have taken them over. True if there were any."""
        return self._has_started and self._results.pop(container, None) is not None

    def leave(self, worker: Worker) -> None:
        """Keep the success of a worker that stops while its container runs."""
        if self._has_started and worker.container is not None and worker.result is ProbeResult.SUCCESS:
            before = self._results.get(worker.container, EarlierResults())
            self._results[worker.container] = with_result(before, worker)

    def forget_gone(self, starts: ContainerStarts) -> None:
        """Forget containers that do not run any more, once all pods were read."""
        if self.is_complete:
            self._results = {container: found for container, found in self._results.items() if container in starts}
