"""ResourceClaims of `resource.k8s.io/v1`, with the fields that a node agent reads. Pure.

Written by hand: the whole API group has some forty types, and requests and selectors only concern the scheduler.
Source: the Kubernetes API reference "ResourceClaim v1".
"""

from __future__ import annotations

from msgspec import Struct

from pykubelet.base.api.core import ObjectMeta

RESOURCE_API = "/apis/resource.k8s.io/v1"


class AllocatedDevice(Struct, frozen=True, omit_defaults=True):
    """One device that the scheduler has allocated: its driver, pool and name, and the request that it serves.

    `skipNodeOperations`: the calls that the device does not need (KEP-5945).
    """

    driver: str = ""
    pool: str = ""
    device: str = ""
    request: str = ""
    shareID: str | None = None
    adminAccess: bool | None = None
    skipNodeOperations: tuple[str, ...] = ()


class AllocatedDevices(Struct, frozen=True, omit_defaults=True):
    """All allocated devices of a claim."""

    results: tuple[AllocatedDevice, ...] = ()


class ClaimAllocation(Struct, frozen=True, omit_defaults=True):
    """The result of the allocation of a claim."""

    devices: AllocatedDevices = AllocatedDevices()


class ClaimConsumer(Struct, frozen=True, omit_defaults=True):
    """An object for which a claim is reserved. A pod has an empty `apiGroup` and the resource `pods`."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    apiGroup: str = ""


class ApiClaimStatus(Struct, frozen=True, omit_defaults=True):
    """The status of a ResourceClaim."""

    allocation: ClaimAllocation | None = None
    reservedFor: tuple[ClaimConsumer, ...] = ()


class ApiClaim(Struct, frozen=True, omit_defaults=True):
    """A ResourceClaim."""

    metadata: ObjectMeta = ObjectMeta()
    status: ApiClaimStatus = ApiClaimStatus()


def claims_path(namespace: str) -> str:
    """The path of the ResourceClaims of a namespace."""
    return f"{RESOURCE_API}/namespaces/{namespace}/resourceclaims"
