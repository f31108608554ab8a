"""When usage is measured and published, and the cost of a disk that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from pykubelet.base.kit.cells import Cell, CellWriter, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import Outcome, SingleFlight
from pykubelet.base.kit.mailbox import Mailbox
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
from pykubelet.observe.stats.loop import StatsInputs, StatsLoop, StatsSettings
from pykubelet.observe.stats.tree import UsageSources

UID = PodUID("0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0")
REF = PodRef("default", "web", UID)
ID, SANDBOX = "ab" * 32, "cd" * 32
PERIOD_S = 60.0
T = TypeVar("T")


@dataclass
class Groups:
    """A node with one pod of one container, which use more with every look.

    `fails`: nothing can be read. `takes_s`: so long does a look take.
    """

    clock: ManualClock
    fails: bool = False
    takes_s: float = 0.0

    def read(self, path: str, at: float, *, brief: bool = False) -> GroupUse | None:
        if self.fails:
            return None
        if path == "/":
            self.clock.advance(self.takes_s)
        used = int((self.clock.monotonic() - 900) * 1_000_000_000)
        return GroupUse(at, CpuUse(used), MemoryUse(usage=5000, working_set=4000), 3, path=path)

    def detail(self, path: str) -> GroupDetail:
        return GroupDetail()

    def children(self, path: str) -> list[str]:
        return {"/kubepods": [f"pod{UID}"], f"/kubepods/pod{UID}": [ID, SANDBOX]}.get(path, [])

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

        def one(path: str, used: int) -> list[pb.FilesystemUsage]:
            where = pb.FilesystemIdentifier(mountpoint=path)
            return [pb.FilesystemUsage(fs_id=where, used_bytes=pb.UInt64Value(value=used))] if path else []

        return pb.ImageFsInfoResponse(
            image_filesystems=one(self.images, 111), container_filesystems=one(self.containers, 222)
        )

    async def list_container_stats(self) -> list[pb.ContainerStats]:
        layer = pb.FilesystemUsage(used_bytes=pb.UInt64Value(value=4096), inodes_used=pb.UInt64Value(value=3))
        return [pb.ContainerStats(attributes=pb.ContainerAttributes(id=ID), writable_layer=layer)]


@dataclass
class Stand:
    folder: Path
    clock: ManualClock
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
        self.mounts.publish(Mounts({UID: PodMounts({one.name: one for one in (scratch, *volumes)})}))

    def __post_init__(self) -> None:
        self.volume = self.folder / "pods" / UID / "volumes" / "scratch"

    async def ask(self, *, with_files: bool = True, after_s: float = 2.0) -> Usage:
        """A look that begins from now on."""
        self.clock.advance(after_s)
        now = self.clock.monotonic()
        self.wanted.post(UsageWanted(now, with_files))
        async with asyncio.timeout(20):
            return await self.usage.wait_for(lambda u: u.taken_at is not None and u.taken_at >= now)

    async def ask_until(self, is_so: Callable[[PodUse], bool], after_s: float = 2.0) -> PodUse:
        async with asyncio.timeout(20):
            while True:
                pod = (await self.ask(after_s=after_s)).pods[UID]
                if is_so(pod):
                    return pod
                await asyncio.sleep(0.02)


@asynccontextmanager
async def standing(folder: Path, period_s: float = PERIOD_S) -> AsyncIterator[Stand]:
    clock = ManualClock()
    usage, usage_writer = make_cell("usage", Usage())
    observed, observed_writer = make_cell("observed", Observed())
    mounts, mounts_writer = make_cell("mounts", Mounts())
    plugins, _ = make_cell("plugins", Plugins())
    groups, flight, runtime = Groups(clock), StuckFlight(), Runtime(str(folder))
    wanted: Mailbox[UsageWanted] = Mailbox("wanted")
    stand = Stand(folder, clock, groups, flight, runtime, wanted, usage, observed_writer, mounts_writer)
    stand.volume.mkdir(parents=True)
    (stand.volume / "file").write_bytes(b"x" * 100_000)
    logs = folder / "logs" / f"default_web_{UID}" / "app"
    logs.mkdir(parents=True)
    (logs / "0.log").write_text("hello")
    container = ContainerView(ContainerID(ID), "app", SandboxID(SANDBOX), ObservedState.RUNNING, 0, 1)
    sandbox = SandboxView(SandboxID(SANDBOX), 0, True, 1)
    observed_writer.publish(Observed({UID: PodView(REF, (sandbox,), (container,))}))
    stand.mount()
    sources = UsageSources(groups, "/kubepods", 1 << 30, 1.0, {"pods": "/kubepods"})
    settings = StatsSettings(Paths(str(folder), f"{folder}/logs"), VolumeQuotas(is_on=False), period_s)
    inputs = StatsInputs(wanted, observed, mounts, plugins)
    loop = StatsLoop(inputs, usage_writer, sources, settings, cast(CriClient, runtime), flight, clock)
    async with Supervisor("test") as supervisor:
        task = supervisor.start_root("stats", loop.run())
        try:
            yield stand
        finally:
            flight.free.set()
            task.cancel()


async def test_volumes_logs_and_layers_are_published_with_their_file_systems(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        pod = await stand.ask_until(lambda pod: bool(pod.volumes))
        (volume,), (container,) = pod.volumes, pod.containers
        assert volume.name == "scratch" and volume.is_local and (volume.fs.used or 0) >= 100_000
        assert container.logs is not None and container.logs.used == 5
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
        stand.clock.advance(PERIOD_S)
        await stand.ask_until(lambda pod: [one.name for one in pod.volumes] == ["scratch"])
        stand.flight.free.set()
        await stand.ask_until(lambda pod: {one.name for one in pod.volumes} == {"scratch", "data", "hung"})


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


async def test_without_a_period_nothing_is_walked(tmp_path: Path) -> None:
    async with standing(tmp_path, period_s=0) as stand:
        for _ in range(2):
            assert (await stand.ask()).pods[UID].volumes == ()


async def test_a_request_for_cpu_reads_no_disk(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        usage = await stand.ask(with_files=False)
        assert not usage.with_files and usage.node is not None and usage.node.fs is None


async def test_rates_come_with_the_first_answer(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        stand.groups.takes_s = 1.0
        answer = await stand.ask(with_files=False)
        assert answer.node is not None and answer.node.group.nano_cores == 1_000_000_000
        container = answer.pods[UID].containers[0]
        assert container.group.nano_cores == 1_000_000_000


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
