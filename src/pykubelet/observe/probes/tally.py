"""Counts of probes, for `/metrics/probes`: by probe and outcome, and how long passing ones took.

Source: the reference's `prober_probe_total` and `prober_probe_duration_seconds`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.probes import ProbeKind

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class ProbeTally:
    """Of one probe of one container of a pod. `buckets[i]`: passing tries of at most `BUCKETS_S[i]`; the last: longer."""

    ref: PodRef
    container: str
    kind: ProbeKind
    successful: int = 0
    failed: int = 0
    duration_s: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))

    def count(self, passed: bool, took_s: float) -> None:
        if not passed:
            self.failed += 1
            return
        self.successful += 1
        self.duration_s += took_s
        self.buckets[bisect_left(BUCKETS_S, took_s)] += 1
