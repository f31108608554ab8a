"""Statuses over a restart of the agent: nothing that was reported goes backwards."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from report.samples import UID, WALL, container, entry, exited, lifecycle, make_pod, running, sandbox, view

from pykubelet.base.api import core
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.cells import Cell, CellWriter, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import Done, Failed, Outcome, SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage, StatusOverride
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.reasons import QUARANTINED
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.report.status import memory
from pykubelet.report.status.loop import StatusInputs, StatusLoop
from pykubelet.report.status.memory import StatusMemory, line_of

T = TypeVar("T")


class AtOnce(SingleFlight):
    """Does its work at once, so that a few iterations of the loop settle everything."""

    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        try:
            return Done(work())
        except HostError as error:
            return Failed(error)


class Slow(SingleFlight):
    """The machine has other things to do first."""

    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        def later() -> T:
            time.sleep(0.3)
            return work()

        return await super().run(key, later, deadline_s)


@dataclass
class Agent:
    """The status package for one run of the agent."""

    roster: CellWriter[Roster]
    lifecycles: CellWriter[Lifecycles]
    observed: CellWriter[Observed]
    statuses: Cell[Statuses]
    clock: ManualClock = field(default_factory=lambda: ManualClock(wall=WALL))

    async def want(self, *pods: core.Pod, ready: bool = True) -> None:
        self.roster.publish(Roster({PodUID(pod.metadata.uid): entry(pod) for pod in pods}, ready))
        await self.settle()

    async def live(self, *lives: PodLifecycle) -> None:
        self.lifecycles.publish(Lifecycles({life.ref.uid: life for life in lives}))
        await self.settle()

    async def see(self, *views: PodView, at: float = 1.0) -> None:
        self.observed.publish(Observed({v.ref.uid: v for v in views}, at))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def reported(self) -> core.PodStatus:
        return self.statuses.get().pods[UID]

    async def wait(self, condition: Callable[[core.PodStatus], bool]) -> core.PodStatus:
        async with asyncio.timeout(30):
            return (await self.statuses.wait_for(lambda now: UID in now.pods and condition(now.pods[UID]))).pods[UID]


@asynccontextmanager
async def agent(
    path: Path, wall: float = WALL, *, in_cluster: bool = True, flight: SingleFlight | None = None
) -> AsyncIterator[Agent]:
    roster, roster_end = make_cell("roster", Roster())
    lifecycles, lifecycles_end = make_cell("lifecycles", Lifecycles())
    observed, observed_end = make_cell("observed", Observed())
    statuses, statuses_end = make_cell("statuses", Statuses())
    inputs = StatusInputs(
        roster,
        lifecycles,
        observed,
        make_cell("probes", ProbeResults())[0],
        make_cell("node", NodeView("n", "n"))[0],
        make_cell("runtime", RuntimeReady(True, "", name="containerd"))[0],
        in_cluster=in_cluster,
    )
    found = Agent(roster_end, lifecycles_end, observed_end, statuses, ManualClock(wall=wall))
    flight = flight or AtOnce("test")
    loop = StatusLoop(inputs, statuses_end, found.clock, flight, StatusMemory(str(path), flight), settle_s=0)
    async with Supervisor("test") as supervisor:
        supervisor.start_root("status", loop.run())
        yield found


async def first_life(path: Path, pod: core.Pod, seen: PodView) -> core.PodStatus:
    async with agent(path) as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(seen)
        return await now.wait(lambda status: status.phase != "Pending")


async def test_until_the_runtime_was_looked_at_the_statuses_of_before_are_reported(tmp_path: Path) -> None:
    pod = make_pod()
    before = await first_life(tmp_path / "s", pod, view(running()))
    async with agent(tmp_path / "s", WALL + 100) as now:
        await now.want(pod)
        assert now.reported == before
        await now.live(lifecycle(pod))
        assert now.reported == before
        await now.see(view(running()))
        assert now.reported == before
        await now.see(view(exited("app", 1), read_at=2.0), at=2.0)
        changed = await now.wait(lambda status: status != before)
    assert changed.startTime == before.startTime
    assert {
        c.type: c.lastTransitionTime == b.lastTransitionTime
        for c, b in zip(changed.conditions, before.conditions, strict=True)
    } == {
        "PodReadyToStartContainers": True,
        "Initialized": True,
        "Ready": False,
        "ContainersReady": False,
        "PodScheduled": True,
    }


async def test_a_pod_that_the_runtime_has_and_could_not_describe_yet_has_not_vanished(tmp_path: Path) -> None:
    pod = make_pod()
    before = await first_life(tmp_path / "s", pod, view(running()))
    async with agent(tmp_path / "s", WALL + 100) as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        now.observed.publish(Observed({}, 1.0, frozenset({view().ref})))
        await now.settle()
        assert now.reported == before
        await now.see(view(running(), read_at=2.0))
        assert now.reported == before


async def test_without_an_api_server_a_pod_starts_when_the_agent_does(tmp_path: Path) -> None:
    pod = make_pod()
    before = await first_life(tmp_path / "s", pod, view(running()))
    async with agent(tmp_path / "s", WALL + 100, in_cluster=False) as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(view(running()))
        assert now.reported.startTime == format_time(WALL + 100)
        assert replace(now.reported, startTime=before.startTime) == before


async def test_of_an_init_container_removed_meanwhile_only_is_reported_that_it_succeeded(tmp_path: Path) -> None:
    pod = make_pod(init=(container("init"),))
    await first_life(tmp_path / "s", pod, view(running(), exited("init")))
    async with agent(tmp_path / "s", WALL + 100) as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(view(running()))
        (init,) = now.reported.initContainerStatuses
        assert init.state is not None and init.state.terminated is not None
        assert (init.state.terminated.reason, init.state.terminated.exitCode) == ("Completed", 0)
        assert "Unable to get init container status" in init.state.terminated.message


@pytest.mark.virtual_time
async def test_a_pod_that_ended_stays_as_it_was(tmp_path: Path) -> None:
    pod = make_pod(restartPolicy="Never")
    async with agent(tmp_path / "s") as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(view(running()))
        await now.see(view(exited(), read_at=2.0), at=2.0)
        await now.live(lifecycle(pod, Stage.TERMINATING, kill_reason=KillReason.COMPLETED))
        await now.wait(lambda status: status.phase == "Succeeded")
        gone = view(exited(), sandboxes=(sandbox(ready=False, ips=()),), read_at=3.0)
        await now.live(lifecycle(pod, Stage.FINISHED, kill_reason=KillReason.COMPLETED))
        await now.see(gone, at=3.0)
        before = now.reported
        assert before.podIP == "10.0.0.9"
    async with agent(tmp_path / "s", WALL + 100) as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(gone)
        await now.wait(lambda status: status.phase == "Succeeded")
        await asyncio.sleep(0.05)
        assert now.reported == before


async def test_a_container_with_a_hook_to_run_again_is_not_shown_as_running_before_its_pod_is_taken_up(
    tmp_path: Path,
) -> None:
    """One that was shown as running, and then not, would count as lost and started again."""
    pod = make_pod()
    hooked = replace(lifecycle(pod), post_starting={"app": 0})
    async with agent(tmp_path / "s") as now:
        await now.want(pod)
        await now.live(hooked)
        await now.see(view(running()))
        before = now.reported.containerStatuses
        assert before[0].state is not None and before[0].state.waiting is not None
    async with agent(tmp_path / "s", WALL + 100) as now:
        await now.want(pod)
        await now.live(replace(lifecycle(pod), has_worker=False))
        await now.see(view(running()))
        assert now.reported.containerStatuses == before
        await now.live(hooked)
        assert now.reported.containerStatuses == before
        await now.live(lifecycle(pod))
        assert (await now.wait(lambda status: status.phase == "Running")).containerStatuses[0].restartCount == 0


async def test_a_pod_that_is_in_quarantine_after_the_restart_has_the_condition(tmp_path: Path) -> None:
    """Nothing is done for it, so it is not taken up."""
    pod = make_pod()
    before = await first_life(tmp_path / "s", pod, view(running()))
    wait = Wait("end of quarantine", Owner.POD_SOURCES, WALL, reason=QUARANTINED, detail="the agent has ended 2 times")
    async with agent(tmp_path / "s", WALL + 100) as now:
        now.roster.publish(Roster({UID: replace(entry(pod), admission_wait=wait)}, True))
        await now.live(replace(lifecycle(pod), has_worker=False, quarantine=wait.detail))
        await now.see(view(running()))
        (condition,) = [condition for condition in now.reported.conditions if condition.type == "pykubelet/Quarantined"]
        assert (condition.status, condition.reason) == ("True", "Quarantined")
        assert now.reported.containerStatuses == before.containerStatuses


async def test_what_vanished_while_the_agent_was_away_is_noticed(tmp_path: Path) -> None:
    pod = make_pod()
    await first_life(tmp_path / "s", pod, view(running()))
    async with agent(tmp_path / "s") as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see()
        (found,) = now.reported.containerStatuses
        assert found.lastState is not None
        assert found.lastState.terminated is not None
        assert (found.lastState.terminated.reason, found.restartCount) == ("ContainerStatusUnknown", 1)


async def test_an_end_that_the_runtime_knows_nothing_of_does_not_hold_a_new_life_back(tmp_path: Path) -> None:
    pod = make_pod(restartPolicy="Never")
    async with agent(tmp_path / "s") as now:
        await now.want(pod)
        await now.live(lifecycle(pod, Stage.TERMINATING, kill_reason=KillReason.COMPLETED))
        await now.see(view(exited("app", 1)))
        await now.wait(lambda status: status.phase == "Failed")
    async with agent(tmp_path / "s") as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see()
        assert now.reported.phase == "Pending"


async def test_a_pod_put_back_while_the_agent_was_away_begins_anew(tmp_path: Path) -> None:
    """Its end was reported, its containers are still there, and it is wanted again: nothing about it has ended."""
    pod = make_pod()
    async with agent(tmp_path / "s") as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(view(running()))
        override = StatusOverride("Failed", "DeadlineExceeded", "too long")
        await now.live(lifecycle(pod, Stage.FINISHED, kill_reason=KillReason.DEADLINE, override=override))
        await now.wait(lambda status: status.phase == "Failed")
    async with agent(tmp_path / "s") as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(view(exited("app", 143)))
        await now.wait(lambda status: status.phase == "Running")
        await now.see(view(running(number=1), read_at=3.0), at=3.0)
        assert (now.reported.phase, now.reported.reason) == ("Running", "")


async def test_a_pod_that_is_put_back_under_the_same_uid_begins_anew(tmp_path: Path) -> None:
    pod = make_pod(restartPolicy="Never")
    async with agent(tmp_path / "s") as now:
        await now.want(pod)
        await now.live(lifecycle(pod, Stage.TERMINATED, kill_reason=KillReason.REMOVED))
        await now.see(view(exited("app", 1)))
        await now.wait(lambda status: status.phase == "Failed")
        now.clock.advance(1.0)
        await now.live(lifecycle(pod))
        assert now.reported.phase == "Pending"
        newer = now.clock.monotonic() + 1
        await now.see(view(running(number=1), read_at=newer), at=newer)
        assert now.reported.phase == "Running"


async def test_pods_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    await first_life(tmp_path / "s", make_pod(), view(running()))
    async with agent(tmp_path / "s") as now:
        await now.want(ready=False)
        await now.see()
        await now.want(ready=True)
        assert now.statuses.get().pods == {}
        await now.see(at=11.0)
    assert StatusMemory(str(tmp_path / "s"), SingleFlight("test")).load() == {}


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:40],
    "cut at its end": lambda data: data[:-20],
    "without its last line end": lambda data: data[:-1],
    "zeros": lambda data: b"\x00" * 99,
    "other data": lambda data: b"\xff\n\n12345678 {}\n",
    "one bit": lambda data: bytes(byte ^ (n == 30) for n, byte in enumerate(data)),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_damaged_file_costs_no_more_than_memory(tmp_path: Path, name: str) -> None:
    pod = make_pod()
    await first_life(tmp_path / "s", pod, view(running()))
    (tmp_path / "s").write_bytes(DAMAGES[name]((tmp_path / "s").read_bytes()))
    async with agent(tmp_path / "s") as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(view(running()))
        assert now.reported.phase == "Running"
    assert StatusMemory(str(tmp_path / "s"), SingleFlight("test")).load() == {UID: now.reported}


async def test_only_the_damaged_line_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pykubelet").propagate = True
    path = tmp_path / "s"
    lines = [line_of(PodUID(f"uid-{n}"), core.PodStatus(phase="Running")) for n in range(3)]
    path.write_bytes(lines[0] + lines[1][:25] + b"\n" + lines[2])
    found = StatusMemory(str(path), SingleFlight("test")).load()
    assert set(found) == {"uid-0", "uid-2"}
    assert [r.getMessage() for r in caplog.records] == ["a part of the statuses of the previous run cannot be used"]


def has_restarted(times: int, status: core.PodStatus) -> bool:
    return status.containerStatuses[0].restartCount == times


@pytest.mark.parametrize("flight", [SingleFlight("test"), Slow("test")], ids=["quick", "slow"])
async def test_what_is_reported_is_in_the_journal_already(
    tmp_path: Path, flight: SingleFlight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SAVE_DEADLINE_S", 60.0)  # the disk answers, whenever the machine has time for it
    pod = make_pod()
    async with agent(tmp_path / "s", flight=flight) as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        for number in range(1, 6):
            await now.see(view(running(number=number), read_at=number + 1), at=number + 1)
            await now.wait(partial(has_restarted, number))
            kept = StatusMemory(str(tmp_path / "s"), SingleFlight("test")).load()
            assert has_restarted(number, kept[UID])


async def test_a_disk_that_does_not_answer_holds_back_no_news(tmp_path: Path) -> None:
    path, pod = tmp_path / "s", make_pod()
    async with agent(path, flight=SingleFlight("test")) as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(view(running()))
        await now.wait(lambda status: status.phase == "Running")
        path.unlink()
        os.mkfifo(path)  # whoever opens it to write waits for a reader
        for number in range(1, 4):
            await now.see(view(running(number=number), read_at=number + 1), at=number + 1)
            await now.wait(partial(has_restarted, number))
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


@pytest.mark.virtual_time
async def test_what_could_not_be_kept_is_kept_at_the_next_full_look(tmp_path: Path) -> None:
    path, pod = tmp_path / "s", make_pod()
    async with agent(path, flight=SingleFlight("test")) as now:
        path.mkdir()  # no file can be written here
        await now.want(pod)
        await now.live(lifecycle(pod))
        await now.see(view(running()))
        await now.wait(lambda status: status.phase == "Running")
        path.rmdir()
        await now.see(view(running()), at=7.0)
        for _ in range(3000):
            if path.exists() and StatusMemory(str(path), SingleFlight("test")).load():
                break
            await asyncio.sleep(0.01)
    assert StatusMemory(str(path), SingleFlight("test")).load() == {UID: now.reported}


async def test_the_journal_does_not_grow_for_ever(tmp_path: Path) -> None:
    memory = StatusMemory(str(tmp_path / "s"), SingleFlight("test"), rewrite_bytes=2000)
    largest = 0
    for number in range(200):
        pods = {UID: core.PodStatus(message=f"{number}" * 10)}
        await memory.keep(pods)
        largest = max(largest, (tmp_path / "s").stat().st_size)
    assert 1000 < largest < 3000
    assert StatusMemory(str(tmp_path / "s"), SingleFlight("test")).load() == pods


async def test_a_disk_that_refuses_is_reported_once_and_harms_no_pod(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pykubelet.status")
    logging.getLogger("pykubelet").propagate = True
    (tmp_path / "file").write_text("no directory")
    pod = make_pod()
    async with agent(tmp_path / "file" / "s") as now:
        await now.want(pod)
        await now.live(lifecycle(pod))
        for number in range(3):
            await now.see(view(running(number=number), read_at=number + 1), at=number + 1)
            await now.wait(partial(has_restarted, number))
        assert now.reported.phase == "Running"
    lines = [r.getMessage() for r in caplog.records if r.name == "pykubelet.status"]
    assert lines == ["the statuses of pods cannot be kept over a restart"]


async def test_a_journal_without_a_version_is_read_and_gets_one(tmp_path: Path) -> None:
    """The first releases wrote none."""
    path = tmp_path / "pod_statuses"
    path.write_bytes(line_of(UID, core.PodStatus(phase="Running")))
    kept = StatusMemory(str(path), AtOnce("test"))
    found = kept.load()
    assert found == {UID: core.PodStatus(phase="Running")}
    await kept.keep(found)
    assert path.read_bytes() == b"pykubelet-statuses 1\n" + line_of(UID, found[UID])


async def test_after_removals_a_status_that_is_new_or_back_is_still_written(tmp_path: Path) -> None:
    """Removed pods alone cause no write."""
    journal = StatusMemory(str(tmp_path / "statuses"), AtOnce("test"))
    names = [PodUID(f"u{number}") for number in range(4)]
    pods = {uid: core.PodStatus(phase="Running") for uid in names}
    assert journal.lacks(pods)
    await journal.keep(pods)
    for left in (names[1:], names[2:]):
        pods = {uid: pods[uid] for uid in left}
        assert not journal.lacks(pods)
        assert journal.is_behind(pods)
    ended = {**pods, names[2]: core.PodStatus(phase="Failed")}
    assert journal.lacks(ended)
    back = {**pods, names[0]: core.PodStatus(phase="Pending")}
    assert journal.lacks(back)
    await journal.keep(back)
    assert not journal.lacks(back)
    assert StatusMemory(str(tmp_path / "statuses"), AtOnce("test")).load() == back
