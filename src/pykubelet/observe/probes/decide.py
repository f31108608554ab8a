"""One worker: when to probe a container, and what the outcomes add up to. Pure; `now` is monotonic seconds.

Rules (source: the Kubernetes documentation "Pod Lifecycle", container probes; KEP-950 startup probes; KEP-753 sidecars):
1. A worker ticks every period from its making on; in a young agent the first tick is put off by a random part of the
   period, so that a restart does not probe everything at once. A tick that passes during a probe is made up for once.
   Ticks are put off to the next tenth of a second, those of a probe that passes to the next half: waking up for each
   probe alone costs more than the probe. The period stays what it is.
2. A new container begins with the result Failure (readiness), Success (liveness) or Unknown (startup). It is probed
   from `initialDelaySeconds` after its start on. Results of a container that does not run any more are forgotten.
3. Readiness and liveness wait for the startup probe. As soon as the container has started, readiness is asked at once.
4. A result is set after as many equal outcomes in a row as its threshold says. An error of the prober is no outcome,
   nor is a try that ran out of time when this agent itself was late.
5. After a failed liveness probe, and after any result of the startup probe, the worker holds until a new container.
6. While the pod is ended, liveness and startup are Success and are not asked any more.
7. A container from before the agent's start goes on with what was told of it. Where that is not known and it has run for more
   than ten seconds, it counts as started and ready; its startup probe is asked all the same, and liveness waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum

from pykubelet.base.api.core import PodStatus, Probe
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.edges.probing.outcome import Outcome, Verdict

EARLY_S = 0.002
"""Timers may ring this much too early."""
GRID_S, CALM_GRID_S = 0.1, 0.5
"""Probes due within this time share one wake-up. Both divide every period: a tick is put off once, not each time."""
LATE_S = 0.25
"""An agent that notices a time-out later than this was slow itself."""
PASSING = (Verdict.SUCCESS, Verdict.WARNING)
SETTLED_S = 10.0
"""A container that has run this long before the agent's start is taken for started and ready."""

INITIAL = {
    ProbeKind.READINESS: ProbeResult.FAILURE,
    ProbeKind.LIVENESS: ProbeResult.SUCCESS,
    ProbeKind.STARTUP: ProbeResult.UNKNOWN,
}


class Phase(StrEnum):
    """absent: nothing runs; blocked: the container has not started; armed: due; held, quiet: no more for this one."""

    ABSENT = "absent"
    BLOCKED = "blocked"
    ARMED = "armed"
    PROBING = "probing"
    HELD = "held"
    QUIET = "quiet"


class Started(StrEnum):
    """Whether a container has started: no, taken for granted after a restart of the agent, or yes."""

    NO = "no"
    ASSUMED = "assumed"
    YES = "yes"


class Terms(Value):
    """Of one probe, with the API's defaults filled in. Seconds and counts."""

    period_s: float = 10.0
    timeout_s: float = 1.0
    initial_delay_s: float = 0.0
    success_threshold: int = 1
    failure_threshold: int = 3


class Kept(Value):
    """What a container had before the agent's start. `assumed`: not known, but it has run for a while."""

    startup: ProbeResult | None = None
    readiness: ProbeResult | None = None
    assumed: bool = False

    def of(self, kind: ProbeKind) -> ProbeResult | None:
        match kind:
            case ProbeKind.STARTUP:
                return self.startup
            case ProbeKind.READINESS:
                return self.readiness
            case ProbeKind.LIVENESS:
                return None


ASSUMED = Kept(ProbeResult.SUCCESS, ProbeResult.SUCCESS, assumed=True)


class Sight(Value):
    """What a worker sees of its container. `container` is None when no instance runs; `started_at` is monotonic.

    `old`: it ran before this agent; `kept`: then what it had. `stopping`: its pod is being ended.
    """

    container: ContainerID | None = None
    started_at: float = 0.0
    started: Started = Started.YES
    stopping: bool = False
    old: bool = False
    kept: Kept | None = None


class Worker(Value):
    """`tick`: some tick of its clock. `due`: when armed, the next probe; while probing, what the probe was due at.

    `result` is what others are told, None without a running container. `run` equal outcomes in a row, `last` the
    newest. `assumed`: the result is taken for granted, not found out. `words`: what the last bad try said.
    """

    kind: ProbeKind
    terms: Terms
    tick: float
    phase: Phase = Phase.ABSENT
    container: ContainerID | None = None
    started_at: float = 0.0
    result: ProbeResult | None = None
    assumed: bool = False
    due: float | None = None
    last: ProbeResult | None = None
    run: int = 0
    words: str = ""


def terms_of(probe: Probe) -> Terms:
    return Terms(
        period_s=float(max(1, probe.periodSeconds or 10)),
        timeout_s=float(max(1, probe.timeoutSeconds or 1)),
        initial_delay_s=float(probe.initialDelaySeconds or 0),
        success_threshold=probe.successThreshold or 1,
        failure_threshold=probe.failureThreshold or 3,
    )


def make_worker(kind: ProbeKind, terms: Terms, now: float, agent_age_s: float, fraction: float) -> Worker:
    """`fraction`: a random number in [0, 1) for rule 1."""
    delay = fraction * terms.period_s if agent_age_s < terms.period_s else 0.0
    return Worker(kind, terms, now + delay)


def look(worker: Worker, sight: Sight, now: float) -> Worker:
    """The container, its pod or its startup may have changed."""
    if sight.container is None:
        return _without_container(worker)
    if sight.container != worker.container:
        worker = _new_container(worker, sight, sight.container)
    if sight.stopping and worker.kind is not ProbeKind.READINESS:
        return replace(
            worker, phase=Phase.QUIET, due=None, result=ProbeResult.SUCCESS, assumed=False, last=None, run=0, words=""
        )
    match worker.phase:
        case Phase.HELD | Phase.QUIET | Phase.PROBING:
            return worker
        case Phase.ABSENT | Phase.BLOCKED | Phase.ARMED:
            return _arm(worker, sight, now)


def _without_container(worker: Worker) -> Worker:
    if worker.container is None:
        return worker
    return Worker(worker.kind, worker.terms, worker.tick)


def _new_container(worker: Worker, sight: Sight, container: ContainerID) -> Worker:
    kept = sight.kept.of(worker.kind) if sight.kept is not None else None
    assumed = kept is not None and sight.kept is not None and sight.kept.assumed
    is_done = worker.kind is ProbeKind.STARTUP and kept is ProbeResult.SUCCESS and not assumed
    return Worker(
        worker.kind,
        worker.terms,
        worker.tick,
        phase=Phase.HELD if is_done else Phase.ABSENT,
        container=container,
        started_at=sight.started_at,
        result=kept if kept is not None else INITIAL[worker.kind],
        assumed=assumed,
    )


def _arm(worker: Worker, sight: Sight, now: float) -> Worker:
    enough = (Started.YES,) if worker.kind is ProbeKind.LIVENESS else (Started.YES, Started.ASSUMED)
    if worker.kind is not ProbeKind.STARTUP and sight.started not in enough:
        return replace(worker, phase=Phase.BLOCKED, due=None)
    if worker.phase is Phase.ARMED:
        return worker
    earliest = max(now, worker.started_at + worker.terms.initial_delay_s)
    if worker.kind is ProbeKind.READINESS and (not sight.old or worker.phase is Phase.BLOCKED):
        return replace(worker, phase=Phase.ARMED, due=earliest, tick=earliest)
    return replace(worker, phase=Phase.ARMED, due=next_tick(worker, earliest))


def next_tick(worker: Worker, at: float, grid_s: float = GRID_S) -> float:
    """The first tick at or after `at`, put off to the grid."""
    periods = math.ceil((at - worker.tick) / worker.terms.period_s - 1e-6)
    tick = worker.tick + max(0, periods) * worker.terms.period_s
    return math.ceil(tick / grid_s - 1e-3) * grid_s


def is_due(worker: Worker, now: float) -> bool:
    return worker.phase is Phase.ARMED and worker.due is not None and worker.due <= now + EARLY_S


def begin(worker: Worker) -> Worker:
    """Its probe is being carried out now, or waits for its turn."""
    if worker.phase is not Phase.ARMED:
        raise ValueError(f"a {worker.kind} probe began while {worker.phase} ({worker.container})")
    return replace(worker, phase=Phase.PROBING)


def finish(worker: Worker, container: ContainerID, outcome: Outcome, now: float) -> Worker:
    """The outcome of a probe. That of a container which is not the present one changes nothing."""
    if worker.phase is not Phase.PROBING or worker.container != container:
        return worker
    assert worker.due is not None
    terms = worker.terms
    grid_s = CALM_GRID_S if is_pass(outcome) else GRID_S
    due = max(now, next_tick(worker, worker.due + terms.period_s / 2, grid_s))
    if not counts(outcome):
        words = outcome.error or f"{outcome.output} (not counted: the node was slow)"
        return replace(worker, phase=Phase.ARMED, due=due, words=words)
    if is_pass(outcome):
        found, threshold, words = ProbeResult.SUCCESS, terms.success_threshold, ""
    else:
        found, threshold, words = ProbeResult.FAILURE, terms.failure_threshold, outcome.output
    run = worker.run + 1 if worker.last is found else 1
    worker = replace(worker, phase=Phase.ARMED, due=due, last=found, run=run, words=words)
    if run < threshold:
        return worker
    if worker.result is not found or worker.assumed:
        worker = replace(worker, result=found, assumed=False)
    if worker.kind is ProbeKind.STARTUP or (worker.kind is ProbeKind.LIVENESS and found is ProbeResult.FAILURE):
        return replace(worker, phase=Phase.HELD, due=None)
    return worker


def counts(outcome: Outcome) -> bool:
    """Whether a try tells something about the container."""
    return not outcome.error and outcome.late_s <= LATE_S


def is_pass(outcome: Outcome) -> bool:
    return outcome.verdict in PASSING


def started_by(worker: Worker | None, container: ContainerID | None) -> Started:
    """Whether a container has started, by its startup worker if it has one."""
    if worker is None:
        return Started.YES
    if worker.container != container or worker.result is not ProbeResult.SUCCESS:
        return Started.NO
    return Started.ASSUMED if worker.assumed else Started.YES


def kept_of(told: Iterable[PodStatus]) -> dict[ContainerID, Kept]:
    """What the running containers had, as their statuses tell."""
    return {
        ContainerID(one.containerID.partition("://")[2]): Kept(
            ProbeResult.SUCCESS if one.started else None, ProbeResult.SUCCESS if one.ready else None
        )
        for status in told
        for one in (*status.initContainerStatuses, *status.containerStatuses)
        if one.state is not None and one.state.running is not None
    }


def keep(
    remembered: Mapping[ContainerID, Kept], running: Mapping[ContainerID, float], agent_started: float
) -> dict[ContainerID, Kept]:
    """Rule 7, at the agent's first look. `running`: all running containers with their starts (monotonic)."""
    kept: dict[ContainerID, Kept] = {}
    for container, started_at in running.items():
        if container in remembered:
            kept[container] = remembered[container]
        elif started_at <= agent_started - SETTLED_S:
            kept[container] = ASSUMED
    return kept


def with_kept(kept: Kept, worker: Worker) -> Kept:
    """What a container had, with what one of its workers knows."""
    match worker.kind:
        case ProbeKind.STARTUP:
            return replace(kept, startup=worker.result, assumed=kept.assumed or worker.assumed)
        case ProbeKind.READINESS:
            return replace(kept, readiness=worker.result)
        case ProbeKind.LIVENESS:
            return kept
