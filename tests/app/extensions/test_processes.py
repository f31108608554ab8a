"""Process extensions as users see them: their states and Events."""

from __future__ import annotations

import asyncio

import pytest
from support.extension_process import FakeProgram
from support.virtual_time import virtual_clock

from pykubelet.app.extensions.guard import Board
from pykubelet.app.extensions.processes import ENDED, STARTING, show_state
from pykubelet.base.kit.cells import Sink, make_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.extensions import ExtensionStates
from pykubelet.base.model.kube_events import KubeEvent

pytestmark = pytest.mark.virtual_time


async def test_the_state_is_shown_and_a_failure_is_an_event_once() -> None:
    program, clock = FakeProgram(("need", "observer")), virtual_clock()
    process = program.process(clock)
    cell, writer = make_cell("extensions", ExtensionStates())
    posts: Sink[KubeEvent] = Sink()

    async def shown() -> tuple[str, str, tuple[str, ...]]:
        await asyncio.sleep(0.5)
        (state,) = cell.get().extensions
        assert (state.name, state.file) == ("ext", "/opt/ext.py")
        return state.off, state.error, state.points

    async with Supervisor("test") as tasks:
        tasks.start_root("state", show_state(process, "/opt/ext.py", Board(writer, posts, clock)))
        assert await shown() == (STARTING, "", ())
        tasks.start_root("process", process.run())
        assert await shown() == ("", "", ("need", "observer"))
        assert cell.get().extensions[0].version == "protocol 1.0"
        program.broken = "no such file or directory"
        program.runs[0].fail("it has ended: signal 9")
        assert await shown() == (ENDED, "it has ended: signal 9", ("need", "observer"))
        await asyncio.sleep(60)
        assert (await shown())[:2] == (ENDED, "exec /opt/ext: no such file or directory")
        assert [(event.reason, event.message, event.pod) for event in posts.events] == [
            ("ExtensionFailed", "Extension ext: it has ended: signal 9", None),
            ("ExtensionFailed", "Extension ext: exec /opt/ext: no such file or directory", None),
        ]
        program.broken = ""
        await process.state.wait_for(lambda state: state.is_running)
        assert (await shown())[:2] == ("", "exec /opt/ext: no such file or directory")  # the last failure
