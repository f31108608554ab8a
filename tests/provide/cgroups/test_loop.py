"""The loop of provide/cgroups: cgroups follow the pods."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

import pytest
from provide.cgroups.conftest import FakeCgroups, Make, pod
from support.virtual_time import VirtualLoop

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.mounts import MountedVolume, Mounts, PodMounts
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Rejection, Roster, RosterPod, pod_ref
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits
from pykubelet.provide.cgroups.execute import (
    PodCgroups,
)
from pykubelet.provide.cgroups.loop import ResourceInputs, ResourcesLoop

pytestmark = pytest.mark.virtual_time

AT_HOST = MountedVolume("v", "emptyDir", "/v")


def lifecycles(*pods: Pod, stage: Stage = Stage.SYNCING) -> Lifecycles:
    return Lifecycles({PodUID(p.metadata.uid): PodLifecycle(pod_ref(p), p, stage, 0, 0) for p in pods})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in a thread
            await asyncio.sleep(0.005)


class LoopStand:
    """The loop with its cells, running."""

    def __init__(self, cgroups: PodCgroups, min_period_s: float, period_s: float) -> None:
        lives, self.lives = make_cell("lifecycles", Lifecycles())
        roster, self.roster = make_cell("roster", Roster())
        observed, self.observed = make_cell("observed", Observed())
        mounts, self.mounts = make_cell("mounts", Mounts())
        self.loop = ResourcesLoop(cgroups, ResourceInputs(lives, roster, observed, mounts), min_period_s, period_s)


@pytest.fixture
async def stand(make: Make) -> AsyncIterator[LoopStand]:
    made = LoopStand(make(), 0.01, 0.2)
    task = asyncio.get_running_loop().create_task(made.loop.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_loop_follows_pods_once_all_are_known(stand: LoopStand, fake: FakeCgroups) -> None:
    fake.groups["/kubepods/burstable"] = CgroupLimits(cpu_shares=5)
    fake.groups["/kubepods/burstable/podleft"] = CgroupLimits()
    fake.groups["/kubepods/burstable/podmounted"] = CgroupLimits()
    stand.mounts.publish(Mounts({PodUID("mounted"): PodMounts()}))
    await asyncio.sleep(0.05)
    assert fake.groups["/kubepods/burstable"].cpu_shares == 5
    assert "/kubepods/burstable/podleft" in fake.groups
    admitted, running = pod("a", "1"), pod("b", "2")
    stand.roster.publish(Roster({PodUID("a"): RosterPod(admitted, "file", 0)}, sources_ready=True))
    stand.observed.publish(Observed(listed_at=1.0))
    await until(lambda: fake.groups["/kubepods/burstable"].cpu_shares == 1024)
    await until(lambda: "/kubepods/burstable/podleft" not in fake.groups)
    assert "/kubepods/burstable/podmounted" in fake.groups
    stand.lives.publish(lifecycles(admitted, running))
    await until(lambda: fake.groups["/kubepods/burstable"].cpu_shares == 3072)
    stand.lives.publish(lifecycles(admitted, running, stage=Stage.TERMINATED))
    await until(lambda: fake.groups["/kubepods/burstable"].cpu_shares == 2)


async def test_what_a_rejected_pod_requests_does_not_count(stand: LoopStand, fake: FakeCgroups) -> None:
    fake.groups["/kubepods/burstable"] = CgroupLimits(cpu_shares=5)
    rejected, running = pod("a", "1"), pod("b", "2")
    item = RosterPod(rejected, "api", 0, rejection=Rejection("OutOfcpu", "no CPU is left"))
    stand.roster.publish(Roster({PodUID("a"): item}, sources_ready=True))
    stand.lives.publish(lifecycles(rejected, running))
    stand.observed.publish(Observed(listed_at=1.0))
    await until(lambda: fake.groups["/kubepods/burstable"].cpu_shares == 2048)


def test_loop_rests_until_all_pods_are_known(make: Make, fake: FakeCgroups) -> None:
    loop = VirtualLoop()

    async def work() -> None:
        stand = LoopStand(make(), min_period_s=1.0, period_s=60.0)
        async with Supervisor("test") as supervisor:
            supervisor.start_root("resources", stand.loop.run())
            stand.observed.publish(Observed(listed_at=1.0))
            await asyncio.sleep(86400)
            assert "/kubepods/besteffort" not in fake.groups
            known_at = loop.now
            stand.roster.publish(Roster(sources_ready=True))
            while "/kubepods/besteffort" not in fake.groups:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.1)
            assert loop.now - known_at < 3

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work())
    assert loop.iterations < 30 * 1440, "a few for each minute"


async def test_loop_repairs_everything_each_period(stand: LoopStand, fake: FakeCgroups) -> None:
    stand.roster.publish(Roster(sources_ready=True))
    stand.observed.publish(Observed(listed_at=1.0))
    await until(lambda: "/kubepods/besteffort" in fake.groups)
    fake.groups["/kubepods/besteffort"] = CgroupLimits(cpu_shares=999)
    fake.groups["/kubepods/podlate"] = CgroupLimits()
    await until(lambda: fake.groups["/kubepods/besteffort"].cpu_shares == 2)
    await until(lambda: "/kubepods/podlate" not in fake.groups)
    assert fake.killed == [], "nothing ran in it"


async def test_a_group_made_once_more_for_a_pod_that_is_gone_goes_soon(make: Make, fake: FakeCgroups) -> None:
    stand = LoopStand(make(), min_period_s=0.01, period_s=3600)
    async with Supervisor("test") as supervisor:
        supervisor.start_root("resources", stand.loop.run())
        gone = pod("a", "1")
        stand.roster.publish(Roster(sources_ready=True))
        stand.observed.publish(Observed(listed_at=1.0))
        stand.lives.publish(lifecycles(gone))
        await until(lambda: fake.groups.get("/kubepods/burstable", CgroupLimits()).cpu_shares == 1024)
        stand.lives.publish(lifecycles())
        await until(lambda: fake.groups["/kubepods/burstable"].cpu_shares == 2)
        fake.groups["/kubepods/burstable/poda"] = CgroupLimits()  # by a call to the runtime that was given up
        await until(lambda: "/kubepods/burstable/poda" not in fake.groups)


async def test_the_group_of_a_gone_pod_is_looked_for_when_it_is_due_whatever_other_pods_go(
    make: Make, fake: FakeCgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, exists = asyncio.get_running_loop(), fake.exists
    looks = defaultdict[str, list[float]](list)

    def look(path: str) -> bool:
        looks[path].append(loop.time())
        return exists(path)

    monkeypatch.setattr(fake, "exists", look)
    stand = LoopStand(make(), min_period_s=1.0, period_s=60.0)
    pods, gone_at = [pod(f"{number:02}") for number in range(10)], list[float]()
    async with Supervisor("test") as supervisor:
        supervisor.start_root("resources", stand.loop.run())
        stand.roster.publish(Roster(sources_ready=True))
        stand.observed.publish(Observed(listed_at=1.0))
        stand.lives.publish(lifecycles(*pods))
        await asyncio.sleep(5)
        for number in range(len(pods)):
            gone_at.append(loop.time())
            stand.lives.publish(lifecycles(*pods[number + 1 :]))
            await asyncio.sleep(3)
        await asyncio.sleep(120)
    for p, at in zip(pods, gone_at, strict=True):
        after = [found - at for found in looks[f"/kubepods/besteffort/pod{p.metadata.uid}"]]
        assert after == pytest.approx([2, 6, 14, 30, 62], abs=4), p.metadata.name


def test_an_ended_pod_whose_volumes_stay_keeps_its_group_and_the_least_cpu(make: Make, fake: FakeCgroups) -> None:
    loop = VirtualLoop()
    group, quick = "/kubepods/burstable/poda", "/kubepods/burstable/podb"

    async def work() -> None:
        stand = LoopStand(make(), min_period_s=1.0, period_s=60.0)
        async with Supervisor("test") as supervisor:
            supervisor.start_root("resources", stand.loop.run())
            stuck, ending, running = (pod(name, "1") for name in "abc")
            stand.roster.publish(Roster(sources_ready=True))
            stand.observed.publish(Observed(listed_at=1.0))
            stand.mounts.publish(Mounts({PodUID(uid): PodMounts({"v": AT_HOST}) for uid in "abc"}))
            stand.lives.publish(lifecycles(stuck, ending, running))
            for name in "abc":
                fake.groups[f"/kubepods/burstable/pod{name}"] = CgroupLimits(cpu_shares=1024)
            await asyncio.sleep(30)
            assert fake.groups[group].cpu_shares == 1024
            ended = lifecycles(stuck, ending, stage=Stage.TERMINATED).pods
            stand.lives.publish(Lifecycles({**lifecycles(running).pods, **ended}))
            await asyncio.sleep(0.5)
            stand.mounts.publish(Mounts({PodUID(uid): PodMounts({"v": AT_HOST}) for uid in "ac"}))
            await asyncio.sleep(5)
            assert fake.groups[group].cpu_shares == 2
            assert fake.groups[quick].cpu_shares == 1024, "its volumes went at once"
            assert fake.groups["/kubepods/burstable/podc"].cpu_shares == 1024
            fake.groups[group] = CgroupLimits(cpu_shares=1024)
            stand.lives.publish(lifecycles(running))
            await asyncio.sleep(120)
            assert group in fake.groups, "memory of its volumes is charged to it"

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work())
    assert loop.iterations < 500


async def test_a_group_that_is_gone_is_not_made_to_be_lowered(make: Make, fake: FakeCgroups) -> None:
    await make().lower_pod(PodUID("a"))
    assert not [path for path in fake.groups if "poda" in path]
