"""The files in which the sizes of pods are kept over restarts of the agent: what they have, and what survives a power cut."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from desired.roster.wants import WALL, make_pod, sized
from support.file_calls import observed_replacements

from pykubelet.base.api.codec import decode, encode
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.fnv import fnv1a_32
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.base.model.sizing import PendingResize, SizeChange, size_of
from pykubelet.desired.roster.allocation_state import AllocationStateError, StateEncoder, decode_state
from pykubelet.desired.roster.decide import UNLISTED
from pykubelet.desired.roster.kept_size import KeptSize
from pykubelet.desired.roster.size_memory import SYNC_S, SizeMemory
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import SYNCS
from pykubelet.edges.host.fs.kept_state import RETRY_S

pytestmark = pytest.mark.virtual_time


async def test_sizes_are_kept_and_read_again(tmp_path: Path) -> None:
    path = str(tmp_path)
    roster, writer = make_cell("roster", Roster())
    flight = SingleFlight("test")
    memory = SizeMemory(path, flight)
    assert memory.load(WALL) == {}
    pods = {
        PodUID("a-1"): RosterPod(sized("a", "100m"), "api", WALL),
        PodUID("c-1"): RosterPod(make_pod("c"), "api", WALL),
        PodUID("d-1"): RosterPod(sized("d", "1", source="file"), "file", WALL),
    }
    async with Supervisor("test") as supervisor:
        supervisor.start_root("sizes", memory.follow(roster))
        writer.publish(Roster(pods, sources_ready=True))
        while not (found := SizeMemory(path, flight).load(WALL)):
            await supervisor.start_child("iteration", _one_iteration())
    assert found[PodUID("a-1")] == KeptSize(size=size_of(sized("a", "100m")))
    assert PodUID("c-1") not in found, "a pod without resources cannot be resized"


async def test_the_files_differ_while_a_resize_is_under_way_and_are_the_same_again_after_it(tmp_path: Path) -> None:
    roster, writer = make_cell("roster", Roster())
    memory = SizeMemory(str(tmp_path), SingleFlight("test"))
    small, large, other = sized("a", "50m"), sized("a", "100m"), sized("b", "1")
    change = SizeChange(before=size_of(small))
    under_way = RosterPod(large, "api", WALL, change=change)
    rounds = [
        ({"a-1": RosterPod(small, "api", WALL)}, "50m", "50m"),
        ({"a-1": under_way, "b-1": RosterPod(other, "api", WALL)}, "100m", "50m"),
        ({"a-1": RosterPod(large, "api", WALL), "b-1": RosterPod(other, "api", WALL)}, "100m", "100m"),
        ({"a-1": under_way}, "100m", "50m"),
    ]

    def states() -> list[dict[str, Any]]:
        paths = [tmp_path / name for name in ("allocated_pods_state", "actuated_pods_state")]
        found = [decode_state(path.read_bytes()) for path in paths if path.exists()]
        return [{uid: size.containers["app"].requests["cpu"] for uid, size in state.items()} for state in found]

    async with Supervisor("test") as supervisor:
        supervisor.start_root("sizes", memory.follow(roster))
        for pods, allocated, actuated in rounds:
            writer.publish(Roster({PodUID(uid): pod for uid, pod in pods.items()}, sources_ready=True))
            more = {"b-1": "1"} if "b-1" in pods else {}
            while states() != [{"a-1": allocated, **more}, {"a-1": actuated, **more}]:
                await supervisor.start_child("iteration", _one_iteration())
    assert not list(tmp_path.glob("*.tmp*")) + list(tmp_path.glob(".*")), "nothing unfinished is left"


@pytest.mark.parametrize(
    ("before", "after", "replaced", "syncs"),
    [
        pytest.param(
            {}, {f"p-{i}": RosterPod(sized("p", "1"), "api", WALL) for i in range(30)}, 2, 0, id="30 pods come"
        ),
        pytest.param({"a-1": RosterPod(sized("a", "1"), "api", WALL)}, {}, 2, 0, id="a pod goes"),
        pytest.param(
            {"a-1": RosterPod(sized("a", "1"), "api", WALL)},
            {"a-1": RosterPod(sized("a", "1"), "api", WALL, pending=PendingResize("Deferred", "", 2, WALL))},
            1,
            2,
            id="a resize has to wait",
        ),
        pytest.param(
            {"a-1": RosterPod(sized("a", "1"), "api", WALL)},
            {"a-1": RosterPod(sized("a", "2"), "api", WALL, change=SizeChange(size_of(sized("a", "1"))))},
            1,
            0,
            id="a resize begins",
        ),
        pytest.param(
            {"a-1": RosterPod(sized("a", "2"), "api", WALL, change=SizeChange(size_of(sized("a", "1"))))},
            {"a-1": RosterPod(sized("a", "2"), "api", WALL)},
            2,
            2,
            id="a resize is done",
        ),
    ],
)
async def test_each_change_is_written_once_and_synced_if_a_resize_depends_on_it(
    before: dict[str, RosterPod], after: dict[str, RosterPod], replaced: int, syncs: int, tmp_path: Path
) -> None:
    """`replaced`: the files that are written; `syncs`: the calls of fsync."""
    roster, writer = make_cell("roster", Roster())
    memory = SizeMemory(str(tmp_path), SingleFlight("test"))
    async with Supervisor("test") as supervisor:
        supervisor.start_root("sizes", memory.follow(roster))
        await _one_iteration()
        writer.publish(Roster({PodUID(uid): pod for uid, pod in before.items()}, sources_ready=True))
        await _one_iteration()
        synced = SYNCS.value()
        with observed_replacements(tmp_path) as names:
            for _ in range(2):  # the second has nothing new
                writer.publish(Roster({PodUID(uid): pod for uid, pod in after.items()}, sources_ready=True))
                await _one_iteration()
    assert (len([name for name in names if not name.endswith(".bak")]), SYNCS.value() - synced) == (replaced, syncs), (
        names
    )
    assert decode_state((tmp_path / "allocated_pods_state").read_bytes()).keys() == after.keys()


@pytest.mark.parametrize(("ends", "syncs"), [(True, 2), (False, 3)])
async def test_a_resize_is_synced_once_a_moment_after_it_has_begun(ends: bool, syncs: int, tmp_path: Path) -> None:
    """Whether it has ended by then or not. The end of the agent loses nothing of it before."""
    roster, writer = make_cell("roster", Roster())
    memory = SizeMemory(str(tmp_path), SingleFlight("test"))
    small, large = sized("a", "1"), sized("a", "2")

    async def publish(item: RosterPod) -> None:
        writer.publish(Roster({PodUID("a-1"): item}, sources_ready=True))
        await _one_iteration()

    def cpu(name: str) -> object:
        return decode_state((tmp_path / name).read_bytes())[PodUID("a-1")].containers["app"].requests["cpu"]

    async with Supervisor("test") as supervisor:
        supervisor.start_root("sizes", memory.follow(roster))
        await _one_iteration()
        await publish(RosterPod(small, "api", WALL))
        synced = SYNCS.value()
        await publish(RosterPod(large, "api", WALL, change=SizeChange(size_of(small), WALL)))
        assert (cpu("allocated_pods_state"), cpu("actuated_pods_state")) == ("2", "1")
        if ends:
            await publish(RosterPod(large, "api", WALL))
            assert (cpu("allocated_pods_state"), cpu("actuated_pods_state")) == ("2", "2")
        assert SYNCS.value() == synced, "clients do not wait for the disk"
        async with asyncio.timeout(60):
            while SYNCS.value() < synced + syncs:
                await _one_iteration()
        for _ in range(2 * int(SYNC_S / 0.01)):
            await _one_iteration()
        assert SYNCS.value() == synced + syncs
    kept = KeptSize(size=size_of(large), before=None if ends else size_of(small), at=0.0 if ends else WALL)
    assert SizeMemory(str(tmp_path), SingleFlight("test")).load(WALL + 60) == {PodUID("a-1"): kept}
    assert (tmp_path / "pod_sizes").exists() is not ends


async def test_a_resize_under_way_is_synced_at_once_when_the_next_one_has_to_wait(tmp_path: Path) -> None:
    roster, writer = make_cell("roster", Roster())
    memory = SizeMemory(str(tmp_path), SingleFlight("test"))
    small, large = sized("a", "1"), sized("a", "2")
    begun = RosterPod(large, "api", WALL, change=SizeChange(size_of(small), WALL))
    async with Supervisor("test") as supervisor:
        supervisor.start_root("sizes", memory.follow(roster))
        for item in (RosterPod(small, "api", WALL), begun):
            await _one_iteration()
            writer.publish(Roster({PodUID("a-1"): item}, sources_ready=True))
        await _one_iteration()
        assert not (tmp_path / "pod_sizes").exists()
        waits = replace(begun, pending=PendingResize("Deferred", "", 3, WALL))
        writer.publish(Roster({PodUID("a-1"): waits}, sources_ready=True))
        await _one_iteration()
        assert (tmp_path / "pod_sizes").exists()


async def test_a_resize_that_ended_while_nothing_could_be_synced_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster, writer = make_cell("roster", Roster())
    memory = SizeMemory(str(tmp_path), SingleFlight("test"))
    small, large = sized("a", "1"), sized("a", "2")

    def refuse(_: str) -> None:
        raise HostError("sync", str(tmp_path), "EIO", "input/output error")

    async def publish(item: RosterPod) -> None:
        writer.publish(Roster({PodUID("a-1"): item}, sources_ready=True))
        await _one_iteration()

    def kept() -> dict[PodUID, KeptSize]:
        data = Checkpoint(str(tmp_path / "pod_sizes")).load()
        assert data is not None
        return decode(dict[PodUID, KeptSize], data)

    async with Supervisor("test") as supervisor:
        supervisor.start_root("sizes", memory.follow(roster))
        await _one_iteration()
        await publish(RosterPod(small, "api", WALL))
        await publish(RosterPod(large, "api", WALL, change=SizeChange(size_of(small), WALL)))
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_directory", refuse)
            await asyncio.sleep(2 * SYNC_S)
            assert kept()[PodUID("a-1")].at == WALL
            await publish(RosterPod(large, "api", WALL))
        await asyncio.sleep(RETRY_S + 1)
        assert kept() == {}


async def test_without_an_api_server_nothing_is_synced(tmp_path: Path) -> None:
    """No pod is resized, and the next start does not read the files."""
    roster, writer = make_cell("roster", Roster())
    memory = SizeMemory(str(tmp_path), SingleFlight("test"))
    synced = SYNCS.value()
    async with Supervisor("test") as supervisor:
        supervisor.start_root("sizes", memory.follow(roster, resizable=False))
        for cpu in ("1", "2"):  # of a manifest with a UID of its own
            await _one_iteration()
            item = RosterPod(sized("a", cpu, source="file"), "file", WALL)
            writer.publish(Roster({PodUID("a-1"): item}, sources_ready=True))
        await _one_iteration()
    state = decode_state((tmp_path / "actuated_pods_state").read_bytes())
    assert state == {PodUID("a-1"): size_of(sized("a", "2"))}
    assert SYNCS.value() == synced


@pytest.mark.parametrize("runs", [1, 2])
async def test_the_size_of_a_pod_outlives_runs_in_which_it_only_waits_for_admission(tmp_path: Path, runs: int) -> None:
    small, large = sized("a", "50m"), sized("a", "100m")
    change = SizeChange(before=size_of(small), at=WALL)
    found = [
        RosterPod(large, "api", WALL, change=change),
        *runs * [RosterPod(large, "api", WALL, admission_wait=UNLISTED)],
    ]
    for item in found:
        roster, writer = make_cell("roster", Roster())
        memory = SizeMemory(str(tmp_path), SingleFlight("test"))
        memory.load(WALL)
        async with Supervisor("test") as supervisor:
            supervisor.start_root("sizes", memory.follow(roster))
            await _one_iteration()
            writer.publish(Roster({PodUID("a-1"): item}, sources_ready=True))
            await _one_iteration()
    memory = SizeMemory(str(tmp_path), SingleFlight("test"))
    assert memory.load(WALL) == {PodUID("a-1"): KeptSize(size=size_of(large), before=size_of(small), at=WALL)}
    async with Supervisor("test") as supervisor:
        supervisor.start_root("sizes", memory.follow(roster))
        writer.publish(Roster({PodUID("b-1"): RosterPod(sized("b", "1"), "api", WALL)}, sources_ready=True))
        await _one_iteration()
    assert SizeMemory(str(tmp_path), SingleFlight("test")).load(WALL).keys() == {"b-1"}, "the pod was deleted meanwhile"


@pytest.mark.parametrize("damage", [b"", b"{", StateEncoder().encode({}), None])
async def test_a_deferred_resize_outlives_the_file_of_all_sizes(damage: bytes | None, tmp_path: Path) -> None:
    """A power cut may damage a file that is not synced, or leave it as it was before the newest pod."""
    roster, writer = make_cell("roster", Roster())
    memory = SizeMemory(str(tmp_path), SingleFlight("test"))
    waits = RosterPod(sized("a", "1"), "api", WALL, pending=PendingResize("Deferred", "", 2, WALL))
    async with Supervisor("test") as supervisor:
        supervisor.start_root("sizes", memory.follow(roster))
        await _one_iteration()
        writer.publish(Roster({PodUID("a-1"): waits}, sources_ready=True))
        await _one_iteration()
    if damage is not None:
        (tmp_path / "allocated_pods_state").write_bytes(damage)
    assert SizeMemory(str(tmp_path), SingleFlight("test")).load(WALL) == {
        PodUID("a-1"): KeptSize(size=size_of(sized("a", "1")))
    }


def test_sizes_of_the_reference_are_taken_over(tmp_path: Path) -> None:
    """The files as the reference writes them, in the middle of a resize from 50m to 100m."""
    for name, cpu in (("allocated_pods_state", "100m"), ("actuated_pods_state", "50m")):
        entry = '{"ContainerResources":{"app":{"requests":{"cpu":"' + cpu + '"}}},"PodLevelResources":null}'
        (tmp_path / name).write_bytes(envelope('{"entries":{"a-1":' + entry + "}}"))
    asks = KeptSize(size=size_of(sized("a", "70m")), before=size_of(sized("a", "20m")), at=WALL - 5)
    memory = SizeMemory(str(tmp_path), SingleFlight("test"))
    Checkpoint(str(tmp_path / "pod_sizes")).save(encode({"a-1": asks}))
    (found,) = memory.load(WALL).values()
    assert (found.size.containers["app"].requests, found.at) == ({"cpu": "100m"}, WALL), (
        "else what runs would be taken to have the new size"
    )
    assert found.before is not None and found.before.containers["app"].requests == {"cpu": "50m"}


def test_the_checksum_is_that_of_the_reference() -> None:
    text = '{"entries":{"pod1":{"ContainerResources":{"container1":{"requests":{"cpu":"1Ki","memory":"1Ki"}}}}}}'
    size = decode_state(json.dumps({"data": text, "checksum": 1178570812}).encode())
    assert size[PodUID("pod1")].containers["container1"].requests == {"cpu": "1Ki", "memory": "1Ki"}
    assert decode_state(StateEncoder().encode(size)) == size
    with pytest.raises(AllocationStateError):
        decode_state(json.dumps({"data": text, "checksum": 1}).encode())


def test_a_damaged_file_of_sizes_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "allocated_pods_state").write_bytes(b"{")
    assert SizeMemory(str(tmp_path), SingleFlight("test")).load(WALL) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["allocated_pods_state.corrupt-0"]


def envelope(text: str) -> bytes:
    return json.dumps({"data": text, "checksum": fnv1a_32(f"(string){text}".encode())}).encode()


async def _one_iteration() -> None:
    await asyncio.sleep(0.01)


def test_a_file_that_is_garbage_costs_no_more_than_memory(tmp_path: Path) -> None:
    path = tmp_path / "pod_sizes"
    path.write_bytes(b"garbage")
    assert SizeMemory(str(tmp_path), SingleFlight("test")).load(WALL) == {}
