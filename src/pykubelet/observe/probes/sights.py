"""From the cells to the workers: which probes there are, and what each sees of its container. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from pykubelet.base.api.core import Container, Probe
from pykubelet.base.kit.values import Value
from pykubelet.base.model.addresses import told_ips
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.moments import moment_of
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.probes import ProbeKind
from pykubelet.base.model.restart import is_sidecar
from pykubelet.base.model.waits import CONTAINER_START, SANDBOX
from pykubelet.observe.probes.decide import Kept, Sight, Started


class Key(Value):
    """One worker."""

    uid: PodUID
    container: str
    kind: ProbeKind


def is_probed(lifecycle: PodLifecycle) -> bool:
    """Whether a pod is at a stage where its containers are asked anything."""
    return lifecycle.stage in (Stage.SYNCING, Stage.TERMINATING)


def is_at_work(lifecycle: PodLifecycle) -> bool:
    """Whether the runtime makes or ends something of a pod now."""
    if lifecycle.stage is Stage.SYNCING:
        return any(wait.what in (SANDBOX, CONTAINER_START) for wait in lifecycle.waits)
    return lifecycle.stage is not Stage.FINISHED


def probed_containers(lifecycle: PodLifecycle) -> Iterator[Container]:
    """Sidecars and regular containers that have a probe."""
    spec = lifecycle.pod.spec
    for container in (*(c for c in spec.initContainers if is_sidecar(c)), *spec.containers):
        if container.startupProbe or container.livenessProbe or container.readinessProbe:
            yield container


def probes_of(container: Container) -> Iterator[tuple[ProbeKind, Probe]]:
    """Startup first: the others wait for it."""
    for kind, probe in (
        (ProbeKind.STARTUP, container.startupProbe),
        (ProbeKind.LIVENESS, container.livenessProbe),
        (ProbeKind.READINESS, container.readinessProbe),
    ):
        if probe is not None:
            yield kind, probe


class Starts:
    """When containers started, on the monotonic clock: the first estimate stays, whatever the wall clock does later.

    A container that did not run at the look before started after it; dates count only for those of the first look.
    """

    def __init__(self) -> None:
        self._known: dict[ContainerID, float] = {}
        self._before = Observed()

    def learn(self, view: PodView, now: float, wall: float) -> None:
        for container in view.running:
            if container.id not in self._known:
                not_before = self._looked_at(view.ref.uid, container.id)
                self._known[container.id] = moment_of(container.started_at / 1e9, now, wall, not_before)

    def _looked_at(self, uid: PodUID, container: ContainerID) -> float:
        """The last look that did not show this container running."""
        view = self._before.pods.get(uid)
        if self._before.is_unread(uid):
            return -inf
        if view is None:
            return -inf if self._before.listed_at is None else self._before.listed_at
        return -inf if any(one.id == container for one in view.running) else view.read_at

    def looked(self, observed: Observed) -> None:
        """All there is to learn of this look is learned."""
        self._before = observed

    def forget_all_but(self, observed: Observed) -> None:
        present = {container.id for view in observed.pods.values() for container in view.running}
        for container in self._known.keys() - present:
            del self._known[container]

    def __getitem__(self, container: ContainerID) -> float:
        return self._known[container]

    @property
    def all(self) -> Mapping[ContainerID, float]:
        return self._known


class Scene(Value):
    """What all workers of one container see of it, but for whether it has started."""

    container: ContainerID | None
    started_at: float
    stopping: bool
    old: bool
    kept: Kept | None

    def sight(self, started: Started) -> Sight:
        return Sight(self.container, self.started_at, started, self.stopping, self.old, self.kept)


def scene_of(
    name: str,
    lifecycle: PodLifecycle,
    view: PodView | None,
    starts: Starts,
    kept: Mapping[ContainerID, Kept],
    agent_started: float,
) -> Scene:
    stopping = lifecycle.stage is not Stage.SYNCING or bool(lifecycle.pod.metadata.deletionTimestamp)
    newest = view.newest(name) if view is not None else None
    if newest is None or not newest.is_running or name in lifecycle.post_starting:
        return Scene(None, 0.0, stopping, False, None)
    started_at = starts[newest.id]
    return Scene(newest.id, started_at, stopping, started_at < agent_started, kept.get(newest.id))


def address_of(lifecycle: PodLifecycle, view: PodView | None, node_ips: tuple[str, ...]) -> str:
    """The pod's first address, of the node's primary family; empty while it has none."""
    if lifecycle.pod.spec.hostNetwork:
        return node_ips[0] if node_ips else ""
    ready = view.ready_sandboxes if view is not None else ()
    return next(iter(told_ips(ready[0].ips, node_ips)), "") if ready else ""
