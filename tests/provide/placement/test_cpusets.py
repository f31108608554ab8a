"""Running containers follow the shared pool, and nothing is asked of the runtime that holds already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from act.pods.scenes import UID, container, pod
from act.runtime.hands import Hands, hands
from provide.placement.stand import view

from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import ContainerPlacement, Placements, PodPlacement
from pykubelet.base.model.roster import Rejection, Roster, RosterPod
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.cri.errors import CriCode
from pykubelet.provide.placement.cpusets import CpusetLoop
from pykubelet.testing.cri.fake_handles import RuntimeFault

pytestmark = pytest.mark.virtual_time

LONG = {"command": ["sh", "-c", "sleep 1000"]}
NOTHING_RAN = Observed({}, 0.0)
POD = pod(container("c0", **LONG), container("c1", **LONG))


def placed(shared: str, own: str = "3") -> Placements:
    """Container c1 has CPUs of its own, c0 has not."""
    containers = {"c1": ContainerPlacement(cpus=parse_cpuset(own))}
    return Placements({UID: PodPlacement(containers)}, shared=parse_cpuset(shared))


class Running:
    """The containers of `POD` in a fake runtime, and the loop that keeps their cpusets."""

    def __init__(
        self, h: Hands, ids: Mapping[str, ContainerID], placements: Placements, period_s: float, before: Observed
    ) -> None:
        self.h, self.ids = h, ids
        self.client = h.fake.connect()
        self.placements = make_cell("placements", placements)[1]
        self.observed: CellWriter[Observed] = make_cell("observed", before)[1]
        self.roster = make_cell("roster", Roster())[1]
        self.loop = CpusetLoop(self.placements.cell, self.roster.cell, self.observed.cell, self.client, period_s)

    def observe(self, **cpusets: str) -> None:
        """What the runtime reports of the containers."""
        seen = view(POD, cpusets)
        containers = tuple(replace(c, id=self.ids[c.name]) for c in seen.containers)
        self.observed.publish(Observed({UID: replace(seen, containers=containers)}, 1.0))

    def cpus(self, name: str) -> str:
        return str(self.h.fake.state.need(self.ids[name]).resources.cpuset_cpus)

    def updates(self) -> int:
        return len(self.h.fake.called("UpdateContainerResources"))

    async def until(self, name: str, cpus: str) -> None:
        async with asyncio.timeout(30):
            while self.cpus(name) != cpus:  # noqa: ASYNC110 - the fake runtime has no event for it
                await asyncio.sleep(0.01)


@asynccontextmanager
async def two_containers(
    tmp_path: Path, placements: Placements, period_s: float = 3600, before: Observed = NOTHING_RAN
) -> AsyncIterator[Running]:
    """`before`: what ran when the loop was made."""
    async with hands(tmp_path) as h:
        home = await h.sandbox(POD)
        ids = {c.name: await h.started(POD, c, home) for c in POD.spec.containers}
        running = Running(h, ids, placements, period_s, before)
        async with Supervisor("test") as supervisor:
            supervisor.start_root("cpusets", running.loop.run())
            yield running
        await running.client.close()


async def test_a_changed_pool_is_applied_at_once_and_to_shared_containers_only(tmp_path: Path) -> None:
    async with two_containers(tmp_path, placed("0-2")) as running:
        running.observe(c0="0-2", c1="3")
        running.placements.publish(placed("0-1"))
        await running.until("c0", "0-1")
        assert running.updates() == 1
        call = running.h.fake.called("UpdateContainerResources")[0].request.linux
        assert (call.cpu_shares, call.cpu_quota, call.memory_limit_in_bytes) == (0, 0, 0), "nothing else is changed"
        running.placements.publish(placed("0-2"))
        await running.until("c0", "0-2")
        assert running.updates() == 2, "although the last read of the container shows these CPUs"


async def test_what_the_runtime_does_not_report_is_applied_once(tmp_path: Path) -> None:
    async with two_containers(tmp_path, placed("0-2")) as running:
        running.observe(c0="", c1="nonsense")
        await running.until("c0", "0-2")
        await running.until("c1", "3")
        running.observe(c0="", c1="")
        running.placements.publish(placed("0-1"))
        await running.until("c0", "0-1")
        assert running.updates() == 3


async def test_containers_from_before_a_restart_are_updated_whatever_is_reported(tmp_path: Path) -> None:
    """CRI-O that was restarted too reports the CPUs of their creation."""
    async with two_containers(tmp_path, placed("0-2"), before=Observed()) as running:
        running.observe(c0="0-2", c1="3")
        await running.until("c0", "0-2")
        await running.until("c1", "3")
        running.observe(c0="0-2", c1="3")
        running.placements.publish(placed("0-1"))
        await running.until("c0", "0-1")
        assert running.updates() == 3


async def test_an_admitted_pod_without_a_placement_follows_the_shared_pool(tmp_path: Path) -> None:
    """Only pods that may get something of their own are placed."""
    held = RosterPod(POD, "file", 0.0, admission_wait=Wait("placement", Owner.TOPOLOGY_MANAGER, 0.0))
    nothing = Placements(shared=parse_cpuset("0-1"))
    async with two_containers(tmp_path, nothing) as running:
        running.roster.publish(Roster({UID: held}))
        running.observe(c0="0-3", c1="0-3")
        await asyncio.sleep(60)
        assert running.updates() == 0, "it is not decided yet what the pod has"
        running.roster.publish(Roster({UID: replace(held, admission_wait=None)}))
        await running.until("c0", "0-1")
        await running.until("c1", "0-1")


async def test_a_guaranteed_pod_that_leaves_keeps_its_cpus(tmp_path: Path) -> None:
    """It is admitted without a placement, because nothing of it is started any more."""
    amounts = {"cpu": "1", "memory": "64Mi"}
    own = pod(container("c0", resources={"requests": amounts, "limits": amounts}, **LONG))
    leaves = replace(own, metadata=replace(own.metadata, deletionTimestamp="2026-01-01T00:00:00Z"))
    nothing = Placements(shared=parse_cpuset("0-1"))
    async with two_containers(tmp_path, nothing) as running:
        running.roster.publish(Roster({UID: RosterPod(leaves, "api", 0.0)}))
        running.observe(c0="2", c1="3")
        await asyncio.sleep(60)
        assert running.updates() == 0


async def test_a_failed_update_is_tried_again(tmp_path: Path) -> None:
    async with two_containers(tmp_path, placed("0-2"), period_s=0.05) as running:
        running.h.fake.inject(RuntimeFault("UpdateContainerResources", code=CriCode.UNKNOWN, message="busy", times=1))
        running.observe(c0="0-3", c1="3")
        await running.until("c0", "0-2")
        assert running.updates() == 2


async def test_pods_that_are_not_admitted_and_other_policies_are_left_alone(tmp_path: Path) -> None:
    async with two_containers(tmp_path, Placements()) as running:
        running.observe(c0="0-3", c1="3")
        refused = PodPlacement(rejection=Rejection("r", "m"))
        running.placements.publish(Placements({UID: refused}, shared=frozenset({0})))
        running.placements.publish(Placements({UID: refused, PodUID("b"): PodPlacement()}, shared=frozenset({1})))
        running.placements.publish(Placements({UID: PodPlacement()}))
        running.placements.publish(placed("0", "3"))
        await running.until("c0", "0")
        assert running.updates() == 1
