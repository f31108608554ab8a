"""Looks up the pod and the container of a request. Pure except for the cells that it reads.

Reads: `Roster`, `Lifecycles`, `Observed`, `Statuses`. The UID of a mirror pod finds its static pod.
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
    """The pods that the agent handles, including those that are terminating."""

    roster: Cell[Roster]
    lifecycles: Cell[Lifecycles]
    observed: Cell[Observed]
    statuses: Cell[Statuses]

    def find(self, namespace: str, name: str, uid: str = "") -> Pod | None:
        """The pod with that name. A desired pod is preferred to a terminating one."""
        if uid:
            uid = self._own_uid(namespace, name, uid)
        for pod in self._all():
            meta = pod.metadata
            if meta.name == name and meta.namespace == namespace and uid in ("", meta.uid):
                return pod
        return None

    def _own_uid(self, namespace: str, name: str, uid: str) -> str:
        """The UID of the static pod if `uid` is that of its mirror pod, else `uid`."""
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
        """The running instance of a container."""
        view = self.observed.get().pods.get(PodUID(pod.metadata.uid))
        if view is None:
            return None
        return next((c for c in view.instances(container) if c.is_running), None)

    def instance(self, pod: Pod, container_id: str) -> ContainerView | None:
        """The container instance with this id. The id has no prefix with the runtime's name."""
        view = self.observed.get().pods.get(PodUID(pod.metadata.uid))
        return next((c for c in view.containers if c.id == container_id), None) if view is not None else None

    def sandbox(self, pod: Pod) -> SandboxView | None:
        """The ready sandbox of the pod."""
        view = self.observed.get().pods.get(PodUID(pod.metadata.uid))
        return next(iter(view.ready_sandboxes), None) if view is not None else None

    def status(self, pod: Pod) -> PodStatus:
        """The pod's status as this node publishes it, or the one in its manifest if there is none yet."""
        return self.statuses.get().pods.get(PodUID(pod.metadata.uid), pod.status)


def container_spec(pod: Pod, name: str) -> Container | EphemeralContainer | None:
    """The regular, init or ephemeral container with that name; None if the pod has none."""
    spec = pod.spec
    containers: list[Container | EphemeralContainer] = [*spec.containers, *spec.initContainers]
    containers += spec.ephemeralContainers
    return next((container for container in containers if container.name == name), None)


def full_name(pod: Pod) -> str:
    """`name_namespace`, as in messages."""
    return pod_ref(pod).full_name
