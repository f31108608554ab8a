"""Sizes of claims, and how the status of a claim reports that its volume is expanded. Pure.

The controller and the node alternate: the controller gives the volume its new size and asks for the node if the file system has to
grow too. Each of the two ends what it has begun with one patch.
Source: KEP-284 (resize on the node), KEP-1790 (recovery from failed expansion).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pykubelet.base.api.codec import to_object
from pykubelet.base.api.core import Quantity
from pykubelet.base.api.quantity import QuantityError, value
from pykubelet.base.api.storage import (
    PersistentVolumeClaim,
    PersistentVolumeClaimCondition,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
)

STORAGE = "storage"
CONTROLLER_IN_PROGRESS, CONTROLLER_INFEASIBLE = "ControllerResizeInProgress", "ControllerResizeInfeasible"
PENDING, IN_PROGRESS, INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"
RESIZING, FILE_SYSTEM_PENDING = "Resizing", "FileSystemResizePending"
CONTROLLER_ERROR, NODE_ERROR = "ControllerResizeError", "NodeResizeError"
#: The conditions that end with a successful expansion.
ENDED = frozenset({FILE_SYSTEM_PENDING, RESIZING, CONTROLLER_ERROR, NODE_ERROR})


def claim_size(claim: PersistentVolumeClaim | None) -> int:
    """The size in the claim's status in bytes; 0 if it has none that can be read."""
    return size_of(status_of(claim).capacity)


def requested_size(claim: PersistentVolumeClaim) -> int:
    """The size that the claim asks for in bytes; 0 if it has none that can be read."""
    return size_of(claim.spec.resources.requests) if claim.spec.resources is not None else 0


def volume_size(spec: PersistentVolumeSpec) -> int:
    """The capacity of a persistent volume in bytes; 0 if it has none that can be read."""
    return size_of(spec.capacity)


def size_of(amounts: Mapping[str, Quantity]) -> int:
    """The bytes of storage among `amounts`; 0 if there are none that can be read."""
    try:
        return value(amounts.get(STORAGE))
    except QuantityError:
        return 0


def resize_state(claim: PersistentVolumeClaim) -> str:
    """The state of the resize that the claim reports, such as `NodeResizePending`; "" for none."""
    return status_of(claim).allocatedResourceStatuses.get(STORAGE, "")


def status_of(claim: PersistentVolumeClaim | None) -> PersistentVolumeClaimStatus:
    """The claim's status; an empty one if it has none."""
    found = claim.status if claim is not None else None
    return found if found is not None else PersistentVolumeClaimStatus()


def done_patch(claim: PersistentVolumeClaim, text: str) -> dict[str, Any]:
    """The patch after the expansion to the size `text`. The size and the end of the conditions are in one patch."""
    status = status_of(claim)
    body: dict[str, Any] = {"capacity": {STORAGE: text}}
    if STORAGE in status.allocatedResourceStatuses:
        body["allocatedResourceStatuses"] = {STORAGE: None}
    if any(condition.type in ENDED for condition in status.conditions):
        body["conditions"] = conditions_without(claim, ENDED)
    return status_patch(claim, body)


def conditions_without(claim: PersistentVolumeClaim, types: Iterable[str]) -> list[Any]:
    """The claim's conditions as plain values, except those of `types`."""
    return [to_object(condition) for condition in status_of(claim).conditions if condition.type not in types]


def condition_now(kind: str, message: str, time: str) -> Any:
    """A condition that is true, as plain values."""
    return to_object(PersistentVolumeClaimCondition(type=kind, status="True", lastTransitionTime=time, message=message))


def status_patch(claim: PersistentVolumeClaim, status: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch of the claim's status. It has the resource version that was read, so that it overwrites no newer status."""
    return {"metadata": {"resourceVersion": claim.metadata.resourceVersion}, "status": dict(status)}
