"""The values of the claim manager: the cached claims, and the claims that a pod refers to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.claims import ANY_DRIVER, ClaimDevice
from pykubelet.base.model.ids import PodUID

#: The calls of a driver.
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"


class ClaimKey(Value, order=True):
    """The namespace and name of a ResourceClaim."""

    namespace: str
    name: str


class ClaimInfo(Value):
    """A claim that pods of this node use. `drivers`: the prepared devices by driver; none before the driver has prepared it.

    `is_prepared`: all drivers have prepared it since the agent's start, or containers that run have it already. `skips`: the calls that
    a driver does not get for it.
    """

    key: ClaimKey
    uid: str
    pods: frozenset[PodUID] = frozenset()
    drivers: Mapping[str, tuple[ClaimDevice, ...]] = field(default_factory=dict)
    is_prepared: bool = False
    skips: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[ClaimDevice, ...]:
        """The devices of all drivers."""
        return tuple(device for devices in self.drivers.values() for device in devices)


Cache = Mapping[ClaimKey, ClaimInfo]


class PodClaimRef(Value):
    """One claim of a pod. `name`: in the pod's spec; empty for the claim behind its extended resources.

    `must_own`: the claim was made from a template for this pod, which must own it.
    """

    name: str
    key: ClaimKey
    must_own: bool = False


class ClaimError(Exception):
    """Claims cannot be prepared or unprepared. The text is that of the reference. `driver`: the one that is the cause, if any."""

    def __init__(self, message: str, driver: str = "") -> None:
        super().__init__(message)
        self.driver = driver


def with_info(cache: Cache, *infos: ClaimInfo) -> Cache:
    """The cache with these claims added or replaced."""
    return {**cache, **{info.key: info for info in infos}}


def claims_of(cache: Cache, pod: PodUID) -> list[ClaimInfo]:
    """The claims that a pod holds, in a fixed order."""
    return sorted((info for info in cache.values() if pod in info.pods), key=lambda info: info.key)


def without_pod(cache: Cache, pod: PodUID, keys: Iterable[ClaimKey]) -> Cache:
    """The cache after the pod has given up these claims. Claims without a pod are dropped."""
    after = dict(cache)
    for key in keys:
        info = after.get(key)
        if info is None:
            continue
        left = info.pods - {pod}
        if left:
            after[key] = replace(info, pods=left)
        else:
            del after[key]
    return after


def in_use(cache: Cache) -> dict[str, int]:
    """The number of claims by driver, and of all."""
    counts = {ANY_DRIVER: len(cache)}
    for info in cache.values():
        for driver in info.drivers:
            counts[driver] = counts.get(driver, 0) + 1
    return counts
