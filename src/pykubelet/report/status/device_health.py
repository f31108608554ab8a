"""`allocatedResourcesStatus` of containers: the health of the devices that they have. Pure.

Source: KEP-4680 (resource health in the pod status).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import ContainerStatus, ResourceHealth, ResourceStatus
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.placement import AssignedDevices, DeviceResource, Placements

#: The statuses of resources by container name.
ContainerHealth = Mapping[str, tuple[ResourceStatus, ...]]
NO_HEALTH: ContainerHealth = {}
_UNKNOWN = DeviceResource()


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
