"""Projects a pod's status from its spec, lifecycle, runtime snapshot and probe results. Pure.

Rules:
- A terminal phase never changes back. Reason and message are kept while the phase is the same. A kill that sets a phase
  (rejection, deadline) overrides the phase from the containers. A pod that the node ends (eviction, preemption, shutdown)
  has succeeded if all its containers exited with 0; otherwise it has failed, with the reason of the kill.
- Until its postStart hook has ended, a container keeps the status from before that instance.
- A pod that was rejected before it ran has a phase, a reason and a message, but no container statuses.
- The end of a pod is published when the pod worker has decided on it, and not while it may start containers again.
- The QoS class never changes.
- The start time is when the agent first saw the pod, or when its oldest sandbox was created, if that is earlier.
- Addresses are those of the ready sandbox, the node's primary family first; host-network pods have the node's. When the pod
  is terminating or has ended, the last known addresses are kept.
- A running container has started if its startup probe has succeeded or it has none. It is ready if it has started and its readiness
  probe has succeeded or it has none. An init container is ready if it has succeeded. Probe kinds that the agent does not run are
  ignored. While a container has no result after a restart of the agent, what was reported before holds.
Source: the Kubernetes documentation "Pod Lifecycle".
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.base.api import core
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import replace
from pykubelet.base.model.addresses import is_v6, reported_ips
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import KillReason, Stage, StatusOverride
from pykubelet.base.model.phase import Phase, ReportedContainers, has_created_regular, pod_phase
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.base.model.restart import is_sidecar, restartable_pod
from pykubelet.base.model.roster import is_static
from pykubelet.base.model.sizing import qos_class
from pykubelet.report.status.conditions import pod_conditions
from pykubelet.report.status.containers import (
    Statuses,
    all_ended,
    by_name,
    ephemeral_statuses,
    init_statuses,
    instance_of,
    is_success,
    limited_messages,
    published_exit_codes,
    regular_statuses,
)
from pykubelet.report.status.device_health import with_health
from pykubelet.report.status.model import StatusFacts, reported_view
from pykubelet.report.status.resources import pod_allocated, pod_resources

MESSAGES_BYTES = 12 * 1024


def project_status(facts: StatusFacts) -> core.PodStatus:
    """The status. Equal facts give equal statuses, except for the transition times of changed conditions."""
    view = reported_view(facts.view, facts.lifecycle)
    if view is not facts.view:
        facts = replace(facts, view=view)
    if _is_untouched(facts):
        return _rejected(facts)
    spec = facts.pod.spec
    old = facts.old if facts.old is not None else core.PodStatus()
    regular = _with_readiness_of(regular_statuses(facts), spec.containers, facts.probes, old.containerStatuses)
    init = _with_init_readiness(init_statuses(facts), spec.initContainers, facts.probes, old.initContainerStatuses)
    ephemeral = ephemeral_statuses(facts)
    reported = ReportedContainers(published_exit_codes(facts, (*init, *regular)), _starting(facts, init))
    if facts.has_ended:
        init, regular = all_ended(facts.pod, init, regular)
    phase, reason, message = _phase(facts, regular, reported)
    regular = with_health(regular, facts.health, old.containerStatuses)
    limit = MESSAGES_BYTES // max(1, len(regular) + len(init) + len(ephemeral))
    ips, allocated = pod_ips(facts), pod_allocated(facts.pod)
    return core.PodStatus(
        phase=str(phase),
        reason=reason,
        message=message,
        conditions=pod_conditions(facts, init, regular, phase),
        initContainerStatuses=limited_messages(init, limit),
        containerStatuses=limited_messages(regular, limit),
        ephemeralContainerStatuses=limited_messages(ephemeral, limit),
        hostIP=facts.host_ips[0] if facts.host_ips else "",
        hostIPs=tuple(core.HostIP(ip=ip) for ip in facts.host_ips[:2]),
        podIP=ips[0] if ips else "",
        podIPs=tuple(core.PodIP(ip=ip) for ip in ips),
        qosClass=_qos_class(facts),
        startTime=_start_time(facts),
        observedGeneration=facts.pod.metadata.generation,
        allocatedResources=allocated,
        resources=pod_resources(facts, allocated),
    )


def _is_untouched(facts: StatusFacts) -> bool:
    """Whether the pod was rejected before it ran: the runtime has nothing of it. A pod over a storage limit had been running."""
    lifecycle, view = facts.lifecycle, facts.view
    if lifecycle.kill_reason is not KillReason.REJECTED or (
        lifecycle.override is not None and lifecycle.override.unless_succeeded
    ):
        return False
    return view is None or view.is_gone


def _rejected(facts: StatusFacts) -> core.PodStatus:
    override = facts.lifecycle.override
    return core.PodStatus(
        phase=str(override.phase if override is not None else Phase.FAILED),
        reason=override.reason if override is not None else "",
        message=override.message if override is not None else "",
        qosClass=_qos_class(facts),
        startTime=_start_time(facts),
        observedGeneration=facts.pod.metadata.generation,
    )


def _phase(facts: StatusFacts, regular: Statuses, reported: ReportedContainers) -> tuple[Phase, str, str]:
    """The phase, its reason and its message."""
    lifecycle, old = facts.lifecycle, facts.old
    if facts.has_ended and (lifecycle.terminal or not is_static(facts.pod)):
        phase = _end_phase(regular)
    else:
        pod = restartable_pod(facts.pod, facts.view, lifecycle.stays) if lifecycle.stays else facts.pod
        phase = pod_phase(pod, facts.view, lifecycle.start_errors, facts.has_ended, reported, lifecycle.to_restart)
    before = Phase(old.phase) if old is not None and old.phase else None
    if phase.is_terminal and lifecycle.stage is Stage.SYNCING:
        phase = _undecided_phase(facts, before)
    if before is not None and before.is_terminal and not (phase.is_terminal and is_static(facts.pod)):
        phase = before
    override = lifecycle.override
    if override is not None and _prevails(override, phase, has_ended=facts.has_ended):
        return Phase(override.phase), override.reason, override.message
    if old is not None and phase == before:
        return phase, old.reason, old.message
    return phase, "", ""


def _undecided_phase(facts: StatusFacts, before: Phase | None) -> Phase:
    """The phase of a pod whose containers have ended, while the pod worker has not decided that they do not start again."""
    if before is not None:
        return before
    return Phase.RUNNING if has_created_regular(facts.pod, facts.view) else Phase.PENDING


def _prevails(override: StatusOverride, phase: Phase, *, has_ended: bool) -> bool:
    """Whether a kill's phase takes the place of that from the containers."""
    if not override.unless_succeeded:
        return True
    return phase == override.phase or (has_ended and phase is not Phase.SUCCEEDED)


def _starting(facts: StatusFacts, init: Statuses) -> frozenset[str]:
    """Sidecars that run but count as not started: their start is published first, before regular containers start.

    If regular containers cannot start, no status may be published for a long time; then only the startup probes count.
    """
    spec, before = facts.pod.spec, facts.old.initContainerStatuses if facts.old is not None else ()
    is_held = any(container.name in facts.lifecycle.start_errors for container in spec.containers)
    return _starting_sidecars(init, init if is_held else before, spec.initContainers)


def _end_phase(regular: Statuses) -> Phase:
    """The phase of a pod that has ended, from its published statuses, because its containers may already be removed."""
    ends = [status.state.terminated if status.state is not None else None for status in regular]
    done = all(end is not None and end.exitCode == 0 for end in ends)
    return Phase.SUCCEEDED if done else Phase.FAILED


def _qos_class(facts: StatusFacts) -> str:
    reported = facts.old.qosClass if facts.old is not None else ""
    return reported or str(qos_class(facts.pod))


def _start_time(facts: StatusFacts) -> str:
    if facts.old is not None and facts.old.startTime:
        return facts.old.startTime
    sandboxes = facts.view.sandboxes if facts.view is not None else ()
    oldest = min((s.created_at / 1e9 for s in sandboxes if s.created_at > 0), default=facts.lifecycle.started_at)
    return format_time(min(oldest, facts.lifecycle.started_at))


def pod_ips(facts: StatusFacts) -> tuple[str, ...]:
    """The pod's addresses, primary family first."""
    old = tuple(ip.ip for ip in facts.old.podIPs) if facts.old is not None else ()
    if facts.pod.spec.hostNetwork:
        return _host_network_ips(old, facts.host_ips)
    newest = facts.view.sandboxes[0] if facts.view is not None and facts.view.sandboxes else None
    if newest is None or not newest.ready or not newest.ips:
        has_ended = facts.old is not None and facts.old.phase in (Phase.SUCCEEDED, Phase.FAILED)
        return old if has_ended or facts.lifecycle.stage is not Stage.SYNCING else ()
    return reported_ips(newest.ips, facts.host_ips)


def _host_network_ips(old: tuple[str, ...], host: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses of a host-network pod. Published ones are kept; a second family may be added."""
    if not old:
        return host[:2]
    if len(old) == 1 and len(host) > 1 and is_v6(old[0]) != is_v6(host[1]):
        return (old[0], host[1])
    return old


# `started` and `ready` of containers, from their probes


def _with_readiness_of(
    statuses: Statuses, containers: Sequence[core.Container], probes: ProbeResults, before: Statuses = ()
) -> Statuses:
    """The statuses of regular containers with `started` and `ready`. `before`: the previous statuses."""
    specs, known = {container.name: container for container in containers}, by_name(before)
    return tuple(_with_readiness(s, specs[s.name], probes, known.get(s.name)) for s in statuses)


def _with_init_readiness(
    statuses: Statuses, containers: Sequence[core.Container], probes: ProbeResults, before: Statuses = ()
) -> Statuses:
    """The statuses of init containers with `started` and `ready`; those of sidecars depend on their probes (KEP-753)."""
    reported, known = [], by_name(before)
    for status, container in zip(statuses, containers, strict=True):
        if is_sidecar(container):
            reported.append(_with_readiness(status, container, probes, known.get(status.name)))
            continue
        ended = status.state.terminated if status.state is not None else None
        is_running = status.state is not None and status.state.running is not None
        reported.append(replace(status, started=is_running, ready=is_success(ended)))
    return tuple(reported)


def _starting_sidecars(statuses: Statuses, before: Statuses, containers: Sequence[core.Container]) -> frozenset[str]:
    """The sidecars that run and are not started in the statuses `before`."""
    started = {status.name for status in before if status.started}
    sidecars = {container.name for container in containers if is_sidecar(container)} - started
    return frozenset(
        s.name for s in statuses if s.name in sidecars and s.state is not None and s.state.running is not None
    )


def _with_readiness(
    status: core.ContainerStatus, container: core.Container, probes: ProbeResults, before: core.ContainerStatus | None
) -> core.ContainerStatus:
    if status.state is None or status.state.running is None:
        return replace(status, started=False, ready=False)
    if before is None or before.containerID != status.containerID or not probes.keeps:
        before = None
    instance = instance_of(status)
    had_started, was_ready = (before.started, before.ready) if before is not None else (None, None)
    started = _passes(probes, instance, ProbeKind.STARTUP, container.startupProbe, had_started)
    ready = started and _passes(probes, instance, ProbeKind.READINESS, container.readinessProbe, was_ready)
    return replace(status, started=started, ready=ready)


def _passes(
    probes: ProbeResults, instance: ContainerID, kind: ProbeKind, probe: core.Probe | None, before: bool | None
) -> bool:
    if probe is None or kind not in probes.watched:
        return True
    if before is not None and not probes.is_known(instance, kind):
        return before
    return probes.get(instance, kind) is ProbeResult.SUCCESS
