"""`--runonce` without a machine: it always ends, and says what was wrong."""

from __future__ import annotations

import pytest

from pykubelet.app.once import OnceCells, run_once
from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.roster import ManifestProblem, Roster
from pykubelet.base.model.statuses import Statuses


def cells() -> tuple[OnceCells, CellWriter[Roster]]:
    roster, writer = make_cell("roster", Roster())
    return OnceCells(roster, make_cell("lifecycles", Lifecycles())[0], make_cell("statuses", Statuses())[0]), writer


async def test_a_source_that_says_nothing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    reading, roster = cells()
    roster.publish(Roster(missing=("http",), silent=("http",)))
    assert await run_once(reading, timeout_s=0.05) == 1
    assert capsys.readouterr().out == "source http\ttimed out\thas not told its pods\n"


async def test_a_source_that_tells_why_it_has_no_pods_is_not_waited_for(
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
