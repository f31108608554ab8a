"""Cgroup drivers: both versions on trees of plain files, and the version this machine has below a root of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.base.kit.values import replace
from pykubelet.edges.host.cgroups import cgroups
from pykubelet.edges.host.cgroups.cgroup_detect import can_limit_cpu, can_limit_swap, detect_cgroups
from pykubelet.edges.host.cgroups.cgroup_values import UNLIMITED, CgroupLimits, CgroupVersion, shares_to_weight
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.cgroups.cgroups_v1 import CgroupsV1, Hierarchy
from pykubelet.edges.host.cgroups.cgroups_v2 import CgroupsV2
from pykubelet.edges.host.fs.errors import HostError

FULL = CgroupLimits(
    cpu_shares=1024,
    cpu_quota_us=50_000,
    cpu_period_us=100_000,
    memory_bytes=1 << 30,
    pids=100,
    huge_pages={"2MB": 4 << 20},
)


@pytest.mark.parametrize(
    ("shares", "weight"),
    # the reference kubelet, measured: 250m -> 10, 500m -> 20, 1500m -> 59, 3700m -> 145
    [
        (0, 0),
        (1, 1),
        (2, 1),
        (102, 4),
        (256, 10),
        (512, 20),
        (1024, 39),
        (1536, 59),
        (3788, 145),
        (262144, 10000),
        (10**9, 10000),
    ],
)
def test_shares_to_weight(shares: int, weight: int) -> None:
    assert shares_to_weight(shares) == weight


def test_weight_grows_with_shares() -> None:
    weights = [shares_to_weight(shares) for shares in range(2, 262145, 97)]
    assert weights == sorted(weights)


# Trees of plain files


V2_FILES = (
    "cpu.weight",
    "cpu.max",
    "memory.max",
    "pids.max",
    "hugetlb.2MB.max",
    "hugetlb.2MB.rsvd.max",
    "cpuset.cpus",
    "memory.high",
    "cgroup.procs",
    "cgroup.kill",
)


def v2_group(directory: Path, controllers: str = "cpu memory pids hugetlb") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.controllers").write_text(controllers)
    (directory / "cgroup.subtree_control").write_text("")
    for name in V2_FILES:
        (directory / name).write_text("")
    return directory


def test_cpu_time_can_be_limited_where_the_kernel_has_the_files(tmp_path: Path) -> None:
    root, table = tmp_path / "fs", tmp_path / "self" / "mountinfo"
    (root / "cpu,cpuacct").mkdir(parents=True)
    table.parent.mkdir()
    table.write_text(f"30 28 0:26 / {root}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n")
    assert not can_limit_cpu(CgroupVersion.V1, str(tmp_path))
    (root / "cpu,cpuacct" / "cpu.cfs_period_us").touch()
    assert not can_limit_cpu(CgroupVersion.V1, str(tmp_path))
    (root / "cpu,cpuacct" / "cpu.cfs_quota_us").touch()
    assert can_limit_cpu(CgroupVersion.V1, str(tmp_path))
    assert can_limit_cpu(CgroupVersion.V2, str(tmp_path))


def test_v2_writes_limits_and_hands_controllers_down(tmp_path: Path) -> None:
    root = v2_group(tmp_path)
    node = v2_group(root / "kubepods")
    pod = v2_group(node / "pod1")
    driver = CgroupsV2(str(root))
    driver.create("/kubepods/pod1", FULL)
    assert (root / "cgroup.subtree_control").read_text() == "+cpu +hugetlb +memory +pids"
    assert (node / "cgroup.subtree_control").read_text() == "+cpu +hugetlb +memory +pids"
    assert (pod / "cgroup.subtree_control").read_text() == ""
    written = {name: (pod / name).read_text() for name in V2_FILES[:6]}
    assert written == {
        "cpu.weight": "39",
        "cpu.max": "50000 100000",
        "memory.max": "1073741824",
        "pids.max": "100",
        "hugetlb.2MB.max": "4194304",
        "hugetlb.2MB.rsvd.max": "4194304",
    }


def test_v2_a_group_lacks_the_controllers_that_its_parent_does_not_enable(tmp_path: Path) -> None:
    """Only those count that the machine has: here it has no cpuset."""
    v2_group(v2_group(tmp_path) / "slice", "cpu memory io")
    driver = CgroupsV2(str(tmp_path))
    assert driver.missing("/slice") == ("hugetlb", "pids")
    assert driver.missing("/") == ()
    with pytest.raises(HostError, match=r"none/cgroup.controllers: no such file"):
        driver.missing("/none")


def test_v1_a_group_lacks_the_directories_of_some_controllers(tmp_path: Path) -> None:
    mounts = {name: Hierarchy(str(tmp_path / name), frozenset({name})) for name in ("memory", "pids", "net_cls")}
    for name in ("memory/slice", "pids", "net_cls"):
        (tmp_path / name).mkdir(parents=True)
    driver = CgroupsV1(tuple(mounts.values()))
    assert driver.missing("/slice") == (f"{tmp_path}/pids/slice",)
    assert not driver.exists("/slice") and driver.exists("/")


def test_swap_can_be_limited_where_the_kernel_has_the_file(tmp_path: Path) -> None:
    """Version 2 has it in no root: the group of this process counts."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/system.slice/agent.service\n")
    service, memory = tmp_path / "system.slice" / "agent.service", tmp_path / "memory"
    service.mkdir(parents=True)
    memory.mkdir()
    for version, file in (
        (CgroupVersion.V2, service / "memory.swap.max"),
        (CgroupVersion.V1, memory / "memory.memsw.limit_in_bytes"),
    ):
        assert not can_limit_swap(version, str(tmp_path), str(tmp_path))
        file.write_text("")
        assert can_limit_swap(version, str(tmp_path), str(tmp_path))
    (tmp_path / "self" / "cgroup").unlink()
    assert not can_limit_swap(CgroupVersion.V2, str(tmp_path), str(tmp_path))


def test_v2_kernel_without_limits_on_reservations_of_huge_pages(tmp_path: Path) -> None:
    pod = v2_group(v2_group(tmp_path) / "pod1")
    (pod / "hugetlb.2MB.rsvd.max").unlink()
    CgroupsV2(str(tmp_path)).update("/pod1", FULL)
    assert (pod / "hugetlb.2MB.max").read_text() == "4194304"


def test_v2_cpus(tmp_path: Path) -> None:
    pod = v2_group(v2_group(tmp_path, "cpuset") / "pod1")
    CgroupsV2(str(tmp_path)).update("/pod1", CgroupLimits(cpus="0-3"))
    assert (pod / "cpuset.cpus").read_text() == "0-3"


def test_v2_unlimited_and_unset(tmp_path: Path) -> None:
    root = v2_group(tmp_path)
    pod = v2_group(root / "pod1")
    driver = CgroupsV2(str(root))
    driver.update("/pod1", CgroupLimits(unified={"memory.high": "5"}))
    assert (pod / "cpu.max").read_text() == (pod / "memory.max").read_text() == ""
    assert (pod / "memory.high").read_text() == "5"
    driver.update(
        "/pod1", CgroupLimits(cpu_quota_us=UNLIMITED, cpu_period_us=50_000, memory_bytes=UNLIMITED, pids=UNLIMITED)
    )
    assert [(pod / name).read_text() for name in ("cpu.max", "memory.max", "pids.max")] == ["max 50000", "max", "max"]


def test_how_much_memory_a_group_uses(tmp_path: Path) -> None:
    root = v2_group(tmp_path / "v2")
    (v2_group(root / "pod1") / "memory.current").write_text("4096\n")
    assert CgroupsV2(str(root)).memory_used("/pod1") == 4096
    v1_group(tmp_path / "v1", "pod1")
    (tmp_path / "v1" / "memory" / "pod1" / "memory.usage_in_bytes").write_text("8192\n")
    assert v1_driver(tmp_path / "v1").memory_used("/pod1") == 8192


def test_v2_without_a_controller_its_limit_is_left_out(tmp_path: Path) -> None:
    root = v2_group(tmp_path, "cpu memory")
    pod = v2_group(root / "pod1", "cpu memory")
    (pod / "hugetlb.2MB.max").unlink()
    CgroupsV2(str(root)).create("/pod1", FULL)
    assert (pod / "pids.max").read_text() == ""
    assert (pod / "memory.max").read_text() == "1073741824"


def test_v2_refusal_names_the_file_and_the_value(tmp_path: Path) -> None:
    root = v2_group(tmp_path)
    pod = v2_group(root / "pod1")
    (pod / "cpu.max").unlink()
    with pytest.raises(HostError) as caught:
        CgroupsV2(str(root)).create("/pod1", FULL)
    assert caught.value.is_not_found
    assert str(pod / "cpu.max") in str(caught.value) and "'50000 100000'" in str(caught.value)


def test_v2_kill_uses_the_kernels_way_and_counts(tmp_path: Path) -> None:
    root = v2_group(tmp_path)
    pod = v2_group(root / "pod1")
    inner = v2_group(pod / "container")
    (inner / "cgroup.procs").write_text("999999991\n0\n999999992\n")
    driver = CgroupsV2(str(root))
    assert driver.pids("/pod1") == {999999991, 999999992}
    assert driver.kill("/pod1") == 2
    assert (pod / "cgroup.kill").read_text() == "1"
    assert driver.kill("/nothing") == 0
    assert driver.children("/") == ("pod1",)
    assert driver.children("/nothing") == ()


def test_v2_makes_missing_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = v2_group(tmp_path)
    real = os.mkdir

    def kernel_mkdir(path: str, mode: int = 0o777) -> None:
        real(path, mode)
        v2_group(Path(path))

    monkeypatch.setattr(os, "mkdir", kernel_mkdir)
    driver = CgroupsV2(str(root))
    assert not driver.exists("/a/b")
    driver.create("/a/b/pod1", CgroupLimits(cpu_shares=2))
    assert driver.exists("/a/b/pod1")
    assert (root / "a" / "b" / "cgroup.subtree_control").read_text() != ""


CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "hugetlb")
V1_FILES = {
    "cpu": ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "cpuset": ("cpuset.cpus", "cpuset.mems"),
    "memory": ("memory.limit_in_bytes",),
    "pids": ("pids.max",),
    "hugetlb": ("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.rsvd.limit_in_bytes"),
}


def test_v2_a_process_enters_a_group(tmp_path: Path) -> None:
    group = v2_group(v2_group(tmp_path) / "agent")
    CgroupsV2(str(tmp_path)).enter("/agent")
    assert (group / "cgroup.procs").read_text() == str(os.getpid())


def v1_group(root: Path, path: str) -> None:
    for controller in CONTROLLERS:
        directory = root / controller / path
        directory.mkdir(parents=True, exist_ok=True)
        for name in (*V1_FILES[controller], "cgroup.procs"):
            (directory / name).touch()


def v1_driver(root: Path) -> CgroupsV1:
    return CgroupsV1(tuple(Hierarchy(str(root / name), frozenset({name})) for name in CONTROLLERS))


def test_v1_writes_every_controller(tmp_path: Path) -> None:
    v1_group(tmp_path, "")
    v1_group(tmp_path, "pod1")
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-3\n")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0\n")
    v1_driver(tmp_path).create("/pod1", FULL)
    found = {
        name: (tmp_path / controller / "pod1" / name).read_text()
        for controller, names in V1_FILES.items()
        for name in names
    }
    assert found == {
        "cpu.shares": "1024",
        "cpu.cfs_quota_us": "50000",
        "cpu.cfs_period_us": "100000",
        "cpuset.cpus": "0-3",
        "cpuset.mems": "0",
        "memory.limit_in_bytes": "1073741824",
        "pids.max": "100",
        "hugetlb.2MB.limit_in_bytes": "4194304",
        "hugetlb.2MB.rsvd.limit_in_bytes": "4194304",
    }


def test_v1_only_in_mounted_controllers(tmp_path: Path) -> None:
    v1_group(tmp_path, "pod1")
    driver = CgroupsV1((Hierarchy(str(tmp_path / "cpu"), frozenset({"cpu"})),))
    driver.create("/pod1", FULL)
    assert (tmp_path / "cpu" / "pod1" / "cpu.shares").read_text() == "1024"
    assert (tmp_path / "memory" / "pod1" / "memory.limit_in_bytes").read_text() == ""
    assert driver.exists("/pod1")
    assert not v1_driver(tmp_path).exists("/pod2")


def test_v1_cpuset_is_filled_from_the_nearest_parent_that_has_one(tmp_path: Path) -> None:
    for path in ("", "a", "a/b", "a/b/pod1"):
        v1_group(tmp_path, path)
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-7")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0-1")
    (tmp_path / "cpuset" / "a" / "cpuset.cpus").write_text("2-3")
    v1_driver(tmp_path).create("/a/b/pod1", CgroupLimits())
    assert (tmp_path / "cpuset/a/b/pod1/cpuset.cpus").read_text() == "2-3"
    assert (tmp_path / "cpuset/a/b/cpuset.mems").read_text() == "0-1"


def test_v1_a_group_that_is_given_cpus_has_them_whatever_it_had(tmp_path: Path) -> None:
    v1_group(tmp_path, "kubepods")
    cpus = tmp_path / "cpuset" / "kubepods" / "cpuset.cpus"
    cpus.write_text("2")
    v1_driver(tmp_path).update("/kubepods", CgroupLimits(cpus="0-3"))
    assert cpus.read_text() == "0-3"
    v1_driver(tmp_path).update("/kubepods", CgroupLimits(cpu_shares=2))
    assert cpus.read_text() == "0-3"


# Finding out


def table(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def fake_proc(tmp_path: Path, text: str) -> str:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(text)
    return str(tmp_path / "proc")


def test_detect_v2(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, table("30 28 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"))
    assert detect_cgroups(proc=proc).version is CgroupVersion.V2


def test_detect_v1_with_joint_controllers_and_hybrid(tmp_path: Path) -> None:
    proc = fake_proc(
        tmp_path,
        table(
            "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755",
            "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory,xattr",
            "34 31 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd",
            "35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        ),
    )
    driver = detect_cgroups(proc=proc)
    assert driver.version is CgroupVersion.V1
    assert driver.controllers() == {"cpu", "cpuacct", "memory"}


def test_detect_nothing(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no cgroup file system is mounted"):
        detect_cgroups(proc=fake_proc(tmp_path, ""))


def test_pid_zero_and_ourselves_are_never_killed() -> None:
    assert cgroups.kill_pids([0, 1, os.getpid(), 999999991]) == 0


# For real

OURS = "/pykubelet-test-host"


@pytest.fixture
def real() -> Iterator[Cgroups]:
    driver = detect_cgroups()
    driver.remove(OURS)
    driver.create(OURS, CgroupLimits())
    yield driver
    driver.kill(OURS)
    for _ in range(200):
        if driver.remove(OURS):
            return
    raise AssertionError(f"{OURS} could not be removed")


def control(driver: Cgroups, controller: str, path: str, name: str) -> str:
    assert isinstance(driver, CgroupsV1)
    directory = driver.directory(controller, path)
    assert directory is not None
    return cgroups.read_control(f"{directory}/{name}")


@pytest.mark.integration
@pytest.mark.cgroup_v1
def test_real_v1_limits_hold(real: Cgroups) -> None:
    path = f"{OURS}/kubepods/burstable/pod1"
    real.create(path, FULL)
    real.create(path, FULL)
    assert real.exists(path)
    assert control(real, "cpu", path, "cpu.shares") == "1024"
    assert control(real, "cpu", path, "cpu.cfs_quota_us") == "50000"
    assert control(real, "memory", path, "memory.limit_in_bytes") == str(1 << 30)
    assert control(real, "pids", path, "pids.max") == "100"
    assert control(real, "cpuset", path, "cpuset.cpus") != ""
    real.update(path, CgroupLimits(cpu_quota_us=UNLIMITED, pids=UNLIMITED))
    assert control(real, "cpu", path, "cpu.cfs_quota_us") == "-1"
    assert control(real, "pids", path, "pids.max") == "max"
    assert real.children(f"{OURS}/kubepods/burstable") == ("pod1",)


@pytest.mark.integration
def test_a_process_enters_a_group_in_every_hierarchy(real: Cgroups) -> None:
    script = f"""
from pykubelet.edges.host.cgroups.cgroup_detect import detect_cgroups
detect_cgroups().enter("{OURS}/agent/new")
print(open("/proc/self/cgroup").read())
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    paths = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in output.split()}
    mounted = [name for name in paths if name in real.controllers() or (not name and len(paths) == 1)]
    assert mounted and {paths[name] for name in mounted} == {f"{OURS}/agent/new"}


@pytest.mark.integration
@pytest.mark.cgroup_v1
@pytest.mark.integration
def test_the_files_of_a_group(real: Cgroups) -> None:
    wanted = {"cpu.max", "memory.max"} if real.version is CgroupVersion.V2 else {"cpu.shares", "memory.limit_in_bytes"}
    assert wanted | {"pids.max", "cgroup.procs"} <= real.files(OURS)
    assert real.files(f"{OURS}/none") == frozenset()


def test_real_v1_period_larger_than_the_parent_allows_at_first(real: Cgroups) -> None:
    real.create(f"{OURS}/p", CgroupLimits(cpu_quota_us=50_000, cpu_period_us=100_000))
    real.create(f"{OURS}/p/c", CgroupLimits(cpu_quota_us=10_000, cpu_period_us=100_000))
    real.update(f"{OURS}/p/c", CgroupLimits(cpu_quota_us=2_000, cpu_period_us=10_000))
    assert control(real, "cpu", f"{OURS}/p/c", "cpu.cfs_quota_us") == "2000"
    assert control(real, "cpu", f"{OURS}/p/c", "cpu.cfs_period_us") == "10000"


@pytest.mark.integration
@pytest.mark.cgroup_v1
def test_real_v1_busy_group_is_kept_until_killed_even_when_frozen(real: Cgroups) -> None:
    path = f"{OURS}/pod1"
    real.create(f"{path}/container", CgroupLimits())
    assert isinstance(real, CgroupsV1)
    with subprocess.Popen(["sleep", "1000"]) as process:
        for controller in ("cpu", "memory", "freezer"):
            directory = real.directory(controller, f"{path}/container")
            cgroups.write_control(f"{directory}/cgroup.procs", str(process.pid))
        cgroups.write_control(f"{real.directory('freezer', path + '/container')}/freezer.state", "FROZEN")
        assert real.pids(path) == {process.pid}
        assert not real.remove(path)
        assert real.kill(path) == 1
        assert process.wait(10) == -9
    assert real.remove(path)
    assert not real.exists(path)
    assert real.remove(path)


def control_v2(driver: Cgroups, path: str, name: str) -> str:
    assert isinstance(driver, CgroupsV2)
    return cgroups.read_control(f"{driver.directory(path)}/{name}")


@pytest.mark.integration
@pytest.mark.cgroup_v2
def test_real_v2_limits_hold(real: Cgroups) -> None:
    path = f"{OURS}/kubepods/burstable/pod1"
    limits = replace(FULL, huge_pages={})
    real.create(path, limits)
    real.create(path, limits)
    assert real.exists(path)
    assert control_v2(real, path, "cpu.weight") == "39"
    assert control_v2(real, path, "cpu.max") == "50000 100000"
    assert control_v2(real, path, "memory.max") == str(1 << 30)
    assert control_v2(real, path, "pids.max") == "100"
    for parent in (OURS, f"{OURS}/kubepods", f"{OURS}/kubepods/burstable"):
        assert {"cpu", "memory", "pids"} <= set(control_v2(real, parent, "cgroup.subtree_control").split())
    real.update(path, CgroupLimits(cpu_quota_us=UNLIMITED, pids=UNLIMITED))
    assert control_v2(real, path, "cpu.max") == "max 100000"
    assert control_v2(real, path, "pids.max") == "max"
    assert real.children(f"{OURS}/kubepods/burstable") == ("pod1",)


@pytest.mark.integration
@pytest.mark.cgroup_v2
def test_real_v2_huge_pages_of_every_size(real: Cgroups) -> None:
    files = [name for name in os.listdir("/sys/fs/cgroup/" + OURS) if name.startswith("hugetlb.")]
    sizes = {name.split(".")[1] for name in files}
    if not sizes:
        pytest.skip("the kernel has no hugetlb controller")
    real.create(f"{OURS}/pod1", CgroupLimits(huge_pages=dict.fromkeys(sizes, 0)))
    for size in sizes:
        assert control_v2(real, f"{OURS}/pod1", f"hugetlb.{size}.max") == "0"
        assert control_v2(real, f"{OURS}/pod1", f"hugetlb.{size}.rsvd.max") == "0"


@pytest.mark.integration
@pytest.mark.cgroup_v2
def test_real_v2_shorter_period_below_a_parent_with_a_quota(real: Cgroups) -> None:
    real.create(f"{OURS}/p", CgroupLimits(cpu_quota_us=50_000, cpu_period_us=100_000))
    real.create(f"{OURS}/p/c", CgroupLimits(cpu_quota_us=10_000, cpu_period_us=100_000))
    real.update(f"{OURS}/p/c", CgroupLimits(cpu_quota_us=2_000, cpu_period_us=10_000))
    assert control_v2(real, f"{OURS}/p/c", "cpu.max") == "2000 10000"


@pytest.mark.integration
@pytest.mark.cgroup_v2
def test_real_v2_busy_group_is_kept_until_killed_even_when_frozen(real: Cgroups) -> None:
    path = f"{OURS}/pod1"
    real.create(f"{path}/container", CgroupLimits())
    assert isinstance(real, CgroupsV2)
    with subprocess.Popen(["sleep", "1000"]) as process:
        directory = real.directory(f"{path}/container")
        cgroups.write_control(f"{directory}/cgroup.procs", str(process.pid))
        cgroups.write_control(f"{directory}/cgroup.freeze", "1")
        assert real.pids(path) == {process.pid}
        assert not real.remove(path)
        assert real.kill(path) == 1
        assert process.wait(60) == -9
    assert real.remove(path)
    assert not real.exists(path)
    assert real.remove(path)
