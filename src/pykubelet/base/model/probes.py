"""Results of probes, as snapshots. `ProbeResults` is written by observe/probes alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import ContainerID


class ProbeKind(StrEnum):
    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"


class ProbeResult(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    UNKNOWN = "unknown"


class ProbeResults(Value):
    """The results by container instance. A probe kind that is not `watched` has no worker, so it has no effect on the pod.

    `learning`: the containers that ran at the agent's start are not all known yet, and have no results.
    `assumed`: the results of containers from before the agent's start that are assumed, because no probe has given one yet. `keeps`:
    while such a container has no other result, the readiness that was reported before the start holds.
    """

    results: Mapping[tuple[ContainerID, ProbeKind], ProbeResult] = field(default_factory=dict)
    watched: frozenset[ProbeKind] = frozenset()
    learning: bool = False
    assumed: frozenset[tuple[ContainerID, ProbeKind]] = frozenset()
    keeps: bool = True

    def get(self, container: ContainerID, kind: ProbeKind) -> ProbeResult | None:
        """The result of a container's probe of this kind, None if there is none."""
        return self.results.get((container, kind))

    def is_known(self, container: ContainerID, kind: ProbeKind) -> bool:
        """Whether there is a result that is not assumed."""
        return (container, kind) in self.results and (container, kind) not in self.assumed
