"""Looks up the pod and the container of a request. Pure but for the cells it reads.

Reads: `Roster`, `Lifecycles`, `Observed`, `Statuses`. A mirror pod's UID stands for its static pod.
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.base.api.core import Container, EphemeralContainer, Pod, PodStatus
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.observed import ContainerView, Observed, SandboxView
from pykubelet.base.model.roster import Roster, pod_ref
from pykubelet.base.model.statuses import Statuses


class KnownPods(Value):
    """The pods the agent has to do with, those that are being ended too."""

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]
    statuses: Cell[Statuses]

    def find(self, namespace: str, name: str, uid: str = "") -> Pod | None:
        """The pod of that name; the one that is wanted before one that is being ended."""
        if uid:
            uid = self._own_uid(namespace, name, uid)
        pods = self._all()
        return next(
            (
                pod
                for pod in pods
                if (pod.metadata.namespace, pod.metadata.name) == (namespace, name) and uid in ("", pod.metadata.uid)
            ),
            None,
        )

    def _own_uid(self, namespace: str, name: str, uid: str) -> str:
        """The static pod's UID where `uid` is its mirror's."""
        roster = self.roster.get()
        mirror = (roster.mirrors or {}).get(f"{name}_{namespace}")
        if mirror is None or mirror.metadata.uid != uid:
            return uid
        static = (
            entry.pod
            for entry in roster.pods.values()
            if (entry.pod.metadata.namespace, entry.pod.metadata.name) == (namespace, name)
        )
        return next((pod.metadata.uid for pod in static), uid)

    def _all(self) -> Iterator[Pod]:
        for entry in self.roster.get().pods.values():
            yield entry.pod
        for lifecycle in self.lifecycles.get().pods.values():
            yield lifecycle.pod

    def running(self, pod: Pod, container: str) -> ContainerView | None:
        """The instance of a container that runs."""
        view = self.observed.get().pods.get(PodUID(pod.metadata.uid))
        if view is None:
            return None
        return next((c for c in view.instances(container) if c.is_running), None)

    def instance(self, pod: Pod, container_id: str) -> ContainerView | None:
        """A container by its id, without the runtime's name before it."""
        view = self.observed.get().pods.get(PodUID(pod.metadata.uid))
        return next((c for c in view.containers if c.id == container_id), None) if view is not None else None

    def sandbox(self, pod: Pod) -> SandboxView | None:
        """The sandbox that is up."""
        view = self.observed.get().pods.get(PodUID(pod.metadata.uid))
        return next(iter(view.ready_sandboxes), None) if view is not None else None

    def status(self, pod: Pod) -> PodStatus:
        return self.statuses.get().pods.get(PodUID(pod.metadata.uid), pod.status)


def container_spec(pod: Pod, name: str) -> Container | EphemeralContainer | None:
    spec = pod.spec
    everything: list[Container | EphemeralContainer] = [*spec.containers, *spec.initContainers]
    everything += spec.ephemeralContainers
    return next((container for container in everything if container.name == name), None)


def full_name(pod: Pod) -> str:
    """`name_namespace`, as in messages."""
    return pod_ref(pod).full_name
