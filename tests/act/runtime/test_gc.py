"""The collector at work on a runtime and a file system."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from act.runtime.gc_stand import BUSYBOX, Stand, exists, lifecycle, names_in, ref_of, targets_in, write
from support.runtimes import memory_runtime

from pykubelet.act.runtime.collect.gc import ContainerCollector, GcSettings
from pykubelet.act.runtime.collect.gc_files import remove_container_log
from pykubelet.act.runtime.collect.gc_plan import GcPolicy
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.observed import Observed, ObservedState, PodReadWanted
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.roster import Roster
from pykubelet.edges.cri.errors import CriCode
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.in_memory import MemoryRuntime

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[MemoryRuntime]:
    with memory_runtime(tmp_path, BUSYBOX) as fake:
        yield fake


@pytest.fixture
async def stand(runtime: MemoryRuntime, tmp_path: Path) -> AsyncIterator[Stand]:
    cri = runtime.connect()
    paths = Paths(str(tmp_path / "root"), str(tmp_path / "logs"), str(tmp_path / "links"))
    yield Stand(cri, paths)
    await cri.close()


def collector(stand: Stand, period_s: float = 60.0, round_s: float = 30.0) -> ContainerCollector:
    settings = GcSettings(stand.paths, GcPolicy(), period_s, round_s)
    return ContainerCollector(
        stand.cri, stand.clock, SingleFlight("gc-test"), stand.inputs, settings, stand.touched, stand.recorder
    )


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


async def test_a_round_removes_what_is_too_old_with_its_logs(stand: Stand) -> None:
    stand.want("web")
    old = await stand.sandbox("web")
    dead = await stand.dead("web", old, 3)
    await stand.cri.stop_pod_sandbox(old)
    empty = await stand.sandbox("web", attempt=1)
    await stand.cri.stop_pod_sandbox(empty)
    newest = await stand.sandbox("web", attempt=2)
    runs = await stand.container("web", newest, "sleep 100", name="side")
    logs = stand.paths.pod_logs(ref_of("web"))
    write(f"{logs}/main/0.log.20260101-000000.gz", "old")
    write(f"{logs}/main/0.logger", "another program's")
    await stand.relist()

    await collector(stand).run_round()

    assert await stand.left() == ({dead[2], runs}, {old, newest})
    assert names_in(f"{logs}/main") == ["0.logger", "2.log"]
    assert targets_in(stand.paths.log_links) == {f"{logs}/main/2.log", f"{logs}/side/0.log"}
    assert stand.touched.events == [PodReadWanted(ref_of("web"), "garbage collected")]
    assert stand.recorder.events == []


async def test_a_container_that_has_ended_makes_its_older_ones_go(stand: Stand) -> None:
    stand.want("web")
    sandbox = await stand.sandbox("web")
    async with Supervisor("test") as supervisor:
        supervisor.start_root("gc", collector(stand).run())
        dead = await stand.dead("web", sandbox, 1)
        await stand.relist()
        await asyncio.sleep(0.05)
        assert (await stand.left())[0] == set(dead)
        dead.append(await stand.container("web", sandbox, "exit 1", attempt=1))
        await asyncio.sleep(0.05)
        await stand.relist()
        await until(lambda: bool(stand.touched.events))
        assert (await stand.left())[0] == {dead[1]}


async def test_nothing_goes_before_all_sources_have_reported(stand: Stand) -> None:
    dead = await stand.dead("web", await stand.sandbox("web"), 2)
    os.makedirs(f"{stand.paths.logs}/shop_gone_uid-gone")
    await stand.relist()
    stand.roster.publish(Roster(sources_ready=False))
    gc = collector(stand)
    await gc.run_round()
    assert (await stand.left())[0] == set(dead)
    assert exists(f"{stand.paths.logs}/shop_gone_uid-gone")
    stand.roster.publish(Roster(sources_ready=True))
    await gc.run_round()
    assert not exists(f"{stand.paths.logs}/shop_gone_uid-gone")


async def test_a_pod_that_is_being_removed_is_left_to_its_actor(stand: Stand) -> None:
    sandbox = await stand.sandbox("web")
    dead = await stand.dead("web", sandbox, 3)
    await stand.cri.stop_pod_sandbox(sandbox)
    stand.show(lifecycle("web", Stage.TERMINATED, KillReason.REMOVED))
    await stand.relist()
    await collector(stand).run_round()
    assert await stand.left() == (set(dead), {sandbox})
    assert exists(stand.paths.pod_logs(ref_of("web")))


async def test_what_is_left_of_an_unknown_pod_goes(stand: Stand) -> None:
    sandbox = await stand.sandbox("web")
    await stand.dead("web", sandbox, 2)
    await stand.cri.stop_pod_sandbox(sandbox)
    await stand.relist()
    gc = collector(stand)
    await gc.run_round()
    assert await stand.left() == (set(), set())
    await stand.relist()
    await gc.run_round()
    assert names_in(stand.paths.logs) == []
    assert names_in(stand.paths.log_links) == []


async def test_log_directories_of_unknown_pods_go_and_others_stay(stand: Stand) -> None:
    stand.want("web")
    for name in ("shop_web_uid-web", "shop_gone_uid-gone", "other"):
        write(f"{stand.paths.logs}/{name}/app/0.log", "line")
    await stand.relist()
    await collector(stand).run_round()
    assert names_in(stand.paths.logs) == ["other", "shop_web_uid-web"]


async def test_links_that_point_nowhere_go_and_others_stay(stand: Stand) -> None:
    stand.want("web")
    runs = await stand.container("web", await stand.sandbox("web"), "sleep 100")
    os.unlink(f"{stand.paths.container_logs(ref_of('web'), 'main')}/0.log")  # as in the middle of a rotation
    links = stand.paths.log_links
    os.symlink(f"{stand.paths.logs}/shop_gone_uid-gone/app/0.log", f"{links}/gone_shop_app-123abc.log")
    os.symlink("/nowhere/at/all.log", f"{links}/foreign-456.log")
    write(f"{links}/notes.log", "a file")
    await stand.relist()
    await collector(stand).run_round()
    assert names_in(links) == [
        "foreign-456.log",
        "notes.log",
        f"web_shop_main-{runs}.log",
    ]


def test_a_link_of_another_instance_with_the_same_cut_name_stays(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path / "root"), str(tmp_path / "logs"), str(tmp_path / "links"))
    ref = PodRef("shop", "p" * 205, PodUID("uid"))
    link = paths.log_link(ref, "a" * 40, "1" * 64)
    assert link == paths.log_link(ref, "a" * 40, "2" * 64)
    logs = paths.container_logs(ref, "a" * 40)
    write(f"{logs}/0.log", "old")
    write(f"{logs}/1.log", "new")
    os.makedirs(paths.log_links)
    os.symlink(f"{logs}/1.log", link)
    remove_container_log(paths, f"{logs}/0.log", link)
    assert (names_in(logs), os.path.exists(link)) == (["1.log"], True)
    remove_container_log(paths, f"{logs}/1.log", link)
    assert (names_in(logs), names_in(paths.log_links)) == ([], [])


async def test_a_missing_log_folder_is_no_failure(stand: Stand) -> None:
    await stand.relist()
    await collector(stand).run_round()
    assert stand.recorder.events == []


async def test_an_unknown_container_is_stopped_first(stand: Stand, runtime: MemoryRuntime) -> None:
    stand.want("web")
    sandbox = await stand.sandbox("web")
    first = await stand.container("web", sandbox, "sleep 100")
    second = await stand.container("web", sandbox, "sleep 100", attempt=1)
    view = (await stand.relist()).pods[PodUID("uid-web")]
    lost = tuple(replace(c, state=ObservedState.UNKNOWN) for c in view.containers)
    stand.observed.publish(Observed({view.ref.uid: replace(view, containers=lost)}, 1.0))
    await collector(stand).run_round()
    assert [call.request.container_id for call in runtime.called("StopContainer")] == [first]
    assert (await stand.left())[0] == {second}


async def test_what_the_runtime_refuses_is_reported_and_tried_again(stand: Stand, runtime: MemoryRuntime) -> None:
    stand.want("web")
    dead = await stand.dead("web", await stand.sandbox("web"), 2)
    await stand.relist()
    gc = collector(stand)
    runtime.inject(RuntimeFault("RemoveContainer", code=CriCode.UNKNOWN, message="device busy", times=1))
    await gc.run_round()
    (event,) = stand.recorder.events
    assert (event.type, event.reason, event.pod) == ("Warning", "ContainerGCFailed", None)
    assert event.message == (
        "failed to remove container main of web_shop(uid-web): rpc error: code = Unknown desc = device busy"
    )
    await gc.run_round()
    assert len(stand.recorder.events) == 1
    assert (await stand.left())[0] == {dead[1]}


async def test_a_pod_whose_removal_hangs_holds_up_no_other(stand: Stand, runtime: MemoryRuntime) -> None:
    stand.want("stuck", "web")
    stuck = await stand.dead("stuck", await stand.sandbox("stuck"), 2)
    dead = await stand.dead("web", await stand.sandbox("web"), 2)
    await stand.relist()
    runtime.inject(RuntimeFault("RemoveContainer", pod="stuck", hang=True))
    async with Supervisor("test") as supervisor:
        gc = collector(stand, round_s=0.2)
        supervisor.start_root("gc", gc.run())
        await until(lambda: len(runtime.called("RemoveContainer")) == 2)
        await gc.run_round()
        await gc.run_round()
        assert (await stand.left())[0] == {*stuck, dead[1]}
        asked = [call.request.container_id for call in runtime.called("RemoveContainer")]
        assert asked.count(stuck[0]) == 1


async def test_a_full_disk_takes_what_is_over(stand: Stand) -> None:
    dead = await stand.dead("web", await stand.sandbox("web"), 1)
    stand.show(lifecycle("web", Stage.FINISHED, KillReason.COMPLETED))
    await stand.relist()
    gc = collector(stand)
    await gc.run_round()
    assert (await stand.left())[0] == set(dead)
    assert await gc.delete_unused() == []
    assert (await stand.left())[0] == set()


async def test_rounds_come_by_themselves(stand: Stand) -> None:
    stand.want("web")
    os.makedirs(f"{stand.paths.logs}/shop_gone_uid-gone")
    await stand.relist()
    async with Supervisor("test") as supervisor:
        supervisor.start_root("gc", collector(stand, period_s=0.02).run())
        await until(lambda: not exists(f"{stand.paths.logs}/shop_gone_uid-gone"))
        os.makedirs(f"{stand.paths.logs}/shop_later_uid-later")
        await until(lambda: not exists(f"{stand.paths.logs}/shop_later_uid-later"))


async def test_files_of_a_removal_that_a_kill_cut_short_go_at_the_start_once_all_sources_have_reported(
    stand: Stand,
) -> None:
    write(f"{stand.paths.logs}/shop_gone_uid-gone/app/0.log", "line")
    os.makedirs(stand.paths.log_links)
    os.symlink(f"{stand.paths.logs}/shop_gone_uid-gone/app/0.log", f"{stand.paths.log_links}/gone_shop_app-123abc.log")
    stand.roster.publish(Roster(sources_ready=False))
    async with Supervisor("test") as supervisor:
        supervisor.start_root("gc", collector(stand, period_s=3600).run())
        await stand.relist()
        await asyncio.sleep(0.05)
        assert names_in(stand.paths.logs) == ["shop_gone_uid-gone"]
        stand.roster.publish(Roster(sources_ready=True))
        await until(lambda: not names_in(stand.paths.logs) and not names_in(stand.paths.log_links))
