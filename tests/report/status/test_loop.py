"""The status loop over real cells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from observe.probes.stand import LoopClock
from report.samples import UID, entry, exited, lifecycle, make_pod, running, view

from pykubelet.base.api import core
from pykubelet.base.kit.cells import Cell, CellWriter, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import ClaimDevice, ClaimDeviceHealth, ClaimResource, Claims, PodClaims
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.labels import CONTAINER_TERMINATION_MESSAGE_PATH
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import MountView, Observed, PodView
from pykubelet.base.model.placement import (
    AssignedDevices,
    ContainerPlacement,
    DeviceResource,
    Placements,
    PodPlacement,
)
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.sizing import ResizeProgress
from pykubelet.base.model.statuses import Statuses
from pykubelet.report.status.decide import EXIT_STATUS_S
from pykubelet.report.status.loop import SETTLE_S, StatusInputs, StatusLoop

READY_RUNTIME = RuntimeReady(checked=True, runtime_error="", name="containerd")


@dataclass
class Ring:
    """The writing ends of the cells that the loop reads, and the cells that it writes."""

    roster: CellWriter[Roster]
    lifecycles: CellWriter[Lifecycles]
    observed: CellWriter[Observed]
    probes: CellWriter[ProbeResults]
    node: CellWriter[NodeView]
    runtime: CellWriter[RuntimeReady]
    statuses: Cell[Statuses]
    placements: CellWriter[Placements]
    claims: CellWriter[Claims]
    clock: ManualClock = field(default_factory=ManualClock)

    async def settle(self) -> Statuses:
        for _ in range(10):
            await asyncio.sleep(0)
        return self.statuses.get()

    async def show(self, *pods: PodLifecycle) -> None:
        self.lifecycles.publish(Lifecycles({p.ref.uid: p for p in pods}))
        await self.settle()

    async def see(self, *views: PodView, listed_at: float = 1.0) -> core.PodStatus:
        self.observed.publish(Observed({v.ref.uid: v for v in views}, listed_at))
        return (await self.settle()).pods[UID]


@pytest.fixture
async def ring(request: pytest.FixtureRequest) -> AsyncIterator[Ring]:
    """Parametrized with `settle_s`, or 0."""
    roster, lifecycles, observed = (
        make_cell("roster", Roster()),
        make_cell("lifecycles", Lifecycles()),
        make_cell("observed", Observed()),
    )
    probes = make_cell("probes", ProbeResults({}, frozenset(ProbeKind)))
    node, runtime = make_cell("node", NodeView("n", "n", ("192.0.2.1",))), make_cell("runtime", READY_RUNTIME)
    statuses, placements = make_cell("statuses", Statuses()), make_cell("placements", Placements())
    claims = make_cell("claims", Claims())
    writers = (roster[1], lifecycles[1], observed[1], probes[1], node[1], runtime[1])
    found = Ring(*writers, statuses[0], placements[1], claims[1])
    inputs = StatusInputs(
        roster[0],
        lifecycles[0],
        observed[0],
        probes[0],
        node[0],
        runtime[0],
        placements=placements[0],
        claims=claims[0],
    )
    loop = StatusLoop(inputs, statuses[1], found.clock, SingleFlight("test"), settle_s=getattr(request, "param", 0))
    async with Supervisor("test") as supervisor:
        supervisor.start_root("status", loop.run())
        yield found


async def test_a_desired_pod_has_a_status_before_a_pod_worker_takes_it_up(ring: Ring) -> None:
    ring.observed.publish(Observed({}, 1.0))
    ring.roster.publish(Roster({UID: entry(make_pod())}))
    status = (await ring.settle()).pods[UID]
    assert (status.phase, status.hostIP) == ("Pending", "192.0.2.1")


@pytest.mark.parametrize("ring", [3600.0], indirect=True)
async def test_the_end_of_a_resize_is_published_at_once(ring: Ring) -> None:
    pod = make_pod()
    ring.observed.publish(Observed({UID: view(running())}, 1.0))
    await ring.show(lifecycle(pod, resize=ResizeProgress(1)))
    first = ring.statuses.get().pods[UID]
    assert [c.type for c in first.conditions if c.type.startswith("PodResize")] == ["PodResizeInProgress"]
    assert await ring.see(view(running(image="newer"), read_at=2.0)) is first, "other changes wait"
    await ring.show(lifecycle(pod))
    last = ring.statuses.get().pods[UID]
    assert [c.type for c in last.conditions if c.type.startswith("PodResize")] == []


async def test_a_change_of_one_pod_leaves_the_others_statuses_alone(ring: Ring) -> None:
    pods = [make_pod(name=f"p{n}", uid=f"uid-{n}") for n in range(3)]
    await ring.show(*(lifecycle(pod) for pod in pods))
    before = ring.statuses.get()
    await ring.see(view(running()))
    after = ring.statuses.get()
    assert after.pods[UID].phase == "Running"
    assert [after.pods[uid] is before.pods[uid] for uid in after.pods] == [True, False, True]


async def test_the_health_of_devices_is_reported_when_it_changes(ring: Ring) -> None:
    await ring.show(lifecycle(make_pod()))
    await ring.see(view(running()))
    assert ring.statuses.get().pods[UID].containerStatuses[0].allocatedResourcesStatus == ()
    assigned = (AssignedDevices("example.com/r", {0: frozenset("a"), -1: frozenset("b")}),)
    name = ring.statuses.get().pods[UID].containerStatuses[0].name
    pods = {UID: PodPlacement({name: ContainerPlacement(devices=assigned)})}

    async def reported(**ill: str) -> list[tuple[str, str]]:
        ring.placements.publish(Placements(pods, devices={"example.com/r": DeviceResource(ill=ill)}))
        status = (await ring.settle()).pods[UID].containerStatuses[0]
        (resource,) = status.allocatedResourcesStatus
        assert resource.name == "example.com/r"
        return [(device.resourceID, device.health) for device in resource.resources]

    assert await reported() == [("a", "Healthy"), ("b", "Healthy")]
    assert await reported(b="Unhealthy", other="Unhealthy") == [("a", "Healthy"), ("b", "Unhealthy")]
    version = ring.statuses.version
    assert await reported(b="Unhealthy") == [("a", "Healthy"), ("b", "Unhealthy")]
    assert ring.statuses.version == version
    ring.placements.publish(Placements())  # the pod's devices are free; the last health is kept
    assert (await ring.settle()).pods[UID].containerStatuses[0].allocatedResourcesStatus


async def test_devices_of_two_resources_may_have_the_same_name(ring: Ring) -> None:
    await ring.show(lifecycle(make_pod()))
    await ring.see(view(running()))
    name = ring.statuses.get().pods[UID].containerStatuses[0].name
    assigned = tuple(AssignedDevices(f"example.com/{r}", {-1: frozenset("0")}) for r in ("a", "b"))
    pods = {UID: PodPlacement({name: ContainerPlacement(devices=assigned)})}
    devices = {"example.com/a": DeviceResource(), "example.com/b": DeviceResource(ill={"0": "Unhealthy"})}
    ring.placements.publish(Placements(pods, devices=devices))
    status = (await ring.settle()).pods[UID].containerStatuses[0]
    found = {resource.name: resource.resources[0].health for resource in status.allocatedResourcesStatus}
    assert found == {"example.com/a": "Healthy", "example.com/b": "Unhealthy"}


async def test_the_health_of_claimed_devices_is_reported_beside_that_of_others(ring: Ring) -> None:
    await ring.show(lifecycle(make_pod()))
    await ring.see(view(running()))
    name = ring.statuses.get().pods[UID].containerStatuses[0].name
    assigned = ContainerPlacement(devices=(AssignedDevices("example.com/r", {0: frozenset("a")}),))
    placements = Placements({UID: PodPlacement({name: assigned})}, devices={"example.com/r": DeviceResource()})
    devices = (
        ClaimDevice("gpu", "p", "d0", cdi=("gpu/gpu=0", "gpu/gpu=00")),
        ClaimDevice("gpu", "p", "d1"),
        ClaimDevice("gpu", "p", "d2", cdi=("gpu/gpu=0",)),
    )
    pods = {UID: PodClaims(True, resources={name: (ClaimResource("claim:gpu/large", devices),)})}
    ill = {("gpu", "p", "d1"): ClaimDeviceHealth("Unhealthy", "hot")}

    async def reported(health: dict[tuple[str, str, str], ClaimDeviceHealth]) -> dict[str, list[tuple[str, str, str]]]:
        ring.claims.publish(Claims(pods, health=health))
        status = (await ring.settle()).pods[UID].containerStatuses[0]
        return {
            resource.name: [(device.resourceID, device.health, device.message) for device in resource.resources]
            for resource in status.allocatedResourcesStatus
        }

    claimed = [("gpu/gpu=0", "Unknown", ""), ("gpu/p/d1", "Unhealthy", "hot")]
    assert await reported(ill) == {"claim:gpu/large": claimed}
    ring.placements.publish(placements)
    assert await reported(ill) == {"claim:gpu/large": claimed, "example.com/r": [("a", "Healthy", "")]}
    claimed[1] = ("gpu/p/d1", "Unknown", "")
    assert (await reported({}))["claim:gpu/large"] == claimed
    version = ring.statuses.version
    await reported({})
    assert ring.statuses.version == version
    # another order is no news
    pods = {UID: PodClaims(True, resources={name: (ClaimResource("claim:gpu/large", (*devices[1:], devices[0])),)})}
    await reported({})
    assert ring.statuses.version == version


async def test_nothing_is_reported_when_nothing_changed_for_the_reader(ring: Ring) -> None:
    life = lifecycle(make_pod())
    await ring.show(life)
    await ring.see(view(running()))
    version = ring.statuses.version
    await ring.show(replace(life, stage_since=1.0))
    ring.probes.publish(
        ProbeResults({(ContainerID("x"), ProbeKind.READINESS): ProbeResult.SUCCESS}, frozenset(ProbeKind))
    )
    await ring.settle()
    ring.runtime.publish(replace(READY_RUNTIME, epoch=3))
    await ring.settle()
    assert ring.statuses.version == version


async def test_an_older_look_at_the_runtime_is_passed_over(ring: Ring) -> None:
    await ring.show(lifecycle(make_pod()))
    await ring.see(view(running(number=1), read_at=5.0))
    status = await ring.see(view(exited("app", 1), read_at=4.0), listed_at=5.0)
    assert status.containerStatuses[0].containerID == "containerd://app-1"


async def test_a_restart_is_reported_together_with_how_the_instance_before_ended(ring: Ring) -> None:
    """The next instance may be started by an event of the runtime, and be there first."""
    await ring.show(lifecycle(make_pod()))
    await ring.see(view(running(), read_at=1.0))
    status = await ring.see(view(running(number=1), running(), read_at=2.0))
    [shown] = status.containerStatuses
    assert (shown.containerID, shown.restartCount) == ("containerd://app-0", 0)
    ring.observed.publish(Observed({UID: view(running(number=1), exited(code=137), read_at=3.0)}, 3.0))
    async with asyncio.timeout(30):
        reported = await ring.statuses.wait_for(lambda now: now.pods[UID].containerStatuses[0] != shown)
    [shown] = reported.pods[UID].containerStatuses
    assert (shown.containerID, shown.restartCount) == ("containerd://app-1", 1)
    assert shown.lastState is not None
    assert shown.lastState.terminated is not None
    assert shown.lastState.terminated.exitCode == 137


async def test_a_runtime_that_never_reports_an_end_does_not_hide_what_came_after_it(ring: Ring) -> None:
    await ring.show(lifecycle(make_pod()))
    await ring.see(view(running(number=1), running(), read_at=1.0))
    ring.clock.advance(EXIT_STATUS_S)
    status = await ring.see(view(running(number=1), running(), read_at=2.0))
    assert status.containerStatuses[0].containerID == "containerd://app-1"


async def test_a_pod_that_a_newer_list_does_not_have_is_gone(ring: Ring) -> None:
    await ring.show(lifecycle(make_pod()))
    await ring.see(view(running(), read_at=5.0), listed_at=5.0)
    assert (await ring.see(listed_at=4.0)).containerStatuses[0].ready
    gone = (await ring.see(listed_at=6.0)).containerStatuses[0]
    assert gone.lastState is not None
    assert gone.lastState.terminated is not None


async def test_container_ids_wait_for_the_name_of_the_runtime(ring: Ring) -> None:
    ring.runtime.publish(RuntimeReady())
    await ring.show(lifecycle(make_pod()))
    assert (await ring.see(view(running()))).phase == "Pending"
    ring.runtime.publish(READY_RUNTIME)
    assert (await ring.settle()).pods[UID].containerStatuses[0].containerID == "containerd://app-0"


async def test_a_probe_result_makes_its_pod_ready(ring: Ring) -> None:
    pod = make_pod(core.Container(name="app", readinessProbe=core.Probe()))
    await ring.show(lifecycle(pod))
    assert not (await ring.see(view(running()))).containerStatuses[0].ready
    found = {(ContainerID("app-0"), ProbeKind.READINESS): ProbeResult.SUCCESS}
    ring.probes.publish(ProbeResults(found, frozenset(ProbeKind)))
    assert (await ring.settle()).pods[UID].containerStatuses[0].ready


async def test_an_end_is_reported_together_with_its_message(ring: Ring, tmp_path: Path) -> None:
    (tmp_path / "m").write_text("it broke")
    annotations = {CONTAINER_TERMINATION_MESSAGE_PATH: "/dev/termination-log"}
    mount = MountView("/dev/termination-log", str(tmp_path / "m"))
    await ring.show(lifecycle(make_pod()))
    await ring.see(view(running(), read_at=1.0))
    ring.observed.publish(
        Observed({UID: view(exited("app", 2, annotations=annotations, mounts=(mount,)), read_at=2.0)}, 2.0)
    )

    def has_ended(statuses: Statuses) -> bool:
        state = statuses.pods[UID].containerStatuses[0].state
        return state is not None and state.terminated is not None

    async with asyncio.timeout(30):
        reported = await ring.statuses.wait_for(has_ended)
    state = reported.pods[UID].containerStatuses[0].state
    assert state is not None
    assert state.terminated is not None
    assert state.terminated.message == "it broke"


async def test_pods_that_are_ended_are_reported_until_they_are_gone(ring: Ring) -> None:
    pod = make_pod()
    await ring.show(lifecycle(pod, Stage.TERMINATING))
    assert set(ring.statuses.get().pods) == {UID}
    await ring.show()
    assert ring.statuses.get().pods == {}


async def test_the_same_name_again_is_another_pod(ring: Ring) -> None:
    await ring.show(lifecycle(make_pod(), Stage.TERMINATING), lifecycle(make_pod(uid="uid-2")))
    assert set(ring.statuses.get().pods) == {UID, PodUID("uid-2")}


# What acts goes first

CREATING, NO_IMAGE = "ContainerCreating", {"app": ("ErrImageNeverPull", "it is not there")}


async def _take_up(roster: Cell[Roster], lifecycles: CellWriter[Lifecycles], tasks_s: float) -> None:
    """act/pods with a long way from the manifest to the lifecycle: many tasks that wake one another, then `tasks_s`."""
    async for now in roster.changes():
        for _ in range(50):
            await asyncio.sleep(0)
        await asyncio.sleep(tasks_s)
        lifecycles.publish(Lifecycles({uid: lifecycle(entry.pod, errors=NO_IMAGE) for uid, entry in now.pods.items()}))


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("tasks_s", "published"),
    [
        pytest.param(0.0, [(0.0, "ErrImageNeverPull")], id="taken up at once: one status, without delay"),
        pytest.param(0.01, [(0.01, "ErrImageNeverPull")], id="taken up in time: one status"),
        pytest.param(0.1, [(SETTLE_S, CREATING), (0.1, "ErrImageNeverPull")], id="taken up late: pending without it"),
    ],
)
async def test_a_status_shows_what_became_of_the_manifest(tasks_s: float, published: list[tuple[float, str]]) -> None:
    loop = asyncio.get_running_loop()
    roster, desire = make_cell("roster", Roster())
    lifecycles, take_up = make_cell("lifecycles", Lifecycles())
    statuses, publish = make_cell("statuses", Statuses())
    cells = make_cell("observed", Observed({}, 1.0))[0], make_cell("probes", ProbeResults())[0]
    node, runtime = make_cell("node", NodeView("n", "n"))[0], make_cell("runtime", READY_RUNTIME)[0]
    status_loop = StatusLoop(
        StatusInputs(roster, lifecycles, *cells, node, runtime), publish, LoopClock(), SingleFlight("test")
    )
    seen: list[tuple[float, str]] = []

    async def record() -> None:
        async for now in statuses.changes():
            for status in now.pods.values():
                state = status.containerStatuses[0].state
                assert state is not None and state.waiting is not None
                seen.append((round(loop.time() - began, 3), state.waiting.reason))

    async with Supervisor("test") as supervisor:
        supervisor.start_root("status", status_loop.run())
        supervisor.start_root("pods", _take_up(roster, take_up, tasks_s))
        supervisor.start_root("record", record())
        await asyncio.sleep(1)
        began = loop.time()
        desire.publish(Roster({UID: entry(make_pod())}))
        await asyncio.sleep(1)
    assert seen == published


# Pods of the API server

API = make_pod(static=False, meta={"generation": 1})
REPORTED_READY = core.PodStatus(
    phase="Running",
    startTime="2026-01-01T00:00:00Z",
    conditions=(core.PodCondition(type="Ready", status="True", lastTransitionTime="2026-01-01T00:00:05Z"),),
    containerStatuses=(
        core.ContainerStatus(
            name="app",
            ready=True,
            state=core.ContainerState(running=core.ContainerStateRunning(startedAt="2026-01-01T00:00:01Z")),
        ),
    ),
)


def api_entry(pod: core.Pod) -> Any:
    return replace(entry(pod), source="api")


def in_api(status: core.PodStatus) -> core.Pod:
    return replace(API, status=status)


async def test_what_the_api_server_has_is_where_a_new_agent_goes_on(ring: Ring) -> None:
    pod = in_api(REPORTED_READY)
    ring.roster.publish(Roster({UID: api_entry(pod)}))
    before = await ring.settle()
    assert before.pods[UID] is pod.status
    assert before.remembered == {UID}
    await ring.show(lifecycle(pod))
    after = await ring.see(view(running(), read_at=1.0))
    assert not ring.statuses.get().remembered
    assert after.startTime == "2026-01-01T00:00:00Z"
    (ready,) = (c for c in after.conditions if c.type == "Ready")
    assert ready.lastTransitionTime == "2026-01-01T00:00:05Z"


async def test_a_container_that_vanished_while_no_agent_was_there_is_noticed(ring: Ring) -> None:
    pod = in_api(REPORTED_READY)
    ring.roster.publish(Roster({UID: api_entry(pod)}))
    await ring.settle()
    await ring.show(lifecycle(pod))
    (shown,) = (await ring.see(listed_at=2.0)).containerStatuses
    assert shown.lastState is not None and shown.lastState.terminated is not None
    assert shown.lastState.terminated.reason == "ContainerStatusUnknown"


@pytest.mark.parametrize("stage", [None, Stage.SYNCING, Stage.TERMINATED, Stage.FINISHED])
async def test_a_pod_that_has_ended_in_the_api_keeps_the_status_it_has_there(ring: Ring, stage: Stage | None) -> None:
    rejected = core.PodStatus(phase="Failed", reason="OutOfcpu", message="Pod was rejected: no capacity")
    pod = in_api(rejected)
    ring.roster.publish(Roster({UID: api_entry(pod)}))
    ring.observed.publish(Observed({}, 1.0))
    if stage is not None:
        await ring.show(lifecycle(pod, stage))
    assert (await ring.settle()).pods[UID] == rejected


def is_over(status: core.PodStatus) -> bool:
    return all(
        reported.state is not None and reported.state.terminated is not None for reported in status.containerStatuses
    )


async def test_the_end_is_reported_from_what_was_seen_though_all_is_removed_already(ring: Ring) -> None:
    pod = API
    ring.roster.publish(Roster({UID: api_entry(pod)}))
    await ring.show(lifecycle(pod))
    await ring.see(view(running(), read_at=1.0))
    ring.observed.publish(Observed({UID: view(exited(), read_at=2.0)}, 2.0))
    await asyncio.wait_for(ring.statuses.wait_for(lambda now: is_over(now.pods[UID])), 30)
    gone = view(sandboxes=(), read_at=3.0)
    ring.observed.publish(Observed({gone.ref.uid: gone}, 3.0))
    await ring.show(lifecycle(pod, Stage.TERMINATED))
    status = ring.statuses.get().pods[UID]
    assert status.phase == "Succeeded"
    assert status.containerStatuses[0].state is not None
    assert status.containerStatuses[0].state.terminated is not None
    assert status.containerStatuses[0].state.terminated.exitCode == 0
