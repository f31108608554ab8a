"""Evicts the pod that makes the others wait, and not the one that uses the most memory above its request.

When memory is short, the kernel's pressure stall information shows which cgroup's processes wait for it. The pod with the longest
stalls for each byte that it requested is the first to go; pods with an annotation are spared as long as there are others.
Source of the idea: the kernel's document "PSI - Pressure Stall Information".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pykubelet.extension import EvictionCandidate, Extension

SPARED = "eviction.example.com/last"
MI = 1 << 20


@dataclass(frozen=True)
class StallSettings:
    """`least`: percent of the last 10 s that some process must have waited; below, the built-in order holds."""

    least: float = 5.0


class StallEviction(Extension):
    name, api, version, Settings = "stall-eviction", "1.0", "1", StallSettings

    def rank_for_eviction(
        self, candidates: Sequence[EvictionCandidate], signal: str
    ) -> Sequence[EvictionCandidate] | None:
        if not signal.startswith("memory.") or max(map(_stall, candidates)) < self.settings.least:
            return None
        return sorted(candidates, key=_rank)  # stable: candidates that are equal stay in the built-in order


def _stall(candidate: EvictionCandidate) -> float:
    return candidate.usage.stalls.get("memory", 0.0) if candidate.usage is not None else 0.0


def _rank(candidate: EvictionCandidate) -> tuple[bool, int, float]:
    """Spared pods last, then by priority, then by how long they waited for what they did not request."""
    pod = candidate.pod
    share = _stall(candidate) / max(1.0, pod.requests.get("memory", 0) / MI)
    return SPARED in pod.annotations, pod.priority, -share
