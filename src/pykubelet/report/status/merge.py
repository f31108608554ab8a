"""Makes the status that a pod should have at the API server, and the patch for it. Pure.

Rules:
- Conditions, claims and the nominated node that other clients write are kept as the API server has them. DisruptionTarget
  has several writers: the agent's condition is used if there is one, and is published together with the terminal phase.
- A terminal phase is not published while containers may still run. Phase, reason and message are kept until the agent has
  stopped the pod and `status` has all exit statuses. But it is published at once that the pod is not ready.
- A published end is never reverted, neither of a pod nor of a container that must not restart. A status that would revert
  it is not sent at all, because the API server would refuse it.
- A mirror pod shows the status of its static pod, without generations, because the mirror's own spec has no effect.
- A patch names the pod's UID, so that it never reaches a later pod of the same name.
Source: the Kubernetes documentation "Pod Lifecycle"; KEP-5067 (generations of pods).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import chain
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
    POD_RESIZE_IN_PROGRESS,
    POD_RESIZE_PENDING,
)
from pykubelet.base.model.restart import ALWAYS, AfterExit, after_exit, has_restart_all_rule, is_sidecar
from pykubelet.base.model.roster import TERMINAL_PHASES, is_mirror

RESIZES = frozenset({POD_RESIZE_PENDING, POD_RESIZE_IN_PROGRESS})
QUIET_REASONS = frozenset({CONTAINER_CREATING, POD_INITIALIZING, ""})


class Urgency(IntEnum):
    """The order of the patches.

    END: the pod has ended. READY: its phase or readiness has changed. CHANGED: another change that a client may wait for: an exit, a
    restart, a failed start, the end of a resize. PARTIAL: more follows soon: containers run and others are being started, or a
    resize is under way. DEFERRABLE: no
    client waits for the content, so the patch may be combined with the next one. SUPERSEDED: the pod's final status will probably
    replace it before it is sent.
    """

    END = 0
    READY = 1
    CHANGED = 2
    PARTIAL = 3
    DEFERRABLE = 4
    SUPERSEDED = 5


def status_for_api(api: core.Pod, status: core.PodStatus, *, has_ended: bool) -> core.PodStatus | None:
    """The status that the pod should have at the API server; None: the API server's status must be kept.

    `api`: the pod as the API server has it. `has_ended`: the agent has stopped the pod for good.
    """
    there = api.status
    if there.phase in TERMINAL_PHASES and status.phase not in TERMINAL_PHASES:
        return None
    is_over = has_ended and not _has_running(status)
    if status.phase in TERMINAL_PHASES and there.phase not in TERMINAL_PHASES and not is_over:
        status = replace(status, phase=there.phase, reason=there.reason, message=there.message)
    if is_mirror(api):
        status = _under_generation(status, None)
    return replace(
        status,
        conditions=_conditions(there.conditions, status.conditions, is_end=status.phase in TERMINAL_PHASES),
        resourceClaimStatuses=there.resourceClaimStatuses,
        extendedResourceClaimStatus=there.extendedResourceClaimStatus,
        nodeAllocatableResourceClaimStatuses=there.nodeAllocatableResourceClaimStatuses,
        nominatedNodeName=there.nominatedNodeName,
        resize=there.resize,
        qosClass=there.qosClass or status.qosClass,
    )


def _has_running(status: core.PodStatus) -> bool:
    return any(map(_is_running, (*status.initContainerStatuses, *status.containerStatuses)))


def revived(api: core.Pod, status: core.PodStatus) -> str:
    """A container that is terminated at the API server, must not restart, and is not terminated in `status`; "": none.

    One that has run again, because its end was removed with its sandbox, has a higher restart count, and is reported.
    """
    if (api.spec.restartPolicy or ALWAYS) == ALWAYS or has_restart_all_rule(api):
        return ""
    specs = {c.name: c for c in (*api.spec.initContainers, *api.spec.containers) if not is_sidecar(c)}
    now = {container.name: container for container in (*status.initContainerStatuses, *status.containerStatuses)}
    for there in (*api.status.initContainerStatuses, *api.status.containerStatuses):
        name, end, newest = there.name, _end_of(there), now.get(there.name)
        if end is None or newest is None or name not in specs or newest.restartCount > there.restartCount:
            continue
        if _end_of(newest) is None and after_exit(api, specs[name], end.exitCode) is AfterExit.STAY:
            return name
    return ""


def _end_of(container: core.ContainerStatus) -> core.ContainerStateTerminated | None:
    return container.state.terminated if container.state is not None else None


def _conditions(
    there: tuple[core.PodCondition, ...], status: tuple[core.PodCondition, ...], *, is_end: bool
) -> tuple[core.PodCondition, ...]:
    own = [c for c in status if c.type in OWN_CONDITIONS and (is_end or c.type != DISRUPTION_TARGET)]
    has_target = any(c.type == DISRUPTION_TARGET for c in own)
    foreign = [c for c in there if c.type not in OWN_CONDITIONS or (c.type == DISRUPTION_TARGET and not has_target)]
    return (*foreign, *own)


def _under_generation(status: core.PodStatus, generation: int | None) -> core.PodStatus:
    conditions = tuple(replace(c, observedGeneration=generation) for c in status.conditions)
    return replace(status, observedGeneration=generation, conditions=conditions)


def render_patch(api: core.Pod, wanted: core.PodStatus) -> dict[str, Any] | None:
    """The strategic merge patch of the status subresource from the API server's copy to `wanted`; None if they do not
    differ."""
    changes = strategic_diff(to_object(api.status), to_object(wanted), POD_STATUS_KEYS)
    return {"metadata": {"uid": api.metadata.uid}, "status": changes} if changes else None


def urgency_of(api: core.Pod, wanted: core.PodStatus, *, is_held_up: bool = False) -> Urgency:
    """The urgency of a patch. `is_held_up`: the pod cannot start because of a failure, so no better status follows soon."""
    there = api.status
    if wanted.phase in TERMINAL_PHASES and there.phase not in TERMINAL_PHASES:
        return Urgency.END
    readiness = any(_condition(wanted, kind) != _condition(there, kind) for kind in (POD_READY, CONTAINERS_READY))
    if api.metadata.deletionTimestamp:
        return Urgency.DEFERRABLE if readiness else Urgency.SUPERSEDED
    if wanted.phase != there.phase and wanted.phase != "Pending":
        return Urgency.READY
    if readiness:
        return Urgency.READY
    follows = there.observedGeneration is not None and there.observedGeneration != wanted.observedGeneration
    if is_held_up or _outcomes(there) != _outcomes(wanted):
        return Urgency.CHANGED
    if _is_resizing(wanted):
        return Urgency.PARTIAL
    before, now = _sizes(there), _sizes(wanted)
    if follows or _is_resizing(there) or any(size != before[part] for part, size in now.items() if part in before):
        return Urgency.CHANGED
    return Urgency.PARTIAL if now.keys() - before.keys() else Urgency.DEFERRABLE


def differs_in_condition(there: core.PodStatus, wanted: core.PodStatus) -> bool:
    """Whether one of the agent's conditions becomes True, or is no longer True."""
    return any(_condition(there, kind) != _condition(wanted, kind) for kind in OWN_CONDITIONS)


def _condition(status: core.PodStatus, kind: str) -> bool:
    return any(c.type == kind and c.status == "True" for c in status.conditions)


def _outcomes(status: core.PodStatus) -> list[object]:
    """Exits, restarts, failed starts, and resizes that wait or have failed."""
    found: list[object] = [(c.type, c.reason) for c in status.conditions if c.type in RESIZES and c.reason]
    for container in _container_statuses(status):
        state = container.state if container.state is not None else core.ContainerState()
        reason = state.waiting.reason if state.waiting is not None else ""
        if reason not in QUIET_REASONS or state.terminated is not None or container.restartCount:
            found.append((container.name, container.restartCount, reason, state.terminated))
    return found


def _is_resizing(status: core.PodStatus) -> bool:
    """Whether a resize is being carried out, which usually takes milliseconds, and has not failed so far."""
    return any(c.type == POD_RESIZE_IN_PROGRESS and not c.reason for c in status.conditions)


def _sizes(status: core.PodStatus) -> dict[str, object]:
    """The resources of the running containers, by name, and of the pod by names that no container has. Not what is not known yet."""
    of_pod = {"/resources": status.resources, "/allocatedResources": status.allocatedResources}
    sizes = {part: size for part, size in of_pod.items() if size}
    return sizes | {c.name: c.resources for c in _container_statuses(status) if _is_running(c)}


def _is_running(container: core.ContainerStatus) -> bool:
    return container.state is not None and container.state.running is not None


def _container_statuses(status: core.PodStatus) -> Iterator[core.ContainerStatus]:
    return chain(status.initContainerStatuses, status.containerStatuses, status.ephemeralContainerStatuses)


def may_delete(api: core.Pod) -> bool:
    """True if the object of a finished pod may be deleted for good, because its final status is published."""
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


def newer(pod: core.Pod, other: core.Pod) -> core.Pod:
    """The later of two states of one object, by resource version (KEP-5504); `other` in doubt."""
    order = compare_versions(pod.metadata.resourceVersion, other.metadata.resourceVersion)
    return pod if order is not None and order > 0 else other
