"""Plans probe workers from the snapshots: the workers that a pod needs, and the container that each observes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import inf

from pykubelet.base.api.core import Container, PodStatus, Probe
from pykubelet.base.api.times import wall_to_monotonic
from pykubelet.base.kit.values import Value
from pykubelet.base.model.addresses import reported_ips
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.probes import ProbeKind
from pykubelet.base.model.restart import is_sidecar
from pykubelet.observe.probes.decide import ContainerObservation, EarlierResults, earlier_results


class ProbeId(Value):
    """One probe of one container of a pod: the identity of its worker."""

    uid: PodUID
    container: str
    kind: ProbeKind


class WorkerPlan(Value):
    """The workers that a pod needs, by probe, and the existing ones that it does not need any more."""

    wanted: Mapping[ProbeId, tuple[Container, Probe]]
    stop: tuple[ProbeId, ...] = ()


def plan_workers(lifecycle: PodLifecycle, present: Collection[ProbeId]) -> WorkerPlan:
    """Plan a pod's workers. `present`: its existing workers. If only a probe's fields change, its worker is kept with its results."""
    if lifecycle.stage not in (Stage.SYNCING, Stage.TERMINATING) or lifecycle.quarantine:
        return WorkerPlan({}, tuple(present))
    wanted = {
        ProbeId(lifecycle.ref.uid, container.name, kind): (container, probe)
        for container in _probed_containers(lifecycle)
        for kind, probe in _probes(container)
    }
    return WorkerPlan(wanted, tuple(probe_id for probe_id in present if probe_id not in wanted))


def _probed_containers(lifecycle: PodLifecycle) -> Iterator[Container]:
    """The containers that may have probes: sidecars and regular containers."""
    spec = lifecycle.pod.spec
    yield from (container for container in spec.initContainers if is_sidecar(container))
    yield from spec.containers


def _probes(container: Container) -> Iterator[tuple[ProbeKind, Probe]]:
    """The probes of a container, the startup probe first, because the others wait for it."""
    for kind, probe in (
        (ProbeKind.STARTUP, container.startupProbe),
        (ProbeKind.LIVENESS, container.livenessProbe),
        (ProbeKind.READINESS, container.readinessProbe),
    ):
        if probe is not None:
            yield kind, probe


class ContainerStarts:
    """When containers started, in monotonic seconds. The first estimate is kept, even if the wall clock changes later.

    A container that did not run in the previous snapshot started after it. The runtime's date alone counts only for containers
    in the first snapshot.
    """

    def __init__(self) -> None:
        self._known: dict[ContainerID, float] = {}
        self._previous = Observed()

    def learn(self, view: PodView, now: float, wall: float) -> None:
        """Estimate the starts of a pod's running containers that are not known yet."""
        for container in view.running:
            if container.id not in self._known:
                not_before = self._last_absent(view.ref.uid, container.id)
                self._known[container.id] = wall_to_monotonic(container.started_at / 1e9, now, wall, not_before)

    def _last_absent(self, uid: PodUID, container: ContainerID) -> float:
        """The time of the previous snapshot if this container did not run in it, else minus infinity."""
        view = self._previous.pods.get(uid)
        if self._previous.is_unread(uid):
            return -inf
        if view is None:
            return -inf if self._previous.listed_at is None else self._previous.listed_at
        return -inf if any(running.id == container for running in view.running) else view.read_at

    def remember(self, observed: Observed) -> None:
        """Remember this snapshot as the previous one."""
        self._previous = observed

    def forget_all_but(self, observed: Observed) -> None:
        """Forget the containers that do not run in this snapshot."""
        present = {container.id for view in observed.pods.values() for container in view.running}
        for container in self._known.keys() - present:
            del self._known[container]

    def __getitem__(self, container: ContainerID) -> float:
        return self._known[container]

    def __contains__(self, container: ContainerID) -> bool:
        return container in self._known


def observation_of(
    name: str,
    lifecycle: PodLifecycle,
    view: PodView | None,
    starts: ContainerStarts,
    earlier: Mapping[ContainerID, EarlierResults],
    agent_started: float,
    inherits: bool,
) -> ContainerObservation:
    """The observation of the container `name`. Until its postStart hook has ended, a container counts as not running.

    `earlier`: the results from before this agent's start; with `inherits`, those that the API server has are used, too.
    """
    stopping = lifecycle.stage is not Stage.SYNCING or bool(lifecycle.pod.metadata.deletionTimestamp)
    newest = view.newest(name) if view is not None else None
    if newest is None or not newest.is_running or name in lifecycle.post_starting:
        return ContainerObservation(stopping=stopping)
    started_at = starts[newest.id]
    is_old, had = started_at < agent_started, earlier.get(newest.id)
    if is_old and inherits and (had is None or had.assumed):
        status = lifecycle.pod.status
        had = earlier_results([status]).get(newest.id, None if _is_replaced(status, name, newest.id) else had)
    return ContainerObservation(newest.id, started_at, stopping=stopping, old=is_old, earlier=had)


def _is_replaced(status: PodStatus, name: str, container: ContainerID) -> bool:
    """Whether the API server has the status of another instance: what is known of that one is not known of its successor."""
    ids = (
        reported.containerID.partition("://")[2]
        for reported in (*status.initContainerStatuses, *status.containerStatuses)
        if reported.name == name
    )
    return any(instance not in ("", container) for instance in ids)


def address_of(lifecycle: PodLifecycle, view: PodView | None, node_ips: tuple[str, ...]) -> str:
    """The pod's first address, of the node's primary family; empty while it has none."""
    if lifecycle.pod.spec.hostNetwork:
        return node_ips[0] if node_ips else ""
    ready = view.ready_sandboxes if view is not None else ()
    return next(iter(reported_ips(ready[0].ips, node_ips)), "") if ready else ""
