"""The state machine of one probe worker: decides when to probe a container, and derives the result from outcomes. Pure.

`now` and all times are monotonic seconds.

Rules (source: the Kubernetes documentation "Pod Lifecycle", container probes; KEP-950 startup probes; KEP-753 sidecars):
1. A worker ticks every period from its start. If the agent has just started, the first tick is delayed by a random part
   of the period, so that a restart does not probe everything at once. If a probe takes longer than the period, the next
   one begins right after it. Ticks are delayed to the next tenth of a second, or half second after a passed probe, because
   a separate wake-up for each probe costs more than the probe. This does not change the period.
2. A new container begins with the result Failure (readiness), Success (liveness) or Unknown (startup). It is probed from
   `initialDelaySeconds` after its start. Results of a container that does not run any more are forgotten.
3. Readiness and liveness wait for the startup probe. As soon as the container has started, readiness is probed.
4. A result is set after as many equal outcomes in a row as its threshold requires. An error of the prober does not count
   as an outcome, nor does a time-out while the agent or the node was slow.
5. After a failed liveness probe, and after any result of the startup probe, the worker waits for a new container.
6. While the pod is terminating, liveness and startup are Success and are not probed any more.
7. A container from before the agent's start keeps the results that were published then: those in the journal, else those that
   the API server has, for another agent may have run. If there are none and it has run for more than ten seconds, it counts as
   started and ready; its startup probe still runs, and liveness waits for it. It does not if the API server has the status of an earlier
   instance.
8. While a container is not ready or has not started yet, extra probes run between those of the period, after waits that grow:
   each is as long as the container has been probed so far, at least 100 ms. When a wait would be longer than the rest of the
   period, there are none. A command takes a process in the container and far more CPU, so the waits before it are at least its
   time-out. When a ready container becomes unready, the waits begin again, with a second: its clients take about that long to
   leave it, and an earlier probe would run under the load at which the container failed.
   An extra probe that passes counts, and the periods begin anew with it: the successes of a `successThreshold` are a period
   apart. One that does not pass counts for nothing and has no Event. It ends before the next probe of the period.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

from pykubelet.base.api.core import PodStatus, Probe
from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.base.model.reasons import CONTAINERS_READY
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict

#: Timers may fire this much too early.
EARLY_S = 0.002
#: Probes due within this time share one wake-up. Both divide every period: a tick is delayed once, not each time.
TICK_S, IDLE_TICK_S = 0.1, 0.5
#: The least waits between extra probes: over the network, of commands, and after a container was ready.
FIRST_EXTRA_S, FIRST_EXTRA_EXEC_S, EXTRA_AFTER_READY_S = 0.1, 1.0, 1.0
#: An agent that notices a time-out later than this was slow itself.
LATE_S = 0.25
PASSING = (ProbeVerdict.SUCCESS, ProbeVerdict.WARNING)
#: A container that has run this long before the agent's start counts as started and ready.
SETTLED_S = 10.0

INITIAL = {
    ProbeKind.READINESS: ProbeResult.FAILURE,
    ProbeKind.LIVENESS: ProbeResult.SUCCESS,
    ProbeKind.STARTUP: ProbeResult.UNKNOWN,
}


class WorkerPhase(StrEnum):
    """The phase of a probe worker. absent: no container runs. blocked: waits for the startup probe. armed: the next probe has a
    time. probing: a probe runs or is queued. on hold: waits for a new container. quiet: the pod is terminating."""

    ABSENT = "absent"
    BLOCKED = "blocked"
    ARMED = "armed"
    PROBING = "probing"
    ON_HOLD = "on hold"
    QUIET = "quiet"


class StartState(StrEnum):
    """Whether a container has started: no, assumed after a restart of the agent, or yes."""

    NO = "no"
    ASSUMED = "assumed"
    YES = "yes"


class ProbeSchedule(Value):
    """The fields of one probe, with the API's defaults filled in. Seconds and counts.

    `extra_s`: the least wait before an extra probe, and the least time from its beginning to the next probe of the period.
    """

    period_s: float = 10.0
    timeout_s: float = 1.0
    initial_delay_s: float = 0.0
    success_threshold: int = 1
    failure_threshold: int = 3
    extra_s: float = FIRST_EXTRA_S


class EarlierResults(Value):
    """The results of a container from before the agent's start. `assumed`: they are assumed, because it has run for a while.

    `unready_since`: since when its pod was reported as not ready, in wall seconds; 0 if it was ready.
    """

    startup: ProbeResult | None = None
    readiness: ProbeResult | None = None
    assumed: bool = False
    unready_since: float = 0.0

    def of(self, kind: ProbeKind) -> ProbeResult | None:
        """The earlier result of one probe; None: not known, or liveness, which begins again."""
        match kind:
            case ProbeKind.STARTUP:
                return self.startup
            case ProbeKind.READINESS:
                return self.readiness
            case ProbeKind.LIVENESS:
                return None


ASSUMED = EarlierResults(ProbeResult.SUCCESS, ProbeResult.SUCCESS, assumed=True)


class ContainerObservation(Value):
    """A worker's container, as the newest snapshots show it. `container` None: no instance runs.

    `stopping`: its pod is terminating. `old`: it ran before this agent's start. `earlier`: its results from then, if known.
    `unready_since`: since when it is known to be not ready, if that is later than its start.
    """

    container: ContainerID | None = None
    started_at: float = 0.0
    started: StartState = StartState.YES
    stopping: bool = False
    old: bool = False
    earlier: EarlierResults | None = None
    unready_since: float = 0.0


class Worker(Value):
    """The state of one probe worker.

    `tick`: the time of any tick. `due`: the time of the next probe if armed, of the current one if probing. `period_at`: the time
    of the next probe of the period; one that is due earlier is an extra probe. `extra_from`: the time from which the waits
    between extra probes grow. `result`: the published result, None without a running container. `last`: the newest outcome.
    `run`: equal outcomes in a row that count. `assumed`: the result does not come from a probe. `message`: that of the last probe
    that failed or did not count. `since`: since when it does not pass.
    """

    kind: ProbeKind
    terms: ProbeSchedule
    tick: float
    phase: WorkerPhase = WorkerPhase.ABSENT
    container: ContainerID | None = None
    started_at: float = 0.0
    result: ProbeResult | None = None
    assumed: bool = False
    due: float | None = None
    period_at: float = 0.0
    extra_from: float = 0.0
    last: ProbeResult | None = None
    run: int = 0
    message: str = ""
    since: float = 0.0

    @property
    def is_extra(self) -> bool:
        """Whether the current or next probe is one between those of the period."""
        return self.due is not None and self.due < self.period_at

    @property
    def timeout_s(self) -> float:
        """The time-out of the current or next probe in seconds: an extra one ends before the next probe of the period."""
        if self.due is None or not self.is_extra:
            return self.terms.timeout_s
        return min(self.terms.timeout_s, max(self.period_at - self.due, self.terms.extra_s))

    @property
    def is_passing(self) -> bool:
        """Whether the result is a success, and the last probe has neither failed nor left a message."""
        return self.result is ProbeResult.SUCCESS and self.last is not ProbeResult.FAILURE and not self.message


def schedule_of(probe: Probe) -> ProbeSchedule:
    """A probe's fields with the API's defaults."""
    timeout_s = float(max(1, probe.timeoutSeconds or 1))
    return ProbeSchedule(
        period_s=float(max(1, probe.periodSeconds or 10)),
        timeout_s=timeout_s,
        initial_delay_s=float(probe.initialDelaySeconds or 0),
        success_threshold=probe.successThreshold or 1,
        failure_threshold=probe.failureThreshold or 3,
        extra_s=FIRST_EXTRA_S if probe.exec is None else max(FIRST_EXTRA_EXEC_S, timeout_s),
    )


def make_worker(kind: ProbeKind, terms: ProbeSchedule, now: float, agent_age_s: float, fraction: float) -> Worker:
    """A new worker. `fraction`: a random number in [0, 1) for rule 1."""
    delay = fraction * terms.period_s if agent_age_s < terms.period_s else 0.0
    return Worker(kind, terms, now + delay)


def observe(worker: Worker, seen: ContainerObservation, now: float) -> Worker:
    """The worker after a possible change of its container, its pod or the startup result."""
    if seen.container is None:
        return _without_container(worker)
    if seen.container != worker.container:
        worker = _new_container(worker, seen, seen.container)
    if seen.stopping and worker.kind is not ProbeKind.READINESS:
        return replace(
            worker,
            phase=WorkerPhase.QUIET,
            due=None,
            result=ProbeResult.SUCCESS,
            assumed=False,
            last=None,
            run=0,
            message="",
        )
    match worker.phase:
        case WorkerPhase.ON_HOLD | WorkerPhase.QUIET | WorkerPhase.PROBING:
            return worker
        case WorkerPhase.ABSENT | WorkerPhase.BLOCKED | WorkerPhase.ARMED:
            return _arm(worker, seen, now)


def _without_container(worker: Worker) -> Worker:
    if worker.container is None:
        return worker
    return Worker(worker.kind, worker.terms, worker.tick)


def _new_container(worker: Worker, seen: ContainerObservation, container: ContainerID) -> Worker:
    earlier = seen.earlier.of(worker.kind) if seen.earlier is not None else None
    assumed = earlier is not None and seen.earlier is not None and seen.earlier.assumed
    is_done = worker.kind is ProbeKind.STARTUP and earlier is ProbeResult.SUCCESS and not assumed
    return Worker(
        worker.kind,
        worker.terms,
        worker.tick,
        phase=WorkerPhase.ON_HOLD if is_done else WorkerPhase.ABSENT,
        container=container,
        started_at=seen.started_at,
        result=earlier if earlier is not None else INITIAL[worker.kind],
        assumed=assumed,
        since=max(seen.started_at, seen.unready_since),
    )


def _arm(worker: Worker, seen: ContainerObservation, now: float) -> Worker:
    enough = (StartState.YES,) if worker.kind is ProbeKind.LIVENESS else (StartState.YES, StartState.ASSUMED)
    if worker.kind is not ProbeKind.STARTUP and seen.started not in enough:
        return replace(worker, phase=WorkerPhase.BLOCKED, due=None)
    if worker.phase is WorkerPhase.ARMED:
        return worker
    may_begin = worker.started_at + worker.terms.initial_delay_s
    earliest = max(now, may_begin)
    if worker.kind is ProbeKind.READINESS and (not seen.old or worker.phase is WorkerPhase.BLOCKED):
        return replace(
            worker, phase=WorkerPhase.ARMED, due=earliest, tick=earliest, period_at=earliest, extra_from=earliest
        )
    extra_from = may_begin if seen.old else earliest
    worker = replace(worker, period_at=next_tick(worker, earliest), extra_from=extra_from)
    return _armed(worker, earliest)


def _armed(worker: Worker, now: float) -> Worker:
    """The worker, armed for the probe of the period, or for an extra one before it."""
    wait_s = max(worker.terms.extra_s, now - worker.extra_from)
    due = now + wait_s
    if not _takes_extra(worker) or due + worker.terms.extra_s > worker.period_at:
        due = max(now, worker.period_at)
    return replace(worker, phase=WorkerPhase.ARMED, due=due)


def _takes_extra(worker: Worker) -> bool:
    is_pending = worker.result is not ProbeResult.SUCCESS and worker.last is not ProbeResult.SUCCESS
    return is_pending and worker.kind is not ProbeKind.LIVENESS


def next_tick(worker: Worker, at: float, grid_s: float = TICK_S) -> float:
    """The first tick at or after `at`, delayed to the grid."""
    periods = math.ceil((at - worker.tick) / worker.terms.period_s - 1e-6)
    tick = worker.tick + max(0, periods) * worker.terms.period_s
    return math.ceil(tick / grid_s - 1e-3) * grid_s


def is_due(worker: Worker, now: float) -> bool:
    """Whether the next probe must begin now."""
    return worker.phase is WorkerPhase.ARMED and worker.due is not None and worker.due <= now + EARLY_S


def start(worker: Worker) -> Worker:
    """The worker whose probe has begun or is queued. ValueError if no probe is due."""
    if worker.phase is not WorkerPhase.ARMED:
        raise ValueError(f"a {worker.kind} probe began while {worker.phase} ({worker.container})")
    return replace(worker, phase=WorkerPhase.PROBING)


def begin(worker: Worker, now: float) -> Worker:
    """The worker whose probe has left the queue. An extra one that waited until the next probe of the period takes its place."""
    return replace(worker, due=now) if worker.is_extra else worker


def take_outcome(worker: Worker, container: ContainerID, outcome: Outcome, now: float) -> Worker:
    """The worker after the outcome of a probe. An outcome of an earlier container changes nothing."""
    if worker.phase is not WorkerPhase.PROBING or worker.container != container:
        return worker
    after = _with_outcome(worker, outcome, now)
    return replace(after, since=now) if worker.is_passing and not after.is_passing else after


def _with_outcome(worker: Worker, outcome: Outcome, now: float) -> Worker:
    terms, is_extra = worker.terms, worker.is_extra
    worker = _with_period(worker, outcome, now)
    if not counts(outcome):
        message = outcome.error or f"{outcome.output} (not counted: the node was slow)"
        return _armed(replace(worker, message=message), now)
    if is_pass(outcome):
        found, threshold, message = ProbeResult.SUCCESS, terms.success_threshold, ""
    else:
        found, threshold, message = ProbeResult.FAILURE, terms.failure_threshold, outcome.output
    run = worker.run if worker.last is found else 0
    if is_extra and found is ProbeResult.FAILURE:
        return _armed(replace(worker, last=found, run=run, message=message), now)
    worker = replace(worker, last=found, run=run + 1, message=message)
    if worker.run < threshold:
        return _armed(worker, now)
    if worker.result is not found or worker.assumed:
        worker = replace(worker, result=found, assumed=False, extra_from=now - EXTRA_AFTER_READY_S)
    if worker.kind is ProbeKind.STARTUP or (worker.kind is ProbeKind.LIVENESS and found is ProbeResult.FAILURE):
        return replace(worker, phase=WorkerPhase.ON_HOLD, due=None)
    return _armed(worker, now)


def _with_period(worker: Worker, outcome: Outcome, now: float) -> Worker:
    """The worker with the time of the next probe of the period, after the outcome of a probe."""
    due = worker.due
    assert due is not None
    if worker.is_extra:
        if is_ignored(worker, outcome):
            return worker
        worker = replace(worker, tick=due)
    grid_s = IDLE_TICK_S if is_pass(outcome) else TICK_S
    return replace(worker, period_at=max(now, next_tick(worker, due + worker.terms.period_s / 2, grid_s)))


def is_ignored(worker: Worker, outcome: Outcome) -> bool:
    """True if an outcome neither counts nor has an Event: that of an extra probe that did not pass. `worker`: before it."""
    return worker.is_extra and not (counts(outcome) and is_pass(outcome))


def counts(outcome: Outcome) -> bool:
    """True if an outcome counts for the container's result."""
    return not outcome.error and outcome.late_s <= LATE_S


def is_pass(outcome: Outcome) -> bool:
    """Whether the outcome is a success or a warning."""
    return outcome.verdict in PASSING


def observe_container(
    workers: Mapping[ProbeKind, Worker], seen: ContainerObservation, now: float
) -> dict[ProbeKind, Worker]:
    """The workers of one container after a possible change of it, its pod or the startup result: the startup worker first."""
    after: dict[ProbeKind, Worker] = {}
    for kind in (ProbeKind.STARTUP, ProbeKind.LIVENESS, ProbeKind.READINESS):
        if (worker := workers.get(kind)) is None:
            continue
        if kind is ProbeKind.STARTUP:
            started = StartState.NO
        else:
            started = started_by(after.get(ProbeKind.STARTUP), seen.container)
        after[kind] = observe(worker, replace(seen, started=started), now)
    return after


def armed_at(before: Worker, after: Worker) -> float | None:
    """The time of the next probe, if no timer was set for it in `before`."""
    if after.phase is not WorkerPhase.ARMED or (before.phase is WorkerPhase.ARMED and after.due == before.due):
        return None
    return after.due


def changes_result(before: Worker, after: Worker) -> bool:
    """True if the published results differ."""
    return after.container != before.container or after.result is not before.result


def started_by(worker: Worker | None, container: ContainerID | None) -> StartState:
    """Whether a container has started, by its startup worker; None: it has no startup probe."""
    if worker is None:
        return StartState.YES
    if worker.container != container or worker.result is not ProbeResult.SUCCESS:
        return StartState.NO
    return StartState.ASSUMED if worker.assumed else StartState.YES


def earlier_results(statuses: Iterable[PodStatus]) -> dict[ContainerID, EarlierResults]:
    """The results of running containers from the pods' statuses from before the agent's start."""
    return {
        ContainerID(container.containerID.partition("://")[2]): EarlierResults(
            ProbeResult.SUCCESS if container.started else None,
            ProbeResult.SUCCESS if container.ready else None,
            unready_since=0.0 if container.ready else _unready_since(status),
        )
        for status in statuses
        for container in (*status.initContainerStatuses, *status.containerStatuses)
        if container.state is not None and container.state.running is not None
    }


def _unready_since(status: PodStatus) -> float:
    """Since when the containers of a pod are reported as not ready, in wall seconds; 0 if they are not."""
    dates = (c.lastTransitionTime for c in status.conditions if c.type == CONTAINERS_READY and c.status == "False")
    return next((parse_time(date) for date in dates if date), 0.0)


def inherit_results(
    remembered: Mapping[ContainerID, EarlierResults], running: Mapping[ContainerID, float], agent_started: float
) -> dict[ContainerID, EarlierResults]:
    """Rule 7, at the first snapshot of a pod. `running`: the running containers with their start times."""
    earlier: dict[ContainerID, EarlierResults] = {}
    for container, started_at in running.items():
        if container in remembered:
            earlier[container] = remembered[container]
        elif started_at <= agent_started - SETTLED_S:
            earlier[container] = ASSUMED
    return earlier


def with_result(earlier: EarlierResults, worker: Worker) -> EarlierResults:
    """The results of a container, updated with that of one of its workers."""
    match worker.kind:
        case ProbeKind.STARTUP:
            return replace(earlier, startup=worker.result, assumed=earlier.assumed or worker.assumed)
        case ProbeKind.READINESS:
            return replace(earlier, readiness=worker.result)
        case ProbeKind.LIVENESS:
            return earlier
