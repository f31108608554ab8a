"""Keeps results of containers from before the agent's start until a worker takes them over (rule 7 of `decide`). Pure.

The results of a pod's containers are also kept here when the pod is dropped, in case it is followed again.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.probes import ProbeResult
from pykubelet.observe.probes.decide import EarlierResults, Worker, inherit_results, with_result
from pykubelet.observe.probes.plan_workers import ContainerStarts


class InheritedResults:
    """The kept results. `remembered`: from the statuses of an earlier run. `enabled` False: containers begin without results."""

    def __init__(self, remembered: Mapping[ContainerID, EarlierResults], *, enabled: bool) -> None:
        self._remembered = remembered
        self._enabled = enabled
        self._results = dict(remembered)
        self._has_started = False
        #: Pods in the first snapshot that were not read yet.
        self._unread: frozenset[PodUID] = frozenset()

    @property
    def results(self) -> Mapping[ContainerID, EarlierResults]:
        """The results that no worker has taken over."""
        return self._results

    @property
    def is_complete(self) -> bool:
        """True once all pods of the first snapshot were read."""
        return self._has_started and not self._unread

    def unread_views(self, observed: Observed) -> list[PodView]:
        """The pods of a snapshot whose containers are seen for the first time since the agent's start."""
        return [view for uid, view in observed.pods.items() if not self._has_started or uid in self._unread]

    def learn(self, observed: Observed, starts: ContainerStarts, agent_started: float) -> None:
        """Take over a snapshot with pods that are seen for the first time. `starts`: when their containers started."""
        running = {
            container.id: starts[container.id] for view in self.unread_views(observed) for container in view.running
        }
        is_first, self._has_started = not self._has_started, True
        self._unread = frozenset(ref.uid for ref in observed.unread if is_first or ref.uid in self._unread)
        if is_first and not (self._unread and self._enabled):
            self._results = {}
        if self._enabled:
            self._results |= inherit_results(self._remembered, running, agent_started)

    def claim(self, container: ContainerID) -> bool:
        """Forget the results of a container whose workers have taken them over. True if there were any."""
        return self._has_started and self._results.pop(container, None) is not None

    def leave(self, worker: Worker) -> None:
        """Keep the success of a worker that stops while its container runs."""
        if self._has_started and worker.container is not None and worker.result is ProbeResult.SUCCESS:
            before = self._results.get(worker.container, EarlierResults())
            self._results[worker.container] = with_result(before, worker)

    def forget_gone(self, starts: ContainerStarts) -> None:
        """Forget containers that do not run any more, once all pods were read."""
        if self.is_complete:
            self._results = {container: found for container, found in self._results.items() if container in starts}
