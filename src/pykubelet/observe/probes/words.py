"""What people read about probes: Events, and the waits of a pod. Pure."""

from __future__ import annotations

from enum import StrEnum

from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.model.fieldpath import container_field_path
from pykubelet.base.model.happenings import Happening, warning
from pykubelet.base.model.lifecycle import PodLifecycle
from pykubelet.base.model.probes import ProbeKind, ProbeResult
from pykubelet.base.model.reasons import EVENT_PROBE_WARNING, EVENT_UNHEALTHY
from pykubelet.base.model.waits import Wait
from pykubelet.edges.probing.outcome import Outcome, Verdict
from pykubelet.observe.probes.decide import Phase, Worker, counts

OWNER = "observe/probes"
DETAIL_LIMIT = 500
TITLES = {ProbeKind.STARTUP: "Startup", ProbeKind.LIVENESS: "Liveness", ProbeKind.READINESS: "Readiness"}


def happening(kind: ProbeKind, outcome: Outcome, life: PodLifecycle, container: str) -> Happening | None:
    """The Event of one try, in the reference's words; None when there is nothing to tell."""
    told = _told(TITLES[kind], outcome)
    if told is None:
        return None
    reason, message = told
    return warning(reason, message, life.ref, container_field_path(life.pod, container))


def _told(title: str, outcome: Outcome) -> tuple[str, str] | None:
    """Reason and message."""
    if outcome.error:
        return EVENT_UNHEALTHY, f"{title} probe errored and resulted in {outcome.verdict} state: {outcome.error}"
    match outcome.verdict:
        case Verdict.SUCCESS:
            return None
        case Verdict.WARNING:
            return EVENT_PROBE_WARNING, f"{title} probe warning: {outcome.output}"
        case Verdict.FAILURE | Verdict.UNKNOWN:
            return (EVENT_UNHEALTHY, f"{title} probe failed: {outcome.output}") if counts(outcome) else None


def needs_word(worker: Worker) -> bool:
    """Whether a worker is anything but content."""
    if worker.last is worker.result is ProbeResult.SUCCESS and not worker.words:
        return False  # as nearly all are, nearly always
    if worker.phase in (Phase.ABSENT, Phase.QUIET):
        return False
    return worker.result is not ProbeResult.SUCCESS or worker.last is ProbeResult.FAILURE or bool(worker.words)


class Late(StrEnum):
    """Why a try has not ended long ago: it waits for its turn, or it began and does not come back."""

    QUEUED = "queued"
    HANGS = "hangs"


def wait_of(
    worker: Worker, name: str, clocks: tuple[float, float], ends_at: float, late: tuple[Late, float] | None
) -> Wait:
    """What container `name` waits for at this probe. `clocks`: monotonic and wall seconds now. `ends_at`: when the one that is
    being carried out ends (monotonic). `late`: how it is late, and the monotonic second that ends it."""
    now, wall = clocks
    since = wall - max(0.0, now - worker.started_at)
    next_at = None if worker.due is None else wall + (worker.due - now)
    detail, step = _detail(worker)
    if worker.phase is Phase.PROBING and worker.due is not None:
        step, next_at = "the probe that runs ends", wall + ends_at - now
    if late is not None and worker.due is not None:
        ago = format_seconds(round(now - worker.due))
        how, until = late
        if how is Late.HANGS:
            why, step = "has not ended: the runtime or the command does not answer", "give the try up"
        else:
            why, step = "waits for its turn: there are more commands to be run than the node can run in time", "probe"
        detail, next_at = f"the probe due {ago} ago {why}; {detail}", wall + max(0.0, until - now)
    reason = EVENT_UNHEALTHY if worker.last is ProbeResult.FAILURE else ""
    return Wait(f"{worker.kind} probe", OWNER, since, name, reason, detail.rstrip("; "), step, next_at)


def _detail(worker: Worker) -> tuple[str, str]:
    words = worker.words[:DETAIL_LIMIT].strip()
    match worker.phase:
        case Phase.BLOCKED:
            return "waits for the startup probe", "probe once the container has started"
        case Phase.HELD:
            return words, "the container is killed"
        case Phase.ARMED | Phase.PROBING | Phase.ABSENT | Phase.QUIET:
            if worker.last is None:
                return words or "not probed yet", "probe"
            if worker.last is ProbeResult.FAILURE:
                limit = worker.terms.failure_threshold
                count = f"{worker.run} of {limit} failures in a row" if worker.run < limit else f"{worker.run} failures"
                return f"{words} ({count})", "probe again"
            return f"{words} ({worker.run} of {worker.terms.success_threshold} successes in a row)", "probe again"
