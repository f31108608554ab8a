"""Metrics of eviction. Source: the Kubernetes Metrics Reference."""

from __future__ import annotations

from pykubelet.base.kit.metrics import Counter, Histogram

EVICTIONS = Counter("kubelet_evictions", "Cumulative number of pod evictions by eviction signal", ("eviction_signal",))
STATS_AGE = Histogram(
    "kubelet_eviction_stats_age_seconds",
    "Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
    ("eviction_signal",),
)
