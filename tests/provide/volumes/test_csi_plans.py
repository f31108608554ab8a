"""Plans of persistent CSI volumes: what the driver is asked for, what is waited for, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from provide.volumes.csi_samples import (
    ATTACHMENT,
    BLOCK,
    DRIVER_KEY,
    GLOBAL,
    HANDLE,
    HEAD,
    LISTED,
    NAME,
    PATHS,
    PUBLISH_SECRET,
    SECRETS,
    STAGE_SECRET,
    a_block_pod,
    a_pod,
    attached,
    device_of_plan,
    known,
    plan,
    planned,
    registered,
    secrets_of,
)
from provide.volumes.samples import NODE, inputs, roster, running
from provide.volumes.test_decide import Driver
from provide.volumes.test_loop import UID
from support.csi import DRIVER

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.storage import VolumeAttachment
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent, Found, ObjectKey, Present, TokenKey, Unreadable
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import AttachLimit
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.csi.node import Capability
from pykubelet.provide.volumes.attach_limit import is_at_limit
from pykubelet.provide.volumes.csi.calls import publish_request, stage_request
from pykubelet.provide.volumes.csi.data import CsiPlan
from pykubelet.provide.volumes.kind import DevicePlan, RefusedPlan, UndecidedPlan
from pykubelet.provide.volumes.model import (
    AttachmentsRead,
    DeviceStaged,
    DirectoryRemoved,
    Inputs,
    InputsChanged,
    ReadAttachments,
    RecordEvent,
    Result,
    SetUpEnded,
    VolumesTimerFired,
)
from pykubelet.provide.volumes.plan import plan_volume, volume_keys


def test_what_the_driver_is_asked_for() -> None:
    content = known(
        csi={"fsType": "xfs", **SECRETS},
        more={**attached(), **secrets_of()},
        volume={"mountOptions": ["noatime", "discard"], "accessModes": ["ReadWriteMany", "ReadWriteOnce"]},
        attachRequired=True,
        podInfoOnMount=True,
    )
    made = planned(content, LISTED, a_pod(read_only=True, fsGroup=4321))
    stage = stage_request(device_of_plan(made), frozenset({Capability.STAGE_UNSTAGE_VOLUME}))
    assert (stage.volume_id, stage.staging_target_path) == (HANDLE, GLOBAL)
    assert (dict(stage.publish_context), dict(stage.secrets)) == ({"lun": "7"}, {"k": "for staging"})
    assert dict(stage.volume_context) == {"a": "1"}
    capability = stage.volume_capability
    assert (capability.mount.fs_type, list(capability.mount.mount_flags)) == ("xfs", ["noatime", "discard"])
    assert (capability.access_mode.mode, capability.mount.volume_mount_group) == (5, "")
    several = frozenset({Capability.STAGE_UNSTAGE_VOLUME, Capability.VOLUME_MOUNT_GROUP})
    publish = publish_request(made, several)
    assert publish.target_path == "/k/pods/u1/volumes/kubernetes.io~csi/pv/mount"
    assert (publish.staging_target_path, publish.readonly) == (GLOBAL, True)
    assert (dict(publish.publish_context), dict(publish.secrets)) == ({"lun": "7"}, {"k": "for publishing"})
    assert publish.volume_capability.mount.volume_mount_group == "4321"
    assert publish.volume_context["csi.storage.k8s.io/ephemeral"] == "false"
    assert publish.volume_context["csi.storage.k8s.io/pod.uid"] == "u1"
    assert publish_request(made, frozenset()).staging_target_path == ""
    assert "for staging" not in repr(made) and "for publishing" not in repr(made)


@pytest.mark.parametrize(
    ("modes", "plain", "finer"),
    [
        (["ReadWriteOnce"], 1, 7),
        (["ReadWriteOncePod"], 1, 6),
        (["ReadOnlyMany", "ReadWriteOnce"], 3, 3),
        (["ReadWriteMany"], 5, 5),
        ([], 1, 7),
    ],
)
def test_the_first_access_mode_counts(modes: list[str], plain: int, finer: int) -> None:
    device = device_of_plan(planned(known(volume={"accessModes": modes})))
    found = [
        stage_request(device, capabilities).volume_capability.access_mode.mode
        for capabilities in (frozenset[int](), frozenset({Capability.SINGLE_NODE_MULTI_WRITER}))
    ]
    assert found == [plain, finer]


def test_a_volume_is_attached_before_anything_else() -> None:
    content = known(attachRequired=None, csi=SECRETS)
    device = DevicePlan(NAME, "csi", GLOBAL, is_attachable=True)
    assert plan(content) == UndecidedPlan("the node's status does not report it as in use yet", device=device)
    in_use = ApiNode(True, volumes_in_use=frozenset({NAME}))
    assert plan(content, in_use) == UndecidedPlan(f"volume {NAME} is not yet in node's status", device=device)
    assert plan(content, LISTED) == UndecidedPlan("", (ATTACHMENT,), device)
    no_object = known(Absent("no such driver"))
    assert plan(no_object) == UndecidedPlan("the node's status does not report it as in use yet", device=device)
    with_all = planned(known(attachRequired=True, more=attached()), LISTED)
    assert with_all.access.publish_context == {"lun": "7"}
    without = planned(known(attachRequired=False), LISTED)
    assert not without.access.publish_context and not device_of_plan(without).is_attachable


@pytest.mark.parametrize("is_block", [False, True])
def test_without_a_controller_volumes_that_must_be_attached_are_refused(is_block: bool) -> None:
    pod = a_block_pod() if is_block else a_pod()
    content = known(attachRequired=True, volume=BLOCK if is_block else {})
    seen = Inputs(roster=roster(pod), observed=running(), node=NODE, content=content, plugins=registered())
    seen = replace(seen, by_controller=False)
    commands = Driver().see(InputsChanged(seen))
    (event,) = [command.kube_event for command in commands if isinstance(command, RecordEvent)]
    assert (event.reason, event.message) == (
        "FailedAttachVolume",
        'AttachVolume.Attach failed for volume "pv" : kubernetes.io/csi: attaching volumes from the kubelet is not supported',
    )
    others = replace(seen, content=known(attachRequired=False))
    assert isinstance(plan_volume(a_pod(), a_pod().spec.volumes[0], others, PATHS), CsiPlan)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Absent("not found"), f"volume {HANDLE} has GET error for volume attachment {ATTACHMENT.name}: not found"),
        (
            Unreadable("no relationship", 1.0),
            f"volume {HANDLE} has GET error for volume attachment {ATTACHMENT.name}: no relationship",
        ),
        (attached({"deletionTimestamp": "2026-01-01T00:00:00Z"})[ATTACHMENT], "volume attachment is being deleted"),
        (attached(attached=False, attachError={"message": "disk is elsewhere"})[ATTACHMENT], "disk is elsewhere"),
        (
            attached(attached=False)[ATTACHMENT],
            f"volume {HANDLE} is not attached for volume attachment {ATTACHMENT.name}",
        ),
    ],
)
def test_an_attachment_that_contradicts_the_node(found: Found, text: str) -> None:
    refused = plan(known(attachRequired=True, more={ATTACHMENT: found}), LISTED)
    assert refused == RefusedPlan(text, step="WaitForAttach", spec_name="pv")


ATTACHED: dict[ObjectKey, Found] = {ATTACHMENT: Present(from_object(VolumeAttachment, {"status": {"attached": True}}))}
EXHAUSTED = from_object(VolumeAttachment, {"status": {"attachError": {"errorCode": 8, "message": "full"}}})


@pytest.mark.parametrize(
    ("period", "read", "attached"), [(60, True, False), (None, False, False), (60, True, True)], ids=str
)
def test_a_pod_that_meets_a_limit_of_volumes_is_rejected(period: int | None, read: bool, attached: bool) -> None:
    driver, pod = Driver(), a_pod()
    content = known(more=ATTACHED, attachRequired=True, nodeAllocatableUpdatePeriodSeconds=period)
    cells = replace(inputs(roster(pod)), content=content, plugins=registered(), api_node=ApiNode(True))
    driver.see(InputsChanged(cells))
    asked = [
        command for command in driver.see(VolumesTimerFired(), after=123.0) if isinstance(command, ReadAttachments)
    ]
    assert asked == ([ReadAttachments(PodUID(UID), {ATTACHMENT.name: DRIVER})] if read else [])
    if attached:
        driver.see(InputsChanged(replace(cells, api_node=LISTED)))
        driver.see(DeviceStaged(NAME, Result.DONE))
        driver.see(SetUpEnded(PodUID(UID), "v", Result.DONE))
    driver.see(AttachmentsRead(PodUID(UID), (DRIVER,) if is_at_limit(EXHAUSTED) else ()))
    text = (
        "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[v], "
        "unattached volumes=[v], failed to process volumes=[]: context deadline exceeded"
    )
    expected = {} if attached else {UID: AttachLimit(text, (DRIVER,))}
    assert driver.state.mounts.at_limit == expected
    if not attached:
        driver.see(InputsChanged(replace(cells, roster=roster())))
        driver.see(DirectoryRemoved(PodUID(UID), Result.DONE))
        assert driver.state.mounts.at_limit == {}


@pytest.mark.parametrize(
    ("status", "limited"),
    [
        ({}, False),
        ({"attachError": {"message": "full"}}, False),
        ({"attachError": {"errorCode": 14}}, False),
        ({"attachError": {"errorCode": 8}}, True),
    ],
)
def test_which_errors_of_attachments_mean_a_limit(status: dict[str, Any], limited: bool) -> None:
    assert is_at_limit(from_object(VolumeAttachment, {"status": status})) is limited


def test_the_objects_of_a_volume_are_known_by_the_volume() -> None:
    pod = a_pod()
    content = known(csi=SECRETS, attachRequired=True, tokenRequests=[{"audience": "vault"}])
    keys = set(volume_keys(pod, pod.spec.volumes[0], content))
    token = TokenKey(UID, "shop", "web", "clerk", "vault", 3600)
    assert {DRIVER_KEY, STAGE_SECRET, PUBLISH_SECRET, ATTACHMENT, token} <= keys
    unattached = known(attachRequired=False)
    assert ATTACHMENT not in set(volume_keys(pod, pod.spec.volumes[0], unattached))


def test_refusals() -> None:
    no_persistent = plan(known(volumeLifecycleModes=["Ephemeral"]))
    text = f'{HEAD}volume mode "Persistent" not supported by driver {DRIVER} (only supports ["Ephemeral"])'
    assert no_persistent == RefusedPlan(text, spec_name="pv")
    secret = {**secrets_of(), PUBLISH_SECRET: Absent("no such secret")}
    assert plan(known(csi=SECRETS, more=secret)) == RefusedPlan(
        "fetching NodePublishSecretRef vault/publish failed: no such secret", spec_name="pv"
    )
    for_staging = planned(known(csi=SECRETS, more={**secrets_of(), STAGE_SECRET: Absent("no such secret")}))
    problem = "fetching NodeStageSecretRef vault/stage failed: no such secret"
    assert device_of_plan(for_staging).problem == problem
    pod = a_pod()
    inputs = Inputs(node=NODE, content=known(), plugins=Plugins(is_settled=True))
    assert plan_volume(pod, pod.spec.volumes[0], inputs, PATHS) == RefusedPlan(
        "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: "
        f"driver name {DRIVER} not found in the list of registered CSI drivers",
        until=f"the CSI driver {DRIVER} has registered",
        step="MountDevice",
        spec_name="pv",
    )


@pytest.mark.parametrize(
    ("policy", "fs_type", "modes", "read_only", "applied"),
    [
        ("File", "", ["ReadWriteMany"], False, True),
        ("File", "", ["ReadWriteMany"], True, False),
        ("None", "ext4", ["ReadWriteOnce"], False, False),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteMany", "ReadWriteOnce"], False, True),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteOncePod"], False, True),
        ("ReadWriteOnceWithFSType", "ext4", ["ReadWriteMany"], False, False),
        ("ReadWriteOnceWithFSType", "", ["ReadWriteOnce"], False, False),
    ],
)
def test_who_applies_the_group(policy: str, fs_type: str, modes: list[str], read_only: bool, applied: bool) -> None:
    content = known(csi={"fsType": fs_type}, volume={"accessModes": modes}, fsGroupPolicy=policy)
    assert planned(content, pod=a_pod(read_only=read_only, fsGroup=4321)).is_group_applied is applied
