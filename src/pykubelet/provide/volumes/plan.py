"""Plans each volume of a pod from the pod's spec. Pure.

Rules: a plan that depends on the node's allocatable resources or on API objects is undecided until they are known.
A volume that cannot be provided is refused with the error text of the reference kubelet. A kind without a module in
`kinds/` is refused by name.
Source: the Kubernetes documentation "Volumes".
"""

from __future__ import annotations

from pykubelet.base.api.core import Pod, Volume
from pykubelet.base.api.quantity import QuantityError
from pykubelet.base.api.texts import unusable_text
from pykubelet.base.model.node_selector import matches_node_selector
from pykubelet.base.model.paths import Paths
from pykubelet.provide.volumes.claims import is_persistent, resolve
from pykubelet.provide.volumes.kind import (
    NEW_MOUNTER,
    NODE_AFFINITY,
    Plan,
    PlanInputs,
    RefusedPlan,
    ResolvedVolume,
    VolumesError,
)
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.registry import AnyKind, kind_of, kind_of_persistent

#: Kinds that were removed from Kubernetes, or that only ever were in its API.
_REMOVED = ("rbd", "cephfs", "glusterfs", "quobyte", "storageos", "flocker", "photonPersistentDisk", "scaleIO")


def plan_volume(pod: Pod, volume: Volume, inputs: Inputs, paths: Paths) -> Plan:
    """The plan for one volume of the pod on this node, from the API objects and plugins that are known."""
    if is_persistent(pod, volume):
        return _plan_persistent(pod, volume, inputs, paths)
    kind = kind_of(volume)
    if kind.plan is None:
        return _refused_kind(volume.name, kind.name)
    return _plan(_plan_inputs(kind, pod, volume, inputs, paths))


def _plan_persistent(pod: Pod, volume: Volume, inputs: Inputs, paths: Paths) -> Plan:
    """The plan for the persistent volume behind the pod's volume. The checks are in the order of the reference kubelet."""
    claimed = resolve(pod, volume, inputs.content)
    if not isinstance(claimed, ResolvedVolume):
        return claimed
    kind, spec = kind_of_persistent(claimed.volume.spec), claimed.volume.spec
    if kind is None:
        return _refused_kind(claimed.name, next((name for name in _REMOVED if getattr(spec, name, None)), ""))
    required = spec.nodeAffinity.required if spec.nodeAffinity is not None else None
    if required is not None and not matches_node_selector(required, inputs.node):
        return RefusedPlan(
            "no matching NodeSelectorTerms", step=NODE_AFFINITY, spec_name=claimed.name, is_block=claimed.is_block
        )
    if claimed.is_block and not kind.maps_devices:
        return RefusedPlan(
            f"volumes of kind {kind.name} cannot be passed to pods as block devices",
            step="FindMapperPluginBySpec",
            spec_name=claimed.name,
            is_block=True,
        )
    if claimed.mount_options and not claimed.is_block and not kind.mount_options:
        return RefusedPlan(
            "mount options are not supported for this volume type",
            step="MountOptionSupport check",
            spec_name=claimed.name,
        )
    return _plan(_plan_inputs(kind, pod, volume, inputs, paths, claimed))


def _plan_inputs(
    kind: AnyKind, pod: Pod, volume: Volume, inputs: Inputs, paths: Paths, claimed: ResolvedVolume | None = None
) -> PlanInputs:
    node, content, plugins = inputs.node, inputs.content, inputs.plugins
    return PlanInputs(kind, pod, volume, node, content, paths, plugins, claimed, inputs.node_volumes, inputs.selinux)


def _plan(inputs: PlanInputs) -> Plan:
    assert inputs.kind.plan is not None
    try:
        if unusable := unusable_text(inputs.source):
            raise VolumesError(f"{unusable[0]}: {unusable[1]}", NEW_MOUNTER)
        plan: Plan = inputs.kind.plan(inputs)
    except VolumesError as error:
        name = inputs.claimed.name if inputs.claimed is not None else ""
        return RefusedPlan(str(error), step=error.step, spec_name=name, is_block=inputs.is_block)
    except QuantityError as error:
        return RefusedPlan(str(error))
    return plan


def _refused_kind(name: str, kind: str) -> RefusedPlan:
    """The refusal of a volume that nothing provides. `name`: as in `ResolvedVolume.name`."""
    text = f'failed to get Plugin from volumeSpec for volume "{name}" err=no volume plugin matched'
    return RefusedPlan(f'{text}: Kubernetes has no "{kind}" volumes any more' if kind in _REMOVED else text, step="")
