"""Persistent CSI volumes for tests: their claims, what is known of them, and a volume manager with a driver."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from provide.volumes.samples import NODE, running
from provide.volumes.test_loop import Agent, set_roster, until
from support.csi import DRIVER, CsiProcess

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod, Secret, VolumeDevice
from pykubelet.base.api.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim, VolumeAttachment
from pykubelet.base.kit.values import replace
from pykubelet.base.model.attachments import attachment_key, unique_csi_name
from pykubelet.base.model.content import Content, ContentKind, Found, ObjectKey, Present
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.provide.volumes.csi.data import CsiDevicePlan, CsiPlan
from pykubelet.provide.volumes.csi.stage import find_devices
from pykubelet.provide.volumes.kind import Plan
from pykubelet.provide.volumes.model import (
    Inputs,
)
from pykubelet.provide.volumes.plan import plan_volume

HANDLE = "pvc-1"
NAME = unique_csi_name(DRIVER, HANDLE)
DRIVER_KEY = ObjectKey(ContentKind.CSI_DRIVER, "", DRIVER)
ATTACHMENT = attachment_key(HANDLE, DRIVER, "node")
STAGE_SECRET, PUBLISH_SECRET = (ObjectKey(ContentKind.SECRET, "vault", name) for name in ("stage", "publish"))
PATHS = Paths("/k", "/logs")
GLOBAL = Beneath("/k/plugins", f"kubernetes.io/csi/{DRIVER}/{sha256(HANDLE.encode()).hexdigest()}/globalmount")
HEAD = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: "
LISTED = ApiNode(True, volumes_in_use=frozenset({NAME}), volumes_attached={NAME: ""})
SECRETS = {
    "nodeStageSecretRef": {"namespace": "vault", "name": "stage"},
    "nodePublishSecretRef": {"namespace": "vault", "name": "publish"},
}


def a_pod(uid: str = "u1", *, read_only: bool = False, **security: Any) -> Pod:
    body = {
        "metadata": {"name": "web", "namespace": "shop", "uid": uid},
        "spec": {
            "nodeName": "node",
            "serviceAccountName": "clerk",
            "securityContext": security,
            "containers": [{"name": "main", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}}],
        },
    }
    return from_object(Pod, body)


def known(
    found: Found | None = None,
    csi: dict[str, Any] | None = None,
    more: dict[ObjectKey, Found] | None = None,
    volume: dict[str, Any] | None = None,
    **driver: Any,
) -> Content:
    """A claim bound to a CSI volume. `found`: in place of the CSIDriver with the fields `driver`."""
    source = {"driver": DRIVER, "volumeHandle": HANDLE, "volumeAttributes": {"a": "1"}, **(csi or {})}
    fields = {"accessModes": ["ReadWriteOnce"], "claimRef": {"uid": "c1"}, "csi": source, **(volume or {})}
    claim = {"metadata": {"uid": "c1"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
    spec = {"attachRequired": False, **driver}
    objects: dict[ObjectKey, Found] = {
        ObjectKey(ContentKind.VOLUME_CLAIM, "shop", "data"): Present(from_object(PersistentVolumeClaim, claim)),
        ObjectKey(ContentKind.VOLUME, "", "pv"): Present(
            from_object(PersistentVolume, {"metadata": {"name": "pv"}, "spec": fields})
        ),
        DRIVER_KEY: found or Present(from_object(CSIDriver, {"metadata": {"name": DRIVER}, "spec": spec})),
        **(more or {}),
    }
    return Content(True, objects)


def attached(metadata: dict[str, str] | None = None, **status: Any) -> dict[ObjectKey, Found]:
    body = {"metadata": metadata or {}, "status": {"attached": True, "attachmentMetadata": {"lun": "7"}, **status}}
    return {ATTACHMENT: Present(from_object(VolumeAttachment, body))}


def secrets_of() -> dict[ObjectKey, Found]:
    pairs = {STAGE_SECRET: {"k": b"for staging"}, PUBLISH_SECRET: {"k": b"for publishing"}}
    return {key: Present(Secret(data=data)) for key, data in pairs.items()}


def registered(endpoint: str = "/p") -> Plugins:
    plugin = Plugin(PluginType.CSI, DRIVER, "/r", endpoint, ("1.0.0",), 1.0, CsiNodeInfo("n"))
    return Plugins({plugin.socket: plugin}, is_settled=True)


def plan(content: Content, api_node: ApiNode | None = None, pod: Pod | None = None) -> Plan:
    pod = pod or a_pod()
    inputs = Inputs(node=NODE, content=content, plugins=registered(), api_node=api_node or ApiNode())
    return plan_volume(pod, pod.spec.volumes[0], inputs, PATHS)


def planned(content: Content, api_node: ApiNode | None = None, pod: Pod | None = None) -> CsiPlan:
    made = plan(content, api_node, pod)
    assert isinstance(made, CsiPlan), made
    return made


def device_of_plan(made: CsiPlan) -> CsiDevicePlan:
    assert made.device is not None
    return made.device


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


def failing(now: Mounts, text: str) -> bool:
    return any(text in wait.detail for pod in now.pods.values() for wait in pod.waits)


def begin(agent: Agent, driver: CsiProcess, content: Content, *pods: Pod, runs: tuple[str, ...] = ()) -> None:
    agent.observed.publish(running(*runs))
    agent.content.publish(content)
    agent.plugins.publish(registered(str(driver.endpoint)))
    set_roster(agent, *pods)


def global_mount(agent: Agent) -> Path:
    digest = sha256(HANDLE.encode()).hexdigest()
    return Path(agent.paths.plugins) / "kubernetes.io/csi" / DRIVER / digest / "globalmount"


async def is_unstaged(agent: Agent) -> None:
    await until(lambda: not global_mount(agent).parent.exists())
    assert tuple(find_devices(agent.paths)) == ()


LIFE = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]


BLOCK = {"volumeMode": "Block"}


def a_block_pod(uid: str = "u1") -> Pod:
    pod = a_pod(uid)
    (container,) = pod.spec.containers
    device = (VolumeDevice(name="v", devicePath="/dev/x"),)
    return replace(pod, spec=replace(pod.spec, containers=(replace(container, volumeMounts=(), volumeDevices=device),)))
