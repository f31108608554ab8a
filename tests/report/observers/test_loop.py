"""The notifications of an observer, with a double of the process in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from act.pods.scenes import pod
from support.extension_process import FakeChannel, FakeProgram
from support.virtual_time import virtual_clock

from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.plugins.extension_process import ExtensionProcess
from pykubelet.report.observers.loop import ObserverLoop

pytestmark = pytest.mark.virtual_time
UID = PodUID("u")
WEB = PodLifecycle(PodRef("shop", "web", UID), pod(), Stage.SYNCING, 1_700_000_000.5, 1_700_000_000.0)
NAMED = {"metadata": {"namespace": "shop", "name": "web", "uid": "u"}}


class Observed:
    """A running observer."""

    def __init__(self, process: ExtensionProcess, program: FakeProgram) -> None:
        self.process = process
        self.program = program
        self.lifecycles: CellWriter[Lifecycles]
        self.statuses: CellWriter[Statuses]
        _, self.lifecycles = make_cell("lifecycles", Lifecycles())
        _, self.statuses = make_cell("statuses", Statuses())

    def is_so(self, *lives: PodLifecycle) -> None:
        self.lifecycles.publish(Lifecycles({life.ref.uid: life for life in lives}))

    async def got(self, channel: FakeChannel | None = None) -> list[dict[str, Any]]:
        """The notifications until now."""
        await asyncio.sleep(0.1)
        return (channel or self.program.runs[0]).got[1:]


@asynccontextmanager
async def observer(*offers: str) -> AsyncIterator[Observed]:
    program, clock = FakeProgram(offers), virtual_clock()
    process = program.process(clock)
    made = Observed(process, program)
    async with Supervisor("test") as tasks:
        tasks.start_root("process", process.run())
        tasks.start_root("observer", ObserverLoop(process, made.lifecycles.cell, made.statuses.cell, clock).run())
        await process.state.wait_for(lambda state: state.is_running)
        yield made


def transition(stage: str, at: str, reason: str = "") -> dict[str, Any]:
    return {"transition": {"pod": NAMED, "stage": stage, "at": at, "reason": reason}}


async def test_stages_and_statuses_are_sent_when_they_change() -> None:
    async with observer("observer") as made:
        made.is_so(WEB)
        made.statuses.publish(Statuses({UID: PodStatus(phase="Pending")}))
        assert await made.got() == [
            transition("syncing", "2023-11-14T22:13:20.500000Z"),
            {"status": {"pod": NAMED, "status": {"phase": "Pending"}}},
        ]
        made.is_so(replace(WEB, terminal=True))  # the same stage
        made.is_so(replace(WEB, stage=Stage.TERMINATING, stage_since=1_700_000_001.0, kill_reason=KillReason.REMOVED))
        assert (await made.got())[2:] == [transition("terminating", "2023-11-14T22:13:21.000000Z", "removed")]
        made.is_so()
        (gone,) = (await made.got())[3:]
        assert (gone["transition"]["pod"], gone["transition"]["stage"]) == (NAMED, "gone")


async def test_a_restarted_process_gets_all_pods_again() -> None:
    async with observer("observer") as made:
        made.is_so(WEB)
        made.statuses.publish(Statuses({UID: PodStatus(phase="Running")}))
        assert len(await made.got()) == 2
        made.program.runs[0].fail("it has ended")
        second = await made.program.started(2)
        assert await made.got(second) == await made.got()


async def test_what_a_process_does_not_read_is_lost_and_nothing_waits() -> None:
    async with observer("observer") as made:
        made.program.runs[0].is_deaf = True
        made.is_so(WEB)
        assert await made.got() == []
        made.program.runs[0].is_deaf = False
        made.is_so(replace(WEB, stage=Stage.TERMINATED))
        assert [sent["transition"]["stage"] for sent in await made.got()] == ["terminated"]


async def test_a_process_that_does_not_offer_it_is_not_notified() -> None:
    async with observer("need") as made:
        made.is_so(WEB)
        assert await made.got() == []
