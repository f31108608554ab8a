"""`allocatedResourcesStatus` of containers: the health of the devices that they have. Pure.

Source: KEP-4680 (resource health in the pod status).
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

from pykubelet.base.api.core import ContainerStatus, ResourceHealth, ResourceStatus
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import ClaimDeviceHealth, ClaimResource, Claims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.placement import AssignedDevices, DeviceResource, Placements

#: The statuses of resources by container name.
ContainerHealth = Mapping[str, tuple[ResourceStatus, ...]]
NO_HEALTH: ContainerHealth = {}
_UNKNOWN = DeviceResource()
_NO_REPORT = ClaimDeviceHealth("Unknown")


def device_health(placements: Placements, before: Mapping[PodUID, ContainerHealth]) -> dict[PodUID, ContainerHealth]:
    """The health of the devices of all pods that have some. Equal parts stay the objects that they were in `before`."""
    found: dict[PodUID, ContainerHealth] = {}
    for uid, pod in placements.pods.items():
        health = {
            name: tuple(_resource(assigned, placements) for assigned in container.devices)
            for name, container in pod.containers.items()
            if container.devices
        }
        if health:
            known = before.get(uid)
            found[uid] = known if known == health else health
    return found


def _resource(assigned: AssignedDevices, placements: Placements) -> ResourceStatus:
    resource = placements.devices.get(assigned.resource, _UNKNOWN)
    devices = (ResourceHealth(resourceID=name, health=resource.health(name)) for name in sorted(assigned.ids))
    return ResourceStatus(name=assigned.resource, resources=tuple(devices))


def claim_health(claims: Claims, before: Mapping[PodUID, ContainerHealth]) -> dict[PodUID, ContainerHealth]:
    """The health of the devices of all pods' claims. Equal parts stay the objects that they were in `before`."""
    found: dict[PodUID, ContainerHealth] = {}
    for uid, pod in claims.pods.items():
        if pod.resources:
            health = {name: tuple(_claimed(r, claims) for r in resources) for name, resources in pod.resources.items()}
            known = before.get(uid)
            found[uid] = known if known == health else health
    return found


def _claimed(resource: ClaimResource, claims: Claims) -> ResourceStatus:
    """The health of one reference's devices in a fixed order: drivers list them as they like, and another order would be another status."""
    found: dict[str, ResourceHealth] = {}
    devices = {(device.driver, device.pool, device.device): device for device in resource.devices}
    for key, device in sorted(devices.items(), key=itemgetter(0)):
        name = device.cdi[0] if device.cdi else "/".join(key)
        health = claims.health.get(key, _NO_REPORT)
        found.setdefault(name, ResourceHealth(resourceID=name, health=health.health, message=health.message))
    return ResourceStatus(name=resource.name, resources=tuple(found[name] for name in sorted(found)))


def merged_health(
    devices: Mapping[PodUID, ContainerHealth],
    claims: Mapping[PodUID, ContainerHealth],
    before: Mapping[PodUID, ContainerHealth],
) -> Mapping[PodUID, ContainerHealth]:
    """Both, by pod and container. Equal parts stay the objects that they were in `before`."""
    if not claims:
        return devices
    found = dict(devices)
    for uid, more in claims.items():
        own = devices.get(uid, NO_HEALTH)
        health = {name: own.get(name, ()) + more.get(name, ()) for name in {**own, **more}}
        known = before.get(uid)
        found[uid] = known if known == health else health
    return found


def with_health(
    statuses: tuple[ContainerStatus, ...], health: ContainerHealth, old: tuple[ContainerStatus, ...]
) -> tuple[ContainerStatus, ...]:
    """The statuses with the health of the containers' devices. What was known of a container without devices now is kept."""
    before = {status.name: status.allocatedResourcesStatus for status in old}
    if not health and not any(before.values()):
        return statuses
    return tuple(
        replace(status, allocatedResourcesStatus=_merged(before.get(status.name, ()), health.get(status.name, ())))
        for status in statuses
    )


def _merged(before: tuple[ResourceStatus, ...], now: tuple[ResourceStatus, ...]) -> tuple[ResourceStatus, ...]:
    """The statuses of resources by name; `now` replaces `before`."""
    return tuple({status.name: status for status in (*before, *now)}.values())
