"""What plans of attachable volumes need beside their source: the attachment to the node, and a secret. Pure.

Without an API server nothing is attached: the node reaches such volumes by itself.
Source: the Kubernetes documentation "Node Status" (volumes in use), "Secrets" (types).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import LocalObjectReference, Pod, Secret
from pykubelet.base.api.storage import SecretReference
from pykubelet.base.model.content import Absent, ContentKind, ObjectKey, Present, Unreadable
from pykubelet.provide.volumes.kind import ATTACH, SET_UP, DevicePlan, PlanInputs, UndecidedPlan, VolumesError

NOT_SUPPORTED = "attaching volumes from the kubelet is not supported"


def await_attachment(inputs: PlanInputs, device: DevicePlan, *, is_nothing: bool = False) -> UndecidedPlan | None:
    """What is missing until the device is attached; None if nothing is.

    `is_nothing`: attaching a volume of the kind does nothing. VolumesError for any other if the agent would have to attach it.
    """
    if not device.is_attachable:
        return None
    if not inputs.node_volumes.by_controller:
        if is_nothing:
            return None
        raise VolumesError(f"{inputs.kind.plugin}: {NOT_SUPPORTED}", ATTACH)
    if device.name not in inputs.node_volumes.in_use:
        return UndecidedPlan("the node's status does not report it as in use yet", device=device)
    if device.name not in inputs.node_volumes.attached:
        return UndecidedPlan(f"volume {device.name} is not yet in node's status", device=device)
    return None


def referenced_secret(pod: Pod, reference: LocalObjectReference | SecretReference | None) -> ObjectKey | None:
    """The key of the secret of a volume; None if it has none. One without a namespace is in the pod's."""
    if reference is None or not reference.name:
        return None
    namespace = reference.namespace if isinstance(reference, SecretReference) else ""
    return ObjectKey(ContentKind.SECRET, namespace or pod.metadata.namespace, reference.name)


def secret_data(
    inputs: PlanInputs, key: ObjectKey, type_: str = "", step: str = SET_UP, word: str = "err"
) -> Mapping[str, bytes] | UndecidedPlan:
    """The data of the volume's secret, which must be of the type, if one is given. VolumesError if there is no such secret.

    `word`: what stands before the cause in the error, as kinds differ in that.
    """
    failed = f"couldn't get secret {key.namespace}/{key.name} {word}: "
    found = inputs.content.find(key)
    if found is None and not inputs.content.may_answer(key):
        raise VolumesError(f"cannot get kube client, so the secret {key.namespace}/{key.name} cannot be read", step)
    match found:
        case Present(Secret(type=actual, data=data)):
            if type_ and actual != type_:
                raise VolumesError(f"{failed}cannot get secret of type {type_}", step)
            return data
        case Absent(message) | Unreadable(message):
            raise VolumesError(f"{failed}{message}", step)
    return UndecidedPlan("", (key,))
