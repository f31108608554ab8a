"""The thresholds in force on this node, and their amounts. Pure.

Source: the Kubernetes documentation "Node-pressure Eviction", sections "Eviction signals" and "Eviction thresholds",
KEP-4191 (split image file systems).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pykubelet.base.api.quantity import NANO, Amount, Format
from pykubelet.base.kit.values import replace
from pykubelet.config.eviction import Limit, Threshold
from pykubelet.observe.eviction.model import FsLayout, Observation, Observations

MEMORY, ALLOCATABLE_MEMORY = "memory.available", "allocatableMemory.available"
_CONTAINER_FS = "containerfs."


def node_thresholds(configured: Sequence[Threshold], *, enforces_pods: bool, layout: FsLayout) -> tuple[Threshold, ...]:
    """The configured thresholds and those that are derived from them.

    `enforces_pods`: `enforceNodeAllocatable` has `pods`, so each hard threshold of memory also applies to the memory that is
    allocatable to pods. Thresholds of `containerfs` are copied from those of the file system with the containers.
    """
    kept = [threshold for threshold in configured if not threshold.signal.startswith(_CONTAINER_FS)]
    if enforces_pods:
        kept += [
            replace(threshold, signal=ALLOCATABLE_MEMORY)
            for threshold in kept
            if threshold.signal == MEMORY and not threshold.is_soft
        ]
    source = "imagefs." if layout is FsLayout.DEDICATED else "nodefs."
    kept += [
        replace(threshold, signal=_CONTAINER_FS + threshold.signal.removeprefix(source))
        for threshold in configured
        if threshold.signal.startswith(source)
    ]
    return tuple(dict.fromkeys(kept))


def limit_amount(limit: Limit, capacity: int) -> Amount:
    """The amount of a limit; percentages are of `capacity`."""
    if limit.amount is not None:
        return limit.amount
    return Amount(int(float(capacity) * (limit.fraction or 0.0)) * NANO, Format.BINARY_SI)


def is_met(threshold: Threshold, observation: Observation, *, with_reclaim: bool = False) -> bool:
    """Whether less is available than the threshold. `with_reclaim`: than the threshold plus its minimum reclaim."""
    wanted = limit_amount(threshold.limit, observation.capacity).nano
    if with_reclaim and threshold.reclaim is not None:
        wanted += limit_amount(threshold.reclaim, observation.capacity).nano
    return observation.available * NANO < wanted


def met_thresholds(
    thresholds: Iterable[Threshold], observations: Observations, *, with_reclaim: bool = False
) -> tuple[Threshold, ...]:
    """The met thresholds, in their order. A threshold is not met if its signal was not measured."""
    return tuple(
        threshold
        for threshold in thresholds
        if threshold.signal in observations
        and is_met(threshold, observations[threshold.signal], with_reclaim=with_reclaim)
    )
