"""Metrics of probes, for `/metrics/probes`: their number by probe and outcome, and the durations of passed probes.

Source: the reference's `prober_probe_total` and `prober_probe_duration_seconds`.
"""

from __future__ import annotations

from pykubelet.base.kit.metrics import PROBES, Counter, Histogram
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.probes import ProbeKind

TOTAL = Counter(
    "prober_probe_total",
    "Cumulative number of a liveness, readiness or startup probe for a container by result.",
    ("container", "namespace", "pod", "pod_uid", "probe_type", "result"),
    registry=PROBES,
)
DURATION = Histogram(
    "prober_probe_duration_seconds",
    "Duration in seconds for a probe response.",
    ("container", "namespace", "pod", "probe_type"),
    registry=PROBES,
)
SUCCESSFUL, FAILED, UNKNOWN = "successful", "failed", "unknown"


class ProbeMetrics(Value):
    """The metrics of one probe of one container of a pod."""

    ref: PodRef
    container: str
    kind: ProbeKind

    def count(self, result: str, took_s: float) -> None:
        """Count one probe that took `took_s` seconds. `result`: SUCCESSFUL, FAILED or UNKNOWN."""
        TOTAL.inc(*self._labels(result))
        if result == SUCCESSFUL:
            DURATION.observe(took_s, self.container, self.ref.namespace, self.ref.name, self.kind.capitalize())

    def forget(self) -> None:
        """Drop the series of a probe that is gone."""
        for result in (SUCCESSFUL, FAILED, UNKNOWN):
            TOTAL.forget(*self._labels(result))
        DURATION.forget(self.container, self.ref.namespace, self.ref.name, self.kind.capitalize())

    def _labels(self, result: str) -> tuple[str, ...]:
        ref = self.ref
        return self.container, ref.namespace, ref.name, ref.uid, self.kind.capitalize(), result
