"""The eviction manager under virtual time: when it notices, what it reclaims, which pods it ends, and how often."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, cast

from observe.eviction.samples import GI, MI, make_pod, make_use, threshold
from observe.shutdown.test_loop import running
from support.virtual_time import VirtualClock, VirtualLoop

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Mailbox, Sink, make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import Evictions, NodePressure, Reclaimed, ReclaimWanted, SignalStates
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.roster import Roster, RosterPod, pod_ref
from pykubelet.base.model.usage import FileSystemUse, MemoryUse, PodUse, PsiData, PsiStats, Usage, UsageWanted
from pykubelet.config.eviction import Threshold, stall_threshold
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.observe.eviction.loop import EvictionInputs, EvictionLoop, EvictionOutputs
from pykubelet.observe.eviction.meter import NodeMeter
from pykubelet.observe.eviction.metrics import EVICTIONS, STATS_AGE
from pykubelet.observe.eviction.model import EvictionSettings, Reclaim
from pykubelet.observe.eviction.read import NodeSources

WALL = 1_767_323_045.0
CAPACITY = 16 * GI
HARD = threshold("memory.available", "1Gi")
FULL = threshold("nodefs.available", "10%")
STALL = stall_threshold("memory.some", "20%")


class Memory:
    """A node whose working set tests set. `reads`: when it was read."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.used = 4 * GI
        self.leaks_per_s = 0
        self.leaks_since = 0.0
        self.reads: list[float] = []

    def leak(self, per_s: int) -> None:
        self.leaks_per_s, self.leaks_since = per_s, self.loop.now

    def now(self) -> int:
        leaked = self.leaks_per_s * (self.loop.now - self.leaks_since) if self.leaks_per_s else 0
        return self.used + int(leaked)

    def memory(self, path: str) -> MemoryUse | None:
        if path != "/":
            return None
        self.reads.append(self.loop.now)
        return MemoryUse(usage=self.now(), working_set=self.now())

    def memory_notifier(self, path: str) -> None:
        return None


class Stalls:
    """A node on which some task waits for memory for a share of the time (percent); averaged as by the kernel."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.share = 0.0
        self._at, self._total_us, self._average = loop.now, 0.0, 0.0

    def become(self, share: float) -> None:
        self.read()
        self.share = share

    def read(self) -> dict[str, PsiStats]:
        passed = self.loop.now - self._at
        self._at = self.loop.now
        self._total_us += self.share / 100 * passed * 1e6
        self._average = self.share + (self._average - self.share) * math.exp(-passed / 10)
        return {"memory": PsiStats(PsiData(int(self._total_us), round(self._average, 2), 0.0, 0.0))}


class Runtime:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def image_fs_info(self) -> pb.ImageFsInfoResponse:
        where = pb.FilesystemIdentifier(mountpoint=str(self.folder))
        return pb.ImageFsInfoResponse(image_filesystems=[pb.FilesystemUsage(fs_id=where)])


class Stand:
    """The manager between doubles. `use`: what pods use; `disk`: bytes available of 10 GiB."""

    def __init__(self, folder: Path, loop: VirtualLoop, settings: EvictionSettings) -> None:
        self.folder, self.virtual = folder, loop
        self.clock = VirtualClock(loop, WALL)
        self.memory = Memory(loop)
        self.stalls = Stalls(loop)
        self.disk = 8 * GI
        self.use: dict[PodUID, PodUse] = {}
        self.roster = make_cell("roster", Roster())[1]
        self.lifecycles = make_cell("lifecycles", Lifecycles())[1]
        self.usage = make_cell("usage", Usage())[1]
        self.wanted: Mailbox[UsageWanted] = Mailbox("wanted")
        self.pressure = make_cell("pressure", NodePressure())[1]
        self.evictions = make_cell("evictions", Evictions())[1]
        self.signals = make_cell("signals", SignalStates())[1]
        self.events: Sink[KubeEvent] = Sink()
        self.removed: list[Reclaim] = []
        self.frees: Callable[[Reclaim], None] = lambda kind: None
        self.reclaims = {kind: (Mailbox[ReclaimWanted](kind), make_cell(kind, Reclaimed())[1]) for kind in Reclaim}
        inputs = EvictionInputs(
            self.roster.cell,
            self.lifecycles.cell,
            self.usage.cell,
            self.wanted,
            {kind: (post, writer.cell) for kind, (post, writer) in self.reclaims.items()},
        )
        outputs = EvictionOutputs(self.pressure, self.evictions, self.signals, self.events)
        sources = NodeSources(self.memory, "/kubepods", CAPACITY, str(folder), measure_fs=self._measure_fs)
        sources = replace(sources, with_stalls=True, measure_stalls=self.stalls.read)
        cri = cast(CriClient, Runtime(folder))
        meter = NodeMeter(sources, cri, SingleFlight("eviction"), self.clock)
        self.loop = EvictionLoop(inputs, outputs, settings, meter, self.clock)

    def _measure_fs(self, path: str, at: float) -> FileSystemUse:
        return FileSystemUse(at, capacity=10 * GI, available=self.disk, inodes=1000, inodes_free=900)

    def add(self, pod: Pod, **used: Any) -> PodUID:
        ref = pod_ref(pod)
        self.use[ref.uid] = make_use(pod.metadata.name, **used)
        entry = RosterPod(pod, "api", WALL)
        self.roster.publish(replace(self.roster.get(), pods={**self.roster.get().pods, ref.uid: entry}))
        self.stage(pod, Stage.SYNCING)
        return ref.uid

    def stage(self, pod: Pod, stage: Stage) -> None:
        ref = pod_ref(pod)
        life = PodLifecycle(ref, pod, stage, WALL, WALL)
        self.lifecycles.publish(Lifecycles({**self.lifecycles.get().pods, ref.uid: life}))

    def evicted(self) -> list[str]:
        return [eviction.ref.name for eviction in self.evictions.get().pods.values()]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events.events]

    async def answer_usage(self) -> None:
        while True:
            await self.wanted.get_all()
            fresh = {
                uid: replace(
                    use,
                    containers=tuple(
                        replace(container, rootfs=replace(container.rootfs, at=self.clock.wall()))
                        if container.rootfs
                        else container
                        for container in use.containers
                    ),
                )
                for uid, use in self.use.items()
            }
            self.usage.publish(Usage(self.clock.monotonic(), None, fresh, with_files=True))

    async def answer_reclaims(self, kind: Reclaim) -> None:
        wanted, writer = self.reclaims[kind]
        while True:
            at = max(request.at for request in await wanted.get_all())
            self.removed.append(kind)
            self.frees(kind)
            writer.publish(Reclaimed(at))


Work = Callable[[Stand], Coroutine[Any, Any, None]]


def play(folder: Path, work: Work, *thresholds: Threshold, **more: Any) -> None:
    loop = VirtualLoop()
    with running(loop) as runner:
        stand = Stand(folder, loop, EvictionSettings(tuple(thresholds), enforces_pods=False, **more))

        async def main() -> None:
            async with Supervisor("test") as supervisor:
                supervisor.start_root("usage", stand.answer_usage())
                for kind in Reclaim:
                    supervisor.start_root(kind, stand.answer_reclaims(kind))
                supervisor.start_root("eviction", stand.loop.run())
                await work(stand)

        runner.run(main())


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)


def test_a_leak_is_acted_on_within_a_second(tmp_path: Path) -> None:
    """12 GiB are free; the leak of 2 GiB a second begins between two passes."""

    async def work(stand: Stand) -> None:
        stand.add(make_pod("good", memory="8Gi"), memory=4 * GI)
        stand.add(make_pod("leak", memory="100Mi"), memory=5 * GI)
        await asyncio.sleep(13)
        stand.memory.leak(2 * GI)
        await until(lambda: stand.memory.now() > CAPACITY - GI)
        crossed = stand.virtual.now
        await until(stand.evicted)
        assert stand.virtual.now - crossed < 1.0
        assert stand.evicted() == ["leak"]
        assert stand.pressure.get() == NodePressure(memory=True)

    play(tmp_path, work, HARD)


def test_an_idle_node_is_measured_seldom(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("good"), memory=MI)
        await asyncio.sleep(100)
        assert len(stand.memory.reads) < 60
        assert stand.usage.get().taken_at is None
        assert stand.reasons() == []

    play(tmp_path, work, HARD, FULL)


def test_one_pod_at_a_time_and_the_next_only_when_it_has_ended(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        pods = [make_pod(name) for name in ("first", "second")]
        for pod, used in zip(pods, (3 * GI, GI), strict=True):
            stand.add(pod, memory=used)
        before = EVICTIONS.value("memory.available")
        stand.memory.used = CAPACITY - 5
        await until(stand.evicted)
        assert stand.evicted() == ["first"]
        assert EVICTIONS.value("memory.available") == before + 1
        await asyncio.sleep(20)
        assert stand.evicted() == ["first"]
        stand.stage(pods[0], Stage.FINISHED)
        await until(lambda: len(stand.evicted()) == 2, 5)
        assert stand.reasons().count("Evicted") == 2

    play(tmp_path, work, HARD)


def test_the_age_of_the_statistics_is_observed_for_every_threshold_that_is_met(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("pod"), memory=GI)
        before = {signal: STATS_AGE.count(signal) for signal in (HARD.signal, FULL.signal)}
        stand.memory.used, stand.disk = CAPACITY - 5, GI // 2
        await until(stand.evicted)
        assert {signal: STATS_AGE.count(signal) - count for signal, count in before.items()} == {
            HARD.signal: 1,
            FULL.signal: 1,
        }

    play(tmp_path, work, HARD, FULL)


def test_the_next_pod_is_spared_when_the_first_was_enough(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        pods = [make_pod(name) for name in ("first", "second")]
        for pod, used in zip(pods, (3 * GI, GI), strict=True):
            stand.add(pod, memory=used)
        stand.memory.used = CAPACITY - 5
        await until(stand.evicted)
        stand.memory.used = 4 * GI
        stand.stage(pods[0], Stage.FINISHED)
        await asyncio.sleep(100)
        assert stand.evicted() == ["first"]
        assert stand.pressure.get().memory
        await asyncio.sleep(250)
        assert not stand.pressure.get().memory

    play(tmp_path, work, HARD)


def test_no_second_pod_is_evicted_for_the_stall_of_the_first(tmp_path: Path) -> None:
    """The kernel's average stays above the threshold for some time after the pod has ended."""

    async def work(stand: Stand) -> None:
        stuck, calm = make_pod("stuck"), make_pod("calm")
        stand.add(stuck, stalled=90.0)
        stand.add(calm)
        stand.stalls.become(90.0)
        await until(stand.evicted)
        await asyncio.sleep(3)
        stand.stalls.become(0.0)
        stand.stage(stuck, Stage.FINISHED)
        assert stand.stalls.read()["memory"].some.avg10 > 80
        await asyncio.sleep(120)
        assert stand.evicted() == ["stuck"]

    play(tmp_path, work, STALL)


def test_a_second_pod_that_stalls_the_node_is_evicted_too(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        pods = [make_pod(name) for name in ("first", "second")]
        for pod, stalled in zip(pods, (90.0, 70.0), strict=True):
            stand.add(pod, stalled=stalled)
        stand.stalls.become(90.0)
        await until(stand.evicted)
        stand.stalls.become(70.0)
        stand.stage(pods[0], Stage.FINISHED)
        await until(lambda: len(stand.evicted()) == 2, 25)
        assert stand.evicted() == ["first", "second"]

    play(tmp_path, work, STALL)


def test_critical_pods_are_spared(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("system", priority=2_000_001_000), memory=9 * GI)
        stand.memory.used = CAPACITY - 5
        await until(lambda: "EvictionThresholdMet" in stand.reasons())
        await asyncio.sleep(30)
        assert stand.evicted() == []
        stand.add(make_pod("plain"), memory=MI)
        await until(stand.evicted)
        assert stand.evicted() == ["plain"]

    play(tmp_path, work, HARD)


def test_what_can_be_removed_goes_before_a_pod(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        def free(kind: Reclaim) -> None:
            stand.disk = 2 * GI if kind is Reclaim.IMAGES else stand.disk

        stand.frees = free
        stand.add(make_pod("pod"), rootfs=GI)
        stand.disk = GI // 2
        await until(lambda: stand.removed)
        await asyncio.sleep(60)
        assert stand.removed == [Reclaim.CONTAINERS, Reclaim.IMAGES]
        assert stand.evicted() == []
        assert stand.pressure.get() == NodePressure(disk=True)

    play(tmp_path, work, FULL)


def test_the_pod_that_fills_the_disk_goes_when_nothing_else_helps(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("small"), rootfs=MI)
        stand.add(make_pod("filler"), rootfs=5 * GI)
        stand.disk = GI // 2
        await until(stand.evicted)
        [eviction] = stand.evictions.get().pods.values()
        assert eviction.ref.name == "filler" and eviction.grace_s == 1
        assert "Threshold quantity: 1Gi, available: 512Mi. " in eviction.message
        assert stand.reasons() == ["EvictionThresholdMet", "Evicted"]
        assert dict(stand.events.events[-1].annotations)["starved_resource"] == "ephemeral-storage"

    play(tmp_path, work, FULL)


def test_the_message_names_the_threshold_that_is_acted_on(tmp_path: Path) -> None:
    """Not one that is still within its grace period: here the minimum reclaim of the hard threshold is missing."""

    async def work(stand: Stand) -> None:
        pods = [make_pod(name) for name in ("first", "second")]
        for pod, used in zip(pods, (3 * GI, GI), strict=True):
            stand.add(pod, rootfs=used)
        stand.disk = GI // 2
        await until(stand.evicted)
        stand.disk = 3 * GI // 2
        stand.stage(pods[0], Stage.FINISHED)
        await until(lambda: len(stand.evicted()) == 2)
        [_, second] = stand.evictions.get().pods.values()
        assert "Threshold quantity: 1Gi, available: 1536Mi. " in second.message

    play(
        tmp_path,
        work,
        threshold("nodefs.available", "10%", reclaim="10%"),
        threshold("nodefs.available", "50%", grace="1h"),
    )


def test_a_soft_threshold_lets_the_pod_have_the_time_that_is_configured(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("pod", {"terminationGracePeriodSeconds": 60}), memory=GI)
        stand.memory.used = CAPACITY - 5
        await asyncio.sleep(29)
        assert stand.evicted() == []
        await until(stand.evicted, 15)
        assert next(iter(stand.evictions.get().pods.values())).grace_s == 20

    play(tmp_path, work, threshold("memory.available", "1Gi", grace="30s"), max_pod_grace_s=20)


def test_a_dry_run_evicts_no_pod_and_reports_which_it_would_have(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("pod"), memory=GI)
        stand.memory.used = CAPACITY - 5
        await until(lambda: stand.signals.get().would_evict)
        await asyncio.sleep(60)
        assert stand.evicted() == []
        assert "Evicted" not in stand.reasons()
        [would] = stand.signals.get().would_evict
        assert would.eviction.ref.name == "pod" and would.signal == "memory.available"

    play(tmp_path, work, HARD, dry_run=True)


def test_no_pod_is_evicted_while_pods_cannot_be_measured(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("pod"), memory=GI)
        stand.wanted.get_all = _never  # type: ignore[method-assign]
        stand.memory.used = CAPACITY - 5
        await asyncio.sleep(60)
        assert stand.evicted() == []
        assert stand.pressure.get().memory

    play(tmp_path, work, HARD)


FILLERS = {"volumes": [{"name": "data", "emptyDir": {"sizeLimit": "10Mi"}}]}


def test_every_pod_over_a_limit_of_local_storage_is_ended(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        for name, used in (("first", 11 * MI), ("second", 12 * MI), ("small", MI)):
            stand.add(make_pod(name, FILLERS), volume=used)
        stand.add(make_pod("free"), volume=GI)
        before = EVICTIONS.value("emptydirfs.limit")
        await until(stand.evicted)
        await asyncio.sleep(60)
        assert stand.evicted() == ["first", "second"]
        assert stand.reasons() == ["Evicted", "Evicted"]
        assert EVICTIONS.value("emptydirfs.limit") == before + 2
        for eviction in stand.evictions.get().pods.values():
            assert eviction.message == 'Usage of EmptyDir volume "data" exceeds the limit "10Mi". '
            assert (eviction.reason, eviction.grace_s, eviction.disrupts) == ("Evicted", 1, False)
        assert [event.annotations for event in stand.events.events] == [(), ()]

    play(tmp_path, work)


def test_a_pod_over_its_limit_goes_before_others_that_fill_the_disk(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        over, larger = make_pod("over", FILLERS), make_pod("larger")
        stand.add(larger, rootfs=5 * GI)
        await asyncio.sleep(5)
        stand.add(over, volume=11 * MI)
        stand.disk = GI // 2
        await until(stand.evicted)
        assert stand.evicted() == ["over"]
        stand.disk = 8 * GI
        stand.stage(over, Stage.FINISHED)
        await asyncio.sleep(60)
        assert stand.evicted() == ["over"]

    play(tmp_path, work, FULL)


def test_memory_does_not_wait_for_pods_over_a_limit_of_local_storage(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("over", FILLERS), volume=11 * MI)
        await until(stand.evicted)
        stand.add(make_pod("leak"), memory=5 * GI)
        stand.memory.used = CAPACITY - 5
        await until(lambda: "leak" in stand.evicted(), 11)

    play(tmp_path, work, HARD)


def test_limits_of_local_storage_can_be_switched_off(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("over", FILLERS), volume=11 * MI)
        await asyncio.sleep(60)
        assert stand.evicted() == []
        assert stand.usage.get().taken_at is None

    play(tmp_path, work, HARD, isolates_storage=False)


def test_a_dry_run_reports_each_pod_over_a_limit_once(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        for name in ("first", "second"):
            stand.add(make_pod(name, FILLERS), volume=11 * MI)
        await asyncio.sleep(60)
        assert stand.evicted() == []
        assert [would.eviction.ref.name for would in stand.signals.get().would_evict] == ["first", "second"]

    play(tmp_path, work, HARD, dry_run=True)


async def _never() -> list[UsageWanted]:
    await asyncio.get_running_loop().create_future()
    return []


def test_evictions_of_pods_that_have_left_are_forgotten(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        stand.add(make_pod("pod"), memory=GI)
        stand.memory.used = CAPACITY - 5
        await until(stand.evicted)
        stand.memory.used = GI
        stand.lifecycles.publish(Lifecycles())
        stand.roster.publish(Roster())
        await until(lambda: not stand.evicted(), 30)

    play(tmp_path, work, HARD)


def test_all_thresholds_are_shown_with_what_was_observed(tmp_path: Path) -> None:
    async def work(stand: Stand) -> None:
        await until(lambda: stand.signals.get().states)
        stand.memory.used += 10 * MI
        await asyncio.sleep(10.5)
        shown = {state.signal: state for state in stand.signals.get().states}
        assert _names(shown) == ["containerfs.available", "memory.available", "nodefs.available", "pid.available"]
        memory = shown["memory.available"]
        assert (memory.value, memory.available, memory.met_since) == (GI, 12 * GI - 10 * MI, None)
        assert memory.per_s is not None and memory.per_s < 0

    play(tmp_path, work, HARD, FULL, threshold("pid.available", "1"))


def _names(states: Iterable[str]) -> list[str]:
    return sorted(states)
