"""`--runonce` without a machine: it always ends, and prints what was wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from report.samples import UID, entry, exited, make_pod, running, view

from pykubelet.app.once import OnceCells, run_once
from pykubelet.base.api import core
from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import ContainerEnd, Observed
from pykubelet.base.model.roster import ManifestProblem, Roster
from pykubelet.base.model.statuses import Statuses

pytestmark = pytest.mark.virtual_time


def cells() -> tuple[OnceCells, CellWriter[Roster]]:
    roster, writer = make_cell("roster", Roster())
    return OnceCells(roster, make_cell("observed", Observed())[0], make_cell("statuses", Statuses())[0]), writer


def container(**state: Any) -> core.PodStatus:
    entry = core.ContainerStatus(name="app", image="i", state=core.ContainerState(**state))
    return core.PodStatus(phase="Running", containerStatuses=(entry,))


async def test_an_end_that_was_heard_of_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the runtime's status may come long after the word that a container has ended."""
    monkeypatch.setattr("pykubelet.app.once.SETTLE_S", 0.01)
    pod = make_pod()
    observed, seen = make_cell("observed", Observed())
    statuses, publisher = make_cell("statuses", Statuses({UID: container(running=core.ContainerStateRunning())}))
    ended = view(running()).add_pending_exits((ContainerEnd(ContainerID("app-0"), exit_code=3, finished_at=1),))
    seen.publish(Observed({UID: ended}, 1.0))
    roster = make_cell("roster", Roster({UID: entry(pod)}, True, silent=()))[0]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        code = group.create_task(run_once(OnceCells(roster, observed, statuses)))
        await asyncio.sleep(0.1)
        assert not code.done()
        publisher.publish(
            Statuses({UID: container(terminated=core.ContainerStateTerminated(exitCode=3, reason="Error"))})
        )
        seen.publish(Observed({UID: view(exited(code=3))}, 2.0))
    assert code.result() == 1
    assert capsys.readouterr().out == "default/web\tfailed\tapp: exit code 3 (Error)\n"


async def test_a_source_that_reports_nothing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    reading, roster = cells()
    roster.publish(Roster(missing=("http",), silent=("http",)))
    assert await run_once(reading, timeout_s=0.05) == 1
    assert capsys.readouterr().out == "source http\ttimed out\thas not delivered its pods\n"


async def test_a_source_that_reports_why_it_has_no_pods_is_not_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pykubelet.app.once.SETTLE_S", 0.0)
    reading, roster = cells()
    wrong = ManifestProblem("http://127.0.0.1:1/pods", "", "connection refused")
    roster.publish(Roster(problems=(wrong,), missing=("http",), silent=()))
    assert await run_once(reading, timeout_s=60) == 1
    assert capsys.readouterr().out == "http://127.0.0.1:1/pods\tfailed\tconnection refused\n"


async def test_without_any_word_from_the_roster_it_ends_too(capsys: pytest.CaptureFixture[str]) -> None:
    reading, _ = cells()
    assert await run_once(reading, timeout_s=0.05) == 1
    assert capsys.readouterr().out == "pod sources\ttimed out\tnothing is known of them\n"
