"""Results of probes, as snapshots. `ProbeResults` is written by observe/probes alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.waits import Wait


class ProbeKind(StrEnum):
    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"


class ProbeResult(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class ProbeResults(Value):
    """By container instance. A kind that is not `watched` has no worker: such a probe neither holds back nor kills."""

    results: Mapping[tuple[ContainerID, ProbeKind], ProbeResult] = field(default_factory=dict)
    watched: frozenset[ProbeKind] = frozenset()

    def get(self, container: ContainerID, kind: ProbeKind) -> ProbeResult | None:
        return self.results.get((container, kind))


class ProbeWaits(Value):
    """What pods wait for at their probes, with the last words of those that fail. Written by observe/probes alone."""

    pods: Mapping[PodUID, tuple[Wait, ...]] = field(default_factory=dict)
