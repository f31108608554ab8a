"""The place between the sources and the roster: pods in quarantine are replaced by stubs, and come back by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from desired.roster.wants import make_pod

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import SourceChanged
from pykubelet.desired.sources.quarantine import NAME, Quarantine, charge, manifest_key

pytestmark = pytest.mark.virtual_time
NOW = 1_700_000_000.0
BAD, GOOD = make_pod("bad", volumes=[{"name": "v", "emptyDir": {}}]), make_pod("good")
UID = PodUID("bad-1")


class LoopClock:
    """The time of the event loop, as both clocks."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return NOW + self.monotonic()


class Node:
    """A run of the agent: what the roster gets from it."""

    def __init__(self, root: Path) -> None:
        self.clock = LoopClock()
        self.quarantine = Quarantine(str(root), self.clock, SingleFlight("test"))
        self.quarantine.load()
        self.out: Sink[SourceChanged] = Sink()
        self.source = self.quarantine.between(self.out)

    def send(self, *pods: Pod) -> SourceChanged:
        self.source.post(SourceChanged("api", pods))
        return self.out.events[-1]


@asynccontextmanager
async def a_run(root: Path) -> AsyncIterator[Node]:
    node = Node(root)
    async with Supervisor("test") as tasks:
        tasks.start_root("quarantine", node.quarantine.run())
        yield node
        await asyncio.sleep(1)  # what was changed is written


def end(root: Path, key: str = UID) -> None:
    charge(str(root), [(key, "it was in the way")], LoopClock().wall())


async def test_without_charges_sets_are_passed_on_as_they_are(tmp_path: Path) -> None:
    async with a_run(tmp_path) as node:
        event = SourceChanged("api", (BAD, GOOD))
        node.source.post(event)
        assert node.out.events == [event] and node.out.events[0] is event
    assert not (tmp_path / NAME).exists()


async def test_after_one_end_the_pod_is_tried_again_at_once(tmp_path: Path) -> None:
    end(tmp_path)
    async with a_run(tmp_path) as node:
        assert node.send(BAD, GOOD).pods == (BAD, GOOD)


async def test_after_two_ends_the_roster_gets_a_stub_until_the_quarantine_is_over(tmp_path: Path) -> None:
    end(tmp_path)
    end(tmp_path)
    async with a_run(tmp_path) as node:
        sent = node.send(BAD, GOOD)
        assert next(iter(sent.pods)).spec.volumes == () and [*sent.pods][1] is GOOD
        assert list(sent.quarantined) == [UID] and sent.quarantined[UID].next_at == NOW + node.clock.monotonic() + 600
        again = node.send(BAD, GOOD)
        assert next(iter(again.pods)) is next(iter(sent.pods)), "an unchanged stub stays the same object"
        await asyncio.sleep(601)
        assert node.out.events[-1].pods == (BAD, GOOD) and node.out.events[-1].quarantined == {}


async def test_a_third_end_makes_the_quarantine_longer(tmp_path: Path) -> None:
    for _ in range(2):
        end(tmp_path)
    async with a_run(tmp_path) as node:
        node.send(BAD)
        await asyncio.sleep(601)
        assert node.out.events[-1].pods == (BAD,)
    end(tmp_path)
    async with a_run(tmp_path) as node:
        node.send(BAD)
        await asyncio.sleep(1100)
        assert UID in node.out.events[-1].quarantined
        await asyncio.sleep(101)
        assert node.out.events[-1].pods == (BAD,)


async def test_a_changed_spec_is_tried_at_once_and_a_changed_status_is_not(tmp_path: Path) -> None:
    for _ in range(2):
        end(tmp_path)
    async with a_run(tmp_path) as node:
        node.send(BAD)
        reported = replace(BAD, status=replace(BAD.status, phase="Running"))
        assert UID in node.send(reported).quarantined
        changed = replace(BAD, spec=replace(BAD.spec, volumes=()))
        assert node.send(changed).pods == (changed,)
        assert node.send(BAD).pods == (BAD,), "its charges are forgotten"
    async with a_run(tmp_path) as node:
        assert node.send(BAD).pods == (BAD,)


async def test_the_spec_that_was_charged_is_known_after_a_restart(tmp_path: Path) -> None:
    end(tmp_path)
    async with a_run(tmp_path) as node:
        node.send(BAD)
    end(tmp_path)
    changed = replace(BAD, spec=replace(BAD.spec, volumes=()))
    async with a_run(tmp_path) as node:
        assert node.send(changed).pods == (changed,)


@pytest.mark.parametrize("leaving", ["deleted", "ended"])
async def test_of_a_pod_that_leaves_a_stub_is_passed_on_and_not_kept(tmp_path: Path, leaving: str) -> None:
    for _ in range(2):
        end(tmp_path)
    if leaving == "deleted":
        pod = replace(BAD, metadata=replace(BAD.metadata, deletionTimestamp="2026-01-01T00:00:00Z"))
    else:
        pod = replace(BAD, status=replace(BAD.status, phase="Failed"))
    async with a_run(tmp_path) as node:
        sent = node.send(pod)
        assert next(iter(sent.pods)).spec.volumes == () and sent.quarantined == {}


async def test_a_manifest_is_refused_until_it_is_changed_or_the_time_is_over(tmp_path: Path) -> None:
    for _ in range(2):
        end(tmp_path, manifest_key("/etc/bad.yaml"))
    async with a_run(tmp_path) as node:
        refused = node.quarantine.problem
        assert "in quarantine: the agent has ended 2 times" in refused("/etc/bad.yaml", b"a")
        assert refused("/etc/other.yaml", b"a") == ""
        await asyncio.sleep(601)
        assert refused("/etc/bad.yaml", b"a") == ""
    end(tmp_path, manifest_key("/etc/bad.yaml"))
    async with a_run(tmp_path) as node:
        assert node.quarantine.problem("/etc/bad.yaml", b"a")
        assert node.quarantine.problem("/etc/bad.yaml", b"b") == ""
        assert node.quarantine.problem("/etc/bad.yaml", b"a") == "", "its charges are forgotten"


@pytest.mark.parametrize("damage", [b"", b"\x00", b"pykubelet-checkpoint 1 2 x\n{}", b"pykubelet-checkpoint 99 0 x\n"])
async def test_a_damaged_file_stops_nothing(tmp_path: Path, damage: bytes) -> None:
    for _ in range(2):
        end(tmp_path)
    for name in (NAME, f"{NAME}.bak"):
        (tmp_path / name).write_bytes(damage)
    async with a_run(tmp_path) as node:
        assert node.send(BAD).pods == (BAD,)
    end(tmp_path)
    end(tmp_path)
    async with a_run(tmp_path) as node:
        assert UID in node.send(BAD).quarantined


async def test_an_older_good_copy_of_a_damaged_file_is_used(tmp_path: Path) -> None:
    for _ in range(3):
        end(tmp_path)
    (tmp_path / NAME).write_bytes(b"damaged")
    async with a_run(tmp_path) as node:
        assert UID in node.send(BAD).quarantined
