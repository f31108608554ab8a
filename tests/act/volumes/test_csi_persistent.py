"""Persistent CSI volumes: what is asked of the driver, in which order, and what is left of it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from act.volumes.samples import NODE, inputs, roster, running
from act.volumes.test_decide import Driver
from act.volumes.test_loop import UID, Agent, set_roster, started, stop_pod, until
from support.csi import DRIVER, CsiProcess, csi_driver, unmount_all

from pykubelet.act.volumes.attach_limit import is_at_limit
from pykubelet.act.volumes.csi.calls import publish_request, stage_request
from pykubelet.act.volumes.csi.data import CsiDevicePlan, CsiPlan
from pykubelet.act.volumes.csi.stage import find_devices
from pykubelet.act.volumes.kind import DevicePlan, FoundDevice, Plan, RefusedPlan, UndecidedPlan
from pykubelet.act.volumes.model import (
    AttachmentsRead,
    DeviceStaged,
    DirectoryRemoved,
    Inputs,
    InputsChanged,
    ReadAttachments,
    RecordEvent,
    Result,
    SetUpEnded,
    TimerFired,
)
from pykubelet.act.volumes.plan import plan_volume
from pykubelet.act.volumes.registry import volume_keys
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod, PodSecurityContext, Secret, VolumeDevice
from pykubelet.base.api.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim, VolumeAttachment
from pykubelet.base.kit.values import replace
from pykubelet.base.model.attachments import attachment_key, unique_csi_name
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present, TokenKey, Unreadable
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import AttachLimit, Mounts
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.edges.csi.node import Capability
from pykubelet.edges.host.fs.mounts import bind, is_mount_point, unmount

HANDLE = "pvc-1"
NAME = unique_csi_name(DRIVER, HANDLE)
DRIVER_KEY = ObjectKey(ContentKind.CSI_DRIVER, "", DRIVER)
ATTACHMENT = attachment_key(HANDLE, DRIVER, "node")
STAGE_SECRET, PUBLISH_SECRET = (ObjectKey(ContentKind.SECRET, "vault", name) for name in ("stage", "publish"))
PATHS = Paths("/k", "/logs")
GLOBAL = f"/k/plugins/kubernetes.io/csi/{DRIVER}/{sha256(HANDLE.encode()).hexdigest()}/globalmount"
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
        stage_request(device, one).volume_capability.access_mode.mode
        for one in (frozenset[int](), frozenset({Capability.SINGLE_NODE_MULTI_WRITER}))
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
    (event,) = [one.kube_event for one in commands if isinstance(one, RecordEvent)]
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
    asked = [command for command in driver.see(TimerFired(), after=123.0) if isinstance(command, ReadAttachments)]
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


# With a driver

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture
def top() -> Iterator[Path]:
    with TemporaryDirectory(prefix="csi-") as made:  # a socket's path is at most 107 bytes long
        (Path(made) / "root").mkdir()
        yield Path(made)
        unmount_all(Path(made))


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


@needs_root
async def test_a_volume_is_staged_once_for_two_pods_and_outlives_them(top: Path) -> None:
    one, other = a_pod(), a_pod("u2")
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), one, other)
        volumes = [(await agent.wait_ready(uid)).volumes["v"] for uid in ("u1", "u2")]
        Path(volumes[0].host_path, "file").write_text("shared")
        assert Path(volumes[1].host_path, "file").read_text() == "shared"
        assert is_mount_point(str(global_mount(agent)))
        notes = json.loads((global_mount(agent).parent / "vol_data.json").read_text())
        assert notes == {"driverName": DRIVER, "volumeHandle": HANDLE}
        (found,) = find_devices(agent.paths)
        assert found == FoundDevice(NAME, "csi", str(global_mount(agent)), context="")
        pod_notes = json.loads(Path(volumes[0].host_path, "../vol_data.json").read_text())
        assert (pod_notes["volumeLifecycleMode"], pod_notes["specVolID"]) == ("Persistent", "pv")
        set_roster(agent)
        await agent.wait_gone(agent.paths.pod(UID))
        await agent.wait_gone(agent.paths.pod(PodUID("u2")))
        await is_unstaged(agent)
        assert driver.names() == [LIFE[0], LIFE[1], LIFE[1], LIFE[2], LIFE[2], LIFE[3]]
        set_roster(agent, one)
        assert Path((await agent.wait_ready()).volumes["v"].host_path, "file").read_text() == "shared"
        await stop_pod(agent, one)
        await is_unstaged(agent)


@needs_root
async def test_a_volume_that_is_mounted_elsewhere_too_is_not_unstaged(
    top: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pod, elsewhere = a_pod(), top / "elsewhere"
    elsewhere.mkdir()
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), pod)
        await agent.wait_ready()
        bind(str(global_mount(agent)), str(elsewhere))
        await stop_pod(agent, pod)
        await until(lambda: "device not unstaged" in caplog.text)
        assert is_mount_point(str(global_mount(agent))) and "NodeUnstageVolume" not in driver.names()
        unmount(str(elsewhere))
        await is_unstaged(agent)


@needs_root
@pytest.mark.parametrize("moment", ["running", "gone"])
async def test_a_restarted_agent_knows_what_is_staged(top: Path, moment: str) -> None:
    pod = a_pod()
    async with csi_driver(top / "root", top / "data") as driver:
        await driver.create(HANDLE)
        async with started(top / "root") as agent:
            begin(agent, driver, known(), pod)
            path = Path((await agent.wait_ready()).volumes["v"].host_path)
            (path / "file").write_text("kept")
        async with started(top / "root") as agent:
            if moment == "running":
                begin(agent, driver, known(), pod, runs=("u1",))
                await agent.wait_ready()
                assert (path / "file").read_text() == "kept"
                begin(agent, driver, known())
            else:
                begin(agent, driver, known())
            await agent.wait_gone(agent.paths.pod(UID))
            await is_unstaged(agent)
        again = LIFE[:2] if moment == "running" else []
        assert driver.names() == [*LIFE[:2], *again, *LIFE[2:]]


@needs_root
async def test_a_driver_that_does_not_stage_is_not_asked_to(top: Path) -> None:
    pod = a_pod()
    behavior = {"hidden": [1], "NodePublishVolume": "lie"}
    async with csi_driver(top / "root", top / "data", behavior=behavior) as driver, started(top / "root") as agent:
        begin(agent, driver, known(csi=SECRETS, more={**secrets_of(), STAGE_SECRET: Absent("none")}), pod)
        await agent.wait_ready()
        assert not global_mount(agent).parent.exists()
        (request,) = driver.requests("NodePublishVolume")
        assert "staging_target_path" not in request
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        await until(lambda: agent.mounts.get().pods == {})
        assert driver.names() == LIFE[1:3]


@needs_root
async def test_a_final_error_of_staging_leaves_nothing(top: Path) -> None:
    pod = a_pod()
    failed = {"NodeStageVolume": "fail INVALID_ARGUMENT bad disk"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        begin(agent, driver, known(), pod)
        await agent.wait(lambda now: failing(now, "rpc error: code = InvalidArgument desc = bad disk"))
        assert not global_mount(agent).parent.exists()
        event = agent.recorded.events[0]
        text = 'MountVolume.MountDevice failed for volume "pv" : rpc error: code = InvalidArgument desc = bad disk'
        assert event.message == text
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        assert set(driver.names()) == {"NodeStageVolume"}


@needs_root
async def test_an_uncertain_error_of_staging_is_followed_by_another_call_or_by_unstaging(top: Path) -> None:
    pod = a_pod()
    failed = {"NodeStageVolume": "fail DEADLINE_EXCEEDED slow"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), pod)
        await agent.wait(lambda now: failing(now, "rpc error: code = DeadlineExceeded desc = slow"))
        assert (global_mount(agent).parent / "vol_data.json").exists()
        await driver.behave(NodeStageVolume="")
        await agent.wait_ready()
        await driver.behave(NodeStageVolume="fail ABORTED busy")
        await stop_pod(agent, pod)
        await is_unstaged(agent)
        assert driver.names("done") == LIFE
        set_roster(agent, pod)
        await agent.wait(lambda now: failing(now, "rpc error: code = Aborted desc = busy"))
        await stop_pod(agent, pod)
        await is_unstaged(agent)
        assert driver.names("done") == [*LIFE, "NodeUnstageVolume"]


@needs_root
@pytest.mark.parametrize("code", ["DEADLINE_EXCEEDED", "INTERNAL"])
async def test_after_a_failed_unstaging_the_next_pod_stages_again(top: Path, code: str) -> None:
    pod = a_pod()
    failed = {"NodeUnstageVolume": f"fail {code} not now"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), pod)
        await agent.wait_ready()
        await stop_pod(agent, pod)
        await driver.wait_calls("NodeUnstageVolume", 2)
        set_roster(agent, pod)
        await agent.wait_ready()
        await driver.behave(NodeUnstageVolume="")
        await stop_pod(agent, pod)
        await is_unstaged(agent)
        assert driver.names("done") == [*LIFE[:3], *LIFE]


@needs_root
async def test_a_driver_that_comes_late_unstages_what_is_left(top: Path) -> None:
    pod = a_pod()
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), pod)
        await agent.wait_ready()
        plugins = agent.plugins.cell.get()
        await driver.behave(NodeUnpublishVolume="hang after")
        set_roster(agent)
        await driver.wait_calls("NodeUnpublishVolume", 2)
        agent.plugins.publish(Plugins(is_settled=True))
        await driver.behave(NodeUnpublishVolume="")
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        agent.observed.publish(running())
        agent.plugins.publish(Plugins(is_settled=True))
        set_roster(agent)
        await agent.wait(lambda now: failing(now, "not found in the list of registered CSI drivers"))
        agent.plugins.publish(replace(plugins, is_settled=True))
        await agent.wait_gone(agent.paths.pod(UID))
        await is_unstaged(agent)


@needs_root
@pytest.mark.parametrize("notes", ["", "{}", '{"driverName":"d","volumeHandle":"\\ud800"}', None])
async def test_a_device_whose_driver_is_unknown_is_left_alone(top: Path, notes: str | None) -> None:
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE)
        begin(agent, driver, known(), a_pod())
        path = Path((await agent.wait_ready()).volumes["v"].host_path)
        (path / "file").write_text("kept")
    file = global_mount(agent).parent / "vol_data.json"
    if notes is None:
        file.unlink()
    else:
        file.write_text(notes)
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        begin(agent, driver, known())
        await agent.wait_gone(agent.paths.pod(UID))
        (found,) = find_devices(agent.paths)
        assert found.directory == str(global_mount(agent)) and found.name != NAME
        assert (global_mount(agent) / "file").read_text() == "kept"


# Block volumes

BLOCK = {"volumeMode": "Block"}


def a_block_pod(uid: str = "u1") -> Pod:
    pod = a_pod(uid)
    (container,) = pod.spec.containers
    device = (VolumeDevice(name="v", devicePath="/dev/x"),)
    return replace(pod, spec=replace(pod.spec, containers=(replace(container, volumeMounts=(), volumeDevices=device),)))


def test_what_the_driver_is_asked_for_a_block_volume() -> None:
    content = known(volume=BLOCK, fsGroupPolicy="File", tokenRequests=[{"audience": "vault"}], podInfoOnMount=True)
    pod = a_block_pod()
    made = planned(content, pod=replace(pod, spec=replace(pod.spec, securityContext=PodSecurityContext(fsGroup=4321))))
    top = "/k/plugins/kubernetes.io/csi/volumeDevices"
    stage = stage_request(device_of_plan(made), frozenset({Capability.STAGE_UNSTAGE_VOLUME}))
    assert stage.staging_target_path == f"{top}/staging/pv"
    assert stage.volume_capability.WhichOneof("access_type") == "block"
    publish = publish_request(made, frozenset({Capability.VOLUME_MOUNT_GROUP}))
    assert (publish.target_path, publish.staging_target_path) == (f"{top}/publish/pv/u1", f"{top}/staging/pv")
    assert publish.volume_capability.WhichOneof("access_type") == "block"
    assert "csi.storage.k8s.io/pod.uid" in publish.volume_context
    assert not any("serviceAccount.tokens" in key for key in publish.volume_context)
    assert (made.mounted.is_block, made.is_group_applied) == (True, False)
    assert made.path == "/k/pods/u1/volumeDevices/kubernetes.io~csi/pv"
    assert device_of_plan(made).directory == f"{top}/pv/dev"


def test_refusals_of_a_block_volume() -> None:
    missing = {**secrets_of(), PUBLISH_SECRET: Absent("gone"), STAGE_SECRET: Absent("gone")}
    assert plan(known(csi=SECRETS, more=missing, volume=BLOCK), pod=a_block_pod()) == RefusedPlan(
        "kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef vault/publish: gone",
        spec_name="pv",
        is_block=True,
    )
    missing[PUBLISH_SECRET] = secrets_of()[PUBLISH_SECRET]
    for_staging = planned(known(csi=SECRETS, more=missing, volume=BLOCK), pod=a_block_pod())
    problem = "kubernetes.io/csi: failed to get NodeStageSecretRef vault/stage: gone"
    assert device_of_plan(for_staging).problem == problem
    pod = a_block_pod()
    inputs = Inputs(node=NODE, content=known(volume=BLOCK), plugins=Plugins(is_settled=True))
    assert plan_volume(pod, pod.spec.volumes[0], inputs, PATHS) == RefusedPlan(
        "kubernetes.io/csi: blockMapper.SetUpDevice failed to get CSI client: "
        f"driver name {DRIVER} not found in the list of registered CSI drivers",
        until=f"the CSI driver {DRIVER} has registered",
        step="MountDevice",
        spec_name="pv",
        is_block=True,
    )


def block_devices(agent: Agent) -> list[Path]:
    """What is there of block volumes, but for directories that all of them share."""
    top = Path(agent.paths.plugins) / "kubernetes.io/csi/volumeDevices"
    found = [Path(folder, name) for folder, folders, files in os.walk(top) for name in (*folders, *files)]
    return [path for path in found if path.relative_to(top).parts not in (("staging",), ("publish",))]


def open_devices(top: Path) -> tuple[str, ...]:
    """The loop devices on the driver's images and on the agent's maps."""
    files = subprocess.run(["losetup", "-a"], capture_output=True, check=True, text=True).stdout
    return tuple(line for line in files.splitlines() if str(top) in line)


@needs_root
async def test_a_block_volume_is_mapped_for_two_pods_and_taken_apart(top: Path) -> None:
    pods = a_block_pod(), a_block_pod("u2")
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root") as agent:
        await driver.create(HANDLE, is_block=True)
        begin(agent, driver, known(volume=BLOCK), *pods)
        for uid in ("u1", "u2"):
            volume = (await agent.wait_ready(uid)).volumes["v"]
            assert volume.is_block and stat.S_ISBLK(Path(volume.host_path).stat().st_mode)
            assert volume.csi is not None and Path(volume.csi.path).name == uid
        data = Path(agent.paths.plugins) / "kubernetes.io/csi/volumeDevices/pv/data/vol_data.json"
        assert sorted(json.loads(data.read_text())) == [
            "attachmentID",
            "driverName",
            "nodeName",
            "specVolID",
            "volumeHandle",
        ]
        (found,) = find_devices(agent.paths)
        assert (found.name, Path(found.directory)) == (NAME, data.parents[1] / "dev")
        set_roster(agent)
        for uid in ("u1", "u2"):
            await agent.wait_gone(agent.paths.pod(PodUID(uid)))
        await until(lambda: block_devices(agent) == [])
        assert driver.names() == [LIFE[0], LIFE[1], LIFE[1], LIFE[2], LIFE[2], LIFE[3]]
        assert open_devices(top) == ()


@needs_root
@pytest.mark.parametrize("stays", [True, False])
async def test_a_restarted_agent_knows_a_block_volume(top: Path, stays: bool) -> None:
    pod = a_block_pod()
    async with csi_driver(top / "root", top / "data") as driver:
        await driver.create(HANDLE, is_block=True)
        async with started(top / "root") as agent:
            begin(agent, driver, known(volume=BLOCK), pod)
            await agent.wait_ready()
        async with started(top / "root") as agent:
            if stays:
                begin(agent, driver, known(volume=BLOCK), pod, runs=("u1",))
                await agent.wait_ready()
            begin(agent, driver, known(volume=BLOCK))
            await agent.wait_gone(agent.paths.pod(UID))
            await until(lambda: block_devices(agent) == [])
            assert open_devices(top) == ()


@needs_root
@pytest.mark.parametrize("made", ["", "dev", "data"])
async def test_empty_directories_of_a_block_volume_that_a_killed_agent_has_left_are_removed(
    top: Path, made: str
) -> None:
    block = top / "root/plugins/kubernetes.io/csi/volumeDevices"
    (block / "pv" / made).mkdir(parents=True)
    for shared in ("staging", "publish"):
        (block / shared).mkdir()
    async with started(top / "root") as agent:
        agent.plugins.publish(Plugins(is_settled=True))
        set_roster(agent)
        await until(lambda: not (block / "pv").exists())
    assert sorted(path.name for path in block.iterdir()) == ["publish", "staging"]


@needs_root
@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "ABORTED"])
async def test_a_block_volume_whose_publishing_fails(top: Path, code: str) -> None:
    pod = a_block_pod()
    failed = {"NodePublishVolume": f"fail {code} no device"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        await driver.create(HANDLE, is_block=True)
        begin(agent, driver, known(volume=BLOCK), pod)
        await agent.wait(lambda now: failing(now, "desc = no device"))
        event = next(one for one in agent.recorded.events if "no device" in one.message)
        assert (event.reason, event.message[:52]) == (
            "FailedMapVolume",
            'MapVolume.MapPodDevice failed for volume "pv" : rpc ',
        )
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        await until(lambda: block_devices(agent) == [])
        assert (driver.names("done")) == ([LIFE[0], LIFE[3]] if code == "INVALID_ARGUMENT" else [LIFE[0], *LIFE[2:]])
        assert open_devices(top) == ()
