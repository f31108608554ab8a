"""From a pod's spec to what has to be done for each of its volumes. Pure.

Rules: what depends on the node's allocatable resources, or on objects of the API server, waits until they are known.
A volume that cannot be provided is refused in the reference's words, a kind without a module in `kinds/` by name.
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

#: Kinds that are still to come. A kind that has a module is not refused.
_NOT_YET = (
    "persistentVolumeClaim",
    "ephemeral",
    "csi",
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cinder",
    "gcePersistentDisk",
    "vsphereVolume",
    "portworxVolume",
)


def plan_volume(pod: Pod, volume: Volume, node: NodeView, content: Content, paths: Paths) -> Plan:
    """What has to be done for one volume of the pod on this node, with what is known of the API's objects."""
    kind = kind_of(volume)
    if kind.plan is None:
        words = "is not supported yet" if kind.name in _NOT_YET else "is not supported"
        return RefusedPlan(f'volume kind "{kind.name}" {words}')
    try:
        plan: Plan = kind.plan(PlanInputs(kind, pod, volume, node, content, paths))
    except (VolumesError, QuantityError) as error:
        return RefusedPlan(str(error))
    return plan


def has_subpaths(pod: Pod, name: str) -> bool:
    """Whether any container mounts a part of the volume, so that binds of parts may be there."""
    return any(
        mount.name == name and (mount.subPath or mount.subPathExpr)
        for container in _containers(pod)
        for mount in container.volumeMounts
    )


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers
    yield from pod.spec.initContainers
