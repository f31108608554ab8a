"""An agent that hangs is replaced by systemd's watchdog, and its pods do not notice. The next one is not ended by the same pod."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import pytest
from support.agent import condition, container_status, make_container, make_pod
from support.blocking import LAUNCHER
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


async def test_a_pod_that_blocks_the_agent_ends_it_twice_and_not_more(make_unit: MakeUnit) -> None:
    agent = make_unit()
    agent.launcher = (sys.executable, str(LAUNCHER))
    agent.environment = {"PYKUBELET_BLOCK": "compute", "PYKUBELET_BLOCK_AT": "act/pods/decide.py step blocks-it"}
    agent.start()
    agent.put(make_pod("good"), make_pod("bad", make_container("blocks-it")))
    await agent.wait_for(
        "two ends", lambda: int(show(UNIT, "NRestarts")["NRestarts"]) >= 2, within=2 * (WATCHDOG_S + LONG_S)
    )
    await agent.wait_running("good", within=LONG_S)
    await agent.wait_pod("bad", "quarantined", lambda pod: condition(pod, "pykubelet/Quarantined") == "True", LONG_S)
    assert int(show(UNIT, "NRestarts")["NRestarts"]) == 2
    log = agent.log_text()
    for line in (
        "the event loop is blocked",
        "the event loop is still blocked",
        "the stacks at the end of the last run",
    ):
        assert line in log, line
    assert "task pod-" in log and " compute" in log, "the stacks of tasks, and of the thread that was blocked"
    assert "Aborted" in log
    await agent.remove_all(LONG_S)
    assert agent.stop() == 0
