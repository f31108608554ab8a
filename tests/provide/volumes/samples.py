"""Pods and cells for the tests of volumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pykubelet.base.api.codec import encode, from_object
from pykubelet.base.api.core import (
    Container,
    EmptyDirVolumeSource,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    PodSpec,
    Volume,
    VolumeDevice,
    VolumeMount,
)
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.clock import Moment
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.mounts import PodMounts
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import ContainerView, Observed, ObservedState, SandboxView
from pykubelet.base.model.observed import PodView as ObservedPod
from pykubelet.base.model.roster import Rejection, Roster, RosterPod, pod_ref
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.provide.volumes.kind import SetUpContext
from pykubelet.provide.volumes.model import (
    Inputs,
    PodDirectory,
    PodVolumesView,
    State,
)
from pykubelet.provide.volumes.project import diagnose, project_pod, view_pod

NODE = NodeView("node", "node", allocatable={"cpu": 2000, "memory": 1 << 30, "ephemeral-storage": 10 << 30})

#: For the set-up of a volume: nothing is counted, and no Event recorded.
CONTEXT = SetUpContext(0.0, VolumeQuotas(is_on=False))


def moment(seconds: float = 0.0) -> Moment:
    return Moment(1000.0 + seconds, 5000.0 + seconds)


def make_pod(
    *volumes: Volume,
    uid: str = "u1",
    fs_group: int | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    sub_path: str = "",
    unused: tuple[str, ...] = (),
) -> Pod:
    """A pod with one container that mounts all `volumes` but the `unused` ones."""
    mounts = tuple(
        VolumeMount(name=v.name, mountPath=f"/{v.name}", subPath=sub_path) for v in volumes if v.name not in unused
    )
    return Pod(
        metadata=ObjectMeta(
            name="web", namespace="shop", uid=uid, labels=dict(labels or {}), annotations=dict(annotations or {})
        ),
        spec=PodSpec(
            containers=(Container(name="main", image="x", volumeMounts=mounts),),
            volumes=volumes,
            securityContext=PodSecurityContext(fsGroup=fs_group),
        ),
    )


def with_devices(pod: Pod) -> Pod:
    """The pod with its volumes as block devices of its container."""
    (container,) = pod.spec.containers
    devices = tuple(VolumeDevice(name=volume.name, devicePath=f"/dev/{volume.name}") for volume in pod.spec.volumes)
    container = replace(container, volumeMounts=(), volumeDevices=devices)
    return replace(pod, spec=replace(pod.spec, containers=(container,)))


def claimed(*, claim_name: str = "c", read_only: bool = False, **spec: Any) -> tuple[Volume, Content]:
    """The volume `data` of a pod, which claims the volume `pv`, and the content that shows both. `spec`: of the volume `pv`."""
    source = {"claimName": claim_name, "readOnly": read_only}
    volume = from_object(Volume, {"name": "data", "persistentVolumeClaim": source})
    about = {"name": claim_name, "namespace": "shop", "uid": "c1"}
    claim = {"metadata": about, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
    persistent = {"metadata": {"name": "pv"}, "spec": {"claimRef": {"uid": "c1"}, **spec}}
    found = {
        ObjectKey(ContentKind.VOLUME_CLAIM, "shop", claim_name): Present(from_object(PersistentVolumeClaim, claim)),
        ObjectKey(ContentKind.VOLUME, "", "pv"): Present(from_object(PersistentVolume, persistent)),
    }
    return volume, Content(True, found)


def empty_dir(name: str = "data", medium: str = "", size_limit: str | None = None) -> Volume:
    return Volume(name=name, emptyDir=EmptyDirVolumeSource(medium=medium, sizeLimit=size_limit))


def roster(*pods: Pod, ready: bool = True, rejected: bool = False) -> Roster:
    rejection = Rejection("OutOfcpu", "no") if rejected else None
    return Roster({PodUID(p.metadata.uid): RosterPod(p, "file", 1.0, rejection) for p in pods}, ready)


def lifecycles(*pods: tuple[Pod, Stage]) -> Lifecycles:
    return Lifecycles({PodUID(p.metadata.uid): PodLifecycle(pod_ref(p), p, stage, 1.0, 1.0) for p, stage in pods})


def running(*uids: str) -> Observed:
    """The runtime with one running container in each of these pods."""
    pods = {}
    for uid in uids:
        box = SandboxView(SandboxID("s" + uid), 0, True, 1)
        container = ContainerView(ContainerID("c" + uid), "main", box.id, ObservedState.RUNNING, 0, 1)
        pods[PodUID(uid)] = ObservedPod(PodRef("shop", "web", PodUID(uid)), (box,), (container,))
    return Observed(pods, listed_at=1.0)


def inputs(
    roster_now: Roster,
    lifecycles_now: Lifecycles | None = None,
    observed: Observed | None = None,
    node: NodeView = NODE,
) -> Inputs:
    return Inputs(roster_now, lifecycles_now or Lifecycles(), observed or running(), node)


def check_published(state: State) -> None:
    """What is published is what a look at all volumes gives."""
    for uid, pod in state.pods.items():
        view = view_pod(PodVolumesView(), pod, None, state.devices)
        assert state.views[uid] == view
        published, wanted = state.mounts.pods.get(uid), project_pod(pod, view, 0.0)
        if pod.directory is not PodDirectory.REMOVING:  # the wait for that has the time
            assert _unordered(published) == _unordered(wanted)
        encode(diagnose(State({uid: pod}, state.devices)))  # for `explain`


def _unordered(pod: PodMounts | None) -> tuple[object, ...]:
    if pod is None:
        return ()
    return pod.volumes, pod.ready, pod.mounting, pod.holds, sorted(map(repr, pod.waits))
