"""`PodCgroups` on a driver that holds groups in memory and fails on request, and on the real groups of this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from typing import Any

import msgspec
import pytest
from provide.cgroups.conftest import NODE, FakeCgroups, Make, active, pod

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.edges.host.cgroups.cgroup_detect import detect_cgroups
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits
from pykubelet.edges.host.cgroups.cgroups import Cgroups, read_control, write_control
from pykubelet.edges.host.cgroups.cgroups_v1 import CgroupsV1
from pykubelet.edges.host.cgroups.cgroups_v2 import CgroupsV2
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.cgroups.execute import (
    DURATIONS,
    MEMORY_LOW_BYTES,
    MEMORY_MIN_BYTES,
    PodCgroups,
    RetryLimits,
)
from pykubelet.provide.cgroups.model import (
    CgroupDriver,
    Enforce,
    MemoryProtection,
    ResourcesError,
    ResourceSettings,
)

#: Only systemd can keep one waiting: the kernel's files answer at once.
SLICES = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort"


def memory_pod(uid: str, memory: str) -> Pod:
    spec = {"containers": [{"name": "c", "resources": {"requests": {"memory": memory}}}]}
    return msgspec.convert({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": spec}, Pod)


def events(recorder: Sink[KubeEvent]) -> list[tuple[str, str, str]]:
    return [(h.type.value, h.reason, h.message) for h in recorder.events]


# The node


async def test_root_groups_and_the_event(make: Make, fake: FakeCgroups, recorder: Sink[KubeEvent]) -> None:
    await make(system_reserved={"memory": 1 << 30}).ensure_root()
    assert fake.groups["/kubepods"] == CgroupLimits(cpu_shares=2048, memory_bytes=7 << 30)
    assert fake.groups["/kubepods/besteffort"] == CgroupLimits(cpu_shares=2)
    assert fake.groups["/kubepods/burstable"] == CgroupLimits()
    message = "Updated Node Allocatable limit across pods"
    assert events(recorder) == [("Normal", "NodeAllocatableEnforced", message)]


async def test_refused_node_limits_are_an_event_and_tried_again(
    make: Make, fake: FakeCgroups, recorder: Sink[KubeEvent]
) -> None:
    fake.refuse["/kubepods"] = HostError("write", "memory.max", "EBUSY", "device or resource busy")
    fake.groups["/kubepods"] = CgroupLimits()
    cgroups = make()
    fake.create = lambda path, limits: None  # type: ignore[method-assign]
    await cgroups.ensure_root()
    message = 'Failed to update Node Allocatable Limits ["kubepods"]: write memory.max: device or resource busy'
    assert events(recorder) == [("Warning", "FailedNodeAllocatableEnforcement", message)]
    fake.refuse.clear()
    await cgroups.retry_node_limits()
    await cgroups.retry_node_limits()
    assert [reason for _, reason, _ in events(recorder)][1:] == ["NodeAllocatableEnforced"]


async def test_a_kernel_that_frees_memory_before_it_takes_a_limit_delays_no_pod(make: Make, fake: FakeCgroups) -> None:
    others_went_on = threading.Event()
    answers: list[bool] = []
    fake.update = lambda path, limits: answers.append(others_went_on.wait(30))  # type: ignore[method-assign]
    asyncio.get_running_loop().call_later(0.05, others_went_on.set)
    await make().retry_node_limits()
    assert answers == [True]


async def test_node_that_cannot_hold_pods_reports_why(make: Make, fake: FakeCgroups) -> None:
    fake.usable = frozenset({"cpu", "pids"})
    with pytest.raises(ResourcesError, match=r"Cgroup subsystem not mounted: \[cpuset memory\]"):
        await make().ensure_root()
    fake.usable = frozenset({"cpu", "cpuset", "memory"})
    fake.refuse["/kubepods"] = HostError("mkdir", "/sys/fs/cgroup/kubepods", "EROFS", "read-only file system")
    with pytest.raises(ResourcesError, match=r"top level QOS containers: mkdir .*read-only file system"):
        await make().ensure_root()


async def test_slow_systemd_at_the_start_is_waited_for(make: Make, fake: FakeCgroups) -> None:
    gate = fake.gates["/kubepods.slice"] = threading.Event()
    limits = RetryLimits(deadline_s=0.05, start_s=60.0)
    asyncio.get_running_loop().call_later(0.3, gate.set)
    await make(retry_limits=limits, driver=CgroupDriver.SYSTEMD).ensure_root()
    assert "/kubepods.slice/kubepods-burstable.slice" in fake.groups


@pytest.mark.parametrize(("driver", "name"), [(CgroupDriver.SYSTEMD, "systemd"), (CgroupDriver.CGROUPFS, "the kernel")])
async def test_start_without_an_answer_names_who_is_silent(
    make: Make, fake: FakeCgroups, driver: CgroupDriver, name: str
) -> None:
    gate = threading.Event()
    fake.gates.update({"/kubepods": gate, "/kubepods.slice": gate})
    with pytest.raises(ResourcesError, match=rf"top level QOS containers: {name} has not answered for \d+ s"):
        await make(retry_limits=RetryLimits(deadline_s=0.05, start_s=0.1), driver=driver).ensure_root()
    gate.set()


async def test_reserved_groups_are_enforced_or_fatal(make: Make, fake: FakeCgroups, recorder: Sink[KubeEvent]) -> None:
    settings: dict[str, Any] = {
        "enforce": frozenset({Enforce.PODS, Enforce.SYSTEM_RESERVED, Enforce.KUBE_RESERVED_COMPRESSIBLE}),
        "system_reserved": {"cpu": 500, "memory": 1 << 20},
        "kube_reserved": {"cpu": 250, "memory": 1 << 20},
        "system_reserved_cgroup": "/system",
        "kube_reserved_cgroup": "/kube",
    }
    fake.groups.update({"/system": CgroupLimits(), "/kube": CgroupLimits()})
    await make(**settings).ensure_root()
    assert fake.groups["/system"] == CgroupLimits(cpu_shares=512, memory_bytes=1 << 20)
    assert fake.groups["/kube"] == CgroupLimits(cpu_shares=256)  # compressible: CPU alone
    assert [message for _, _, message in events(recorder)][1:] == [
        "Updated limits on system reserved cgroup /system",
        "Updated limits on kube reserved cgroup /kube",
    ]


@pytest.mark.parametrize(
    ("enforced", "title"),
    [
        (Enforce.SYSTEM_RESERVED, "System Reserved"),
        (Enforce.SYSTEM_RESERVED_COMPRESSIBLE, "System Reserved Compressible"),
        (Enforce.KUBE_RESERVED, "Kube Reserved"),
        (Enforce.KUBE_RESERVED_COMPRESSIBLE, "Kube Reserved Compressible"),
    ],
)
async def test_a_reserved_group_that_cannot_be_limited_ends_the_start(
    make: Make, fake: FakeCgroups, recorder: Sink[KubeEvent], enforced: Enforce, title: str
) -> None:
    names = {"system_reserved_cgroup": "/a/b", "kube_reserved_cgroup": "/a/b"}
    cgroups = make(enforce=frozenset({enforced}), system_reserved={"cpu": 1}, kube_reserved={"cpu": 1}, **names)
    begin = f'Failed to enforce {title} Cgroup Limits on "/a/b": '
    with pytest.raises(ResourcesError) as missing:
        await cgroups.ensure_root()
    path = "/sys/fs/cgroup/a/b/cgroup.controllers"
    detail = f'could not read controllers for cgroup ["a" "b"]: open {path}: no such file or directory'
    assert str(missing.value) == begin + detail
    fake.groups["/a/b"] = CgroupLimits()
    fake.lacking["/a/b"] = ("cpuset", "pids")
    with pytest.raises(ResourcesError) as lacking:
        await cgroups.ensure_root()
    assert str(lacking.value) == f'{begin}cgroup ["a" "b"] has some missing controllers: cpuset, pids'
    assert events(recorder)[-1] == ("Warning", "FailedNodeAllocatableEnforcement", str(lacking.value))
    fake.lacking.clear()
    fake.refuse["/a/b"] = HostError("write", "cpu.weight", "EBUSY", "device or resource busy")
    with pytest.raises(ResourcesError, match=f"^{begin}write cpu.weight: device or resource busy$"):
        await cgroups.ensure_root()


async def test_a_reservation_that_exceeds_the_machine_ends_the_start(make: Make, fake: FakeCgroups) -> None:
    reserved = {"system_reserved": {"cpu": 1500, "memory": 8 << 30}, "kube_reserved": {"cpu": 600}}
    with pytest.raises(ResourcesError) as refused:
        await make(**reserved, eviction_reserved={"memory": 100 << 20}).ensure_root()
    assert str(refused.value) == (
        "invalid Node Allocatable configuration. "
        'Resource "cpu" has a reservation of 2100m but capacity of 2. Expected capacity >= reservation. '
        'Resource "memory" has a reservation of 8292Mi but capacity of 8Gi. Expected capacity >= reservation.'
    )
    assert list(fake.groups) == ["/"]


async def test_a_cgroup_root_that_does_not_exist_ends_the_start(make: Make, fake: FakeCgroups) -> None:
    fake.lacking["/a/b"] = ("memory",)
    fake.groups["/a/b"] = CgroupLimits()
    for root, problem in (
        ("/none", 'error validating root container [none] : could not read controllers for cgroup ["none"]: open '),
        ("/a/b", 'error validating root container [a b] : cgroup ["a" "b"] has some missing controllers: memory'),
    ):
        with pytest.raises(ResourcesError) as refused:
            await make(cgroup_root=root).ensure_root()
        assert str(refused.value).startswith(problem)
    fake.lacking.clear()
    await make(cgroup_root="/a/b").ensure_root()
    assert "/a/b/kubepods/burstable" in fake.groups


async def test_a_pods_group_is_widened_for_a_resize_and_reports_what_it_uses(make: Make, fake: FakeCgroups) -> None:
    cgroups = make()
    counted = DURATIONS.count("create"), DURATIONS.count("update")
    assert await cgroups.ensure_pod(pod("u1", "1")) is None
    (path,) = [path for path in fake.groups if "u1" in path]
    assert await cgroups.widen_pod(pod("u1", "1"), pod("u1", "500m")) is None
    assert (DURATIONS.count("create"), DURATIONS.count("update")) == (counted[0] + 1, counted[1] + 1)
    assert fake.groups[path].cpu_shares == 1024
    fake.used[path] = 77
    assert await cgroups.memory_used(pod("u1", "1")) == 77
    fake.refuse[path] = HostError("read", "memory.current", "ENOENT", "no such file or directory")
    assert await cgroups.memory_used(pod("u1", "1")) is None
    problem = await cgroups.widen_pod(pod("u1", "1"), pod("u1", "2"))
    assert problem is not None and "no such file" in problem.message


async def test_without_qos_groups_nothing_is_made(make: Make, fake: FakeCgroups) -> None:
    cgroups = make(cgroups_per_qos=False, cgroup_root="", enforce=frozenset({Enforce.NONE}))
    await cgroups.ensure_root()
    assert await cgroups.ensure_pod(pod("u1")) is None
    await cgroups.update_qos(active(pod("u1", "1")))
    assert await cgroups.remove_pod(PodUID("u1"))
    assert await cgroups.list_pods() == frozenset()
    assert list(fake.groups) == ["/"]


async def test_a_class_that_uses_more_than_is_left_to_it_is_limited_to_that(make: Make, fake: FakeCgroups) -> None:
    """With qosReserved; as soon as the kernel takes the limit, it is set."""
    cgroups = make(qos_reserved_memory=100)
    await cgroups.ensure_root()
    real, path = fake.update, "/kubepods/besteffort"
    fake.used[path] = 6 << 30

    def update(path: str, limits: CgroupLimits) -> None:
        if limits.memory_bytes is not None and limits.memory_bytes < fake.used.get(path, 0):
            raise HostError("write", "memory.limit_in_bytes", "EBUSY", "device or resource busy")
        real(path, limits)

    fake.update = update  # type: ignore[method-assign]
    pods = active(memory_pod("u1", "3Gi"))
    await cgroups.update_qos(pods)
    assert fake.groups[path].memory_bytes == 6 << 30
    fake.used[path] = 0
    await cgroups.update_qos(pods, force=True)
    assert fake.groups[path].memory_bytes == 5 << 30


async def test_protected_memory_is_a_metric(make: Make) -> None:
    cgroups = make(memory_protection=MemoryProtection.TIERED)
    await cgroups.update_qos(active(memory_pod("u1", "3Gi"), memory_pod("u2", "1Gi")))
    assert (MEMORY_MIN_BYTES.value(), MEMORY_LOW_BYTES.value()) == (4 << 30, 4 << 30)
    await cgroups.update_qos(active(memory_pod("u2", "1Gi")))
    assert (MEMORY_MIN_BYTES.value(), MEMORY_LOW_BYTES.value()) == (1 << 30, 1 << 30)


# Pods


async def test_pod_comes_and_goes(make: Make, fake: FakeCgroups) -> None:
    cgroups = make(pod_pids_limit=20)
    assert await cgroups.ensure_pod(pod("u1", "500m")) is None
    assert fake.groups["/kubepods/burstable/podu1"] == CgroupLimits(cpu_shares=512, pids=20)
    assert await cgroups.list_pods() == {"u1"}
    assert await cgroups.remove_pod(PodUID("u1"))
    assert await cgroups.list_pods() == frozenset()
    assert fake.killed == []


async def test_a_pods_group_that_was_removed_outside(make: Make, fake: FakeCgroups) -> None:
    cgroups = make()
    await cgroups.ensure_pod(pod("u1"))
    assert not await cgroups.is_gone(pod("u1"))
    del fake.groups["/kubepods/besteffort/podu1"]
    assert await cgroups.is_gone(pod("u1"))
    assert not await make(cgroups_per_qos=False).is_gone(pod("u1"))


async def test_refusal_is_a_value_that_names_pod_and_file(make: Make, fake: FakeCgroups) -> None:
    fake.refuse["/kubepods/besteffort/podu1"] = HostError("mkdir", "/sys/x", "ENOSPC", "no space left on device")
    error = await make().ensure_pod(pod("u1"))
    assert error is not None
    assert error.message == (
        "failed to create container for [kubepods besteffort podu1] : mkdir /sys/x: no space left on device"
    )


async def test_busy_group_is_killed_and_tried_again(make: Make, fake: FakeCgroups) -> None:
    await make().ensure_pod(pod("u1"))
    path = "/kubepods/besteffort/podu1"
    fake.busy[path] = 3
    assert await make().remove_pod(PodUID("u1"))  # not the one that made it: as after a restart
    assert fake.killed == [path] * 3
    assert path not in fake.groups


async def test_group_that_never_goes_is_reported(make: Make, fake: FakeCgroups) -> None:
    fake.busy["/kubepods/podu1"] = 100
    assert not await make(retry_limits=RetryLimits(removals=3)).remove_pod(PodUID("u1"))
    fake.refuse["/kubepods/podu1"] = HostError("rmdir", "/x", "EPERM", "operation not permitted")
    fake.busy.clear()
    assert not await make().remove_pod(PodUID("u1"))


async def test_pod_whose_group_hangs_holds_up_only_itself(make: Make, fake: FakeCgroups) -> None:
    gate = fake.gates[f"{SLICES}-podstuck.slice"] = threading.Event()
    cgroups = make(retry_limits=RetryLimits(deadline_s=1.0, uncertain_s=0.1), driver=CgroupDriver.SYSTEMD)
    stuck, fine = await asyncio.gather(cgroups.ensure_pod(pod("stuck")), cgroups.ensure_pod(pod("fine")))
    gate.set()
    assert fine is None
    assert stuck is not None and "systemd has not answered yet" in stuck.message


async def test_sync_abandoned_half_way_does_not_fail_the_next(make: Make, fake: FakeCgroups) -> None:
    gate = fake.gates[f"{SLICES}-podu1.slice"] = threading.Event()
    cgroups = make(driver=CgroupDriver.SYSTEMD)
    first = asyncio.get_running_loop().create_task(cgroups.ensure_pod(pod("u1")))
    await asyncio.to_thread(fake.at_gate.wait, 30)
    first.cancel()
    asyncio.get_running_loop().call_later(0.03, gate.set)
    assert await cgroups.ensure_pod(pod("u1")) is None
    assert await cgroups.remove_pod(PodUID("u1"))


async def test_sweep_asks_who_is_known_after_listing(make: Make, fake: FakeCgroups) -> None:
    cgroups = make()
    for uid in ("kept", "gone"):
        await cgroups.ensure_pod(pod(uid))
    fake.groups["/kubepods/burstable/podgone2"] = CgroupLimits()
    fake.groups["/kubepods/system-thing"] = CgroupLimits()
    assert await cgroups.sweep(lambda found: {*found} - {PodUID("kept")}) == {"gone", "gone2"}
    assert await cgroups.list_pods() == {"kept"}
    assert "/kubepods/system-thing" in fake.groups


# QoS groups


async def test_qos_is_written_on_change_only_and_survives_refusal(make: Make, fake: FakeCgroups) -> None:
    cgroups = make()
    await cgroups.update_qos(active(pod("a", "1"), pod("b", "1")))
    assert fake.groups["/kubepods/burstable"].cpu_shares == 2048
    fake.groups["/kubepods/burstable"] = CgroupLimits(cpu_shares=7)
    await cgroups.update_qos(active(pod("c", "2")))
    assert fake.groups["/kubepods/burstable"].cpu_shares == 7
    await cgroups.update_qos(active(pod("c", "2")), force=True)
    assert fake.groups["/kubepods/burstable"].cpu_shares == 2048
    fake.refuse["/kubepods/burstable"] = HostError("write", "cpu.weight", "EINVAL", "invalid argument")
    await cgroups.update_qos(active(pod("d", "3")))
    fake.refuse.clear()
    await cgroups.update_qos(active(pod("d", "3")))
    assert fake.groups["/kubepods/burstable"].cpu_shares == 3072


# For real

OURS = f"/pyk-resources-{os.getpid()}"


@pytest.fixture
def real() -> Cgroups:
    return detect_cgroups()


def sleeping_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


def shares_of(real: Cgroups, path: str) -> int:
    """`cpu.shares` of a real group, on version 2 worked out of its weight."""
    if isinstance(real, CgroupsV1):
        return int(read_control(f"{real.directory('cpu', path)}/cpu.shares"))
    assert isinstance(real, CgroupsV2)
    weight = int(read_control(f"{real.directory(path)}/cpu.weight"))
    return (weight - 1) * 262142 // 9999 + 2


def move(real: Cgroups, path: str, pid: int) -> None:
    """Move a process to a real group."""
    if isinstance(real, CgroupsV1):
        folders = [real.directory(controller, path) for controller in ("cpu", "memory", "pids")]
    else:
        assert isinstance(real, CgroupsV2)
        folders = [real.directory(path)]
    for folder in folders:
        write_control(f"{folder}/cgroup.procs", str(pid))


@pytest.mark.integration
async def test_real_groups_from_start_to_end(real: Cgroups, recorder: Sink[KubeEvent]) -> None:
    settings = ResourceSettings(cgroup_root=OURS, pod_pids_limit=64, system_reserved={"cpu": 500, "memory": 1 << 28})
    cgroups = PodCgroups(settings, NODE, real, SingleFlight("test"), recorder)
    coarse = 0 if isinstance(real, CgroupsV1) else 27  # one step of cpu.weight is 26.2 shares
    try:
        real.create(OURS, CgroupLimits())
        await cgroups.ensure_root()
        assert events(recorder)[0][1] == "NodeAllocatableEnforced"
        assert await cgroups.ensure_pod(pod("u1", "250m")) is None
        assert cgroups.cgroup_parent(pod("u1", "250m")) == f"{OURS}/kubepods/burstable/podu1"
        await cgroups.update_qos(active(pod("u1", "250m")))
        for path, shares in (("kubepods", 1536), ("kubepods/burstable", 256), ("kubepods/burstable/podu1", 256)):
            assert 0 <= shares - shares_of(real, f"{OURS}/{path}") <= coarse
        with sleeping_process() as process:
            move(real, f"{OURS}/kubepods/burstable/podu1", process.pid)
            reaper = threading.Thread(target=process.wait)
            reaper.start()
            assert await cgroups.sweep(lambda found: found) == {"u1"}
            reaper.join()
            assert process.returncode == -9
        assert await cgroups.list_pods() == frozenset()
    finally:
        real.kill(OURS)
        for _ in range(100):
            if real.remove(OURS):
                break
            await asyncio.sleep(0.01)
    assert not real.exists(OURS)
