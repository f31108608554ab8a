"""A pod that has ended the agent twice is not worked on for a time; all other pods are."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.agent import Json, condition, make_container, make_pod
from support.blocking import BlockingAgent
from testbed import host
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration

#: Functions that every pod passes: its manifest is decoded, its worker decides, its status is made.
DECODE, DECIDE, STATUS = "sources/decode.py _decode_pod", "act/pods/decide.py step", "status/project.py project_status"
_numbers = iter(range(1, 10_000))


@pytest.fixture
async def agent(testbed: Testbed) -> AsyncIterator[BlockingAgent]:
    made = BlockingAgent(testbed, Path(testbed.folder) / f"quarantine-{next(_numbers)}")
    yield made
    await made.clear()


def spell(agent: BlockingAgent) -> None:
    """Wait until work for the pod has begun."""
    before = agent.blocks()
    agent.start(wait=False)
    assert host.wait_until(lambda: agent.blocks() > before, 60), agent.log_tail()


def end(agent: BlockingAgent, number: signal.Signals = signal.SIGTERM) -> int:
    agent.signal(number)
    code = agent.wait()
    agent.process = None
    return code


def wait_blamed(agent: BlockingAgent) -> None:
    """Wait until the event loop has been blocked for longer than needed to blame a pod."""
    count = agent.log_text().count("the event loop is blocked")
    assert host.wait_until(lambda: agent.log_text().count("the event loop is blocked") > count, 60), agent.log_tail()
    time.sleep(4)


def waits(agent: BlockingAgent, pod: str) -> list[Json]:
    found: list[Json] = agent.explain(pod)["waits"]
    return found


async def test_a_pod_that_blocks_the_event_loop(agent: BlockingAgent) -> None:
    agent.put(make_pod("bad", make_container(command=["sleep", "1001"])))
    agent.start()
    await agent.wait_running("bad")
    before = (await agent.look()).running_ids()
    assert agent.stop() == 0
    agent.put(make_pod("good"))

    agent.block_at("compute", DECIDE, "'1001'")
    for _ in range(2):
        spell(agent)
        wait_blamed(agent)
        assert end(agent) != 0
    agent.start()
    await agent.wait_running("good")
    bad = await agent.wait_pod("bad", "quarantined", lambda pod: condition(pod, "pykubelet/Quarantined") == "True")
    assert bad["status"]["phase"] == "Running" and condition(bad, "Ready") == "True"
    (wait,) = waits(agent, "bad")
    assert wait["reason"] == "Quarantined" and "its event loop was blocked for" in wait["detail"]
    assert 500 < wait["next_at"] - time.time() <= 600
    assert "Quarantined" in agent.ask("pods").stdout
    assert "Quarantined" in {line.get("event") for line in agent.explain("bad")["timeline"]}
    code, text = agent.get("/metrics", agent.read_only_port)
    assert code == 200 and "\npykubelet_quarantined 1\n" in text
    running = (await agent.look()).running_ids()
    assert {name: running.get(name) for name in before} == before, "its container is left alone"

    agent.put(make_pod("bad", make_container(command=["sleep", "1002"])))
    await agent.wait_for("the changed pod runs", lambda: "1002" in json.dumps(agent.pods().get("bad", {})))
    await agent.wait_running("bad")
    await agent.wait_for("the one before it is gone", lambda: isinstance(agent.explain("bad"), dict))
    assert waits(agent, "bad") == []
    await agent.remove_all()
    assert agent.stop() == 0


async def test_a_pod_in_quarantine_is_ended_when_it_is_removed(agent: BlockingAgent) -> None:
    agent.put(make_pod("bad", make_container(command=["sleep", "1001"])))
    agent.start()
    await agent.wait_running("bad")
    assert agent.stop() == 0
    agent.block_at("fault", STATUS, "'1001'")
    for _ in range(2):
        spell(agent)
        assert agent.wait() == -signal.SIGSEGV
        agent.process = None
    agent.start()
    await agent.wait_pod("bad", "quarantined", lambda pod: condition(pod, "pykubelet/Quarantined") == "True")
    agent.remove("bad")
    await agent.wait_gone("bad")
    assert agent.stop() == 0


async def test_a_manifest_that_ends_the_agent_when_it_is_read(agent: BlockingAgent) -> None:
    agent.put(make_pod("bad", make_container(command=["sleep", "1001"])), make_pod("good"))
    agent.block_at("fault", DECODE, "'1002'")
    agent.start()
    await agent.wait_running("bad", "good")
    before = (await agent.look()).running_ids()
    agent.put(make_pod("bad", make_container(command=["sleep", "1002"])))
    assert agent.wait(60) == -signal.SIGSEGV
    agent.process = None
    spell(agent)
    assert agent.wait() == -signal.SIGSEGV
    agent.process = None
    agent.start()
    await agent.wait_running("good")
    assert "Segmentation fault" in agent.log_text(), "the stacks of the last run"
    shown = agent.ask("pods").stdout
    assert "bad.json: in quarantine: the agent has ended 2 times" in shown
    await asyncio.sleep(3)
    assert (await agent.look()).running_ids() == before, "the pod of the earlier manifest is left alone"
    agent.put(make_pod("bad", make_container(command=["sleep", "1003"])))
    await agent.wait_for("the changed pod is desired", lambda: "1003" in json.dumps(agent.pods().get("bad", {})))
    await agent.wait_running("bad")
    await agent.remove_all()
    assert agent.stop() == 0


async def test_c_code_that_keeps_the_interpreters_lock(agent: BlockingAgent) -> None:
    agent.put(make_pod("bad", make_container(command=["sleep", "1001"])), make_pod("good"))
    agent.block_at("deadlock", DECIDE, "'1001'")
    for _ in range(2):
        spell(agent)
        await asyncio.sleep(6)
        assert end(agent, signal.SIGABRT) == -signal.SIGABRT  # as the watchdog does
    agent.start()
    await agent.wait_running("good")
    (wait,) = waits(agent, "bad")
    assert "it was aborted after" in wait["detail"]
    assert "Fatal Python error: Aborted" in agent.log_text() and " deadlock" in agent.log_text()
    await agent.remove_all()
    assert agent.stop() == 0


async def test_a_bug_that_ends_a_root_task(agent: BlockingAgent) -> None:
    agent.put(make_pod("bad", make_container(command=["sleep", "1001"])), make_pod("good"))
    agent.block_at("fail", STATUS, "'1001'")
    for _ in range(2):
        spell(agent)
        assert agent.wait() == 1
        agent.process = None
    agent.start()
    await agent.wait_running("good")
    (wait,) = waits(agent, "bad")
    assert "ZeroDivisionError" in wait["detail"]
    await agent.remove_all()
    assert agent.stop() == 0


#: Where the agent works on one pod without waiting: functions that each pod passes before it runs.
PLACES = (
    "roster/admission.py demand_of",
    "volumes/decide_mounts.py _advance",
    "render/render_config.py render_sandbox",
    "render/render_config.py render_container",
    "probes/plan_workers.py plan_workers",
    "status/decide.py plan_status",
)


@pytest.mark.parametrize("place", PLACES)
async def test_wherever_a_pod_ends_the_agent_it_is_charged(agent: BlockingAgent, place: str) -> None:
    agent.block_at("fault", place, "")
    agent.start()
    agent.put(make_pod("bad"))
    assert agent.wait(60) == -signal.SIGSEGV, place
    agent.process = None
    agent.environment.clear()
    agent.start()
    await agent.wait_running("bad")
    uid = agent.pods()["bad"]["metadata"]["uid"]
    assert f'charged to a pod" logger="app" key="{uid}"' in agent.log_text()
    await agent.remove_all()
    assert agent.stop() == 0


async def test_kills_from_outside_are_not_charged(agent: BlockingAgent) -> None:
    """The agent is at work for the pod each time, and is not in its way."""
    agent.put(make_pod("innocent", make_container(command=["sleep", "1001"])))
    agent.block_at("compute_for:2", DECIDE, "'1001'")
    for _ in range(4):
        spell(agent)
        assert end(agent, signal.SIGKILL) == -signal.SIGKILL
    assert not (agent.root / "quarantine").exists()
    agent.environment.clear()
    agent.start()
    await agent.wait_running("innocent")
    assert "did not end in order" in agent.log_text() and "charged" not in agent.log_text()
    await agent.remove_all()
    assert agent.stop() == 0


async def test_a_pod_that_uses_up_the_memory(agent: BlockingAgent) -> None:
    """The kernel ends the agent, in a memory cgroup of its own."""
    group = f"/{agent.testbed.name}/{agent.folder.name}-memory"
    agent.put(make_pod("good"))
    agent.block_at("eat", DECIDE, "'1001'")
    try:
        for _ in range(2):
            agent.remove(*(["bad"] if (agent.manifests / "bad.json").exists() else []))
            agent.start()
            assert agent.process is not None
            host.enter_cgroup(group, agent.process.pid)
            limit_memory(group, 400 << 20)
            agent.put(make_pod("bad", make_container(command=["sleep", "1001"])))
            assert agent.wait(60) == -signal.SIGKILL
            agent.process = None
        agent.start()
        await agent.wait_running("good")
        (wait,) = waits(agent, "bad")
        assert "of memory" in wait["detail"]
        await agent.remove_all()
        assert agent.stop() == 0
    finally:
        agent.kill9()
        host.remove_cgroup(group)


def limit_memory(group: str, size: int) -> None:
    files = [
        root / group.strip("/") / name
        for root in host.hierarchies()
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    for file in files:
        if file.exists():
            file.write_text(str(size))
