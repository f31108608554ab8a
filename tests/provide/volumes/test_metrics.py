"""Metrics of work on volumes."""

from __future__ import annotations

import pytest

from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.paths import Beneath
from pykubelet.provide.volumes.kind import DevicePlan, FoundDevice, VolumePlan
from pykubelet.provide.volumes.metrics import (
    OPERATIONS,
    ORPHAN_ERRORS,
    ORPHANS,
    TOTAL,
    count_mounted,
    count_operation,
    count_orphans,
    count_staging,
    count_unstaging,
)
from pykubelet.provide.volumes.model import (
    MountPhase,
    PodVolumes,
    Result,
    SetUp,
    TearDown,
    VolumeFailure,
    VolumeNeed,
    VolumeState,
)
from pykubelet.provide.volumes.plan import plugin_of, plugin_of_device, plugin_of_plan

UID = PodUID("uid-1")


def set_up(kind: str) -> SetUp:
    return SetUp(UID, "v", VolumePlan(MountedVolume("v", kind, "/p")), "wanted")


def tear_down(plugin: str) -> TearDown:
    return TearDown(UID, "v", plugin, "v", "over")


def count_command(command: SetUp | TearDown, result: Result) -> None:
    count_operation(plugin_of(command), command, result, 0.01)


@pytest.mark.parametrize(
    ("command", "plugin"),
    [
        (set_up("emptyDir"), "kubernetes.io/empty-dir"),
        (set_up("hostPath"), "kubernetes.io/host-path"),
        (set_up("secret"), "kubernetes.io/secret"),
        (set_up("configMap"), "kubernetes.io/configmap"),
        (set_up("downwardAPI"), "kubernetes.io/downward-api"),
        (set_up("projected"), "kubernetes.io/projected"),
        (tear_down("kubernetes.io~configmap"), "kubernetes.io/configmap"),
        (tear_down("example.com~left-by-another"), "example.com/left-by-another"),
        (tear_down(""), ""),
    ],
)
def test_plugins_by_their_names(command: SetUp | TearDown, plugin: str) -> None:
    assert plugin_of(command) == plugin


def test_operations_by_their_results() -> None:
    done = ("kubernetes.io/empty-dir", "volume_mount", "success", "false")
    failed = ("kubernetes.io/configmap", "volume_unmount", "fail-unknown", "false")
    before = OPERATIONS.count(*done), OPERATIONS.count(*failed)
    count_command(set_up("emptyDir"), Result.DONE)
    count_command(tear_down("kubernetes.io~configmap"), Result.UNCERTAIN)
    assert (OPERATIONS.count(*done), OPERATIONS.count(*failed)) == (before[0] + 1, before[1] + 1)


def test_volumes_of_in_tree_cloud_plugins_are_marked_as_migrated() -> None:
    labels = ("kubernetes.io/csi", "volume_mount", "success", "true")
    before = OPERATIONS.count(*labels)
    mounted = MountedVolume("v", "csi", "/p", is_migrated=True)
    count_command(SetUp(UID, "v", VolumePlan(mounted), "wanted"), Result.DONE)
    assert OPERATIONS.count(*labels) == before + 1


@pytest.mark.parametrize(
    ("name", "kind", "directory", "plugin", "operation"),
    [
        ("kubernetes.io/csi/d.example.com^h/1", "csi", "/k/plugins/x/globalmount", "kubernetes.io/csi:d.example.com", "unmount_device"),
        ("kubernetes.io/csi/d^h", "csi", "/k/plugins/kubernetes.io/csi/volumeDevices/pv/dev", "kubernetes.io/csi:d", "unmap_device"),
        ("kubernetes.io/local-volume/pv", "local", "/k/plugins/x/mounts/pv", "kubernetes.io/local-volume", "unmount_device"),
    ],
)  # fmt: skip
def test_devices_that_are_given_back(name: str, kind: str, directory: str, plugin: str, operation: str) -> None:
    labels = (plugin, operation, "success", "false")
    before = OPERATIONS.count(*labels)
    device = FoundDevice(name, kind, Beneath("", directory[1:]))
    count_unstaging(plugin_of_device(device), device, Result.DONE, 0.01)
    assert OPERATIONS.count(*labels) == before + 1


def test_block_devices_are_mapped_and_not_mounted() -> None:
    labels = [("kubernetes.io/local-volume", name, "success", "false") for name in ("map_volume", "unmap_volume")]
    before = [OPERATIONS.count(*values) for values in labels]
    mounted = MountedVolume("v", "local", "/p", is_block=True)
    count_command(SetUp(UID, "v", VolumePlan(mounted), "wanted"), Result.DONE)
    count_command(TearDown(UID, "v", "kubernetes.io~local-volume", "v", "over", is_block=True), Result.DONE)
    assert [OPERATIONS.count(*values) for values in labels] == [count + 1 for count in before]


def test_the_whole_time_until_a_volume_is_mounted() -> None:
    labels = ("kubernetes.io/nfs", "overall_volume_mount")
    before = TOTAL.count(*labels)
    plan = VolumePlan(MountedVolume("v", "nfs", "/p"))
    count_mounted(plugin_of_plan(plan), plan, 3.0)
    assert TOTAL.count(*labels) == before + 1


def test_a_failed_staging_counts_as_a_failed_mount() -> None:
    device = DevicePlan("kubernetes.io/csi/d^h", "csi", Beneath("/k/plugins", "x/globalmount"))
    block = DevicePlan("kubernetes.io/csi/d^h", "csi", Beneath("/k/plugins", "kubernetes.io/csi/volumeDevices/pv/dev"))
    labels = [("kubernetes.io/csi:d", name, "fail-unknown", "false") for name in ("volume_mount", "map_volume")]
    before = [OPERATIONS.count(*values) for values in labels]
    for plan in (device, block):
        count_staging(plugin_of_device(plan), plan, Result.DONE, 0.1)
        count_staging(plugin_of_device(plan), plan, Result.UNCERTAIN, 0.1)
    assert [OPERATIONS.count(*values) for values in labels] == [count + 1 for count in before]


def test_a_mounted_volume_was_verified_to_be_attached() -> None:
    plan = VolumePlan(MountedVolume("v", "emptyDir", "/p"))
    labels = ("kubernetes.io/empty-dir", "verify_controller_attached_volume", "success", "false")
    before = OPERATIONS.count(*labels)
    count_mounted(plugin_of_plan(plan), plan, 1.0)
    assert OPERATIONS.count(*labels) == before + 1


def test_orphans_are_those_that_the_last_sweep_found() -> None:
    stuck = {"v": VolumeState("v", MountPhase.UNCERTAIN, 1.0, failure=VolumeFailure("busy", 1.0))}
    pods = [
        PodVolumes(UID, VolumeNeed.NEEDED),
        PodVolumes(UID, VolumeNeed.ORPHANED),
        PodVolumes(UID, VolumeNeed.ORPHANED, volumes=stuck),
    ]
    count_orphans(pods)
    assert (ORPHANS.value(), ORPHAN_ERRORS.value()) == (2, 1)
    count_orphans([])
    assert (ORPHANS.value(), ORPHAN_ERRORS.value()) == (0, 0)
