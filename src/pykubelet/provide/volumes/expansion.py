"""Decides whether and how a volume is expanded on the node, and what its claim reports about that. Pure.

Rules:
 1. A volume is expanded when its PersistentVolume is larger than the size that the node knows: that of the claim's status when
    the volume was mounted, or that of the last expansion here.
 2. A claim with allocated resources or a status of its resize is on the recovery path: the target is the allocated size, and
    the node acts in the states NodeResizePending and NodeResizeInProgress only. Any other claim is expanded to the size of
    its PersistentVolume.
 3. A claim that has the target size already is done, unless several nodes may use it: each of them must be expanded.
 4. A patch of the claim's status has the resource version that was read, so that no newer status is overwritten.
Source: KEP-284 (resize on the node), KEP-1790 (recovery from failed expansion).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pykubelet.base.api.quantity import canonical
from pykubelet.base.api.storage import PersistentVolumeClaim
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import Value
from pykubelet.base.model.claim_sizes import (
    IN_PROGRESS,
    INFEASIBLE,
    NODE_ERROR,
    PENDING,
    STORAGE,
    claim_size,
    condition_now,
    conditions_without,
    requested_size,
    resize_state,
    size_of,
    status_of,
    status_patch,
)
from pykubelet.base.model.ids import PodRef
from pykubelet.provide.volumes.kind import VolumesError

NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"


class ExpandFault(StrEnum):
    """Why a volume was not expanded. infeasible: it never can be. in use: not while it is mounted here. final: the driver has refused."""

    INFEASIBLE = "infeasible"
    IN_USE = "in use"
    NOT_SUPPORTED = "not supported"
    FINAL = "final"


class ExpandError(VolumesError):
    """Expanding a volume has failed, for the reason `fault`."""

    def __init__(self, text: str, fault: ExpandFault = ExpandFault.FINAL) -> None:
        super().__init__(text)
        self.fault = fault


class Expansion(Value):
    """A volume that is larger than the node knows. `size`: the bytes of its PersistentVolume, which `text` is in the API's spelling.
    `known`: the bytes that the node knows.

    `claim`, `uid`: namespace and name, and the UID, of its claim. `volume`: the name of the PersistentVolume. `read_only`: the pod
    has the claim read-only, so that nothing can be expanded. `pod`: the pod that uses the volume.
    """

    claim: tuple[str, str]
    uid: str
    volume: str
    size: int
    text: str
    read_only: bool = False
    pod: PodRef | None = None
    known: int = 0


class Skip(Value):
    """Nothing is done. `is_known`: the size counts as known, so that it is not looked at again until it changes."""

    is_known: bool


class Expand(Value):
    """Expand the volume to `size` bytes, in the API's spelling `text`. `is_recovery`: rule 2. `is_already`: the claim has the size."""

    size: int
    text: str
    is_recovery: bool = False
    is_already: bool = False


def decide_expansion(claim: PersistentVolumeClaim, expansion: Expansion) -> Skip | Expand:
    """What to do about a volume, from its claim as it is now."""
    if claim.metadata.uid != expansion.uid:
        return Skip(is_known=True)
    status, state = status_of(claim), resize_state(claim)
    is_recovery = bool(state or status.allocatedResources)
    allocated = status.allocatedResources.get(STORAGE)
    size, text = expansion.size, expansion.text
    if is_recovery and allocated is not None and (allocated_size := size_of(status.allocatedResources)):
        size, text = allocated_size, canonical(allocated)
    is_already = claim_size(claim) >= size and not state
    if is_already:
        is_shared = "ReadWriteMany" in claim.spec.accessModes and NOT_REQUIRED not in claim.metadata.annotations
        return Expand(size, text, is_recovery, is_already=True) if is_recovery and is_shared else Skip(is_known=True)
    if is_recovery and state not in (PENDING, IN_PROGRESS):
        return Skip(is_known=False)
    return Expand(size, text, is_recovery)


# Patches of the claim's status, as JSON merge patches


def begun_patch(claim: PersistentVolumeClaim) -> dict[str, Any]:
    """The patch before the driver is called."""
    return status_patch(claim, {"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}})


def failed_patch(
    claim: PersistentVolumeClaim, error: str, fault: ExpandFault, target: int, wall: float
) -> dict[str, Any]:
    """The patch after the driver has refused. `target`: the bytes that were asked for. `wall`: seconds now.

    The resize is infeasible too when the user has asked for another size since an earlier refusal.
    """
    failed_before = any(known.type == NODE_ERROR and known.status == "True" for known in status_of(claim).conditions)
    wanted = requested_size(claim)
    has_changed = failed_before and wanted not in (0, target)
    condition = condition_now(NODE_ERROR, f"failed to expand pvc with {error}", format_time(wall))
    body: dict[str, Any] = {"conditions": [*conditions_without(claim, {NODE_ERROR}), condition]}
    if fault is ExpandFault.INFEASIBLE or has_changed:
        body["allocatedResourceStatuses"] = {STORAGE: INFEASIBLE}
    return status_patch(claim, body)
