"""Admits pods one after the other on a machine, and explains in terms of the machine why one does not fit. Pure.

Pods do not end, and all of a pod's containers are admitted at once, as on a node.
"""

from __future__ import annotations

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.placement import ContainerPlacement, Placements, PodPlacement
from pykubelet.base.model.roster import Rejection
from pykubelet.provide.placement.explanation import explain_rejection, pod_name
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.topology_scopes import Admitted, PlacementRejection, admit


class SimulatedPod(Value):
    """What became of a pod. `pod`: `namespace/name`. `placement`: with all its containers, or with the rejection."""

    pod: str
    uid: PodUID
    placement: PodPlacement


class Simulation:
    """A machine that fills up. `names`: `namespace/name` of the pods by UID."""

    def __init__(self, managers: Managers) -> None:
        self.managers = managers
        self.names: dict[PodUID, str] = {}
        self._pods: dict[PodUID, PodPlacement] = {}

    def admit(self, pod: Pod) -> SimulatedPod:
        """Admit the next pod, whose UID no other pod may have, or reject it."""
        uid, before = PodUID(pod.metadata.uid), self.managers
        self.names[uid] = pod_name(pod)
        result = admit(before.topology, before.providers, pod)
        if isinstance(result, PlacementRejection):
            why = explain_rejection(
                before.topology, before.providers, pod, {str(other): name for other, name in self.names.items()}
            )
            rejection = Rejection(result.reason, result.message)
            return SimulatedPod(pod_name(pod), uid, PodPlacement(rejection=rejection, explanation=why))
        assert isinstance(result, Admitted), "devices without a plugin ask nothing"
        self.managers = before.with_providers(result.providers)
        found = self.managers.placement(pod, 0.0)
        names = [c.name for c in (*pod.spec.initContainers, *pod.spec.containers)]
        containers = {name: found.containers.get(name, ContainerPlacement()) for name in names}
        self._pods[uid] = replace(found, containers=containers)
        return SimulatedPod(pod_name(pod), uid, self._pods[uid])

    def placements(self) -> Placements:
        """Who has what now."""
        return self.managers.publish(self._pods, {})
