"""Plans each volume of a pod from the pod's spec. Pure.

Rules: a plan that depends on the node's allocatable resources or on API objects is undecided until they are known.
A volume that cannot be provided is refused with the error text of the reference kubelet. A kind without a module in
`kinds/` is refused by name.
Source: the Kubernetes documentation "Volumes".
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.act.volumes.claims import claim_of, resolve
from pykubelet.act.volumes.kind import Plan, PlanInputs, RefusedPlan, ResolvedVolume, VolumesError
from pykubelet.act.volumes.registry import kind_of, kind_of_persistent
from pykubelet.base.api.core import Container, Pod, Volume
from pykubelet.base.api.quantity import QuantityError
from pykubelet.base.model.content import Content
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.node_selector import matches_node_selector
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins

#: Kinds that are not implemented yet.
_NOT_YET = (
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
    if claim_of(pod, volume) is not None:
        return _plan_claimed(pod, volume, node, content, paths)
    kind = kind_of(volume)
    if kind.plan is None:
        words = "is not supported yet" if kind.name in _NOT_YET else "is not supported"
        return RefusedPlan(f'volume kind "{kind.name}" {words}')
    return _plan(PlanInputs(kind, pod, volume, node, content, paths, plugins or Plugins()))


def _plan_claimed(pod: Pod, volume: Volume, node: NodeView, content: Content, paths: Paths) -> Plan:
    """The plan for the persistent volume that the pod's volume claims. The checks are in the order of the reference kubelet."""
    claimed = resolve(pod, volume, content)
    if not isinstance(claimed, ResolvedVolume):
        return claimed
    kind, spec = kind_of_persistent(claimed.volume.spec), claimed.volume.spec
    if spec.csi is not None:
        return RefusedPlan(
            f"persistent volumes of CSI drivers ({spec.csi.driver}) are not supported yet", spec_name=claimed.name
        )
    if kind is None:
        text = f'failed to get Plugin from volumeSpec for volume "{claimed.name}" err=no volume plugin matched'
        return RefusedPlan(text, step="")
    required = spec.nodeAffinity.required if spec.nodeAffinity is not None else None
    if required is not None and not matches_node_selector(required, node):
        return RefusedPlan("no matching NodeSelectorTerms", step="NodeAffinity check", spec_name=claimed.name)
    if claimed.is_block:
        return RefusedPlan(
            f'volumeMode Block is not supported yet for volume kind "{kind.name}"', spec_name=claimed.name
        )
    if claimed.mount_options and not kind.mount_options:
        return RefusedPlan(
            "mount options are not supported for this volume type",
            step="MountOptionSupport check",
            spec_name=claimed.name,
        )
    return _plan(PlanInputs(kind, pod, volume, node, content, paths, claimed=claimed))


def _plan(inputs: PlanInputs) -> Plan:
    assert inputs.kind.plan is not None
    try:
        plan: Plan = inputs.kind.plan(inputs)
    except VolumesError as error:
        return RefusedPlan(
            str(error), step=error.step, spec_name=inputs.claimed.name if inputs.claimed is not None else ""
        )
    except QuantityError as error:
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
