"""Samples to figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """What a row states about its samples, in the samples' unit."""

    median: float
    low: float
    high: float
    count: int


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the samples lie, interpolated between neighbours. Needs one sample."""
    ordered = sorted(samples)
    if not ordered:
        raise ValueError("no samples")
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(samples: Sequence[float]) -> Spread:
    """Median, and the 10th and 90th percentile; with fewer than five samples the least and the greatest."""
    few = len(samples) < 5
    return Spread(
        median=percentile(samples, 0.5),
        low=percentile(samples, 0.0 if few else 0.1),
        high=percentile(samples, 1.0 if few else 0.9),
        count=len(samples),
    )


def without_idle(cpu_s: float, window_s: float, idle_rate: float) -> float:
    """CPU seconds of a window beyond what an idle agent uses in it; never negative. `idle_rate`: CPU s per second."""
    return max(0.0, cpu_s - window_s * idle_rate)
