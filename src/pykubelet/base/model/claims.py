"""The resource claims that are prepared on this node. `Claims` is written by provide/claims alone.

Source: the Kubernetes documentation "Dynamic Resource Allocation"; KEP-4381.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.waits import Wait

ANY_DRIVER = "<any>"


class ClaimDevice(Value):
    """One prepared device of a claim. `requests`: the names of the claim's requests it serves. `cdi`: CDI device names.

    `share_id`: which share of a device that several claims consume (KEP-5075); empty without one.
    """

    driver: str
    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    share_id: str = ""


class ContainerClaim(Value):
    """A prepared claim as one container sees it: only the devices of the requests that it refers to."""

    name: str
    namespace: str
    devices: tuple[ClaimDevice, ...] = ()

    @property
    def cdi(self) -> tuple[str, ...]:
        """The CDI devices in order, each once."""
        return tuple(dict.fromkeys(name for device in self.devices for name in device.cdi))


class ClaimResource(Value):
    """The devices of one reference of a container. `name`: as in `allocatedResourcesStatus`, `claim:<claim>[/<request>]`."""

    name: str
    devices: tuple[ClaimDevice, ...] = ()


#: The driver, pool and name of a device.
DeviceKey = tuple[str, str, str]


class ClaimDeviceHealth(Value):
    """The health of a device as its driver reports it: `Healthy`, `Unhealthy` or `Unknown`."""

    health: str
    message: str = ""


class PodClaims(Value):
    """The claims of one pod. `ready`: all of them are prepared. `containers`: by container name. `waits`: which are not, and why.

    `resources`: the references of regular containers, by container name.
    """

    ready: bool = False
    containers: Mapping[str, tuple[ContainerClaim, ...]] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    resources: Mapping[str, tuple[ClaimResource, ...]] = field(default_factory=dict)


class Claims(Value):
    """The prepared claims by pod. A pod without an entry has none, and provide/claims holds nothing of it.

    `in_use`: the number of claims by driver; `ANY_DRIVER` for all. `health`: of the devices of claims whose driver reports it.
    """

    pods: Mapping[PodUID, PodClaims] = field(default_factory=dict)
    in_use: Mapping[str, int] = field(default_factory=dict)
    health: Mapping[DeviceKey, ClaimDeviceHealth] = field(default_factory=dict)
