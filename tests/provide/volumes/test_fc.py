"""fc volumes: names and plans, and lookups and mounts on made-up trees of /dev/disk and /sys with loop devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provide.volumes.samples import CONTEXT, NODE, claimed, make_pod, with_devices
from support.block import block_device, clean_folder

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Volume
from pykubelet.base.model.content import Content
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.devices.scsi import ScsiPaths, remove_disks
from pykubelet.edges.host.fs import mounts
from pykubelet.provide.volumes.directories import VolumeDirs
from pykubelet.provide.volumes.disks.disk_mount import disk_path, set_up
from pykubelet.provide.volumes.disks.disk_plan import DiskPlan
from pykubelet.provide.volumes.kind import Plan, RefusedPlan, UndecidedPlan, VolumesError
from pykubelet.provide.volumes.kinds import fc
from pykubelet.provide.volumes.kinds.fc import FcDevice, FcDisk, disk_from, name_from
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.plan import plan_volume

WWN, OTHER = "500a0981891b8dc5", "500a0982991b8dc5"
NAME = f"kubernetes.io/fc/[{WWN} {OTHER}]:2"


def plan(content: Content | None = None, node: ApiNode | None = None, root: str = "/k", **source: Any) -> Plan:
    volume = from_object(Volume, {"name": "data", "fc": source or {"targetWWNs": [WWN, OTHER], "lun": 2}})
    inputs = Inputs(node=NODE, content=content or Content(), api_node=node or ApiNode())
    return plan_volume(make_pod(volume, fs_group=2000), volume, inputs, Paths(root, "/logs"))


def planned(root: Path | str = "/k", **source: Any) -> tuple[DiskPlan, FcDevice]:
    made = plan(root=str(root), **source)
    assert isinstance(made, DiskPlan) and isinstance(made.device, FcDevice), made
    return made, made.device


def test_names_and_directories() -> None:
    made, device = planned()
    assert (device.name, device.options, made.fs_group) == (NAME, ("rw",), 2000)
    assert device.directory == f"/k/plugins/kubernetes.io/fc/{WWN}-{OTHER}-lun-2"
    assert made.path == "/k/pods/u1/volumes/kubernetes.io~fc/data"
    by_id = planned(wwids=["3600508b4", "3600508b5"], readOnly=True)[1]
    assert by_id.name == "kubernetes.io/fc/[3600508b4 3600508b5]" and by_id.options == ("ro",)
    assert by_id.directory == "/k/plugins/kubernetes.io/fc/3600508b4-3600508b5"


@pytest.mark.parametrize("disk", [FcDisk((WWN,), 0), FcDisk((WWN, OTHER), 12), FcDisk(wwids=("3600508b4",))])
def test_a_disk_is_found_again_by_its_name_and_directory(disk: FcDisk) -> None:
    assert disk_from(disk.unique_name) == disk
    assert name_from(f"/k/plugins/kubernetes.io/fc/{disk.directory_name}") == disk.unique_name
    assert disk_from("kubernetes.io/iscsi/a:b:0") is None


@pytest.mark.parametrize("name", ["../../x", "a/b", "", ".", "x\n", "*" * 3, "x" * 300])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    for source in ({"targetWWNs": [name], "lun": 0}, {"wwids": [name]}):
        refused = plan(**source)
        assert isinstance(refused, RefusedPlan)
        assert refused.error.isprintable() and len(refused.error) < 200
    assert disk_from(f"kubernetes.io/fc/[{name}]:0") is None


def test_the_node_waits_until_the_disk_is_attached() -> None:
    waits = plan(Content(True))
    assert isinstance(waits, UndecidedPlan) and waits.device is not None and waits.device.name == NAME
    attached = ApiNode(volumes_in_use=frozenset({NAME}), volumes_attached={NAME: ""})
    made = plan(Content(True), attached)
    assert isinstance(made, DiskPlan) and made.device.is_attachable


@pytest.fixture
def folder() -> Iterator[Path]:
    with clean_folder() as made:
        yield made


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ScsiPaths:
    monkeypatch.setattr(fc, "RESCAN_S", 0.5)
    for name in ("dev/disk/by-path", "dev/disk/by-id", "sys/class/scsi_host/host1"):
        (folder / name).mkdir(parents=True)
    (folder / "sys/class/scsi_host/host1/scan").touch()
    return ScsiPaths(f"{folder}/dev", f"{folder}/sys")


def link(machine: ScsiPaths, name: str, disk: str) -> Path:
    """The link of a disk, and the file that takes it off the node."""
    Path(machine.dev, "disk", name).symlink_to(disk)
    delete = Path(machine.sys, "block", Path(disk).name, "device/delete")
    delete.parent.mkdir(parents=True, exist_ok=True)
    delete.touch()
    return delete


@pytest.mark.parametrize("form", ["pci-0000:41:00.0-fc-0x{}-lun-2", "fc-0x{}-lun-2"])
def test_a_disk_is_mounted_bound_and_taken_off(machine: ScsiPaths, folder: Path, form: str) -> None:
    made, device = planned(folder / "root")
    paths = Paths(str(folder / "root"), "/logs")
    with block_device() as disk, block_device() as other:
        link(machine, f"by-path/{form.format(WWN)}0", other)
        link(machine, f"by-path/{form.format(WWN)}-part1", other)
        delete = link(machine, f"by-path/{form.format(WWN)}", disk)
        fc.mount_disk(device, machine)
        fc.mount_disk(device, machine)
        set_up(made, "", CONTEXT)
        Path(made.path, "kept").touch()
        (mount,) = mounts.mounts_below(device.directory)
        assert (mount.source, mount.fs_type) == (disk, "ext4") and os.stat(made.path).st_gid == 2000
        dirs = VolumeDirs.of(paths, PodUID("u1"), "kubernetes.io~fc", "data")
        assert fc.DISKS.device_of(paths, dirs) == NAME
        assert [found.name for found in fc.DISKS.find_devices(paths)] == [NAME]
        with pytest.raises(VolumesError, match="still mounted by other references"):
            fc.unmount(device.directory, NAME, machine)
        fc.DISKS.tear_down(dirs)
        fc.unmount(device.directory, NAME, machine)
        fc.unmount(device.directory, NAME, machine)
        assert delete.read_text() == "1" and not os.path.exists(device.directory)
        assert list(fc.DISKS.find_devices(paths)) == []


def test_a_disk_by_its_own_identifier(machine: ScsiPaths, folder: Path) -> None:
    _, device = planned(folder / "root", wwids=["3600508b4"], fsType="ext3")
    with block_device() as disk:
        link(machine, "by-id/scsi-3600508b4", disk)
        fc.mount_disk(device, machine)
        assert mounts.mounts_below(device.directory)[0].source == disk
        fc.unmount(device.directory, device.name, machine)


def test_the_multipath_device_over_several_disks_is_mounted(machine: ScsiPaths, folder: Path) -> None:
    _, device = planned(folder / "root")
    with block_device() as disk, block_device() as over:
        link(machine, f"by-path/fc-0x{WWN}-lun-2", disk)
        slaves = Path(machine.sys, "block/dm-0/slaves")
        slaves.mkdir(parents=True)
        (slaves / Path(disk).name).touch()
        Path(machine.dev, "dm-0").symlink_to(over)
        fc.mount_disk(device, machine)
        assert mounts.mounts_below(device.directory)[0].source in (over, f"{machine.dev}/dm-0")
        mounts.unmount(device.directory)


def block_volume(root: Path | str = "/k") -> tuple[DiskPlan, FcDevice]:
    """The plan for a PersistentVolume of mode Block."""
    source = {"targetWWNs": [WWN, OTHER], "lun": 2}
    volume, content = claimed(volumeMode="Block", fc=source)
    node = ApiNode(volumes_in_use=frozenset({NAME}), volumes_attached={NAME: ""})
    inputs = Inputs(node=NODE, content=content, api_node=node)
    made = plan_volume(with_devices(make_pod(volume)), volume, inputs, Paths(str(root), "/logs"))
    assert isinstance(made, DiskPlan) and isinstance(made.device, FcDevice), made
    return made, made.device


def test_a_volume_of_mode_block_is_mapped_and_taken_off(machine: ScsiPaths, folder: Path) -> None:
    made, device = block_volume(folder / "root")
    paths = Paths(str(folder / "root"), "/logs")
    assert device.directory == f"{folder}/root/plugins/kubernetes.io/fc/volumeDevices/{WWN}-{OTHER}-lun-2"
    assert made.path == f"{folder}/root/pods/u1/volumeDevices/kubernetes.io~fc/pv" and made.mounted.has_stats
    with block_device() as disk:
        delete = link(machine, f"by-path/fc-0x{WWN}-lun-2", disk)
        for _ in range(2):
            fc.mount_disk(device, machine)
            set_up(made, disk_path(machine, fc.find_disks(machine, device.disk)), CONTEXT)
        assert os.readlink(made.path) == disk and not mounts.is_mount_point(device.directory)
        dirs = VolumeDirs.of(paths, PodUID("u1"), "kubernetes.io~fc", "pv", is_block=True)
        assert fc.DISKS.device_of(paths, dirs) == NAME
        assert [(found.name, found.directory) for found in fc.DISKS.find_devices(paths)] == [(NAME, device.directory)]
        with pytest.raises(VolumesError, match="still referenced from other Pods"):
            fc.unmount(device.directory, NAME, machine)
        fc.DISKS.tear_down(dirs)
        fc.unmount(device.directory, NAME, machine)
        assert delete.read_text() == "1" and not os.path.exists(device.directory)
        assert list(fc.DISKS.find_devices(paths)) == []


def test_a_multipath_device_that_udev_looks_at_is_removed_a_moment_later(
    machine: ScsiPaths, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, calls = tmp_path / "multipath", tmp_path / "calls"
    busy = f"[ $(wc -l < {calls}) -gt 1 ] || {{ echo 154.05 '|' /dev/dm-0: map in use; exit 1; }}"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{busy}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with block_device() as disk:
        delete = link(machine, f"by-path/fc-0x{WWN}-lun-2", disk)
        slaves = Path(machine.sys, "block/dm-0/slaves")
        slaves.mkdir(parents=True)
        (slaves / Path(disk).name).touch()
        remove_disks(machine, [disk])
        assert delete.read_text() == "1"
    assert calls.read_text().splitlines() == [f"-f {machine.dev}/dm-0"] * 2


def test_a_disk_that_the_node_no_longer_reaches_is_taken_off(
    machine: ScsiPaths, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "blockdev"
    tool.write_text("#!/bin/sh\necho input/output error\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    _, device = planned(folder / "root")
    with block_device() as disk:
        delete = link(machine, f"by-path/fc-0x{WWN}-lun-2", disk)
        fc.mount_disk(device, machine)
        fc.unmount(device.directory, NAME, machine)
        assert delete.read_text() == "1" and not os.path.exists(device.directory)


def test_no_disk_after_a_rescan(machine: ScsiPaths, folder: Path) -> None:
    _, device = planned(folder / "root")
    with pytest.raises(VolumesError, match="no fc disk found") as failed:
        fc.mount_disk(device, machine)
    assert failed.value.step == "WaitForAttach"
    assert Path(machine.sys, "class/scsi_host/host1/scan").read_text() == "- - -"
    assert not os.path.exists(device.directory)
