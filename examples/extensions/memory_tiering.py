"""Memory by tier: hot containers are protected from reclaim, cold ones are pushed to swap or slower memory first.

A pod states the tier of each of its containers; others are as without the extension:

    metadata:
      annotations:
        tier.example.com/cache: hot
        tier.example.com/archive: cold

The kernel takes memory from containers above `memory.high` at once, and from those below `memory.low` last. With zswap, swap on a fast
disk, or memory tiers of NUMA nodes, that is where the pages go. For cgroup v2.
Source: the kernel's document "Control Group v2", section Memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pykubelet.extension import Container, Extension, Pod

TIER = "tier.example.com/"
PAGE = 4096


@dataclass(frozen=True)
class TierSettings:
    """`cold_high`: cold containers are reclaimed above this share of their limit. `hot_low`: this share of their request is protected."""

    cold_high: float = 0.5
    hot_low: float = 1.0


class MemoryTiering(Extension):
    name, api, version, Settings = "memory-tiering", "1.0", "1", TierSettings
    annotation = TIER

    def cgroup(self, pod: Pod, container: Container | None, values: Mapping[str, str]) -> Mapping[str, str] | None:
        if container is None:  # what a container is to have protected, its pod must have too
            protected = sum(self._protected(pod, each) for each in pod.containers)
            return {"memory.low": str(protected)} if protected else None
        if _tier(pod, container) == "cold" and container.limits.get("memory"):
            return {"memory.low": "0", "memory.high": _pages(container.limits["memory"] * self.settings.cold_high)}
        protected = self._protected(pod, container)
        return {"memory.low": str(protected)} if protected else None

    def _protected(self, pod: Pod, container: Container) -> int:
        """The bytes of a hot container that are taken last."""
        is_hot = _tier(pod, container) == "hot"
        return int(_pages(container.requests.get("memory", 0) * self.settings.hot_low)) if is_hot else 0


def _tier(pod: Pod, container: Container) -> str:
    return pod.annotations.get(TIER + container.name, "")


def _pages(amount: float) -> str:
    """The bytes, rounded down to whole pages."""
    return str(int(amount) // PAGE * PAGE)
