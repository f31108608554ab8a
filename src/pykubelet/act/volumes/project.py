"""A pod's state as the published `PodMounts`. Pure."""

from __future__ import annotations

from typing import assert_never

from pykubelet.act.volumes.kind import UndecidedPlan, VolumePlan
from pykubelet.act.volumes.model import (
    BUSY,
    Claim,
    Phase,
    PodState,
    Tree,
    Trouble,
    VolumeState,
)
from pykubelet.act.volumes.registry import kind_named
from pykubelet.base.model import reasons
from pykubelet.base.model.content import TokenKey, wait_for_key
from pykubelet.base.model.mounts import PodMounts
from pykubelet.base.model.needs import used_volumes
from pykubelet.base.model.waits import Wait

OWNER = "act/volumes"
NOTHING_BY_ITSELF = "nothing until the pod or the node is changed"


def missing_volumes(pod: PodState) -> list[str]:
    """Names of the volumes that the pod's containers need and that are not in place."""
    if pod.pod is None:
        return []
    present = pod.volumes
    return [v.name for v in used_volumes(pod.pod) if v.name not in present or present[v.name].mounted is None]


def is_ready(pod: PodState) -> bool:
    """Whether everything that the containers need is there. They wait for the pod's directory only when making it has failed."""
    return (
        pod.pod is not None and pod.tree is not Tree.REMOVING and pod.tree_trouble is None and not missing_volumes(pod)
    )


def is_coming(pod: PodState) -> bool:
    """Whether only tokens under way are missing, and volumes being set up that hold no sandbox (`VolumeKind.holds_sandbox`).

    A sandbox need not wait for these. It waits for everything else, as users expect of a pod whose volumes fail.
    """
    if pod.pod is None or pod.tree is Tree.REMOVING or pod.tree_trouble is not None:
        return False
    return all(name in pod.volumes and _is_coming(pod.volumes[name]) for name in missing_volumes(pod))


def _is_coming(volume: VolumeState) -> bool:
    if volume.trouble is not None:
        return False
    match volume.plan:
        case VolumePlan(kind=kind):
            return volume.phase is Phase.SETTING_UP and not kind_named(kind).holds_sandbox
        case UndecidedPlan(awaited=awaited):
            return bool(awaited) and all(isinstance(key, TokenKey) for key in awaited)
        case _:
            return False


def project_pod(pod: PodState, now_wall: float) -> PodMounts | None:
    """None for a pod that has given up all its volumes."""
    gives_up = pod.claim is Claim.RELEASED or pod.claim is Claim.ORPHANED
    if gives_up and not pod.volumes:
        return None
    waits = [wait for state in pod.volumes.values() for wait in _waits_for(pod, state)]
    waits.extend(_tree_waits(pod, now_wall))
    mounted = {state.name: state.mounted for state in pod.volumes.values() if state.mounted is not None}
    ready = not gives_up and is_ready(pod)
    coming = not gives_up and not ready and is_coming(pod)
    return PodMounts(mounted, ready, tuple(waits), coming)


def _tree_waits(pod: PodState, now_wall: float) -> list[Wait]:
    trouble = pod.tree_trouble
    if trouble is not None:
        return [_trouble_wait("pod directory", "", reasons.EVENT_FAILED, trouble, "try again")]
    if pod.tree is Tree.REMOVING and pod.claim is Claim.NEEDED:
        detail = "the directory of the pod before is being removed"
        return [Wait("pod directory", OWNER, now_wall, detail=detail, next_step="make it afresh")]
    return []


def _trouble_wait(what: str, subject: str, reason: str, trouble: Trouble, next_step: str) -> Wait:
    next_at = trouble.retry_wall
    step = next_step if next_at else NOTHING_BY_ITSELF
    return Wait(what, OWNER, trouble.since, subject, reason, trouble.error, step, next_at)


def _waits_for(pod: PodState, state: VolumeState) -> list[Wait]:
    """The content that a volume is made from while that is not known yet; else the volume."""
    if state.trouble is None and pod.claim is Claim.NEEDED and state.mounted is None and state.phase not in BUSY:
        awaited = state.plan.awaited if isinstance(state.plan, UndecidedPlan) else ()
        if awaited:
            return [wait_for_key(key, state.since, f'volume "{state.name}"') for key in awaited]
    wait = _wait_for(pod, state)
    return [wait] if wait is not None else []


def _wait_for(pod: PodState, state: VolumeState) -> Wait | None:
    if state.trouble is not None:
        if pod.claim is Claim.NEEDED:
            return _trouble_wait("volume", state.name, reasons.EVENT_FAILED_MOUNT, state.trouble, "try again")
        if pod.claim is Claim.KEPT:
            return None
        return _trouble_wait("volume", state.name, "", state.trouble, "try to unmount again")
    match state.phase:
        case Phase.MOUNTED | Phase.REFRESHING:
            return None
        case Phase.NEW | Phase.FAILED | Phase.UNCERTAIN:
            if pod.claim is not Claim.NEEDED or state.plan is None:
                return None  # found on disk, and no container uses it
            detail = state.plan.missing if isinstance(state.plan, UndecidedPlan) else ""
            return Wait("volume", OWNER, state.since, state.name, detail=detail, next_step="set it up")
        case Phase.SETTING_UP:
            return Wait("volume", OWNER, state.since, state.name, detail="being set up", next_step="start the pod")
        case Phase.TEARING_DOWN:
            detail = "being unmounted and removed"
            return Wait("volume", OWNER, state.since, state.name, detail=detail, next_step="end the pod")
    assert_never(state.phase)
