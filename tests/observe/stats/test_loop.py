"""When usage is measured and published, over which time rates are, and the cost of a disk that hangs; under virtual time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import pytest
from support.virtual_time import VirtualClock, VirtualLoop

from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, make_cell
from pykubelet.base.kit.flight import Outcome, SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.mounts import MountedVolume, Mounts, PodMounts
from pykubelet.base.model.observed import ContainerView, Observed, ObservedState, PodView, SandboxView
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.usage import CpuUse, GroupDetail, GroupUse, MemoryUse, PodUse, Usage, UsageWanted
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.observe.stats.files import SIZES_WAIT_S, FileSettings
from pykubelet.observe.stats.loop import FIRST_GAP_S, READING_PERIOD_S, REST_AFTER_S, StatsInputs, StatsLoop
from pykubelet.observe.stats.tree import UsageSources

pytestmark = pytest.mark.virtual_time

UID = PodUID("0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0")
REF = PodRef("default", "web", UID)
ID, SANDBOX = "ab" * 32, "cd" * 32
PERIOD_S = 60.0
WALL = 1_767_323_045.0
T = TypeVar("T")


@dataclass
class Groups:
    """A node with one pod of one container. `cores`: how much of a core each cgroup uses.

    `burst_s`: CPU is used in bursts, at the end of each of these periods. `fails`: nothing can be read. `begun`: when a cgroup was
    made, by its path; the others with the machine. `looks`: the cgroups that were read, and those of which only the CPU time was read.
    """

    clock: VirtualClock
    cores: float = 0.02
    burst_s: float = 0.0
    fails: bool = False
    begun: dict[str, float] = field(default_factory=dict)
    looks: list[str] = field(default_factory=list)
    cpu_looks: list[str] = field(default_factory=list)

    def _used(self, path: str) -> int:
        passed = self.clock.monotonic() - self.begun.get(path, 100.0)
        if self.burst_s:
            passed -= passed % self.burst_s
        return int(passed * self.cores * 1e9)

    def read(self, path: str, at: float, *, brief: bool = False) -> GroupUse | None:
        if self.fails:
            return None
        self.looks.append(path)
        return GroupUse(at, CpuUse(self._used(path)), MemoryUse(usage=5000, working_set=4000), 3, path=path)

    def cpu_total(self, path: str) -> int | None:
        if self.fails:
            return None
        self.cpu_looks.append(path)
        return self._used(path)

    def detail(self, path: str) -> GroupDetail:
        return GroupDetail()

    def children(self, path: str) -> list[str]:
        found = {"/kubepods": [f"pod{UID}"], f"/kubepods/pod{UID}": [ID, SANDBOX]}.get(path, [])
        return [name for name in found if self.begun.get(f"{path}/{name}", 0) <= self.clock.monotonic()]

    def processes(self, path: str) -> list[int]:
        return []


class StuckFlight(SingleFlight):
    """Work whose key begins with one of `stuck` does not come back until it is freed."""

    def __init__(self) -> None:
        super().__init__("stats")
        self.stuck_keys: tuple[str, ...] = ()
        self.free = asyncio.Event()

    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        if key.startswith(self.stuck_keys):
            await self.free.wait()
        return await super().run(key, work, deadline_s)


@dataclass
class Runtime:
    """`containers`: a file system of their own, where they have one."""

    images: str
    containers: str = ""
    fails: bool = False

    async def image_fs_info(self) -> pb.ImageFsInfoResponse:
        if self.fails:
            raise CriError(CriCode.UNIMPLEMENTED, "no", "ImageFsInfo")

        def usage(path: str, used: int) -> list[pb.FilesystemUsage]:
            where = pb.FilesystemIdentifier(mountpoint=path)
            return [pb.FilesystemUsage(fs_id=where, used_bytes=pb.UInt64Value(value=used))] if path else []

        return pb.ImageFsInfoResponse(
            image_filesystems=usage(self.images, 111), container_filesystems=usage(self.containers, 222)
        )

    async def list_container_stats(self) -> list[pb.ContainerStats]:
        layer = pb.FilesystemUsage(used_bytes=pb.UInt64Value(value=4096), inodes_used=pb.UInt64Value(value=3))
        return [pb.ContainerStats(attributes=pb.ContainerAttributes(id=ID), writable_layer=layer)]


@dataclass
class Stand:
    folder: Path
    clock: VirtualClock
    groups: Groups
    flight: StuckFlight
    runtime: Runtime
    wanted: Mailbox[UsageWanted]
    usage: Cell[Usage]
    observed: CellWriter[Observed]
    mounts: CellWriter[Mounts]
    volume: Path = field(init=False)

    def mount(self, *volumes: MountedVolume) -> None:
        scratch = MountedVolume("scratch", "emptyDir", str(self.volume))
        self.mounts.publish(Mounts({UID: PodMounts({volume.name: volume for volume in (scratch, *volumes)})}))

    def __post_init__(self) -> None:
        self.volume = self.folder / "pods" / UID / "volumes" / "scratch"

    @property
    def logs(self) -> Path:
        return self.folder / "logs" / f"default_web_{UID}" / "app"

    async def start_container(self, after_s: float) -> None:
        """The container starts after so many seconds; there was none before."""
        path, wall = f"/kubepods/pod{UID}/{ID}", self.clock.wall() + after_s
        self.groups.begun[path] = self.clock.monotonic() + after_s
        await asyncio.sleep(after_s)
        self.observe(started_at=wall)

    def observe(self, *, started_at: float = 1.0, attempt: int = 0) -> None:
        started = int(started_at * 1e9)
        running = ContainerView(ContainerID(ID), "app", SandboxID(SANDBOX), ObservedState.RUNNING, 0, 1, started)
        sandbox = SandboxView(SandboxID(SANDBOX), attempt, True, started)
        self.observed.publish(Observed({UID: PodView(REF, (sandbox,), (running,))}))

    async def ask(self, *, with_files: bool = True, after_s: float = 2.0) -> Usage:
        """A measurement that begins from now on."""
        await asyncio.sleep(after_s)
        now = self.clock.monotonic()
        self.wanted.post(UsageWanted(now, with_files))
        async with asyncio.timeout(20):
            return await self.usage.wait_for(lambda u: u.taken_at is not None and u.taken_at >= now)

    async def ask_until(self, is_so: Callable[[PodUse], bool], after_s: float = 2.0) -> PodUse:
        for _ in range(100):
            pod = (await self.ask(after_s=after_s)).pods[UID]
            if is_so(pod):
                return pod
        raise AssertionError("never so")


@asynccontextmanager
async def standing(folder: Path, period_s: float = PERIOD_S) -> AsyncIterator[Stand]:
    virtual = asyncio.get_running_loop()
    assert isinstance(virtual, VirtualLoop)
    clock = VirtualClock(virtual, WALL)
    usage, usage_writer = make_cell("usage", Usage())
    observed, observed_writer = make_cell("observed", Observed())
    mounts, mounts_writer = make_cell("mounts", Mounts())
    plugins, _ = make_cell("plugins", Plugins())
    groups, flight, runtime = Groups(clock), StuckFlight(), Runtime(str(folder))
    wanted: Mailbox[UsageWanted] = Mailbox("wanted")
    stand = Stand(folder, clock, groups, flight, runtime, wanted, usage, observed_writer, mounts_writer)
    stand.volume.mkdir(parents=True)
    (stand.volume / "file").write_bytes(b"x" * 100_000)
    stand.logs.mkdir(parents=True)
    (stand.logs / "0.log").write_text("hello")
    stand.observe()
    stand.mount()
    sources = UsageSources(groups, "/kubepods", 1 << 30, 1.0, {"pods": "/kubepods"})
    settings = FileSettings(Paths(str(folder), f"{folder}/logs"), VolumeQuotas(is_on=False), period_s)
    inputs = StatsInputs(wanted, observed, mounts, plugins)
    loop = StatsLoop(inputs, usage_writer, sources, settings, cast(CriClient, runtime), flight, clock)
    async with Supervisor("test") as supervisor:
        task = supervisor.start_root("stats", loop.run())
        try:
            yield stand
        finally:
            flight.free.set()
            task.cancel()


def on_disk(*files: Path) -> int:
    return sum(os.lstat(file).st_blocks * 512 for file in files)


async def test_volumes_logs_and_layers_are_published_with_their_file_systems(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        pod = (await stand.ask()).pods[UID]
        (volume,), (container,) = pod.volumes, pod.containers
        assert volume.name == "scratch" and volume.is_local and (volume.fs.used or 0) >= 100_000
        assert container.logs is not None and container.logs.used == on_disk(stand.logs / "0.log")
        assert container.rootfs is not None and container.rootfs.used == 4096
        node = stand.usage.get().node
        assert node is not None and node.fs is not None and node.fs.capacity
        assert node.image_fs is not None and node.image_fs.used == 111
        assert node.container_fs == node.image_fs, "the runtime keeps both in one place"


async def test_containers_may_have_a_file_system_of_their_own(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        stand.runtime.containers = str(tmp_path)
        node = (await stand.ask()).node
        assert node is not None and node.image_fs is not None and node.container_fs is not None
        assert (node.image_fs.used, node.container_fs.used) == (111, 222)


async def test_no_answer_waits_for_a_walk_that_hangs(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        stand.flight.stuck_keys = ("stats-sizes",)
        for _ in range(2):
            usage = await stand.ask()
            pod = usage.pods[UID]
            assert usage.with_files and not usage.error
            assert pod.volumes == () and pod.containers[0].rootfs is not None and pod.group is not None
        stand.flight.free.set()
        await stand.ask_until(lambda pod: bool(pod.volumes))


def claimed(name: str, path: str, kind: str = "nfs") -> MountedVolume:
    claim = ("default", name)
    return MountedVolume(name, kind, path, is_measured=False, spec_name=f"pv-{name}", has_stats=True, claim=claim)


async def test_a_volume_of_a_server_has_the_figures_of_its_file_system(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        stand.mount(claimed("data", "/proc"), claimed("gone", f"{tmp_path}/nowhere"))
        pod = await stand.ask_until(lambda pod: len(pod.volumes) == 2)
        volume = pod.volumes[1]
        assert (volume.name, volume.claim, volume.is_local) == ("data", ("default", "data"), False)
        assert (volume.fs.capacity, volume.fs.used, volume.fs.inodes) == (0, 0, 0), (
            "those of the file system, not of its files"
        )


async def test_a_server_that_is_away_costs_its_own_volume_alone(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        stand.mount(claimed("hung", "/proc"), claimed("data", "/proc"))
        stand.flight.stuck_keys = ("stats-volume:nfs/pv-hung",)
        await asyncio.sleep(PERIOD_S)
        await stand.ask_until(lambda pod: [volume.name for volume in pod.volumes] == ["scratch"])
        stand.flight.free.set()
        await stand.ask_until(lambda pod: {volume.name for volume in pod.volumes} == {"scratch", "data", "hung"})


async def test_a_hanging_node_disk_costs_its_figures_alone(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        stand.flight.stuck_keys = ("stats-fs",)
        usage = await stand.ask()
        assert usage.with_files and usage.node is not None and usage.node.fs is None
        assert usage.pods[UID].group is not None


async def test_the_newest_known_is_published_until_the_next_walk(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        before = await stand.ask_until(lambda pod: bool(pod.volumes))
        (stand.volume / "more").write_bytes(b"x" * 500_000)
        assert (await stand.ask()).pods[UID].volumes == before.volumes, "not walked again so soon"
        after = await stand.ask_until(lambda pod: pod.volumes != before.volumes, after_s=PERIOD_S)
        assert (after.volumes[0].fs.used or 0) >= 600_000


async def test_without_a_period_volumes_are_not_measured_but_logs_are(tmp_path: Path) -> None:
    async with standing(tmp_path, period_s=0) as stand:
        for _ in range(2):
            pod = (await stand.ask()).pods[UID]
            assert pod.volumes == () and pod.containers[0].logs is not None


async def test_a_request_for_cpu_reads_no_disk(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        usage = await stand.ask(with_files=False)
        assert not usage.with_files and usage.node is not None and usage.node.fs is None


def rate(usage: Usage) -> int:
    """That of the container; the pod has the same."""
    pod = usage.pods[UID]
    (container,) = pod.containers
    assert container.group.nano_cores is not None and pod.group is not None
    return container.group.nano_cores


@pytest.mark.parametrize("after_s", [7.3, 59.9, 60.1, 3600.2])
async def test_the_first_answer_has_the_rate_of_a_container_that_works_once_a_second(
    tmp_path: Path, after_s: float
) -> None:
    """Nothing was requested before, and the answer does not wait for a second measurement."""
    async with standing(tmp_path) as stand:
        stand.groups.burst_s = 1.0
        await asyncio.sleep(after_s)
        asked_at = stand.clock.monotonic()
        usage = await stand.ask(with_files=False, after_s=0)
        assert stand.clock.monotonic() - asked_at < 0.01
        assert rate(usage) == pytest.approx(20e6, rel=0.2)
        assert usage.node is not None and usage.node.group.nano_cores == pytest.approx(20e6, rel=0.2)
        assert usage.node.system["pods"].nano_cores == pytest.approx(20e6, rel=0.2)
        pod = usage.pods[UID].group
        assert pod is not None and pod.nano_cores == pytest.approx(20e6, rel=0.2)


async def test_a_container_that_has_just_started_has_its_rate_since_the_start(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        await stand.start_container(after_s=45)
        assert rate(await stand.ask(with_files=False, after_s=4)) == pytest.approx(20e6, rel=0.01)
        assert rate(await stand.ask(with_files=False, after_s=8)) == pytest.approx(20e6, rel=0.01)


async def test_the_start_of_a_container_is_no_burst(tmp_path: Path) -> None:
    """The runtime has used CPU in the cgroup before it reports the start."""
    async with standing(tmp_path) as stand:
        await stand.start_container(after_s=45)
        stand.groups.begun[f"/kubepods/pod{UID}/{ID}"] -= 1  # 20 ms are used at the start
        assert rate(await stand.ask(with_files=False, after_s=0.01)) < 30e6


async def test_a_pod_with_another_sandbox_has_no_rate_since_that_sandbox(tmp_path: Path) -> None:
    """Its cgroup is older, and no earlier reading has it."""
    async with standing(tmp_path) as stand:
        stand.groups.fails = True
        await asyncio.sleep(50)
        stand.groups.fails = False
        stand.observe(started_at=stand.clock.wall() - 1, attempt=1)
        pod = (await stand.ask(with_files=False)).pods[UID]
        assert pod.group is not None and pod.group.nano_cores is None


@pytest.mark.parametrize("pause_s", [0.3, 1.1, 2.9, 7.0, 31.0])
async def test_rates_are_those_of_some_seconds_however_often_they_are_requested(tmp_path: Path, pause_s: float) -> None:
    """The container works every two seconds."""
    async with standing(tmp_path) as stand:
        stand.groups.burst_s = 2.0
        await asyncio.sleep(20)
        rates = [rate(await stand.ask(with_files=False, after_s=pause_s)) for _ in range(60)]
        assert min(rates) >= 10e6 and max(rates) <= 30e6


async def test_a_jump_of_the_wall_clock_changes_no_rate(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        for jump_s in (0, -3600, 3600):
            stand.clock.jump_wall(jump_s)
            assert rate(await stand.ask(with_files=False, after_s=10)) == pytest.approx(20e6, rel=0.01)


async def test_right_after_the_start_an_answer_waits_for_a_rate(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        began = stand.clock.monotonic()
        usage = await stand.ask(with_files=False, after_s=0)
        assert stand.clock.monotonic() - began == pytest.approx(FIRST_GAP_S, abs=0.01)
        assert usage.node is not None and usage.node.group.nano_cores == pytest.approx(20e6, rel=0.01)


async def test_at_rest_only_the_cpu_time_of_each_cgroup_is_read_once_a_minute(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        await stand.ask()
        await asyncio.sleep(REST_AFTER_S + READING_PERIOD_S)
        stand.groups.looks.clear()
        stand.groups.cpu_looks.clear()
        await asyncio.sleep(60.5 * READING_PERIOD_S)
        assert stand.groups.looks == []
        (number,) = {stand.groups.cpu_looks.count(path) for path in stand.groups.cpu_looks}
        assert number in (60, 61)
        assert set(stand.groups.cpu_looks) == {
            "/",
            "/kubepods",
            f"/kubepods/pod{UID}",
            f"/kubepods/pod{UID}/{ID}",
            f"/kubepods/pod{UID}/{SANDBOX}",
        }


async def test_logs_are_measured_for_every_answer(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        for length in (10_000, 50_000, 200_000):
            (stand.logs / "0.log").write_bytes(b"x" * length)
            pod = (await stand.ask()).pods[UID]
            logs = pod.containers[0].logs
            assert logs is not None and logs.used == on_disk(stand.logs / "0.log") >= length
            assert logs.at == pytest.approx(stand.clock.wall(), abs=0.1), "the time of this measurement"
            assert logs.capacity and logs.available


async def test_an_old_measurement_of_logs_keeps_its_time(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        before = (await stand.ask()).pods[UID].containers[0].logs
        stand.flight.stuck_keys = ("stats-logs",)
        after = (await stand.ask(after_s=30)).pods[UID].containers[0].logs
        assert before is not None and after is not None and after.at == before.at


async def test_a_log_disk_that_hangs_costs_its_figures_alone_and_a_moment_once(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        stand.flight.stuck_keys = ("stats-logs",)
        waits = []
        for _ in range(3):
            usage = await stand.ask()
            assert usage.taken_at is not None
            waits.append(stand.clock.monotonic() - usage.taken_at)
            pod = usage.pods[UID]
            assert pod.containers[0].logs is None and pod.own_files is None
            assert pod.volumes and pod.containers[0].rootfs is not None
        assert waits[0] == pytest.approx(SIZES_WAIT_S, abs=0.01) and max(waits[1:]) < 0.01


async def test_the_first_answer_after_a_rest_has_new_figures_of_volumes(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        await stand.ask()
        await asyncio.sleep(3600)
        (stand.volume / "more").write_bytes(b"x" * 500_000)
        assert ((await stand.ask()).pods[UID].volumes[0].fs.used or 0) >= 600_000


async def test_a_failed_measurement_is_logged_once_and_the_next_is_made_anew(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        stand.groups.fails = True
        assert (await stand.ask()).error == "the root control group cannot be read"
        stand.groups.fails = False
        assert (await stand.ask()).error == ""


async def test_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        await stand.ask_until(lambda pod: bool(pod.volumes))
        stand.observed.publish(Observed({}))
        assert (await stand.ask()).pods == {}


async def test_a_runtime_without_file_systems_leaves_the_node_its_own(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        stand.runtime.fails = True
        node = (await stand.ask()).node
        assert node is not None and node.fs is not None and node.image_fs is None and node.container_fs is None
