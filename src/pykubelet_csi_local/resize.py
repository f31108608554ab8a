"""Decides which volumes grow with their claims, and what the claims report meanwhile. Pure.

Rules:
- A bound claim that asks for more than its PersistentVolume has is marked, the driver gives the volume the new size, the PersistentVolume
  gets it, and then the claim: its capacity if nothing more is to be done, or else the mark that the node has to grow the file system.
- Every step may be repeated: an expansion that was interrupted begins again, until the claim has its mark or its capacity.
- A size that the driver can never give is marked as infeasible; the claim may ask for less then.
- API servers before 1.31 drop the states of the resize; the conditions alone decide then.
Source: KEP-284, KEP-1790, and the Kubernetes documentation "Persistent Volumes", expanding persistent volume claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pykubelet.base.api.quantity import Amount, Format
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.values import Value
from pykubelet.base.model.claim_sizes import (
    CONTROLLER_ERROR,
    CONTROLLER_IN_PROGRESS,
    CONTROLLER_INFEASIBLE,
    ENDED,
    FILE_SYSTEM_PENDING,
    PENDING,
    RESIZING,
    STORAGE,
    claim_size,
    condition_now,
    conditions_without,
    done_patch,
    requested_size,
    resize_state,
    status_of,
    status_patch,
    volume_size,
)
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.net.grpc.status import Code

#: Codes of the driver after which the same size will be refused again.
INFEASIBLE_CODES = (Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND)
_OF_CONTROLLER = ("", CONTROLLER_IN_PROGRESS, CONTROLLER_INFEASIBLE)


class Resize(Value):
    """Give the volume the size that its claim asks for."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume

    @property
    def name(self) -> str:
        """The name of the volume in the cluster."""
        return self.volume.metadata.name


def resizes(
    claims: Iterable[PersistentVolumeClaim], volumes: Mapping[str, PersistentVolume], driver: str
) -> list[Resize]:
    """The volumes of the driver that are to grow. `volumes`: by name."""
    found = []
    for claim in claims:
        volume = volumes.get(claim.spec.volumeName)
        if volume is not None and _is_own(claim, volume, driver) and _is_wanted(claim, volume):
            found.append(Resize(claim, volume))
    return found


def _is_own(claim: PersistentVolumeClaim, volume: PersistentVolume, driver: str) -> bool:
    """Whether the claim has the volume, and that is one of the driver."""
    owner = volume.spec.claimRef
    return (
        status_of(claim).phase == "Bound"
        and not claim.metadata.deletionTimestamp
        and owner is not None
        and owner.uid == claim.metadata.uid
        and volume.spec.csi is not None
        and volume.spec.csi.driver == driver
    )


def _is_wanted(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    wanted = requested_size(claim)
    if volume_size(volume.spec) < wanted:
        return True
    waits_for_node = any(condition.type == FILE_SYSTEM_PENDING for condition in status_of(claim).conditions)
    return claim_size(claim) < wanted and resize_state(claim) in _OF_CONTROLLER and not waits_for_node


def expansion(task: Resize) -> pb.ControllerExpandVolumeRequest:
    """The request to the driver."""
    source = task.volume.spec.csi
    return pb.ControllerExpandVolumeRequest(
        volume_id=source.volumeHandle if source is not None else "",
        capacity_range=pb.CapacityRange(required_bytes=requested_size(task.claim)),
    )


# JSON merge patches


def begun_patch(claim: PersistentVolumeClaim, time: str) -> dict[str, Any] | None:
    """The patch of the claim's status before the driver is called; None if the claim is marked already. `time`: now."""
    text, status = _text(requested_size(claim)), status_of(claim)
    is_marked = any(condition.type == RESIZING for condition in status.conditions)
    if is_marked and status.allocatedResources.get(STORAGE, text) == text and resize_state(claim) in _OF_CONTROLLER:
        return None
    conditions = [*conditions_without(claim, {RESIZING}), condition_now(RESIZING, "", time)]
    allocated = {"allocatedResources": {STORAGE: text}, "allocatedResourceStatuses": {STORAGE: CONTROLLER_IN_PROGRESS}}
    return status_patch(claim, {"conditions": conditions, **allocated})


def volume_patch(size: int) -> dict[str, Any]:
    """The patch of the PersistentVolume that has now `size` bytes."""
    return {"spec": {"capacity": {STORAGE: _text(size)}}}


def ended_patch(claim: PersistentVolumeClaim, size: int, time: str, *, needs_node: bool) -> dict[str, Any]:
    """The patch of the claim's status after the driver has given the volume `size` bytes."""
    if not needs_node:
        return done_patch(claim, _text(size))
    text = "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
    conditions = [*conditions_without(claim, ENDED), condition_now(FILE_SYSTEM_PENDING, text, time)]
    return status_patch(claim, {"conditions": conditions, "allocatedResourceStatuses": {STORAGE: PENDING}})


def failed_patch(claim: PersistentVolumeClaim, error: str, time: str, *, is_infeasible: bool) -> dict[str, Any]:
    """The patch of the claim's status after the driver has refused."""
    conditions = [*conditions_without(claim, {CONTROLLER_ERROR}), condition_now(CONTROLLER_ERROR, error, time)]
    state = {"allocatedResourceStatuses": {STORAGE: CONTROLLER_INFEASIBLE}} if is_infeasible else {}
    return status_patch(claim, {"conditions": conditions, **state})


def _text(size: int) -> str:
    return str(Amount(size * 1_000_000_000, Format.BINARY_SI))
