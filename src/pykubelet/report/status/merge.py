"""What the API server's copy of a pod's status is to become, and the patch that makes it so. Pure.

Rules:
- Conditions, claims and the nominated node that others write stay as the API server has them. Of DisruptionTarget, which
  has several writers, ours counts when there is one; it comes with the end that it explains, not before.
- An end is not told while containers may still run: phase, reason and message stay until the agent has stopped the pod,
  and `told` knows how its containers ended, though it is told at once that the pod is not ready.
- An end that was told stays, of a pod and of a container that its rules do not let run again: such a status is refused
  whole, as the API server would.
- A mirror pod shows the status of its static pod, and no generation: nobody acts on the mirror's own spec.
- A patch names the pod's UID, so that it never reaches a later pod of the same name.
Source: the Kubernetes documentation "Pod Lifecycle"; KEP-5067 (generations of pods).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from pykubelet.base.api import core
from pykubelet.base.api.codec import to_object
from pykubelet.base.api.patch import POD_STATUS_KEYS, strategic_diff
from pykubelet.base.api.versions import compare_versions
from pykubelet.base.kit.values import replace
from pykubelet.base.model.reasons import (
    CONTAINER_CREATING,
    CONTAINERS_READY,
    DISRUPTION_TARGET,
    OWN_CONDITIONS,
    POD_INITIALIZING,
    POD_READY,
)
from pykubelet.base.model.restart import ALWAYS, AfterExit, after_exit, has_restart_all_rule, is_sidecar
from pykubelet.base.model.roster import TERMINAL_PHASES, is_mirror

QUIET_REASONS = frozenset({CONTAINER_CREATING, POD_INITIALIZING, ""})


class Urgency(IntEnum):
    """In which order reports go out. QUIET ones say nothing that anybody waits for: they may wait to be more. What is LATE
    will most likely never be sent, because the pod's end tells it all."""

    END = 0
    READY = 1
    NEWS = 2
    QUIET = 3
    LATE = 4


def status_for_api(api: core.Pod, told: core.PodStatus, *, has_ended: bool) -> core.PodStatus | None:
    """`api`: the pod as the API server has it. `has_ended`: the agent has stopped it for good. None: nothing to tell."""
    there = api.status
    if there.phase in TERMINAL_PHASES and told.phase not in TERMINAL_PHASES:
        return None
    is_over = has_ended and not _has_running(told)
    if told.phase in TERMINAL_PHASES and there.phase not in TERMINAL_PHASES and not is_over:
        told = replace(told, phase=there.phase, reason=there.reason, message=there.message)
    if is_mirror(api):
        told = _under_generation(told, None)
    return replace(
        told,
        conditions=_conditions(there.conditions, told.conditions, is_end=told.phase in TERMINAL_PHASES),
        resourceClaimStatuses=there.resourceClaimStatuses,
        extendedResourceClaimStatus=there.extendedResourceClaimStatus,
        nodeAllocatableResourceClaimStatuses=there.nodeAllocatableResourceClaimStatuses,
        nominatedNodeName=there.nominatedNodeName,
        resize=there.resize,
        qosClass=there.qosClass or told.qosClass,
    )


def _has_running(told: core.PodStatus) -> bool:
    statuses = (*told.initContainerStatuses, *told.containerStatuses)
    return any(one.state is not None and one.state.running is not None for one in statuses)


def revived(api: core.Pod, told: core.PodStatus) -> str:
    """The container whose end the API server knows, that may not run again, and that `told` has not ended; "" when none."""
    if (api.spec.restartPolicy or ALWAYS) == ALWAYS or has_restart_all_rule(api):
        return ""
    specs = {c.name: c for c in (*api.spec.initContainers, *api.spec.containers) if not is_sidecar(c)}
    there, now = (
        {
            one.name: one.state.terminated if one.state is not None else None
            for one in (*s.initContainerStatuses, *s.containerStatuses)
        }
        for s in (api.status, told)
    )
    for name, end in there.items():
        if end is None or now.get(name, end) is not None or name not in specs:
            continue
        if after_exit(api, specs[name], end.exitCode) is AfterExit.STAY:
            return name
    return ""


def _conditions(
    there: tuple[core.PodCondition, ...], told: tuple[core.PodCondition, ...], *, is_end: bool
) -> tuple[core.PodCondition, ...]:
    own = [c for c in told if c.type in OWN_CONDITIONS and (is_end or c.type != DISRUPTION_TARGET)]
    has_target = any(c.type == DISRUPTION_TARGET for c in own)
    foreign = [c for c in there if c.type not in OWN_CONDITIONS or (c.type == DISRUPTION_TARGET and not has_target)]
    return (*foreign, *own)


def _under_generation(told: core.PodStatus, generation: int | None) -> core.PodStatus:
    conditions = tuple(replace(c, observedGeneration=generation) for c in told.conditions)
    return replace(told, observedGeneration=generation, conditions=conditions)


def render_patch(api: core.Pod, wanted: core.PodStatus) -> dict[str, Any] | None:
    """The strategic merge patch of the status subresource that makes `wanted` of what the API server has; None when
    there is no difference."""
    changes = strategic_diff(to_object(api.status), to_object(wanted), POD_STATUS_KEYS)
    return {"metadata": {"uid": api.metadata.uid}, "status": changes} if changes else None


def urgency_of(api: core.Pod, wanted: core.PodStatus, *, is_held_up: bool = False) -> Urgency:
    """`is_held_up`: something is in the way of the pod's start, so that nothing better will soon be told."""
    there = api.status
    if wanted.phase in TERMINAL_PHASES and there.phase not in TERMINAL_PHASES:
        return Urgency.END
    readiness = any(_condition(wanted, kind) != _condition(there, kind) for kind in (POD_READY, CONTAINERS_READY))
    if api.metadata.deletionTimestamp:
        return Urgency.QUIET if readiness else Urgency.LATE
    if wanted.phase != there.phase and wanted.phase != "Pending":
        return Urgency.READY
    if readiness:
        return Urgency.READY
    follows = there.observedGeneration is not None and there.observedGeneration != wanted.observedGeneration
    return Urgency.NEWS if is_held_up or follows or _news(wanted) != _news(there) else Urgency.QUIET


def turns_condition(there: core.PodStatus, wanted: core.PodStatus) -> bool:
    """Whether one of the agent's conditions becomes true, or is no longer."""
    return any(_condition(there, kind) != _condition(wanted, kind) for kind in OWN_CONDITIONS)


def _condition(status: core.PodStatus, kind: str) -> bool:
    return any(c.type == kind and c.status == "True" for c in status.conditions)


def _news(status: core.PodStatus) -> list[object]:
    """What of the containers somebody may be waiting to hear: that they ended, restarted, or cannot start; resizes."""
    told: list[object] = [status.resources, status.allocatedResources]
    told.extend((c.type, c.status, c.reason) for c in status.conditions if c.type.startswith("PodResize"))
    for one in (*status.initContainerStatuses, *status.containerStatuses, *status.ephemeralContainerStatuses):
        state = one.state if one.state is not None else core.ContainerState()
        reason = state.waiting.reason if state.waiting is not None else ""
        if reason not in QUIET_REASONS or state.terminated is not None or one.restartCount:
            told.append((one.name, one.restartCount, reason, state.terminated))
        if state.running is not None:
            told.append((one.name, one.resources))
    return told


def may_delete(api: core.Pod) -> bool:
    """Whether the API server's object of a pod of which nothing is left may go: it is deleted, and its end was told."""
    meta = api.metadata
    if not meta.deletionTimestamp or is_mirror(api) or api.status.phase not in TERMINAL_PHASES:
        return False
    return not (meta.deletionGracePeriodSeconds == 0 and meta.finalizers)


def final_delete(api: core.Pod) -> dict[str, Any]:
    """The DeleteOptions of the last deletion."""
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": api.metadata.uid},
    }


def newer(one: core.Pod, other: core.Pod) -> core.Pod:
    """The later of two states of one object (KEP-5504: resource versions can be compared); `other` when in doubt."""
    order = compare_versions(one.metadata.resourceVersion, other.metadata.resourceVersion)
    return one if order is not None and order > 0 else other
