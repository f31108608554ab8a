"""Results over a restart of the agent: what is written down, and what comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pykubelet.base.api.core import ContainerState, ContainerStateRunning, ContainerStatus, PodStatus
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import Flight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults
from pykubelet.observe.probes.decide import Kept
from pykubelet.observe.probes.memory import ProbeMemory

SUCCESS, FAILURE = ProbeResult.SUCCESS, ProbeResult.FAILURE
C1, C2 = ContainerID("c1"), ContainerID("c2")


async def write(path: Path, *snapshots: ProbeResults) -> None:
    cell, writer = make_cell("probes", ProbeResults())
    async with Supervisor("test") as supervisor:
        supervisor.start_root("memory", ProbeMemory(str(path), Flight("test")).run(cell))
        for snapshot in snapshots:
            writer.publish(snapshot)
            await asyncio.sleep(0.1)


async def test_what_had_succeeded_comes_back(tmp_path: Path) -> None:
    results = {
        (C1, ProbeKind.STARTUP): SUCCESS,
        (C1, ProbeKind.READINESS): SUCCESS,
        (C1, ProbeKind.LIVENESS): SUCCESS,
        (C2, ProbeKind.READINESS): FAILURE,
    }
    path = tmp_path / "probe_results"
    await write(path, ProbeResults(results))
    assert ProbeMemory(str(path), Flight("test")).load() == {C1: Kept(SUCCESS, SUCCESS), C2: Kept()}


async def test_nothing_is_known_without_a_file_or_with_a_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "probe_results"
    memory = ProbeMemory(str(path), Flight("test"))
    assert memory.load() == {}
    path.write_bytes(b"garbage")
    assert memory.load() == {}
    await write(path, ProbeResults({(C1, ProbeKind.READINESS): SUCCESS}))
    assert memory.load() == {C1: Kept(readiness=SUCCESS)}


async def test_a_disk_that_refuses_does_not_end_the_agent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "probe_results"
    await write(path, ProbeResults({(C1, ProbeKind.READINESS): SUCCESS}))
    assert ProbeMemory(str(path), Flight("test")).load() == {}


def test_what_was_told_ready_had_succeeded(tmp_path: Path) -> None:
    def told(name: str, container: str, **fields: Any) -> ContainerStatus:
        state = ContainerState(running=ContainerStateRunning(startedAt="2026-01-01T00:00:00Z"))
        return ContainerStatus(name=name, containerID=f"containerd://{container}", **{"state": state, **fields})

    statuses = (
        told("ready", C1, started=True, ready=True),
        told("slow", C2, started=True, ready=False),
        told("over", "c3", started=False, ready=False, state=ContainerState()),
    )
    memory = ProbeMemory(str(tmp_path / "probe_results"), Flight("test"))
    found = memory.load([PodStatus(containerStatuses=statuses)])
    assert found == {C1: Kept(SUCCESS, SUCCESS), C2: Kept(SUCCESS, None)}
