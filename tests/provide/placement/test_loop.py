"""The running loop of placement: what it decides, gives back, writes and survives."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from provide.placement.cpu_pods import container, make_pod
from provide.placement.pool_pods import whole_managers, whole_pod
from provide.placement.stand import GPU, LIMIT_S, FakeDevices, FakePlugins, cpu_managers, placing, single_numa, view
from provide.placement.together import start_memory
from support.file_calls import observed_replacements
from support.machines import Shape
from support.virtual_time import VirtualLoop
from testbed.fuse import HangingFileSystem

from pykubelet.base.api.core import Pod
from pykubelet.base.api.quantity import parse_text
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import NO_CPUS, Placements
from pykubelet.config.kubelet import MemoryReservation
from pykubelet.edges.host.fs.files import SYNCS
from pykubelet.provide.placement.cpu_manager import CpuState
from pykubelet.provide.placement.cpu_state import decode
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.memory_manager import MemoryManager, start_memory_manager
from pykubelet.provide.placement.provider import AllocationError
from pykubelet.provide.placement.store import DEADLINE_S, StateFiles

pytestmark = pytest.mark.virtual_time

FOUR = Shape(sockets=1, nodes_per_socket=1, cores_per_node=4, threads=1)
TWO_NODES = Shape(sockets=2, nodes_per_socket=1, cores_per_node=2, threads=1)


def read_cpus(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "cpu_manager_state").read_text())
    return found


def gpu_pod(uid: str) -> Pod:
    gpu_container = container("c0", "1")
    gpu_container["resources"] = {
        part: {**gpu_container["resources"][part], GPU: "1"} for part in ("requests", "limits")
    }
    return msgspec.convert({"metadata": {"uid": uid, "name": uid}, "spec": {"containers": [gpu_container]}}, Pod)


async def test_pods_get_cpus_until_there_are_no_more(tmp_path: Path) -> None:
    async with placing(cpu_managers(FOUR), tmp_path) as stand:
        a, b, c, shared = make_pod("a", "2"), make_pod("b", "1"), make_pod("c", "1"), make_pod("shared", "500m")
        stand.desire(a, b, c, shared)
        assert await stand.cpus(a) == {"c0": "1-2"}
        assert await stand.cpus(b) == {"c0": "3"}
        refused = await stand.rejected(c)
        text = "not enough cpus available to satisfy request: requested=1, available=0"
        assert refused.reason == "UnexpectedAdmissionError"
        assert refused.message == f"Allocate failed due to {text}, which is unexpected"
        assert await stand.cpus(shared) == {}
        placements = stand.placements.get()
        assert placements.cpuset(PodUID("shared"), "c0").cpus == "0"
        assert placements.cpuset(PodUID("a"), "c0").cpus == "1-2"
        assert (placements.has_quota(PodUID("a")), placements.has_quota(PodUID("shared"))) == (False, True)
        assert "held by /a c0 (2)" in placements.pods[PodUID("c")].explanation


async def test_a_pod_that_is_rejected_in_any_case_takes_nothing_from_others(tmp_path: Path) -> None:
    """The reason of the placement comes before the other one, as in the reference."""
    async with placing(cpu_managers(FOUR), tmp_path) as stand:
        large, huge, b = make_pod("large", "3"), make_pod("huge", "4"), make_pod("b", "3")
        stand.desire(large, huge, b, rejected_anyway=("large", "huge"))
        assert (await stand.placed(large)).rejection is None
        assert (await stand.rejected(huge)).reason == "UnexpectedAdmissionError"
        assert await stand.cpus(b) == {"c0": "1-3"}
        assert list(read_cpus(tmp_path)["entries"]) == ["b"]


async def test_the_state_is_on_disk_before_the_decision_is_published(tmp_path: Path) -> None:
    async with placing(cpu_managers(FOUR), tmp_path) as stand:
        a = make_pod("a", "2")
        stand.desire(a)
        await stand.placed(a)
        assert read_cpus(tmp_path)["entries"] == {"a": {"c0": "1-2"}}
        assert read_cpus(tmp_path)["defaultCpuSet"] == "0,3"
        assert json.loads((tmp_path / "memory_manager_state").read_text())["policyName"] == "None"


async def test_a_file_is_written_once_for_many_pods_and_only_if_it_changes(tmp_path: Path) -> None:
    """With one sync of its content: a power cut leaves the old file or the new one."""
    async with placing(cpu_managers(FOUR), tmp_path) as stand:
        pods = [make_pod(name, "1") for name in "abc"]
        stand.desire(make_pod("first", "500m"))
        await stand.placed(make_pod("first", "500m"))
        synced = SYNCS.value()
        with observed_replacements(tmp_path) as names:
            stand.desire(make_pod("first", "500m"), *pods, make_pod("other", "500m"))
            for pod in pods:
                await stand.placed(pod)
            for pod in pods:
                stand.end(pod)
            stand.desire(make_pod("first", "500m"))
            await stand.shared("0-3")
    assert names == ["cpu_manager_state"] * 2, "memory is not managed"
    assert SYNCS.value() - synced == 2


async def test_cpus_of_a_pod_that_has_ended_return_to_the_shared_pool(tmp_path: Path) -> None:
    async with placing(cpu_managers(FOUR), tmp_path) as stand:
        a = make_pod("a", "2")
        stand.desire(a)
        await stand.shared("0,3")
        stand.end(a, Stage.TERMINATING)
        stand.desire(awaiting_placement=False)
        b = make_pod("b", "2")
        stand.desire(b)
        assert (await stand.rejected(b)).reason == "UnexpectedAdmissionError", "a still runs"
        stand.end(a, Stage.TERMINATED)
        await stand.shared("0-3")
        assert read_cpus(tmp_path).get("entries") is None


async def test_a_pod_whose_containers_restart_keeps_its_cpus(tmp_path: Path) -> None:
    """A static pod that went and came back before it had ended is started again under the same UID."""
    async with placing(cpu_managers(FOUR), tmp_path) as stand:
        a = make_pod("a", "2")
        stand.desire(a)
        await stand.placed(a)
        stand.end(a, Stage.TERMINATING, KillReason.REMOVED)
        stand.desire(a, seen_at=2.0)
        assert (await stand.placed(a, 2.0)).containers["c0"].cpus == frozenset({1, 2})
        stand.end(a, Stage.TERMINATED, KillReason.RENEWED)
        b = make_pod("b", "2")
        stand.desire(a, b, seen_at=2.0)
        assert (await stand.placed(b, 2.0)).rejection is not None, "the CPUs are still those of a"
        assert stand.placements.get().container(PodUID("a"), "c0").cpus == frozenset({1, 2})


async def test_nothing_is_taken_back_before_all_sources_have_reported(tmp_path: Path) -> None:
    managers = cpu_managers(FOUR)
    async with placing(managers, tmp_path) as stand:
        gone = make_pod("gone", "2")
        stand.desire(gone)
        await stand.placed(gone)
    state = decode((tmp_path / "cpu_manager_state").read_text(), "static", {})
    assert managers.cpus is not None
    restored = replace(managers, cpus=replace(managers.cpus, state=state))
    async with placing(restored, tmp_path) as stand:
        early = make_pod("early", "2")
        stand.desire(early, ready=False)
        await asyncio.wait_for(stand.placements.wait_for(lambda p: "early" in p.waits), LIMIT_S)
        assert "early" not in stand.placements.get().pods, "it is not refused for a pod that may have ended"
        stand.desire(early)
        assert await stand.cpus(early) == {"c0": "1-2"}


async def test_after_a_restart_a_pod_is_confirmed_that_would_not_be_admitted_anew(tmp_path: Path) -> None:
    """With full-pcpus-only, the reference refuses a pod that runs already if no other core is free."""
    shape = Shape(sockets=1, nodes_per_socket=1, cores_per_node=2, threads=2)
    managers = cpu_managers(shape, ("full-pcpus-only",))
    pod = make_pod("a", "2")
    async with placing(managers, tmp_path) as stand:
        stand.desire(pod)
        first = await stand.cpus(pod)
    state = decode((tmp_path / "cpu_manager_state").read_text(), "static", {})
    assert managers.cpus is not None
    async with placing(replace(managers, cpus=replace(managers.cpus, state=state)), tmp_path) as stand:
        stand.desire(pod)
        assert await stand.cpus(pod) == first


async def test_without_a_state_file_running_containers_keep_their_cpus(tmp_path: Path) -> None:
    running, other, late = make_pod("running", "2"), make_pod("other", "500m"), make_pod("late", "1")
    async with placing(cpu_managers(FOUR, is_new=True), tmp_path, listed=False) as stand:
        views = {PodUID("running"): view(running, {"c0": "2-3"}), PodUID("other"): view(other, {"c0": "0-1"})}
        stand.observed.publish(Observed(views, 1.0))
        stand.desire(late, ready=False)
        assert await stand.cpus(late) == {"c0": "1"}
        stand.desire(late, running, other)
        assert await stand.cpus(running) == {"c0": "2-3"}
        assert await stand.cpus(other) == {}


async def test_with_a_state_file_no_cpus_are_taken_for_exclusive(tmp_path: Path) -> None:
    narrow, late = make_pod("narrow", "500m"), make_pod("late", "3")
    managers = cpu_managers(FOUR, devices=FakeDevices(taken={"gpu": "a"}))
    async with placing(managers, tmp_path, FakePlugins()) as stand:
        stand.observed.publish(Observed({PodUID("narrow"): view(narrow, {"c0": "2-3"})}, 1.0))
        stand.desire(late, narrow, make_pod("gpu", "100m"))
        assert await stand.cpus(late) == {"c0": "1-3"}


async def test_cpus_that_only_looked_exclusive_are_given_back(tmp_path: Path) -> None:
    pod = make_pod("shared", "500m")
    async with placing(cpu_managers(FOUR, is_new=True), tmp_path) as stand:
        stand.observed.publish(Observed({PodUID("shared"): view(pod, {"c0": "2-3"})}, 1.0))
        stand.desire(pod)
        assert await stand.cpus(pod) == {}
        await stand.shared("0-3")


async def test_without_a_state_file_all_pods_are_placed_if_one_has_cpus_of_its_own(tmp_path: Path) -> None:
    """Until it is known what runs, and as long as what was found may be wrong."""
    pod = make_pod("own", "1")
    for running, is_after in (({}, False), ({PodUID("own"): view(pod, {"c0": "3"})}, True)):
        async with placing(cpu_managers(FOUR, is_new=True), tmp_path) as stand:
            assert stand.placements.get().places_all
            stand.observed.publish(Observed(running, 1.0))
            await asyncio.wait_for(stand.placements.wait_for(lambda now: now.places_all is is_after), 30)  # noqa: B023
            await stand.shared("0-2" if running else "0-3")


async def test_single_numa_node_refuses_what_fits_on_no_node(tmp_path: Path) -> None:
    async with placing(cpu_managers(TWO_NODES, topology=single_numa(TWO_NODES)), tmp_path) as stand:
        wide, fits = make_pod("wide", "3"), make_pod("fits", "2")
        stand.desire(wide, fits)
        refused = await stand.rejected(wide)
        assert refused.reason == "TopologyAffinityError"
        assert refused.message == "Resources cannot be allocated with Topology locality"
        assert await stand.cpus(fits) == {"c0": "2-3"}


def memory_manager(shape: Shape) -> MemoryManager:
    reserved = tuple(MemoryReservation(numaNode=node.id, limits={"memory": "1Gi"}) for node in shape.machine.nodes)
    total = parse_text(f"{len(reserved)}Gi")
    started = start_memory_manager("Static", shape.machine.nodes, {"memory": total}, reserved, ("f", None))
    assert isinstance(started, MemoryManager), started
    return started


async def test_memory_of_finished_init_containers_is_free_again(tmp_path: Path) -> None:
    managers = replace(cpu_managers(TWO_NODES), memory=memory_manager(TWO_NODES))
    async with placing(managers, tmp_path) as stand:
        pod = make_pod("a", "1", init=("1",))
        stand.desire(pod)
        placement = await stand.placed(pod)
        assert {name: c.mems for name, c in placement.containers.items()} == {"i0": "0", "c0": "0"}
        stand.observed.publish(Observed({PodUID("a"): view(pod, {"i0": "1"})}, 2.0))
        stand.observed.publish(Observed({PodUID("a"): view(pod, {"i0": "1", "c0": "1"})}, 3.0))

        def is_released(placements: Placements) -> bool:
            return not placements.container(PodUID("a"), "i0").memory

        after = await asyncio.wait_for(stand.placements.wait_for(is_released), 30)
        assert after.container(PodUID("a"), "c0").mems == "0"


async def test_memory_is_not_given_away_before_it_is_known_what_runs(tmp_path: Path) -> None:
    managers = replace(cpu_managers(TWO_NODES), memory=memory_manager(TWO_NODES), is_memory_new=True)
    async with placing(managers, tmp_path, listed=False) as stand:
        running = make_pod("running", "500m")
        stand.desire(running)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stand.placements.wait_for(lambda now: bool(now.pods)), 0.1)
        stand.observed.publish(Observed({PodUID("running"): view(running, {"c0": "2"}, {"c0": "1"})}, 1.0))
        assert (await stand.placed(running)).containers["c0"].mems == "1"


async def test_without_a_state_file_running_containers_keep_their_memory(tmp_path: Path) -> None:
    managers = replace(cpu_managers(TWO_NODES, is_new=True), memory=memory_manager(TWO_NODES), is_memory_new=True)
    async with placing(managers, tmp_path) as stand:
        running, late = make_pod("running", "1"), make_pod("late", "1")
        stand.observed.publish(Observed({PodUID("running"): view(running, {"c0": "2"}, {"c0": "1"})}, 1.0))
        stand.desire(running, late)
        assert (await stand.placed(running)).containers["c0"].mems == "1"
        assert await stand.cpus(running) == {"c0": "2"}
        assert (await stand.placed(late)).containers["c0"].mems == "0"


async def written(root: Path, *uids: str) -> None:
    """Wait until the file has the CPUs of these pods alone."""
    async with asyncio.timeout(LIMIT_S):
        while not (root / "cpu_manager_state").exists() or read_cpus(root).get("entries", {}).keys() != {*uids}:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)


async def test_state_that_could_not_be_written_is_written_later_though_nothing_changes(tmp_path: Path) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    root.mkdir()
    plugins = FakePlugins()
    async with placing(with_devices(cpu_managers(FOUR)), root, plugins) as stand:
        assert await plugins.saves.get(), "the first one, of the empty state"
        root.rename(away)
        pod = make_pod("a", "2")
        stand.desire(pod)
        assert await stand.cpus(pod) == {"c0": "1-2"}
        away.rename(root)
        await written(root, "a")
        assert read_cpus(root)["entries"] == {"a": {"c0": "1-2"}}


async def test_a_disk_that_hangs_does_not_hold_up_pods_for_long(tmp_path: Path) -> None:
    """What could not be written is written when the disk answers again."""
    with HangingFileSystem(tmp_path / "root", tmp_path / "data") as disk:
        async with placing(with_devices(cpu_managers(FOUR)), disk.path, FakePlugins()) as stand:
            early, late = make_pod("a", "1"), make_pod("b", "1")
            stand.desire(early)
            await stand.placed(early)
            disk.stop()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.hung.add("placement")
            began = loop.time()
            stand.desire(early, late)
            assert await stand.cpus(late) == {"c0": "2"}
            assert loop.time() - began == pytest.approx(DEADLINE_S, abs=0.01)
            disk.answer()
            loop.hung.clear()
            await written(disk.directory, "a", "b")


async def test_state_that_changes_back_after_a_failed_write_is_written(tmp_path: Path) -> None:
    """A write that is late, for instance of a disk that hangs, may have put the other state into the file."""
    root, away = tmp_path / "root", tmp_path / "away"
    root.mkdir()
    files = StateFiles(str(root), SingleFlight("placement", workers=1))
    files.read()
    empty = cpu_managers(FOUR)
    assert empty.cpus is not None
    other = replace(
        empty, cpus=replace(empty.cpus, state=CpuState(frozenset({0}), {"a": {"c0": frozenset({1, 2, 3})}}))
    )
    assert await files.save(empty)
    root.rename(away)
    assert not await files.save(other)
    away.rename(root)
    (root / "cpu_manager_state").write_text("of the late write")
    assert await files.save(empty)
    assert read_cpus(root)["defaultCpuSet"] == "0-3"


# Pods as a whole


async def test_a_pod_as_a_whole_from_its_admission_to_its_end(tmp_path: Path) -> None:
    """Its init container completes, the agent restarts, and what it has is free only with its end."""
    shape = Shape(cores_per_node=4, threads=1)
    init = whole_pod("a", "3", "1", "", init=("2",))
    async with placing(whole_managers(shape), tmp_path) as stand:
        stand.desire(init)
        placement = await stand.placed(init)
        assert {name: (has.shares_cpus, has.mems) for name, has in placement.containers.items()} == {
            "i0": (False, "0"),
            "c0": (False, "0"),
            "c1": (True, "0"),
        }
        assert (placement.cpus, placement.shared_cpus) == (frozenset({1, 2, 3}), frozenset({2, 3}))
        placements = stand.placements.get()
        cpus = {name: sorted(placements.cpus_of("a", name)) for name in ("i0", "c0", "c1")}
        assert cpus == {"i0": [1, 2], "c0": [1], "c1": [2, 3]}
        assert placements.shared == frozenset({0})
        running = view(init, {"c0": "1", "c1": "2-3"}, {"c0": "0", "c1": "0"})
        stand.observed.publish(Observed(pods={running.ref.uid: running}, listed_at=2.0))
        await asyncio.sleep(1)
    cpu, memory = ((tmp_path / name).read_text() for name in ("cpu_manager_state", "memory_manager_state"))
    assert read_cpus(tmp_path)["podEntries"] == {"a": {"cpuSet": "1-3"}}
    entries = json.loads(memory)["entries"]["a"]
    assert entries.keys() == {"c0", "c1"}, "the init container has completed"
    managers = whole_managers(shape)
    assert managers.cpus is not None
    again = replace(
        managers,
        cpus=replace(managers.cpus, state=decode(cpu, "static", {})),
        memory=start_memory(shape.machine, memory, pod_level=True),
    )
    async with placing(again, tmp_path) as stand:
        stand.observed.publish(Observed(pods={running.ref.uid: running}, listed_at=2.0))
        stand.desire(init)
        restored = await stand.placed(init)
        assert (restored.cpus, restored.shared_cpus, restored.memory) == (
            placement.cpus,
            placement.shared_cpus,
            placement.memory,
        )
        successor = whole_pod("b", "3", "")
        stand.desire(init, successor)
        assert (await stand.rejected(successor)).reason == "TopologyAffinityError"
        stand.end(init)
        await stand.shared("0-3")
        stand.desire(replace(successor, metadata=replace(successor.metadata, uid="c")))
        assert await stand.cpus(replace(successor, metadata=replace(successor.metadata, uid="c"))) == {"c0": "1-3"}


async def test_files_of_1_37(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path), SingleFlight("placement", workers=1), has_data=True)
    files.read()
    managers = cpu_managers(FOUR)
    assert await files.save(managers)
    written = (tmp_path / "cpu_manager_state").read_text()
    assert json.loads(json.loads(written)["data"]) == {"policyName": "static", "defaultCpuSet": "0-3"}
    assert "data" in json.loads((tmp_path / "memory_manager_state").read_text())
    assert decode(written, "static", {}) == managers.cpu_state


# Device plugins


def with_devices(managers: Managers) -> Managers:
    return replace(managers, devices=FakeDevices())


async def test_a_plugin_chooses_the_device_and_then_allocates_it(tmp_path: Path) -> None:
    plugins = FakePlugins()
    async with placing(with_devices(cpu_managers(FOUR)), tmp_path, plugins) as stand:
        pod = gpu_pod("a")
        stand.desire(pod)
        placement = await stand.placed(pod)
        got = placement.containers["c0"]
        assert (got.cpus, got.devices[0].ids) == (frozenset({1}), frozenset({"b"}))
        assert got.options.env == {"GPU": "yes"}


async def test_a_checkpoint_that_could_not_be_written_is_written_later_though_nothing_changes(tmp_path: Path) -> None:
    plugins = FakePlugins()
    async with placing(with_devices(cpu_managers(FOUR)), tmp_path, plugins) as stand:
        assert await plugins.saves.get(), "the first one, of the empty state"
        plugins.failing_saves = 3
        pod = make_pod("a", "2")
        stand.desire(pod)
        await stand.placed(pod)
        async with asyncio.timeout(LIMIT_S):
            assert [await plugins.saves.get() for _ in range(4)] == [False, False, False, True]


async def test_a_slow_plugin_delays_only_its_own_pods(tmp_path: Path) -> None:
    plugins = FakePlugins()
    plugins.held = {"slow"}
    async with placing(with_devices(cpu_managers(FOUR)), tmp_path, plugins) as stand:
        slow, gpu, plain = gpu_pod("slow"), gpu_pod("gpu"), make_pod("plain", "1")
        stand.desire(slow, gpu, plain)
        await stand.placed(plain)
        assert (await stand.placed(gpu)).containers["c0"].devices[0].ids == {"b"}
        wait = stand.placements.get().waits[PodUID("slow")]
        assert (wait.what, wait.subject, wait.detail) == ("device plugin", GPU, "GetPreferredAllocation")
        plugins.open.set()
        assert (await stand.placed(slow)).containers["c0"].devices[0].ids == {"a"}
        assert plugins.asked == ["slow", "gpu", "slow"], "it is asked again, because the free devices have changed"
        assert not stand.placements.get().waits


@pytest.mark.parametrize("step", ["prefer", "allocate"])
async def test_an_unexpected_error_rejects_the_pod(tmp_path: Path, step: str) -> None:
    async def fail(*_: Any) -> Any:
        raise RuntimeError("no such thing")

    plugins = FakePlugins()
    setattr(plugins, step, fail)
    async with placing(with_devices(cpu_managers(FOUR)), tmp_path, plugins) as stand:
        pod = gpu_pod("a")
        stand.desire(pod)
        refused = await stand.rejected(pod)
        text = "Allocate failed due to an internal error: RuntimeError('no such thing'), which is unexpected"
        assert (refused.reason, refused.message) == ("UnexpectedAdmissionError", text)
        await stand.shared("0-3")


async def test_a_failed_allocate_rejects_the_pod_and_frees_what_it_had(tmp_path: Path) -> None:
    plugins = FakePlugins()
    plugins.allocations["a"] = AllocationError("rpc error: code = Unknown desc = no")
    async with placing(with_devices(cpu_managers(FOUR)), tmp_path, plugins) as stand:
        pod = gpu_pod("a")
        stand.desire(pod)
        refused = await stand.rejected(pod)
        text = "Allocate failed due to rpc error: code = Unknown desc = no, which is unexpected"
        assert (refused.reason, refused.message) == ("UnexpectedAdmissionError", text)
        await stand.shared("0-3")
        assert stand.placements.get().cpus_of("a", "c0") == frozenset(range(4))


@pytest.mark.parametrize("step", ["GetPreferredAllocation", "Allocate"])
async def test_a_pod_that_goes_while_its_plugin_is_asked_leaves_nothing(tmp_path: Path, step: str) -> None:
    plugins = FakePlugins()
    plugins.held = {"a"} if step == "GetPreferredAllocation" else set()
    async with placing(with_devices(cpu_managers(FOUR)), tmp_path, plugins) as stand:
        pod = gpu_pod("a")
        if step == "Allocate":
            plugins.prefer = _answer_then_hold(plugins)  # type: ignore[method-assign]
        stand.desire(pod)
        await asyncio.wait_for(
            stand.placements.wait_for(lambda p: PodUID("a") in p.waits and p.waits[PodUID("a")].detail == step), LIMIT_S
        )
        stand.desire()
        await asyncio.wait_for(stand.placements.wait_for(lambda p: not p.waits), LIMIT_S)
        await stand.shared("0-3")
        assert stand.placements.get().pods == {}
        other, third = gpu_pod("b"), gpu_pod("c")
        plugins.held = set()
        stand.desire(other, third)
        assert {(await stand.placed(p)).containers["c0"].devices[0].ids for p in (other, third)} == {
            frozenset({"a"}),
            frozenset({"b"}),
        }


async def test_a_pod_that_is_deleted_while_its_plugin_is_asked_gives_back_what_it_got(tmp_path: Path) -> None:
    """The roster admits it then without a placement, because nothing of it is started."""
    plugins = FakePlugins()
    plugins.prefer = _answer_then_hold(plugins)  # type: ignore[method-assign]
    async with placing(with_devices(cpu_managers(FOUR)), tmp_path, plugins) as stand:
        pod = gpu_pod("a")
        stand.desire(pod)
        await stand.shared("0,2-3")
        stand.desire(pod, awaiting_placement=False)
        await stand.shared("0-3")
        assert not stand.placements.get().waits


async def test_a_pod_that_runs_and_is_deleted_while_its_plugin_is_asked_keeps_what_it_has(tmp_path: Path) -> None:
    plugins = FakePlugins()
    plugins.prefer = _answer_then_hold(plugins)  # type: ignore[method-assign]
    async with placing(with_devices(cpu_managers(FOUR)), tmp_path, plugins) as stand:
        pod = gpu_pod("a")
        stand.observed.publish(Observed({PodUID("a"): view(pod, {"c0": "1"})}, 1.0))
        stand.desire(pod)
        await stand.shared("0,2-3")
        stand.desire(pod, awaiting_placement=False)
        await asyncio.wait_for(stand.placements.wait_for(lambda p: not p.waits), LIMIT_S)
        await stand.shared("0,2-3")
        stand.end(pod)
        await stand.shared("0-3")


async def test_a_pod_that_is_ended_while_its_plugin_is_asked_keeps_its_cpus_until_it_has_ended(tmp_path: Path) -> None:
    """After a restart of the agent, pods that run are placed again."""
    plugins = FakePlugins()
    plugins.held = {"a"}
    async with placing(with_devices(cpu_managers(FOUR)), tmp_path, plugins) as stand:
        pod = gpu_pod("a")
        plugins.prefer = _answer_then_hold(plugins)  # type: ignore[method-assign]
        stand.desire(pod)
        await asyncio.wait_for(stand.placements.wait_for(lambda p: PodUID("a") in p.waits), LIMIT_S)
        await stand.shared("0,2-3")
        stand.end(pod, Stage.TERMINATING)
        stand.desire()
        await asyncio.wait_for(stand.placements.wait_for(lambda p: not p.waits), LIMIT_S)
        await stand.shared("0,2-3")
        stand.end(pod)
        await stand.shared("0-3")


def _answer_then_hold(plugins: FakePlugins) -> Any:
    async def prefer(request: Any) -> Any:
        plugins.held.add("a") if request.pod_uid == "a" else None
        return set()

    return prefer


async def test_without_policies_the_files_say_so(tmp_path: Path) -> None:
    async with placing(Managers(), tmp_path) as stand:
        pod = make_pod("a", "2")
        stand.desire(pod)
        assert await stand.cpus(pod) == {}
        assert stand.placements.get().cpus_of("a", "c0") == NO_CPUS
        assert read_cpus(tmp_path) == {"policyName": "none", "defaultCpuSet": "", "checksum": 1353318690}
        assert json.loads((tmp_path / "memory_manager_state").read_text()) == {
            "policyName": "None",
            "machineState": {},
            "checksum": 4236770233,
        }
