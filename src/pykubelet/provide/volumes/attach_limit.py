"""Decides whether a pod cannot start because no more volumes can be attached to the node: reads and changes a `VolumesStep`. Pure.

When a pod has waited for its volumes for as long as a sync of the reference kubelet does, the VolumeAttachments of those
that are not attached are read. If one of them reports that the node is at its limit, the node rejects the pod, so that it is
made again on another node. This is done for CSI drivers whose limit may change, as their CSIDriver states.
Source: KEP-4876 (mutable CSINode allocatable).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.storage import CSIDriver, VolumeAttachment
from pykubelet.base.kit.values import replace
from pykubelet.base.model.attachments import attachment_name
from pykubelet.base.model.content import Present
from pykubelet.base.model.mounts import AttachLimit
from pykubelet.provide.volumes.csi.objects import driver_key
from pykubelet.provide.volumes.kind import RefusedPlan, ResolvedVolume
from pykubelet.provide.volumes.model import AttachmentsRead, PodVolumes, ReadAttachments
from pykubelet.provide.volumes.plan import is_persistent, resolve
from pykubelet.provide.volumes.project import is_ready
from pykubelet.provide.volumes.work import VolumesStep, wants

TIMED_OUT = "context deadline exceeded"
#: The code of gRPC by which a driver's controller reports that a node is at its limit.
_EXHAUSTED = 8


def ask_for_attachments(work: VolumesStep, pod: PodVolumes) -> None:
    """Have the VolumeAttachments read of those of the pod's volumes that may have met a limit."""
    drivers = _drivers(work, pod)
    if drivers:
        work.commands.append(ReadAttachments(pod.uid, drivers))


def is_at_limit(attachment: VolumeAttachment) -> bool:
    """Whether the volume was not attached because the node is at its limit."""
    error = attachment.status.attachError if attachment.status is not None else None
    return error is not None and error.errorCode == _EXHAUSTED


def attachments_read(work: VolumesStep, event: AttachmentsRead) -> None:
    """Note that the pod cannot start, if a limit is the reason and it still waits."""
    pod = work.pods.get(event.uid)
    if pod is None or not event.at_limit or not wants(pod) or is_ready(pod, work.view(event.uid)):
        return
    unknown = [
        key for key, volume in pod.volumes.items() if isinstance(volume.plan, RefusedPlan) and not volume.plan.step
    ]
    missing = work.missing_text(pod, unknown, TIMED_OUT)
    message = f"Node has reached its volume attachment limit, rejecting pod. {missing}"
    work.pods[event.uid] = replace(pod, at_limit=AttachLimit(message, event.at_limit))
    work.touched.add(event.uid)


def _drivers(work: VolumesStep, pod: PodVolumes) -> Mapping[str, str]:
    """The CSI drivers with a limit that may change, of the pod's volumes that are not attached, by the name of the attachment."""
    found: dict[str, str] = {}
    if pod.pod is None:
        return found
    content = work.inputs.content
    for name in work.unattached(pod):
        volume = pod.used.get(name)
        if volume is None or not is_persistent(pod.pod, volume):
            continue
        resolved = resolve(pod.pod, volume, content)
        source = resolved.volume.spec.csi if isinstance(resolved, ResolvedVolume) else None
        if source is None:
            continue
        match content.find(driver_key(source.driver)):
            case Present(CSIDriver(spec=spec)) if spec.nodeAllocatableUpdatePeriodSeconds is not None:
                found[attachment_name(source.volumeHandle, source.driver, work.inputs.node.name)] = source.driver
    return found
