"""iscsi volumes: names and plans, and logins and mounts with a stand-in for iscsiadm and a loop device as the disk."""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provide.volumes.samples import CONTEXT, NODE, claimed, make_pod, with_devices
from support.block import block_device, clean_folder
from support.iscsi_tools import IQN, IscsiTools

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import ISCSIVolumeSource, Secret, Volume
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.devices.iscsi import find_disks
from pykubelet.edges.host.devices.loops import detach_loop, find_loops
from pykubelet.edges.host.fs import mounts
from pykubelet.provide.volumes.directories import VolumeDirs
from pykubelet.provide.volumes.disks.device_mount import MismatchError
from pykubelet.provide.volumes.disks.disk_mount import disk_path, set_up
from pykubelet.provide.volumes.disks.disk_plan import DiskPlan
from pykubelet.provide.volumes.kind import Plan, RefusedPlan, UncertainError, UndecidedPlan, VolumesError
from pykubelet.provide.volumes.kinds import iscsi
from pykubelet.provide.volumes.kinds.iscsi import IscsiDevice, name_from, read_target, target_of, write_target
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.plan import plan_volume, volume_keys

SECRET = ObjectKey(ContentKind.SECRET, "shop", "chap")
NAME = f"kubernetes.io/iscsi/10.0.0.1:{IQN}:0"
CHAP = {
    "node.session.auth.username": "clerk",
    "node.session.auth.password": "pass",
    "discovery.sendtargets.auth.username": "finder",
}


def iscsi_volume(**source: Any) -> Volume:
    iscsi = {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0, **source}
    return from_object(Volume, {"name": "data", "iscsi": iscsi})


def plan(
    volume: Volume,
    content: Content | None = None,
    node: ApiNode | None = None,
    root: str = "/k",
    *,
    is_block: bool = False,
) -> Plan:
    inputs = Inputs(node=NODE, content=content or Content(), api_node=node or ApiNode())
    pod = make_pod(volume, fs_group=2000)
    return plan_volume(with_devices(pod) if is_block else pod, volume, inputs, Paths(root, "/logs"))


def planned(root: Path, lun: int = 0, **source: Any) -> tuple[DiskPlan, IscsiDevice]:
    made = plan(iscsi_volume(lun=lun, **source), root=str(root))
    assert isinstance(made, DiskPlan) and isinstance(made.device, IscsiDevice), made
    return made, made.device


# Plans


def test_names_and_directories() -> None:
    made = plan(iscsi_volume(fsType="xfs", readOnly=True, portals=["10.0.0.2:3261", "10.0.0.1:3260"]))
    assert isinstance(made, DiskPlan) and isinstance(made.device, IscsiDevice)
    device = made.device
    assert device.name == NAME and not device.is_attachable, "without an API server nothing attaches it"
    assert device.directory == f"/k/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-{IQN}-lun-0"
    assert device.target.portals == ("10.0.0.1:3260", "10.0.0.2:3261")
    assert (device.fs_type, device.options, made.fs_group) == ("xfs", ("ro",), None)
    assert made.path == "/k/pods/u1/volumes/kubernetes.io~iscsi/data" and made.mounted.read_only
    assert name_from(device.directory) == f"kubernetes.io/iscsi/10.0.0.1:3260:{IQN}:0"
    own = planned(Path("/k"), initiatorName="iqn.node", targetPortal="[fd00::1]")[1]
    assert own.target.interface == "[fd00::1]:3260:data" and own.target.copied == "default"


@pytest.mark.parametrize(
    "source",
    [
        {"targetPortal": "../../x"},
        {"iqn": "iqn./../x"},
        {"iscsiInterface": "a/b"},
        {"portals": ["-p x"]},
        {"iqn": "iqn.a\n"},
        {"initiatorName": "iqn.a\nnode.startup = automatic\niqn.2001-04.com.example:y"},
        {"initiatorName": "iqn.a "},
        {"iqn": f"iqn.{'a' * 255}"},
        {"portals": ["10.0.0.2\r"]},
    ],
)
def test_names_that_lead_elsewhere_are_refused(source: dict[str, Any]) -> None:
    refused = plan(iscsi_volume(**source))
    assert isinstance(refused, RefusedPlan)
    assert re.search(r"iscsi: '.*' is no name of a (portal|target|interface|initiator)", refused.error)
    assert refused.error.isprintable() and len(refused.error) < 200


def test_the_note_about_a_target_is_what_every_kubelet_writes() -> None:
    source = from_object(ISCSIVolumeSource, {"targetPortal": "a", "iqn": IQN, "lun": 7, "initiatorName": "iqn.node"})
    target = target_of(source, "pv")
    text = write_target("pv", target).decode()
    assert json.loads(text) == {
        "VolName": "pv",
        "Portals": ["a:3260"],
        "Iqn": IQN,
        "Lun": "7",
        "InitIface": "default",
        "Iface": "a:3260:pv",
        "InitiatorName": "iqn.node",
    }
    assert read_target(text) == target
    for bad in (
        "",
        "[]",
        "{}",
        "[[[",
        text.replace('"7"', '"x"'),
        text.replace("a:3260", "../a"),
        text.replace('"7"', "7"),
        text.replace("iqn.node", "iqn.a\\niqn.b"),
        text.replace('"default"', '"a b"'),
    ):
        assert read_target(bad) is None


def chap_content(values: dict[str, str]) -> Content:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    body = {"metadata": {"name": "chap"}, "type": "kubernetes.io/iscsi-chap", "data": data}
    return Content(True, {SECRET: Present(from_object(Secret, body))})


def test_the_node_waits_until_the_volume_is_attached_and_the_secret_known() -> None:
    volume = iscsi_volume(chapAuthSession=True, secretRef={"name": "chap"})
    assert list(volume_keys(make_pod(volume), volume, Content(True))) == [SECRET]
    waits = plan(volume, Content(True))
    assert isinstance(waits, UndecidedPlan) and waits.device is not None and waits.device.name == NAME
    attached = ApiNode(volumes_in_use=frozenset({NAME}), volumes_attached={NAME: ""})
    waits = plan(volume, Content(True), attached)
    assert isinstance(waits, UndecidedPlan) and waits.awaited == (SECRET,) and waits.device is not None
    made = plan(volume, chap_content({"node.session.auth.password": "pass"}), attached)
    assert isinstance(made, DiskPlan) and isinstance(made.device, IscsiDevice) and made.device.is_attachable
    assert made.device.chap.secret == {"node.session.auth.password": "pass"} and made.device.chap.session
    assert "pass" not in repr(made).replace("password", "")
    refused = plan(volume)
    assert isinstance(refused, RefusedPlan) and "cannot get kube client" in refused.error
    assert refused.step == "NewMounter initialization"


ATTACHED = ApiNode(volumes_in_use=frozenset({NAME}), volumes_attached={NAME: ""})


def test_a_claimed_volume_has_its_own_secret_and_options() -> None:
    source = {
        "targetPortal": "10.0.0.1",
        "iqn": IQN,
        "lun": 0,
        "chapAuthDiscovery": True,
        "secretRef": {"name": "chap", "namespace": "storage"},
    }
    volume, content = claimed(read_only=True, iscsi=source, mountOptions=["noatime"])
    key = ObjectKey(ContentKind.SECRET, "storage", "chap")
    content = Content(True, {**content.objects, key: Present(from_object(Secret, {"metadata": {"name": "chap"}}))})
    assert key in set(volume_keys(make_pod(volume), volume, content))
    made = plan(volume, content, ATTACHED)
    assert isinstance(made, DiskPlan) and made.device.options == ("noatime", "ro")
    assert made.path.endswith("/kubernetes.io~iscsi/pv")


# The host


@pytest.fixture
def folder() -> Iterator[Path]:
    with clean_folder() as made:
        yield made


@pytest.fixture
def tools(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IscsiTools]:
    with block_device() as first, block_device() as second:
        made = IscsiTools(folder / "tools", {0: first, 1: second})
        monkeypatch.setenv("PATH", f"{made.folder}/bin:{os.environ['PATH']}")
        monkeypatch.setattr(iscsi, "DISK_S", 1.0)
        monkeypatch.setattr(iscsi, "MORE_DISKS_S", 0.5)
        monkeypatch.setattr(iscsi, "MULTIPATH_S", 0.5)
        yield made
        for mount in mounts.mounts_below(str(folder)):
            for loop in find_loops(mount.target):
                detach_loop(loop)
            mounts.unmount(mount.target)


def disk(tools: IscsiTools, lun: int = 0) -> str:
    found: str = json.loads((tools.folder / "disks").read_text())[str(lun)]
    return found


def test_a_disk_from_login_to_logout(tools: IscsiTools, folder: Path) -> None:
    made, device = planned(folder / "root")
    iscsi.mount_disk(device, tools.machine)
    iscsi.mount_disk(device, tools.machine)
    assert tools.verbs() == ["discover 10.0.0.1:3260", "login 10.0.0.1:3260"]
    assert tools.scanned() == {"host3": "0 0 0"}
    updates = [call[-4:] for call in tools.calls() if "update" in call]
    assert updates == [["-n", "node.session.scan", "-v", "manual"], ["-n", "node.startup", "-v", "manual"]]
    (found,) = mounts.mounts_below(device.directory)
    assert (found.fs_type, found.source) == ("ext4", disk(tools))

    set_up(made, "", CONTEXT)
    set_up(made, "", CONTEXT)
    Path(made.path, "kept").write_text("data")
    assert os.stat(made.path).st_gid == 2000 and Path(device.directory, "kept").exists()
    paths, uid = Paths(str(folder / "root"), "/logs"), PodUID("u1")
    dirs = VolumeDirs.of(paths, uid, "kubernetes.io~iscsi", "data")
    assert iscsi.DISKS.device_of(paths, dirs) == NAME
    assert [(listed.name, listed.directory) for listed in iscsi.DISKS.find_devices(paths)] == [(NAME, device.directory)]
    with pytest.raises(VolumesError, match="still mounted by other references"):
        iscsi.unmount(device.directory, NAME, tools.machine)

    iscsi.DISKS.tear_down(dirs)
    iscsi.unmount(device.directory, NAME, tools.machine)
    iscsi.unmount(device.directory, NAME, tools.machine)
    assert tools.verbs()[2:] == ["logout 10.0.0.1:3260"] and tools.removed(disk(tools))
    assert not os.path.exists(device.directory) and os.listdir(os.path.dirname(device.directory)) == []
    iscsi.mount_disk(device, tools.machine)
    assert Path(device.directory, "kept").read_text() == "data"
    iscsi.unmount(device.directory, NAME, tools.machine)


def test_a_portal_with_an_ipv6_address(tools: IscsiTools, folder: Path) -> None:
    """udev names the disk, and the kernel the session, without brackets and in the short form."""
    _, device = planned(folder / "root", targetPortal="[fd00:0::1]")
    iscsi.mount_disk(device, tools.machine)
    assert mounts.is_mount_point(device.directory) and device.directory.endswith(f"/[fd00:0::1]:3260-{IQN}-lun-0")
    iscsi.unmount(device.directory, device.name, tools.machine)
    assert tools.verbs()[-1] == "logout [fd00:0::1]:3260" and tools.removed(disk(tools))


def test_an_agent_that_ended_at_any_step_finds_the_disk_and_logs_out(tools: IscsiTools, folder: Path) -> None:
    _, device = planned(folder / "root")
    paths = Paths(str(folder / "root"), "/logs")
    iscsi.mount_disk(device, tools.machine)
    mounts.unmount(device.directory)  # ended between unmount and logout
    (found,) = iscsi.DISKS.find_devices(paths)
    assert found.name == NAME
    iscsi.unmount(found.directory, found.name, tools.machine)
    assert tools.verbs()[-1] == "logout 10.0.0.1:3260"
    assert list(iscsi.DISKS.find_devices(paths)) == []
    os.makedirs(device.directory)  # ended before anything was noted
    (found,) = iscsi.DISKS.find_devices(paths)
    iscsi.unmount(found.directory, found.name, tools.machine)
    assert list(iscsi.DISKS.find_devices(paths)) == []


def test_a_target_is_logged_out_with_its_last_disk(tools: IscsiTools, folder: Path) -> None:
    first, second = planned(folder / "root")[1], planned(folder / "root", 1)[1]
    for device in (first, second):
        iscsi.mount_disk(device, tools.machine)
    assert tools.verbs().count("login 10.0.0.1:3260") == 1
    assert tools.scanned() == {"host3": "0 0 1"}
    iscsi.unmount(first.directory, first.name, tools.machine)
    assert "logout 10.0.0.1:3260" not in tools.verbs() and mounts.is_mount_point(second.directory)
    iscsi.unmount(second.directory, second.name, tools.machine)
    assert tools.verbs()[-1] == "logout 10.0.0.1:3260"


def test_one_portal_of_two_is_enough(tools: IscsiTools, folder: Path) -> None:
    tools.fail(("10.0.0.1:3260 -I default --discover", 4, "connect: no route"))
    _, device = planned(folder / "root", portals=["10.0.0.2"])
    iscsi.mount_disk(device, tools.machine)
    assert mounts.is_mount_point(device.directory)
    assert [
        "-m",
        "discoverydb",
        "-t",
        "sendtargets",
        "-p",
        "10.0.0.1:3260",
        "-I",
        "default",
        "-o",
        "delete",
    ] in tools.calls()
    tools.fail(("10.0.0.1:3260 -T", 21, "no records"))
    iscsi.unmount(device.directory, device.name, tools.machine)
    assert not os.path.exists(device.directory)


def test_a_login_that_fails_has_its_reason_and_leaves_nothing_after_the_pod(tools: IscsiTools, folder: Path) -> None:
    tools.fail(("--login", 24, "authorization failure"))
    _, device = planned(folder / "root")
    with pytest.raises(UncertainError) as failed:
        iscsi.mount_disk(device, tools.machine)
    assert "failed to get any path for iscsi disk, last err seen:" in str(failed.value)
    assert "authorization failure" in str(failed.value) and failed.value.step == "WaitForAttach"
    tools.fail(("--logout", 21, "no records"))
    iscsi.unmount(device.directory, device.name, tools.machine)
    assert not os.path.exists(device.directory)


def test_passwords_are_written_into_records_and_are_no_arguments(tools: IscsiTools, folder: Path) -> None:
    _, device = planned(folder / "root", portals=["[fd00::2]:3261"])
    device = replace(device, chap=replace(device.chap, secret=CHAP, session=True, discovery=True))
    iscsi.mount_disk(device, tools.machine)
    words = [word for call in tools.calls() for word in call]
    assert not {*CHAP.values()} & {*words}
    assert words.count("node.session.auth.authmethod") == words.count("discovery.sendtargets.auth.authmethod") == 2
    records = tools.records()
    for place in ("10.0.0.1,3260", "fd00::2,3261"):
        session = records[f"nodes/{IQN}/{place},1/default"].splitlines()
        assert session == [
            "# BEGIN RECORD 2.1.8",
            "node.tpgt = 1",
            "node.session.auth.username = clerk",
            "node.session.auth.password = pass",
            "# END RECORD",
        ]
        assert "discovery.sendtargets.auth.username = finder" in records[f"send_targets/{place}/st_config"]
    for name in records:
        assert stat.S_IMODE((tools.folder / "iscsi" / name).stat().st_mode) == 0o600
    iscsi.unmount(device.directory, device.name, tools.machine)


def test_where_records_are_elsewhere_passwords_reach_iscsiadm_and_no_error(tools: IscsiTools, folder: Path) -> None:
    tools.machine = replace(tools.machine, iscsi=())
    _, device = planned(folder / "root")
    device = replace(device, chap=replace(device.chap, secret=CHAP, session=True))
    tools.fail(("node.session.auth.password", 7, "cannot set pass"))
    with pytest.raises(UncertainError) as failed:
        iscsi.mount_disk(device, tools.machine)
    assert "cannot set ***" in str(failed.value) and "pass " not in str(failed.value)
    tools.fail()
    iscsi.mount_disk(device, tools.machine)
    updates = {call[-3]: call[-1] for call in tools.calls() if "update" in call}
    assert updates["node.session.auth.authmethod"] == "CHAP" and updates["node.session.auth.username"] == "clerk"
    assert "discovery.sendtargets.auth.username" not in updates
    iscsi.unmount(device.directory, device.name, tools.machine)


@pytest.mark.parametrize("value", ["a\nnode.startup = automatic", "a\0", "\x1b", "x" * 256])
def test_a_password_that_no_record_can_hold_is_refused(value: str) -> None:
    content = chap_content({"node.session.auth.password": value, "unrelated": "a\nb"})
    refused = plan(iscsi_volume(chapAuthSession=True, secretRef={"name": "chap"}), content, ATTACHED)
    assert isinstance(refused, RefusedPlan)
    assert refused.error.startswith("the value of node.session.auth.password in secret shop/chap must have at most 255")
    assert value not in refused.error


def test_an_initiator_of_its_own_gets_an_interface(tools: IscsiTools, folder: Path) -> None:
    _, device = planned(folder / "root", initiatorName="iqn.2026-11.node")
    iscsi.mount_disk(device, tools.machine)
    own = "10.0.0.1:3260:data"
    interface = [call for call in tools.calls() if call[:2] == ["-m", "iface"]]
    assert interface[0] == ["-m", "iface", "-I", "default", "-o", "show"]
    assert interface[1] == ["-m", "iface", "-I", own, "-o", "new"]
    assert [call[-3:] for call in interface[2:]] == [
        ["iface.transport_name", "-v", "tcp"],
        ["iface.initiatorname", "-v", "iqn.2026-11.node"],
    ]
    iscsi.unmount(device.directory, device.name, tools.machine)
    assert tools.calls()[-1] == ["-m", "iface", "-I", own, "-o", "delete"]


def test_a_disk_with_another_file_system_is_not_formatted(tools: IscsiTools, folder: Path) -> None:
    _, device = planned(folder / "root")
    iscsi.mount_disk(device, tools.machine)
    iscsi.unmount(device.directory, device.name, tools.machine)
    with pytest.raises(MismatchError):
        iscsi.mount_disk(replace(device, fs_type="xfs"), tools.machine)
    assert not os.path.exists(device.directory) and tools.verbs()[-1].startswith("logout")


def test_a_failed_logout_from_a_disk_with_another_file_system_is_tried_again(tools: IscsiTools, folder: Path) -> None:
    _, device = planned(folder / "root")
    iscsi.mount_disk(device, tools.machine)
    iscsi.unmount(device.directory, device.name, tools.machine)
    tools.fail(("--logout", 24, "no answer"))
    with pytest.raises(UncertainError, match="no answer"):
        iscsi.mount_disk(replace(device, fs_type="xfs"), tools.machine)
    tools.fail()
    iscsi.unmount(device.directory, device.name, tools.machine)
    assert not os.path.exists(device.directory) and tools.verbs()[-1].startswith("logout")


def test_a_host_without_iscsiadm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.path.exists("/usr/sbin/iscsiadm"):
        pytest.skip("this machine has an iscsiadm of its own")
    _, device = planned(folder / "root")
    with pytest.raises(VolumesError, match="on Debian, install the package open-iscsi") as failed:
        iscsi.mount_disk(device, IscsiTools(folder / "tools", {}).machine)
    assert failed.value.step == "WaitForAttach"
    assert not os.path.exists(device.directory)


# Block mode


def mapped(root: Path | str, *luns: int) -> list[tuple[DiskPlan, IscsiDevice]]:
    """The plans for volumes of mode Block, one for each logical unit, of a pod."""
    made = []
    for lun in luns:
        source = {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": lun}
        volume, content = claimed(iscsi=source, volumeMode="Block", mountOptions=["noatime"])
        name = NAME.removesuffix("0") + str(lun)
        node = ApiNode(volumes_in_use=frozenset({name}), volumes_attached={name: ""})
        disk_plan = plan(volume, content, node, root=str(root), is_block=True)
        assert isinstance(disk_plan, DiskPlan) and isinstance(disk_plan.device, IscsiDevice), disk_plan
        made.append((disk_plan, disk_plan.device))
    return made


def test_a_volume_of_mode_block_is_mapped() -> None:
    ((made, device),) = mapped("/k", 0)
    top = f"/k/plugins/kubernetes.io/iscsi/volumeDevices/iface-default/10.0.0.1:3260-{IQN}-lun-0"
    assert (device.directory, device.name, device.is_block) == (top, NAME, True)
    assert made.map is not None and made.map.file == f"{top}/u1"
    assert made.path == made.map.link == "/k/pods/u1/volumeDevices/kubernetes.io~iscsi/pv"
    assert made.mounted.is_block and made.mounted.has_stats and made.fs_group is None
    assert not made.mounted.supports_relabel


def test_a_mapped_disk_from_login_to_logout(tools: IscsiTools, folder: Path) -> None:
    ((made, device),) = mapped(folder / "root", 0)
    assert made.map is not None
    iscsi.mount_disk(device, tools.machine)
    with pytest.raises(VolumesError, match="device path of the volume is empty"):
        set_up(made, "", CONTEXT)
    for _ in range(2):
        iscsi.mount_disk(device, tools.machine)
        set_up(made, disk_path(tools.machine, find_disks(tools.machine, device.target)), CONTEXT)
    assert tools.verbs() == ["discover 10.0.0.1:3260", "login 10.0.0.1:3260"]
    assert os.readlink(made.path) == disk(tools) and len(find_loops(made.map.file)) == 1
    assert read_target(Path(device.directory, "iscsi.json").read_text()) == device.target

    paths, uid = Paths(str(folder / "root"), "/logs"), PodUID("u1")
    dirs = VolumeDirs.of(paths, uid, "kubernetes.io~iscsi", "pv", is_block=True)
    assert iscsi.DISKS.device_of(paths, dirs) == NAME
    assert [(found.name, found.directory) for found in iscsi.DISKS.find_devices(paths)] == [(NAME, device.directory)]
    with pytest.raises(VolumesError, match=r"still referenced from other Pods \[u1\]"):
        iscsi.unmount(device.directory, NAME, tools.machine)
    iscsi.DISKS.tear_down(dirs)
    iscsi.DISKS.tear_down(dirs)
    assert not os.path.lexists(made.path) and find_loops(made.map.file) == []
    iscsi.unmount(device.directory, NAME, tools.machine)
    iscsi.unmount(device.directory, NAME, tools.machine)
    assert tools.verbs()[2:] == ["logout 10.0.0.1:3260"] and tools.removed(disk(tools))
    assert list(iscsi.DISKS.find_devices(paths)) == [] and not os.path.exists(device.directory)


def test_mapped_and_mounted_disks_of_a_target_share_its_sessions(tools: IscsiTools, folder: Path) -> None:
    ((_, first),), second = mapped(folder / "root", 0), planned(folder / "root", 1)[1]
    for device in (first, second):
        iscsi.mount_disk(device, tools.machine)
    iscsi.unmount(second.directory, second.name, tools.machine)
    assert "logout 10.0.0.1:3260" not in tools.verbs()
    iscsi.unmount(first.directory, first.name, tools.machine)
    assert tools.verbs()[-1] == "logout 10.0.0.1:3260"


def test_disks_that_one_pod_has_mapped_are_distinguished_after_a_restart(tools: IscsiTools, folder: Path) -> None:
    both = mapped(folder / "root", 0, 1)
    paths = Paths(str(folder / "root"), "/logs")
    dirs = [VolumeDirs.of(paths, PodUID("u1"), "kubernetes.io~iscsi", name, is_block=True) for name in ("pv", "other")]
    for (made, device), volume_dirs in zip(both, dirs, strict=True):
        assert made.map is not None
        made = replace(made, map=replace(made.map, link=volume_dirs.path))
        iscsi.mount_disk(device, tools.machine)
        set_up(made, disk_path(tools.machine, find_disks(tools.machine, device.target)), CONTEXT)
    names = [device.name for _, device in both]
    assert [iscsi.DISKS.device_of(paths, volume_dirs) for volume_dirs in dirs] == names
    for volume_dirs, (_, device) in zip(dirs, both, strict=True):
        iscsi.DISKS.tear_down(volume_dirs)
        iscsi.unmount(device.directory, device.name, tools.machine)
    assert list(iscsi.DISKS.find_devices(paths)) == []
