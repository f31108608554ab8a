"""The conditions of a pod. Pure.

Source: the Kubernetes documentation "Pod Lifecycle", section "Pod conditions", KEP-3085 (PodReadyToStartContainers),
KEP-580 (readiness gates), KEP-5532 (AllContainersRestarting).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api import core
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import KillReason
from pykubelet.base.model.observed import NetworkMode, PodView
from pykubelet.base.model.phase import Phase
from pykubelet.base.model.reasons import (
    ALL_CONTAINERS_RESTARTING,
    CONTAINERS_NOT_INITIALIZED,
    CONTAINERS_NOT_READY,
    CONTAINERS_READY,
    DISRUPTION_TARGET,
    OWN_CONDITIONS,
    POD_COMPLETED,
    POD_FAILED,
    POD_INITIALIZED,
    POD_QUARANTINED,
    POD_READY,
    POD_READY_TO_START_CONTAINERS,
    POD_RESIZE_IN_PROGRESS,
    POD_RESIZE_PENDING,
    POD_SANDBOX_NOT_READY,
    POD_SCHEDULED,
    PREEMPTING,
    QUARANTINED,
    READINESS_GATES_NOT_READY,
    RESIZE_ERROR,
    TERMINATION_BY_KUBELET,
    UNKNOWN_CONTAINER_STATUSES,
)
from pykubelet.base.model.restart import has_restart_all_rule, is_sidecar
from pykubelet.report.status.containers import Statuses, by_name
from pykubelet.report.status.model import StatusFacts

TRUE, FALSE = "True", "False"
PREEMPTED_MESSAGE = "Pod was preempted by Kubelet to accommodate a critical pod."
#: Readiness gates that the Ready condition names.
MAX_UNMET_GATES = 100
RESTART_ALL_STARTED = "RestartAllContainersStarted"
RESTART_ALL_MESSAGE = "container exited with restart policy rule"


def pod_conditions(
    facts: StatusFacts, init: Statuses, regular: Statuses, phase: Phase
) -> tuple[core.PodCondition, ...]:
    """All conditions, in the order of the reference kubelet. A transition time changes only with the status."""
    pod = facts.pod
    foreign = [c for c in pod.status.conditions if c.type not in OWN_CONDITIONS]
    old = {c.type: c for c in (facts.old.conditions if facts.old is not None else ())}
    kept = [*_resize(facts, old), *_disruption(facts, old), *_quarantine(facts, old)]
    containers = _containers_ready(pod, init, regular, phase)
    own = [
        _initialized(pod, init, regular, phase, old.get(POD_INITIALIZED)),
        _ready(pod, (*foreign, *kept), containers),
        containers,
        _condition(POD_SCHEDULED, True),
    ]
    if facts.reports_sandbox:
        own.insert(0, _sandbox_fit(facts, old.get(POD_READY_TO_START_CONTAINERS)))
    if has_restart_all_rule(pod):
        own.append(_all_restarting(facts, phase))
    now = format_time(facts.now_wall)
    return (*foreign, *kept, *(_stamped(c, old.get(c.type), pod, now) for c in own))


def _stamped(new: core.PodCondition, old: core.PodCondition | None, pod: core.Pod, now: str) -> core.PodCondition:
    since = old.lastTransitionTime if old is not None and old.status == new.status else now
    return replace(new, lastTransitionTime=since, observedGeneration=pod.metadata.generation)


def _disruption(facts: StatusFacts, old: Mapping[str, core.PodCondition]) -> list[core.PodCondition]:
    """The DisruptionTarget condition (KEP-3329) of a pod that the node evicts or shuts down. A published one is kept."""
    override = facts.lifecycle.override
    if override is None or facts.lifecycle.kill_reason not in (KillReason.EVICTED, KillReason.SHUTDOWN):
        return [old[DISRUPTION_TARGET]] if DISRUPTION_TARGET in old else []
    message = PREEMPTED_MESSAGE if override.reason == PREEMPTING else override.message
    made = _condition(DISRUPTION_TARGET, True, TERMINATION_BY_KUBELET, message)
    return [_stamped(made, old.get(DISRUPTION_TARGET), facts.pod, format_time(facts.now_wall))]


def _quarantine(facts: StatusFacts, old: Mapping[str, core.PodCondition]) -> list[core.PodCondition]:
    """The condition of a pod that is not worked on for a time, because the agent has ended at it."""
    if not facts.lifecycle.quarantine:
        return []
    made = _condition(POD_QUARANTINED, True, QUARANTINED, facts.lifecycle.quarantine)
    return [_stamped(made, old.get(POD_QUARANTINED), facts.pod, format_time(facts.now_wall))]


def _resize(facts: StatusFacts, old: Mapping[str, core.PodCondition]) -> list[core.PodCondition]:
    """The conditions PodResizePending (a size that is not allocated) and PodResizeInProgress (a size that is not applied
    completely yet) (KEP-1287). A pod that has ended has neither."""
    if facts.has_ended:
        return []
    found = []
    if (pending := facts.pending) is not None:
        made = core.PodCondition(
            type=POD_RESIZE_PENDING,
            status=TRUE,
            reason=pending.reason,
            message=pending.message,
            observedGeneration=pending.generation,
        )
        found.append(made)
    if (progress := facts.lifecycle.resize) is not None:
        made = core.PodCondition(
            type=POD_RESIZE_IN_PROGRESS,
            status=TRUE,
            reason=RESIZE_ERROR if progress.error else "",
            message=progress.error,
            observedGeneration=progress.generation,
        )
        found.append(made)
    return [_since_reason(condition, old.get(condition.type), format_time(facts.now_wall)) for condition in found]


def _since_reason(new: core.PodCondition, old: core.PodCondition | None, now: str) -> core.PodCondition:
    """Set the times of a resize condition. It has only one status, so its transition time changes with its reason."""
    since = old.lastTransitionTime if old is not None and old.reason == new.reason else now
    probed = old.lastProbeTime if old is not None and old.message == new.message and since != now else now
    return replace(new, lastTransitionTime=since, lastProbeTime=probed)


def _condition(kind: str, status: bool, reason: str = "", message: str = "") -> core.PodCondition:
    return core.PodCondition(type=kind, status=TRUE if status else FALSE, reason=reason, message=message)


def _sandbox_fit(facts: StatusFacts, old: core.PodCondition | None) -> core.PodCondition:
    """The condition PodReadyToStartContainers (KEP-3085). That the sandbox of a pod that has ended is removed is no news."""
    problem = sandbox_problem(facts.pod, facts.view)
    if problem and facts.has_ended and old is not None and old.status == FALSE:
        return _condition(POD_READY_TO_START_CONTAINERS, False, old.reason, old.message)
    if problem and facts.explains_sandbox:
        return _condition(POD_READY_TO_START_CONTAINERS, False, POD_SANDBOX_NOT_READY, problem)
    return _condition(POD_READY_TO_START_CONTAINERS, not problem)


def sandbox_problem(pod: core.Pod, view: PodView | None) -> str:
    """Why containers cannot start in the pod's sandbox; "" if they can: exactly one is ready, the newest, with the right network mode
    and an address."""
    if view is None or not view.sandboxes:
        return "no pod sandbox exists"
    newest = view.sandboxes[0]
    if len(view.ready_sandboxes) > 1:
        return "multiple pod sandboxes are ready"
    if not newest.ready:
        return "pod sandbox is not ready"
    host_network = bool(pod.spec.hostNetwork)
    if (newest.network is NetworkMode.NODE) != host_network:
        return "pod sandbox has a different network namespace mode than the pod"
    return "" if host_network or newest.ips else "pod sandbox has no IP address"


def _all_restarting(facts: StatusFacts, phase: Phase) -> core.PodCondition:
    if phase.is_terminal:
        return _condition(ALL_CONTAINERS_RESTARTING, False, POD_COMPLETED if phase is Phase.SUCCEEDED else POD_FAILED)
    if facts.lifecycle.restarting_all:
        return _condition(ALL_CONTAINERS_RESTARTING, True, RESTART_ALL_STARTED, RESTART_ALL_MESSAGE)
    return _condition(ALL_CONTAINERS_RESTARTING, False)


def _initialized(
    pod: core.Pod, init: Statuses, regular: Statuses, phase: Phase, old: core.PodCondition | None
) -> core.PodCondition:
    """The condition Initialized. It stays True, even while init containers run again."""
    statuses = by_name(init)
    unknown: list[str] = []
    incomplete: list[str] = []
    for container in pod.spec.initContainers:
        status = statuses.get(container.name)
        if status is None:
            unknown.append(container.name)
        elif not (status.started if is_sidecar(container) else status.ready):
            incomplete.append(container.name)
    if phase is Phase.SUCCEEDED and not unknown:
        return _condition(POD_INITIALIZED, True, POD_COMPLETED)
    if any(s.state is not None and s.state.waiting is None for s in regular):
        return _condition(POD_INITIALIZED, True)
    message = _named_lists(
        ("containers with unknown status", unknown), ("containers with incomplete status", incomplete)
    )
    if message and not (old is not None and old.status == TRUE):
        return _condition(POD_INITIALIZED, False, CONTAINERS_NOT_INITIALIZED, message)
    return _condition(POD_INITIALIZED, True)


def _containers_ready(pod: core.Pod, init: Statuses, regular: Statuses, phase: Phase) -> core.PodCondition:
    statuses = by_name((*init, *regular))
    if not statuses and not phase.is_terminal:
        return _condition(CONTAINERS_READY, False, UNKNOWN_CONTAINER_STATUSES)
    counted = [c.name for c in pod.spec.initContainers if is_sidecar(c)] + [c.name for c in pod.spec.containers]
    unknown = [name for name in counted if name not in statuses]
    unready = [name for name in counted if name in statuses and not statuses[name].ready]
    if phase is Phase.SUCCEEDED and not unknown:
        return _condition(CONTAINERS_READY, False, POD_COMPLETED)
    if phase is Phase.FAILED:
        return _condition(CONTAINERS_READY, False, POD_FAILED)
    message = _named_lists(("containers with unknown status", unknown), ("containers with unready status", unready))
    if message:
        return _condition(CONTAINERS_READY, False, CONTAINERS_NOT_READY, message)
    return _condition(CONTAINERS_READY, True)


def _named_lists(*lists: tuple[str, list[str]]) -> str:
    return ", ".join(f"{what}: [{' '.join(names)}]" for what, names in lists if names)


def _ready(pod: core.Pod, others: tuple[core.PodCondition, ...], containers: core.PodCondition) -> core.PodCondition:
    if containers.status != TRUE:
        return replace(containers, type=POD_READY)
    known = {c.type: c.status for c in others}
    unmet = []
    for gate in pod.spec.readinessGates:
        kind = gate.conditionType
        if kind not in known:
            unmet.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif known[kind] != TRUE:
            unmet.append(f'the status of pod readiness gate "{kind}" is not "True", but {known[kind]}')
    if unmet:
        more = [f"and {len(unmet) - MAX_UNMET_GATES} more"] if len(unmet) > MAX_UNMET_GATES else []
        return _condition(POD_READY, False, READINESS_GATES_NOT_READY, ", ".join([*unmet[:MAX_UNMET_GATES], *more]))
    return _condition(POD_READY, True)
