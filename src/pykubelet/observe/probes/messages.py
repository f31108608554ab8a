"""The texts of probes: Events, and the waits of a pod. Pure."""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.model.containers import container_field_path
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.lifecycle import PodLifecycle
from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.base.model.reasons import EVENT_PROBE_WARNING, EVENT_UNHEALTHY
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict
from pykubelet.observe.probes.decide import Worker, WorkerPhase, counts

DETAIL_LIMIT = 500
TITLES = {ProbeKind.STARTUP: "Startup", ProbeKind.LIVENESS: "Liveness", ProbeKind.READINESS: "Readiness"}


def probe_event(kind: ProbeKind, outcome: Outcome, life: PodLifecycle, container: str) -> KubeEvent | None:
    """The Event of one outcome, with the text of the reference kubelet; None: no Event."""
    found = _reason_and_message(TITLES[kind], outcome)
    if found is None:
        return None
    reason, message = found
    return warning(reason, message, life.ref, container_field_path(life.pod, container))


def _reason_and_message(title: str, outcome: Outcome) -> tuple[str, str] | None:
    if outcome.error:
        return EVENT_UNHEALTHY, f"{title} probe errored and resulted in {outcome.verdict} state: {outcome.error}"
    match outcome.verdict:
        case ProbeVerdict.SUCCESS:
            return None
        case ProbeVerdict.WARNING:
            return EVENT_PROBE_WARNING, f"{title} probe warning: {outcome.output}"
        case ProbeVerdict.FAILURE | ProbeVerdict.UNKNOWN:
            return (EVENT_UNHEALTHY, f"{title} probe failed: {outcome.output}") if counts(outcome) else None


def has_wait(worker: Worker) -> bool:
    """True if `explain` should show this probe: it does not pass, or has a message."""
    return not worker.is_passing and worker.phase not in (WorkerPhase.ABSENT, WorkerPhase.QUIET)


class Lateness(StrEnum):
    """Why an overdue probe has no outcome: it is queued, or it has begun and does not end."""

    QUEUED = "queued"
    HANGS = "hangs"


def probe_wait(
    worker: Worker, name: str, clocks: tuple[float, float], ends_at: float, late: tuple[Lateness, float] | None
) -> Wait:
    """The wait of container `name` for this probe: since it does not pass, or since the time at which it was due.

    `clocks`: monotonic and wall seconds now. `ends_at`: the end of the running probe (monotonic seconds). `late`: why it is late,
    and when that ends at the latest (monotonic seconds).
    """
    now, wall = clocks
    begun = worker.due if worker.is_passing and worker.due is not None else worker.since
    since = wall - max(0.0, now - begun)
    next_at = None if worker.due is None else wall + (worker.due - now)
    detail, step = _detail(worker)
    if worker.phase is WorkerPhase.PROBING and worker.due is not None:
        step, next_at = "the probe that runs ends", wall + ends_at - now
    if late is not None and worker.due is not None:
        ago = format_seconds(round(now - worker.due))
        how, until = late
        if how is Lateness.HANGS:
            why, step = "has not ended: the runtime or the command does not answer", "give the try up"
        else:
            why, step = "waits in the queue: there are more commands to be run than the node can run in time", "probe"
        detail, next_at = f"the probe due {ago} ago {why}; {detail}", wall + max(0.0, until - now)
    reason = EVENT_UNHEALTHY if worker.last is ProbeResult.FAILURE else ""
    return Wait(f"{worker.kind} probe", Owner.PROBER, since, name, reason, detail.rstrip("; "), step, next_at)


def _detail(worker: Worker) -> tuple[str, str]:
    message = worker.message[:DETAIL_LIMIT].strip()
    match worker.phase:
        case WorkerPhase.BLOCKED:
            return "waits for the startup probe", "probe once the container has started"
        case WorkerPhase.ON_HOLD:
            return message, "the container is killed"
        case WorkerPhase.ARMED | WorkerPhase.PROBING | WorkerPhase.ABSENT | WorkerPhase.QUIET:
            if worker.last is None:
                return message or "not probed yet", "probe"
            if worker.run == 0:
                return message, "probe again"
            if worker.last is ProbeResult.FAILURE:
                limit = worker.terms.failure_threshold
                count = f"{worker.run} of {limit} failures in a row" if worker.run < limit else f"{worker.run} failures"
            else:
                count = f"{worker.run} of {worker.terms.success_threshold} successes in a row"
            return f"{message} ({count})".lstrip(), "probe again"
