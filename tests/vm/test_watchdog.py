"""An agent that hangs is replaced by systemd's watchdog, and its pods do not notice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from support.agent import container_status, make_pod
from support.unit import LONG_S, UNIT, WATCHDOG_S, UnitAgent, show

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]


async def test_a_stopped_agent_is_replaced_and_no_container_restarted(make_unit: MakeUnit) -> None:
    agent = make_unit().start()
    agent.put(make_pod("one"), make_pod("two"))
    await agent.wait_running("one", "two", within=LONG_S)
    before = (await agent.look()).running_ids()
    assert len(before) == 2

    old = agent.main_pid()
    os.kill(old, signal.SIGSTOP)
    agent.wait_restarted(old, within=WATCHDOG_S + LONG_S)
    assert int(show(UNIT, "NRestarts")["NRestarts"]) == 1
    for pod in await agent.wait_running("one", "two", within=LONG_S):
        assert container_status(pod)["restartCount"] == 0
    assert (await agent.look()).running_ids() == before
    await agent.remove_all(LONG_S)
    assert agent.stop() == 0
