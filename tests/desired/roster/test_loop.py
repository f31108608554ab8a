"""The running loop: how soon it publishes, and what wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from desired.roster.wants import NODE, make_pod, observe, running, stage

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell, CellWriter, make_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.heartbeat import Heartbeat
from pykubelet.base.kit.mailbox import Mailbox, Sink
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles, Stage
from pykubelet.base.model.node import NodeView, NodeWanted, RuntimeReady
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster, SourceChanged
from pykubelet.desired.roster.loop import RosterInputs, RosterLoop
from pykubelet.desired.roster.model import AdmissionRules


@dataclass
class Room:
    roster: Cell[Roster]
    observed: CellWriter[Observed]
    node: CellWriter[NodeView]
    runtime: CellWriter[RuntimeReady]
    lifecycles: CellWriter[Lifecycles]
    mailbox: Mailbox[SourceChanged] = field(default_factory=lambda: Mailbox("sources"))
    recorder: Sink[KubeEvent] = field(default_factory=Sink)
    node_wanted: Mailbox[NodeWanted] = field(default_factory=lambda: Mailbox("node-wanted"))
    turn: Cell[Heartbeat] = field(default_factory=lambda: make_cell("turn", Heartbeat())[0])

    def tell(self, *pods: Pod, source: str = "file") -> None:
        self.mailbox.post(SourceChanged(source, pods))

    async def until(self, uid: str) -> Roster:
        """The first roster in which the pod is decided."""
        return await asyncio.wait_for(
            self.roster.wait_for(lambda r: uid in r.pods and r.pods[PodUID(uid)].held is None), 30
        )


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    roster, writer = make_cell("roster", Roster())
    cells = [
        make_cell("observed", Observed(listed_at=1.0)),
        make_cell("node", NODE),
        make_cell("runtime", RuntimeReady(checked=True)),
        make_cell("lifecycles", Lifecycles()),
    ]
    room = Room(roster, *(end for _, end in cells))  # type: ignore[arg-type]
    room.turn, turn = make_cell("turn", Heartbeat())
    cells_read = (room.node.cell, room.runtime.cell, room.observed.cell, room.lifecycles.cell)
    inputs = RosterInputs(*cells_read, node_wanted=room.node_wanted, turn=turn)
    loop = RosterLoop(room.mailbox, frozenset({"file"}), inputs, AdmissionRules(), writer, room.recorder, SystemClock())
    async with Supervisor("test") as supervisor:
        supervisor.start_root("roster", loop.run())
        await asyncio.sleep(0)
        yield room


async def test_a_new_pod_among_a_hundred_leaves_the_others_as_they_are(room: Room) -> None:
    """Readers compare by identity: what did not change costs them nothing."""
    pods = [make_pod(f"p{number}", cpu="1m") for number in range(100)]
    room.tell(*pods)
    before = await room.until("p99-1")
    room.tell(*pods, make_pod("late", cpu="1m"))
    after = await room.until("late-1")
    assert len(after.pods) == 101
    assert all(after.pods[uid] is known for uid, known in before.pods.items())


async def test_sets_that_came_together_are_published_once(room: Room) -> None:
    room.tell(make_pod("a"))
    room.tell(make_pod("b"))
    room.tell(make_pod("c"), source="http")
    before = room.roster.version
    roster = await room.until("c-1")
    assert set(roster.pods) == {"b-1", "c-1"}
    assert room.roster.version == before + 1


async def test_ready_without_sources() -> None:
    roster, writer = make_cell("roster", Roster())
    inputs = RosterInputs(
        make_cell("n", NODE)[0],
        make_cell("r", RuntimeReady())[0],
        make_cell("o", Observed())[0],
        make_cell("l", Lifecycles())[0],
    )
    loop = RosterLoop(Mailbox("m"), frozenset(), inputs, AdmissionRules(), writer, Sink(), SystemClock())
    async with Supervisor("test") as supervisor:
        supervisor.start_root("roster", loop.run())
        await asyncio.wait_for(roster.wait_for(lambda r: r.sources_ready), 30)


async def test_held_pods_are_decided_when_the_runtime_is_listed(room: Room) -> None:
    room.observed.publish(Observed())
    new, runs = make_pod("new", cpu="600m"), make_pod("runs", cpu="600m")
    room.tell(new, runs)
    await asyncio.wait_for(room.roster.wait_for(lambda r: "new-1" in r.pods), 30)
    assert room.roster.get().pods[PodUID("runs-1")].held is not None
    room.observed.publish(observe(running(runs)))
    roster = await room.until("new-1")
    assert roster.pods[PodUID("runs-1")].rejection is None
    assert roster.pods[PodUID("new-1")].rejection is not None
    assert [(h.reason, h.pod.name) for h in room.recorder.events if h.pod] == [("OutOfcpu", "new")]


async def test_a_preempting_pod_comes_in_when_its_victim_has_ended(room: Room) -> None:
    low, high = make_pod("low", cpu="800m"), make_pod("high", cpu="800m", priority=2_000_000_000)
    room.tell(low)
    await room.until("low-1")
    room.tell(low, high)
    await asyncio.wait_for(room.roster.wait_for(lambda r: "high-1" in r.pods), 30)
    for at in (Stage.SYNCING, Stage.TERMINATING):
        room.lifecycles.publish(stage(low, at))
        await asyncio.sleep(0.005)
        assert room.roster.get().pods[PodUID("high-1")].held is not None
    room.lifecycles.publish(stage(low, Stage.TERMINATED))
    roster = await room.until("high-1")
    assert roster.pods[PodUID("high-1")].rejection is None
    assert roster.pods[PodUID("low-1")].rejection is not None


async def test_a_pod_that_the_known_node_does_not_suit_has_the_node_read_anew_once(room: Room) -> None:
    room.node.publish(replace(NODE, registered=True))
    room.tell(make_pod("web", nodeSelector={"zone": "b"}))
    await asyncio.wait_for(room.node_wanted.get(), 30)
    room.node.publish(replace(NODE, registered=True, labels={"zone": "b"}))
    assert (await room.until("web-1")).pods[PodUID("web-1")].rejection is None
    assert len(room.node_wanted) == 0


async def test_a_settled_roster_sleeps(room: Room) -> None:
    room.tell(make_pod("a"))
    await room.until("a-1")
    version = room.roster.version
    for _ in range(5):
        room.lifecycles.publish(Lifecycles())
        room.observed.publish(Observed(listed_at=2.0))
        await asyncio.sleep(0)
    assert room.roster.version == version


async def test_a_roster_that_sleeps_still_comes_round(room: Room) -> None:
    await asyncio.wait_for(room.turn.wait_for(lambda turn: turn.at is not None), 30)
