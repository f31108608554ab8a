"""Plans each volume of a pod from the pod's spec. Pure.

Rules: a plan that depends on the node's allocatable resources or on API objects is undecided until they are known.
A volume that cannot be provided is refused with the error text of the reference kubelet. A kind without a module in
`kinds/` is refused by name.
Source: the Kubernetes documentation "Volumes".
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.act.volumes.kind import Plan, PlanInputs, RefusedPlan, VolumesError
from pykubelet.act.volumes.registry import kind_of
from pykubelet.base.api.core import Container, Pod, Volume
from pykubelet.base.api.quantity import QuantityError
from pykubelet.base.model.content import Content
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins

#: Kinds that are not implemented yet.
_NOT_YET = (
    "persistentVolumeClaim",
    "ephemeral",
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cinder",
    "gcePersistentDisk",
    "vsphereVolume",
    "portworxVolume",
)


def plan_volume(
    pod: Pod, volume: Volume, node: NodeView, content: Content, paths: Paths, plugins: Plugins | None = None
) -> Plan:
    """The plan for one volume of the pod on this node, from the API objects and plugins that are known."""
    kind = kind_of(volume)
    if kind.plan is None:
        words = "is not supported yet" if kind.name in _NOT_YET else "is not supported"
        return RefusedPlan(f'volume kind "{kind.name}" {words}')
    try:
        plan: Plan = kind.plan(PlanInputs(kind, pod, volume, node, content, paths, plugins or Plugins()))
    except (VolumesError, QuantityError) as error:
        return RefusedPlan(str(error))
    return plan


def has_subpaths(pod: Pod, name: str) -> bool:
    """Whether any container mounts the volume with a subPath, so that sub-path binds may exist."""
    return any(
        mount.name == name and (mount.subPath or mount.subPathExpr)
        for container in _containers(pod)
        for mount in container.volumeMounts
    )


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers
    yield from pod.spec.initContainers
