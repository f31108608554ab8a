"""Names of groups, as runtimes and systemd expect them."""

from __future__ import annotations

import pytest

from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.sizing import QOSClass
from pykubelet.provide.cgroups import names
from pykubelet.provide.cgroups.model import CgroupDriver, ResourceSettings

UID = PodUID("5a6b-12cd")
FS, SD = CgroupDriver.CGROUPFS, CgroupDriver.SYSTEMD


@pytest.mark.parametrize(
    ("root", "qos", "path"),
    [
        ("/", QOSClass.GUARANTEED, "/kubepods/pod5a6b-12cd"),
        ("", QOSClass.BURSTABLE, "/kubepods/burstable/pod5a6b-12cd"),
        ("/a/b/", QOSClass.BEST_EFFORT, "/a/b/kubepods/besteffort/pod5a6b-12cd"),
    ],
)
def test_cgroupfs(root: str, qos: QOSClass, path: str) -> None:
    settings = ResourceSettings(cgroup_root=root)
    assert names.driver_path(names.pod_group(settings, qos, UID), FS) == path
    assert names.cgroup_parent(settings, qos, UID) == path


def test_systemd() -> None:
    settings = ResourceSettings(driver=SD)
    group = names.pod_group(settings, QOSClass.BURSTABLE, UID)
    leaf = "kubepods-burstable-pod5a6b_12cd.slice"
    assert names.driver_path(group, SD) == f"/kubepods.slice/kubepods-burstable.slice/{leaf}"
    assert names.cgroup_parent(settings, QOSClass.BURSTABLE, UID) == leaf
    assert names.cgroup_parent(settings, QOSClass.GUARANTEED, UID) == "kubepods-pod5a6b_12cd.slice"
    rooted = ResourceSettings(driver=SD, cgroup_root="/my-root")
    assert names.driver_path(names.node_group(rooted), SD) == "/my_root.slice/my_root-kubepods.slice"
    assert names.driver_path((), SD) == "/"


def test_without_qos_groups_the_root_is_the_parent() -> None:
    settings = ResourceSettings(cgroup_root="/mine", cgroups_per_qos=False)
    assert names.cgroup_parent(settings, QOSClass.BURSTABLE, UID) == "/mine"
    assert names.node_group(settings) == ("mine",)


@pytest.mark.parametrize("driver", [FS, SD])
@pytest.mark.parametrize("qos", list(QOSClass))
def test_uid_is_read_back_from_the_directory(driver: CgroupDriver, qos: QOSClass) -> None:
    settings = ResourceSettings(driver=driver, cgroup_root="/r-1")
    parent = names.qos_group(settings, qos)
    entry = names.driver_path(names.pod_group(settings, qos, UID), driver).rpartition("/")[2]
    assert names.read_pod_uid(entry, parent, driver) == UID
    for other in ("burstable", "crio-1.scope", "kubepods-burstable.slice", "pod", "system.slice"):
        assert names.read_pod_uid(other, parent, driver) is None


def test_groups_named_in_the_configuration() -> None:
    assert names.parse_group("/sys/kubelet", FS) == ("sys", "kubelet")
    assert names.parse_group("/runtime.slice/runtime-my_kube.slice", SD) == ("runtime", "my-kube")
    assert names.parse_group("system.slice", SD) == ("system",)
    assert names.quoted(("a", "kubepods")) == '["a" "kubepods"]'
