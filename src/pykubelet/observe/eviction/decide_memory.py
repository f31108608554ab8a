"""Decides when memory is read between two passes, and at which usage the kernel is to notify. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykubelet.config.eviction import Threshold
from pykubelet.observe.eviction.model import EvictionPeriods, NodeMeasures, Observations
from pykubelet.observe.eviction.thresholds import ALLOCATABLE_MEMORY, MEMORY, limit_amount

MEMORY_SIGNALS = (MEMORY, ALLOCATABLE_MEMORY)
#: A memory look may wait as long as this many bytes a second would take to use up what is left above the threshold.
FASTEST_GROWTH = 4 << 30
#: Seconds until memory is read again while a threshold is met.
WHILE_MET_S = 1.0


def hard_memory(thresholds: Iterable[Threshold]) -> list[Threshold]:
    """The hard thresholds of memory."""
    return [threshold for threshold in thresholds if threshold.signal in MEMORY_SIGNALS and not threshold.is_soft]


def pause_s(hard: Sequence[Threshold], observations: Observations, periods: EvictionPeriods, *, is_met: bool) -> float:
    """Seconds until memory is read next. `is_met`: one of the hard thresholds is met."""
    if is_met:
        return WHILE_MET_S
    spare = [headroom(hard, observations, signal) for signal in MEMORY_SIGNALS]
    return min(look_after_s(amount, periods.memory_s, periods.pass_s) for amount in spare)


def crossings(hard: Sequence[Threshold], measures: NodeMeasures) -> Mapping[str, int]:
    """The bytes of usage at which the first of the hard thresholds is crossed, by signal."""
    found = {}
    for signal, memory, capacity, kept in (
        (MEMORY, measures.memory, measures.memory_capacity, measures.huge_pages),
        (ALLOCATABLE_MEMORY, measures.pods, measures.pods.limit if measures.pods is not None else None, 0),
    ):
        limits = [
            limit_amount(threshold.limit, capacity).value()
            for threshold in hard
            if capacity and threshold.signal == signal
        ]
        if memory is not None and capacity is not None and limits:
            found[signal] = capacity - kept - max(limits) + memory.usage - memory.working_set
    return found


def headroom(thresholds: Iterable[Threshold], observations: Observations, signal: str) -> int | None:
    """Bytes above the nearest threshold of `signal` that is not met; None: there is no such threshold."""
    seen = observations.get(signal)
    if seen is None:
        return None
    values = (
        limit_amount(threshold.limit, seen.capacity).value() for threshold in thresholds if threshold.signal == signal
    )
    return min((seen.available - value for value in values if seen.available >= value), default=None)


def look_after_s(spare: int | None, shortest_s: float, longest_s: float) -> float:
    """Seconds until memory is read next, so that even the fastest growth is noticed soon after it crosses the threshold."""
    if spare is None:
        return longest_s
    return min(longest_s, max(shortest_s, spare / FASTEST_GROWTH))
