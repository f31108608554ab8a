"""The room at work, on a driver that holds groups in memory and fails when told to, and on the real groups of this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec
import pytest

from pykubelet.act.resources.execute import DEFAULT_PATIENCE, DURATIONS, Patience, PodCgroups, ResourcesError
from pykubelet.act.resources.loop import ResourceInputs, ResourcesLoop
from pykubelet.act.resources.model import CgroupDriver, Enforce, NodeResources, ResourceSettings
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import Flight
from pykubelet.base.kit.mailbox import Sink
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.mounts import Mounts, PodMounts
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster, RosterPod, pod_ref
from pykubelet.edges.host.cgroups.cgroup_detect import detect_cgroups
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import Cgroups, read_control, write_control
from pykubelet.edges.host.cgroups.cgroups_v1 import CgroupsV1
from pykubelet.edges.host.cgroups.cgroups_v2 import CgroupsV2
from pykubelet.edges.host.fs.errors import HostError

NODE = NodeResources({"cpu": 2000, "memory": 8 << 30})


def pod(uid: str, cpu: str = "") -> Pod:
    resources = {"requests": {"cpu": cpu}} if cpu else {}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    return msgspec.convert({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": spec}, Pod)


class FakeCgroups:
    """Groups in memory. `refuse`: path to error; `busy`: how often a path refuses to go; `gate`: hangs until set."""

    version = CgroupVersion.V2

    def __init__(self) -> None:
        self.groups: dict[str, CgroupLimits] = {"/": CgroupLimits()}
        self.refuse: dict[str, HostError] = {}
        self.busy: dict[str, int] = {}
        self.killed: list[str] = []
        self.used: dict[str, int] = {}
        self.gates: dict[str, threading.Event] = {}
        self.usable = frozenset({"cpu", "cpuset", "memory", "pids"})

    def controllers(self) -> frozenset[str]:
        return self.usable

    def exists(self, path: str) -> bool:
        return path in self.groups

    def create(self, path: str, limits: CgroupLimits) -> None:
        if path in self.gates:
            self.gates[path].wait(10)
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            self.groups.setdefault("/" + "/".join(parts[:depth]), CgroupLimits())
        self.update(path, limits)

    def update(self, path: str, limits: CgroupLimits) -> None:
        if path in self.refuse:
            raise self.refuse[path]
        self.groups[path] = limits

    def memory_used(self, path: str) -> int:
        if path in self.refuse:
            raise self.refuse[path]
        return self.used.get(path, 0)

    def remove(self, path: str) -> bool:
        if self.busy.get(path, 0) > 0:
            self.busy[path] -= 1
            return False
        if path in self.refuse:
            raise self.refuse[path]
        self.groups.pop(path, None)
        return True

    def pids(self, path: str) -> frozenset[int]:
        return frozenset()

    def kill(self, path: str) -> int:
        self.killed.append(path)
        return 1

    def children(self, path: str) -> tuple[str, ...]:
        inner = path.rstrip("/") + "/"
        return tuple(sorted({p.removeprefix(inner).split("/")[0] for p in self.groups if p.startswith(inner)}))


@pytest.fixture
def fake() -> FakeCgroups:
    return FakeCgroups()


@pytest.fixture
def told() -> Sink[KubeEvent]:
    return Sink()


Make = Callable[..., PodCgroups]
#: Only systemd can keep one waiting: the kernel's files answer at once.
SLICES = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort"


@pytest.fixture
def make(fake: FakeCgroups, told: Sink[KubeEvent]) -> Make:
    return lambda patience=DEFAULT_PATIENCE, **settings: PodCgroups(
        ResourceSettings(**settings), NODE, cast(Cgroups, fake), Flight("test"), told, patience
    )


def events(told: Sink[KubeEvent]) -> list[tuple[str, str, str]]:
    return [(h.type.value, h.reason, h.message) for h in told.events]


# The node


async def test_root_groups_and_the_event(make: Make, fake: FakeCgroups, told: Sink[KubeEvent]) -> None:
    await make(system_reserved={"memory": 1 << 30}).ensure_root()
    assert fake.groups["/kubepods"] == CgroupLimits(cpu_shares=2048, memory_bytes=7 << 30)
    assert fake.groups["/kubepods/besteffort"] == CgroupLimits(cpu_shares=2)
    assert fake.groups["/kubepods/burstable"] == CgroupLimits()
    message = "Updated Node Allocatable limit across pods"
    assert events(told) == [("Normal", "NodeAllocatableEnforced", message)]


async def test_refused_node_limits_are_an_event_and_tried_again(
    make: Make, fake: FakeCgroups, told: Sink[KubeEvent]
) -> None:
    fake.refuse["/kubepods"] = HostError("write", "memory.max", "EBUSY", "device or resource busy")
    fake.groups["/kubepods"] = CgroupLimits()
    cgroups = make()
    fake.create = lambda path, limits: None  # type: ignore[method-assign]
    await cgroups.ensure_root()
    message = 'Failed to update Node Allocatable Limits ["kubepods"]: write memory.max: device or resource busy'
    assert events(told) == [("Warning", "FailedNodeAllocatableEnforcement", message)]
    fake.refuse.clear()
    await cgroups.retry_node_limits()
    await cgroups.retry_node_limits()
    assert [reason for _, reason, _ in events(told)][1:] == ["NodeAllocatableEnforced"]


async def test_a_kernel_that_frees_memory_before_it_takes_a_limit_holds_up_nobody(
    make: Make, fake: FakeCgroups
) -> None:
    others_went_on = threading.Event()
    answers: list[bool] = []
    fake.update = lambda path, limits: answers.append(others_went_on.wait(30))  # type: ignore[method-assign]
    asyncio.get_running_loop().call_later(0.05, others_went_on.set)
    await make().retry_node_limits()
    assert answers == [True]


async def test_node_that_cannot_hold_pods_says_why(make: Make, fake: FakeCgroups) -> None:
    fake.usable = frozenset({"cpu", "pids"})
    with pytest.raises(ResourcesError, match=r"Cgroup subsystem not mounted: \[cpuset memory\]"):
        await make().ensure_root()
    fake.usable = frozenset({"cpu", "cpuset", "memory"})
    fake.refuse["/kubepods"] = HostError("mkdir", "/sys/fs/cgroup/kubepods", "EROFS", "read-only file system")
    with pytest.raises(ResourcesError, match=r"top level QOS containers: mkdir .*read-only file system"):
        await make().ensure_root()


async def test_slow_systemd_at_the_start_is_waited_for(make: Make, fake: FakeCgroups) -> None:
    gate = fake.gates["/kubepods.slice"] = threading.Event()
    patience = Patience(deadline_s=0.05, start_s=60.0)
    asyncio.get_running_loop().call_later(0.3, gate.set)
    await make(patience=patience, driver=CgroupDriver.SYSTEMD).ensure_root()
    assert "/kubepods.slice/kubepods-burstable.slice" in fake.groups


@pytest.mark.parametrize(("driver", "name"), [(CgroupDriver.SYSTEMD, "systemd"), (CgroupDriver.CGROUPFS, "the kernel")])
async def test_start_without_an_answer_names_who_is_silent(
    make: Make, fake: FakeCgroups, driver: CgroupDriver, name: str
) -> None:
    gate = threading.Event()
    fake.gates.update({"/kubepods": gate, "/kubepods.slice": gate})
    with pytest.raises(ResourcesError, match=rf"top level QOS containers: {name} has not answered for \d+ s"):
        await make(patience=Patience(deadline_s=0.05, start_s=0.1), driver=driver).ensure_root()
    gate.set()


async def test_reserved_groups_are_enforced_or_fatal(make: Make, fake: FakeCgroups, told: Sink[KubeEvent]) -> None:
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
    assert fake.groups["/kube"] == CgroupLimits(cpu_shares=256)
    assert [message for _, _, message in events(told)][1:] == [
        "Updated limits on system reserved cgroup /system",
        "Updated limits on kube reserved cgroup /kube",
    ]
    del fake.groups["/kube"]
    with pytest.raises(
        ResourcesError, match=r'Failed to enforce Kube Reserved Cgroup Limits on "/kube".*does not exist'
    ):
        await make(**settings).ensure_root()


async def test_a_pods_group_is_widened_for_a_resize_and_tells_what_it_uses(make: Make, fake: FakeCgroups) -> None:
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
    await cgroups.update_qos([pod("u1", "1")])
    assert await cgroups.remove_pod(PodUID("u1"))
    assert await cgroups.list_pods() == frozenset()
    assert list(fake.groups) == ["/"]


# Pods


async def test_pod_comes_and_goes(make: Make, fake: FakeCgroups) -> None:
    cgroups = make(pod_pids_limit=20)
    assert await cgroups.ensure_pod(pod("u1", "500m")) is None
    assert fake.groups["/kubepods/burstable/podu1"] == CgroupLimits(cpu_shares=512, pids=20)
    assert await cgroups.list_pods() == {"u1"}
    assert await cgroups.remove_pod(PodUID("u1"))
    assert await cgroups.list_pods() == frozenset()
    assert fake.killed == []


async def test_a_pods_group_that_somebody_removed(make: Make, fake: FakeCgroups) -> None:
    cgroups = make()
    await cgroups.ensure_pod(pod("u1"))
    assert not await cgroups.is_gone(pod("u1"))
    del fake.groups["/kubepods/besteffort/podu1"]
    assert await cgroups.is_gone(pod("u1"))
    assert not await make(cgroups_per_qos=False).is_gone(pod("u1"))


async def test_refusal_is_a_value_that_names_pod_and_file(make: Make, fake: FakeCgroups) -> None:
    fake.refuse["/kubepods/besteffort/podu1"] = HostError("mkdir", "/sys/x", "ENOSPC", "no space left on device")
    error = await make().ensure_pod(pod("u1"))
    assert error is not None and error.is_no_space
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


async def test_group_that_never_goes_is_told(make: Make, fake: FakeCgroups) -> None:
    fake.busy["/kubepods/podu1"] = 100
    assert not await make(patience=Patience(removals=3)).remove_pod(PodUID("u1"))
    fake.refuse["/kubepods/podu1"] = HostError("rmdir", "/x", "EPERM", "operation not permitted")
    fake.busy.clear()
    assert not await make().remove_pod(PodUID("u1"))


async def test_pod_whose_group_hangs_holds_up_only_itself(make: Make, fake: FakeCgroups) -> None:
    gate = fake.gates[f"{SLICES}-podstuck.slice"] = threading.Event()
    cgroups = make(patience=Patience(deadline_s=1.0, uncertain_s=0.1), driver=CgroupDriver.SYSTEMD)
    stuck, fine = await asyncio.gather(cgroups.ensure_pod(pod("stuck")), cgroups.ensure_pod(pod("fine")))
    gate.set()
    assert fine is None
    assert stuck is not None and "systemd has not answered yet" in stuck.message


async def test_sync_abandoned_half_way_does_not_fail_the_next(make: Make, fake: FakeCgroups) -> None:
    gate = fake.gates[f"{SLICES}-podu1.slice"] = threading.Event()
    cgroups = make(driver=CgroupDriver.SYSTEMD)
    first = asyncio.get_running_loop().create_task(cgroups.ensure_pod(pod("u1")))
    await asyncio.sleep(0.02)
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
    assert await cgroups.sweep(lambda: frozenset({PodUID("kept")})) == {"gone", "gone2"}
    assert await cgroups.list_pods() == {"kept"}
    assert "/kubepods/system-thing" in fake.groups


# QoS groups


async def test_qos_is_written_on_change_only_and_survives_refusal(make: Make, fake: FakeCgroups) -> None:
    cgroups = make()
    await cgroups.update_qos([pod("a", "1"), pod("b", "1")])
    assert fake.groups["/kubepods/burstable"].cpu_shares == 2048
    fake.groups["/kubepods/burstable"] = CgroupLimits(cpu_shares=7)
    await cgroups.update_qos([pod("c", "2")])
    assert fake.groups["/kubepods/burstable"].cpu_shares == 7
    await cgroups.update_qos([pod("c", "2")], force=True)
    assert fake.groups["/kubepods/burstable"].cpu_shares == 2048
    fake.refuse["/kubepods/burstable"] = HostError("write", "cpu.weight", "EINVAL", "invalid argument")
    await cgroups.update_qos([pod("d", "3")])
    fake.refuse.clear()
    await cgroups.update_qos([pod("d", "3")])
    assert fake.groups["/kubepods/burstable"].cpu_shares == 3072


def lifecycles(*pods: Pod, stage: Stage = Stage.SYNCING) -> Lifecycles:
    return Lifecycles({PodUID(p.metadata.uid): PodLifecycle(pod_ref(p), p, stage, 0, 0) for p in pods})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in a thread
            await asyncio.sleep(0.005)


class Room:
    """The loop with its cells, running."""

    def __init__(self, cgroups: PodCgroups, quiet_s: float, period_s: float) -> None:
        lives, self.lives = make_cell("lifecycles", Lifecycles())
        roster, self.roster = make_cell("roster", Roster())
        observed, self.observed = make_cell("observed", Observed())
        mounts, self.mounts = make_cell("mounts", Mounts())
        self.loop = ResourcesLoop(cgroups, ResourceInputs(lives, roster, observed, mounts), quiet_s, period_s)


@pytest.fixture
async def room(make: Make) -> AsyncIterator[Room]:
    made = Room(make(), 0.01, 0.2)
    task = asyncio.get_running_loop().create_task(made.loop.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_loop_follows_pods_once_all_are_known(room: Room, fake: FakeCgroups) -> None:
    fake.groups["/kubepods/burstable"] = CgroupLimits(cpu_shares=5)
    fake.groups["/kubepods/burstable/podleft"] = CgroupLimits()
    fake.groups["/kubepods/burstable/podmounted"] = CgroupLimits()
    room.mounts.publish(Mounts({PodUID("mounted"): PodMounts()}))
    await asyncio.sleep(0.05)
    assert fake.groups["/kubepods/burstable"].cpu_shares == 5
    assert "/kubepods/burstable/podleft" in fake.groups
    admitted, running = pod("a", "1"), pod("b", "2")
    room.roster.publish(Roster({PodUID("a"): RosterPod(admitted, "file", 0)}, sources_ready=True))
    room.observed.publish(Observed(listed_at=1.0))
    await until(lambda: fake.groups["/kubepods/burstable"].cpu_shares == 1024)
    await until(lambda: "/kubepods/burstable/podleft" not in fake.groups)
    assert "/kubepods/burstable/podmounted" in fake.groups
    room.lives.publish(lifecycles(admitted, running))
    await until(lambda: fake.groups["/kubepods/burstable"].cpu_shares == 3072)
    room.lives.publish(lifecycles(admitted, running, stage=Stage.TERMINATED))
    await until(lambda: fake.groups["/kubepods/burstable"].cpu_shares == 2)


async def test_loop_repairs_everything_each_period(room: Room, fake: FakeCgroups) -> None:
    room.roster.publish(Roster(sources_ready=True))
    room.observed.publish(Observed(listed_at=1.0))
    await until(lambda: "/kubepods/besteffort" in fake.groups)
    fake.groups["/kubepods/besteffort"] = CgroupLimits(cpu_shares=999)
    fake.groups["/kubepods/podlate"] = CgroupLimits()
    await until(lambda: fake.groups["/kubepods/besteffort"].cpu_shares == 2)
    await until(lambda: "/kubepods/podlate" not in fake.groups)
    assert fake.killed == [], "nothing ran in it"


async def test_a_group_made_once_more_for_a_pod_that_is_gone_goes_soon(make: Make, fake: FakeCgroups) -> None:
    room = Room(make(), quiet_s=0.01, period_s=3600)
    async with Supervisor("test") as supervisor:
        supervisor.start_root("resources", room.loop.run())
        gone = pod("a", "1")
        room.roster.publish(Roster(sources_ready=True))
        room.observed.publish(Observed(listed_at=1.0))
        room.lives.publish(lifecycles(gone))
        await until(lambda: fake.groups.get("/kubepods/burstable", CgroupLimits()).cpu_shares == 1024)
        room.lives.publish(lifecycles())
        await until(lambda: fake.groups["/kubepods/burstable"].cpu_shares == 2)
        fake.groups["/kubepods/burstable/poda"] = CgroupLimits()  # by a call to the runtime that was given up
        await until(lambda: "/kubepods/burstable/poda" not in fake.groups)


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
async def test_real_groups_from_start_to_end(real: Cgroups, told: Sink[KubeEvent]) -> None:
    settings = ResourceSettings(cgroup_root=OURS, pod_pids_limit=64, system_reserved={"cpu": 500, "memory": 1 << 28})
    cgroups = PodCgroups(settings, NODE, real, Flight("test"), told)
    coarse = 0 if isinstance(real, CgroupsV1) else 27  # one step of cpu.weight is 26.2 shares
    try:
        await cgroups.ensure_root()
        assert events(told)[0][1] == "NodeAllocatableEnforced"
        assert await cgroups.ensure_pod(pod("u1", "250m")) is None
        assert cgroups.cgroup_parent(pod("u1", "250m")) == f"{OURS}/kubepods/burstable/podu1"
        await cgroups.update_qos([pod("u1", "250m")])
        for path, shares in (("kubepods", 1536), ("kubepods/burstable", 256), ("kubepods/burstable/podu1", 256)):
            assert 0 <= shares - shares_of(real, f"{OURS}/{path}") <= coarse
        with sleeping_process() as process:
            move(real, f"{OURS}/kubepods/burstable/podu1", process.pid)
            reaper = threading.Thread(target=process.wait)
            reaper.start()
            assert await cgroups.sweep(frozenset) == {"u1"}
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
