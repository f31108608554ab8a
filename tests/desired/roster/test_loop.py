"""The running loop: how soon it publishes, and what wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from desired.roster.wants import NODE, make_pod, observe, running, stage

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox, Sink, make_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.heartbeat import Heartbeat
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import NodePressure, NodeShutdown
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, Stage
from pykubelet.base.model.mounts import AttachLimit, Mounts
from pykubelet.base.model.node import NodeView, NodeWanted, RuntimeReady
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Rejection, Roster, SourceChanged
from pykubelet.desired.roster.loop import RosterInputs, RosterLoop
from pykubelet.desired.roster.metrics import REJECTIONS
from pykubelet.desired.roster.model import AdmissionRules

pytestmark = pytest.mark.virtual_time


@dataclass
class RosterStand:
    roster: Cell[Roster]
    observed: CellWriter[Observed]
    node: CellWriter[NodeView]
    runtime: CellWriter[RuntimeReady]
    lifecycles: CellWriter[Lifecycles]
    shutdown: CellWriter[NodeShutdown]
    mailbox: Mailbox[SourceChanged] = field(default_factory=lambda: Mailbox("sources"))
    recorder: Sink[KubeEvent] = field(default_factory=Sink)
    node_wanted: Mailbox[NodeWanted] = field(default_factory=lambda: Mailbox("node-wanted"))
    mounts: CellWriter[Mounts] = field(default_factory=lambda: make_cell("mounts", Mounts())[1])
    heartbeat: Cell[Heartbeat] = field(default_factory=lambda: make_cell("heartbeat", Heartbeat())[0])

    def send(self, *pods: Pod, source: str = "file") -> None:
        self.mailbox.post(SourceChanged(source, pods))

    async def until(self, uid: str) -> Roster:
        """The first roster in which the pod is decided."""
        return await asyncio.wait_for(
            self.roster.wait_for(lambda r: uid in r.pods and r.pods[PodUID(uid)].admission_wait is None), 30
        )


@pytest.fixture
async def stand() -> AsyncIterator[RosterStand]:
    roster, writer = make_cell("roster", Roster())
    cells = [
        make_cell("observed", Observed(listed_at=1.0)),
        make_cell("node", NODE),
        make_cell("runtime", RuntimeReady(checked=True)),
        make_cell("lifecycles", Lifecycles()),
        make_cell("shutdown", NodeShutdown()),
    ]
    stand = RosterStand(roster, *(end for _, end in cells))  # type: ignore[arg-type]
    stand.heartbeat, heartbeat = make_cell("heartbeat", Heartbeat())
    pressure = make_cell("pressure", NodePressure())[0]
    known = (stand.node.cell, stand.runtime.cell, stand.observed.cell, stand.lifecycles.cell)
    cells_read = (*known, stand.shutdown.cell, pressure)
    mounts, stand.mounts = make_cell("mounts", Mounts())
    inputs = RosterInputs(*cells_read, node_wanted=stand.node_wanted, heartbeat=heartbeat, mounts=mounts)
    loop = RosterLoop(
        stand.mailbox, frozenset({"file"}), inputs, AdmissionRules(), writer, stand.recorder, SystemClock()
    )
    async with Supervisor("test") as supervisor:
        supervisor.start_root("roster", loop.run())
        await asyncio.sleep(0)
        yield stand


async def test_a_new_pod_among_a_hundred_leaves_the_others_as_they_are(stand: RosterStand) -> None:
    """Readers compare by identity: what did not change costs them nothing."""
    pods = [make_pod(f"p{number}", cpu="1m") for number in range(100)]
    stand.send(*pods)
    before = await stand.until("p99-1")
    stand.send(*pods, make_pod("late", cpu="1m"))
    after = await stand.until("late-1")
    assert len(after.pods) == 101
    assert all(after.pods[uid] is known for uid, known in before.pods.items())


async def test_sets_that_came_together_are_published_once(stand: RosterStand) -> None:
    stand.send(make_pod("a"))
    stand.send(make_pod("b"))
    stand.send(make_pod("c"), source="http")
    before = stand.roster.version
    roster = await stand.until("c-1")
    assert set(roster.pods) == {"b-1", "c-1"}
    assert stand.roster.version == before + 1


async def test_no_pod_is_admitted_while_the_machine_goes_down(stand: RosterStand) -> None:
    stand.send(make_pod("here"))
    await stand.until("here-1")
    stand.shutdown.publish(NodeShutdown(active=True))
    stand.send(make_pod("here"), make_pod("late"))
    roster = await stand.until("late-1")
    refused = roster.pods[PodUID("late-1")].rejection
    assert refused is not None
    assert (refused.reason, refused.message) == ("NodeShutdown", "Pod was rejected as the node is shutting down.")
    assert roster.pods[PodUID("here-1")].rejection is None, "what is here already is ended by its group"
    stand.shutdown.publish(NodeShutdown(active=False))
    stand.send(make_pod("here"), make_pod("late"), make_pod("later"))
    assert (await stand.until("later-1")).pods[PodUID("later-1")].rejection is None


async def test_a_pod_that_meets_a_limit_of_volumes_is_rejected_later(stand: RosterStand) -> None:
    stand.send(make_pod("here"), make_pod("other"))
    await stand.until("here-1")
    limit = AttachLimit("Node has reached its volume attachment limit, rejecting pod. x", ("d.example.com",))
    before = REJECTIONS.value("VolumeAttachmentLimitExceeded")
    stand.mounts.publish(Mounts(at_limit={PodUID("here-1"): limit, PodUID("unknown-1"): limit}))
    roster = await asyncio.wait_for(stand.roster.wait_for(lambda r: r.pods[PodUID("here-1")].rejection is not None), 30)
    rejection = Rejection("VolumeAttachmentLimitExceeded", limit.message)
    assert (roster.pods[PodUID("here-1")].rejection, roster.pods[PodUID("other-1")].rejection) == (rejection, None)
    assert [(e.reason, e.message) for e in stand.recorder.events] == [(rejection.reason, rejection.message)]
    assert REJECTIONS.value("VolumeAttachmentLimitExceeded") == before + 1


async def test_ready_without_sources() -> None:
    roster, writer = make_cell("roster", Roster())
    inputs = RosterInputs(
        make_cell("n", NODE)[0],
        make_cell("r", RuntimeReady())[0],
        make_cell("o", Observed())[0],
        make_cell("l", Lifecycles())[0],
        make_cell("s", NodeShutdown())[0],
        make_cell("p", NodePressure())[0],
    )
    loop = RosterLoop(Mailbox("m"), frozenset(), inputs, AdmissionRules(), writer, Sink(), SystemClock())
    async with Supervisor("test") as supervisor:
        supervisor.start_root("roster", loop.run())
        await asyncio.wait_for(roster.wait_for(lambda r: r.sources_ready), 30)


async def test_held_pods_are_decided_when_the_runtime_is_listed(stand: RosterStand) -> None:
    stand.observed.publish(Observed())
    new, runs = make_pod("new", cpu="600m"), make_pod("runs", cpu="600m")
    stand.send(new, runs)
    await asyncio.wait_for(stand.roster.wait_for(lambda r: "new-1" in r.pods), 30)
    assert stand.roster.get().pods[PodUID("runs-1")].admission_wait is not None
    stand.observed.publish(observe(running(runs)))
    roster = await stand.until("new-1")
    assert roster.pods[PodUID("runs-1")].rejection is None
    assert roster.pods[PodUID("new-1")].rejection is not None
    assert [(h.reason, h.pod.name) for h in stand.recorder.events if h.pod] == [("OutOfcpu", "new")]


async def test_a_preempting_pod_comes_in_when_its_victim_has_ended(stand: RosterStand) -> None:
    low, high = make_pod("low", cpu="800m"), make_pod("high", cpu="800m", priority=2_000_000_000)
    stand.send(low)
    await stand.until("low-1")
    stand.send(low, high)
    await asyncio.wait_for(stand.roster.wait_for(lambda r: "high-1" in r.pods), 30)
    for at in (Stage.SYNCING, Stage.TERMINATING):
        stand.lifecycles.publish(stage(low, at))
        await asyncio.sleep(0.005)
        assert stand.roster.get().pods[PodUID("high-1")].admission_wait is not None
    stand.lifecycles.publish(stage(low, Stage.TERMINATED))
    roster = await stand.until("high-1")
    assert roster.pods[PodUID("high-1")].rejection is None
    assert roster.pods[PodUID("low-1")].rejection is not None


async def test_a_pod_that_the_known_node_does_not_suit_has_the_node_read_anew_once(stand: RosterStand) -> None:
    stand.node.publish(replace(NODE, registered=True))
    stand.send(make_pod("web", nodeSelector={"zone": "b"}))
    await asyncio.wait_for(stand.node_wanted.get(), 30)
    stand.node.publish(replace(NODE, registered=True, labels={"zone": "b"}))
    assert (await stand.until("web-1")).pods[PodUID("web-1")].rejection is None
    assert len(stand.node_wanted) == 0


async def test_a_settled_roster_sleeps(stand: RosterStand) -> None:
    stand.send(make_pod("a"))
    await stand.until("a-1")
    version = stand.roster.version
    for _ in range(5):
        stand.lifecycles.publish(Lifecycles())
        stand.observed.publish(Observed(listed_at=2.0))
        await asyncio.sleep(0)
    assert stand.roster.version == version


async def test_a_roster_that_sleeps_still_comes_round(stand: RosterStand) -> None:
    await asyncio.wait_for(stand.heartbeat.wait_for(lambda heartbeat: heartbeat.at is not None), 30)


async def test_a_rejected_static_pod_is_admitted_when_another_has_left(stand: RosterStand) -> None:
    ports = [{"containerPort": 80, "hostPort": 80}]
    first, second = (make_pod(name, source="file", ports=ports) for name in ("first", "second"))
    stand.send(first)
    await stand.until("first-1")
    stand.send(first, second)
    assert (await stand.until("second-1")).pods[PodUID("second-1")].rejection is not None
    stand.lifecycles.publish(stage(second, Stage.FINISHED, KillReason.REJECTED))
    stand.send(second)
    admitted = stand.roster.wait_for(lambda r: r.pods[PodUID("second-1")].rejection is None)
    await asyncio.wait_for(admitted, 30)
