"""Projects a pod's status from its spec, lifecycle, runtime snapshot and probe results. Pure.

Rules:
- A terminal phase never changes back. Reason and message stay while the phase does; a kill that imposes a phase
  (rejection, deadline) wins over what the containers say; one to make room for another pod only says why it failed.
- A container whose postStart hook has not ended has the status from before that instance.
- A pod that was rejected and never touched has a phase, a reason and a message, and nothing of containers.
- An end that is only inferred from vanished containers is not published before the agent has ended the pod.
- The QoS class is for life.
- The start time is when the agent first saw the pod, or an older sandbox was created (the agent was restarted).
- Addresses are those of the ready sandbox, the node's family first; host-network pods have the node's. Once the pod is
  being ended, or has ended, the last known ones stay.
Source: the Kubernetes documentation "Pod Lifecycle".
"""

from __future__ import annotations

from pykubelet.base.api import core
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import replace
from pykubelet.base.model.addresses import is_v6, reported_ips
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.phase import Phase, Told, pod_phase
from pykubelet.base.model.qos import qos_class
from pykubelet.base.model.roster import is_static
from pykubelet.report.status.conditions import pod_conditions
from pykubelet.report.status.containers import (
    Statuses,
    all_ended,
    ephemeral_statuses,
    init_statuses,
    is_end_inferred,
    limited_messages,
    published_exit_codes,
    regular_statuses,
)
from pykubelet.report.status.model import StatusFacts, reported_view
from pykubelet.report.status.readiness import starting_sidecars, with_init_readiness, with_readiness
from pykubelet.report.status.resources import pod_allocated, pod_resources

MESSAGES_BYTES = 12 * 1024


def project_status(facts: StatusFacts) -> core.PodStatus:
    """The status; equal facts give an equal one, but for the transition times of changed conditions."""
    view = reported_view(facts.view, facts.lifecycle)
    if view is not facts.view:
        facts = replace(facts, view=view)
    if facts.lifecycle.kill_reason is KillReason.REJECTED and (facts.view is None or facts.view.is_gone):
        return _rejected(facts)
    spec = facts.pod.spec
    regular = with_readiness(regular_statuses(facts), spec.containers, facts.probes)
    init = with_init_readiness(init_statuses(facts), spec.initContainers, facts.probes)
    ephemeral = ephemeral_statuses(facts)
    told = Told(published_exit_codes(facts, (*init, *regular)), _starting(facts, init))
    is_inferred = is_end_inferred(facts, regular, init)
    if facts.has_ended:
        init, regular = all_ended(facts.pod, init, regular)
    phase, reason, message = _phase(facts, regular, told, is_inferred)
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


def _phase(facts: StatusFacts, regular: Statuses, told: Told, is_inferred: bool) -> tuple[Phase, str, str]:
    """Phase, reason and message."""
    lifecycle, old = facts.lifecycle, facts.old
    if facts.has_ended and not is_static(facts.pod):
        phase = _end_phase(regular)
    else:
        phase = pod_phase(facts.pod, facts.view, lifecycle.start_errors, facts.has_ended, told, lifecycle.owed)
    if phase.is_terminal and is_inferred and lifecycle.stage is Stage.SYNCING:
        phase = Phase.RUNNING
    before = Phase(old.phase) if old is not None and old.phase else None
    if before is not None and before.is_terminal and not (phase.is_terminal and is_static(facts.pod)):
        phase = before
    override = lifecycle.override
    if override is not None and (not override.yields or phase == override.phase):
        return Phase(override.phase), override.reason, override.message
    if old is not None and phase == before:
        return phase, old.reason, old.message
    return phase, "", ""


def _starting(facts: StatusFacts, init: Statuses) -> frozenset[str]:
    """Sidecars that run and count as not started: their start is published first, as regular containers come next.

    Where these are held up, nothing may be told for long: then only what the startup probes say counts.
    """
    spec, before = facts.pod.spec, facts.old.initContainerStatuses if facts.old is not None else ()
    is_held = any(container.name in facts.lifecycle.start_errors for container in spec.containers)
    return starting_sidecars(init, init if is_held else before, spec.initContainers)


def _end_phase(regular: Statuses) -> Phase:
    """The phase of a pod that has ended, by its published containers: they may be removed already."""
    ends = [status.state.terminated if status.state is not None else None for status in regular]
    done = all(end is not None and end.exitCode == 0 for end in ends)
    return Phase.SUCCEEDED if done else Phase.FAILED


def _qos_class(facts: StatusFacts) -> str:
    told = facts.old.qosClass if facts.old is not None else ""
    return told or str(qos_class(facts.pod))


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
    """Published addresses stay; a second family may be added."""
    if not old:
        return host[:2]
    if len(old) == 1 and len(host) > 1 and is_v6(old[0]) != is_v6(host[1]):
        return (old[0], host[1])
    return old
