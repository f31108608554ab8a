"""Pods that are too much for a machine, in output or in probes, each with an agent to itself."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, container_status, make_container, make_pod
from support.beside import others_go_on
from support.gate import MOUNTS, UNTIL_OPEN, Gate

pytestmark = pytest.mark.integration

SHORT = 400_000  # bytes, of a log that may have half a megabyte before it is rotated


def peak_mib(agent: Agent) -> float:
    assert agent.process is not None
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


async def test_a_line_of_100_mb_without_an_end(make_agent: Any, tmp_path: Path) -> None:
    """It is rotated away, its end is reported in short, and the agent's memory does not grow with it."""
    agent = make_agent(containerLogMaxSize="1Mi", containerLogMaxFiles=2, containerLogMonitorInterval="3s").start()
    agent.put(make_pod("bystander"))
    await agent.wait_running("bystander")
    before = peak_mib(agent)
    line, rest = (f"head -c {size} /dev/zero | tr '\\0' x" for size in (100_000_000, 500_000))
    gate = Gate(tmp_path)
    script = f"{line}; touch /gate/stated; {UNTIL_OPEN}; {rest}; exit 1"
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    loud = make_container(script=script, volumeMounts=MOUNTS, **policy)
    agent.put(make_pod("loud", loud, volumes=[gate.volume]))
    await agent.wait_for("all of the line is stated", (tmp_path / "stated").exists, within=90)
    [logs] = agent.logs.glob("*_loud-node_*/main")

    def is_rotated() -> bool:
        has_parts = any(path.name.startswith("0.log.") for path in logs.iterdir())
        with suppress(FileNotFoundError):  # it is not there for the moment between its new name and the next one
            return has_parts and (logs / "0.log").stat().st_size < SHORT
        return False

    await agent.wait_for("the line is rotated away", is_rotated, within=90)
    gate.open()
    pod = await agent.wait_pod("loud", "restarted", lambda pod: container_status(pod)["restartCount"] > 0, within=90)
    ended = container_status(pod)["lastState"]["terminated"]
    assert 0 < len(ended["message"]) <= 4096
    assert set(ended["message"]) <= {"x", "\n"}, ended["message"][-500:]
    await others_go_on(agent, "beside-loud")
    assert peak_mib(agent) < before + 30
    await agent.remove_all()


async def test_more_exec_probes_than_the_machine_can_do_kill_no_container(make_agent: Any) -> None:
    """Probes come late, but a container that is well is never taken for sick. The benchmark does the same with 500,
    and has no figures where one was killed."""
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 3}
    agent = make_agent().start()
    names = [f"crowd-{n}" for n in range(8)]
    for name in names:
        containers = [make_container(f"c{n}", livenessProbe=probe, readinessProbe=probe) for n in range(8)]
        agent.put(make_pod(name, *containers, hostNetwork=True))
    await agent.wait_running(*names, within=400)
    before = (await agent.look()).running_ids()
    await others_go_on(agent, "in-the-crowd")
    pods, logged = agent.pods(), agent.log_text()
    failures = "\n".join(line for line in logged.splitlines() if "probe" in line and 'result="success"' not in line)
    counts = {entry["restartCount"] for name in names for entry in pods[name]["status"]["containerStatuses"]}
    assert counts == {0}, failures
    after = (await agent.look()).running_ids()
    assert before == after
    assert "probe failed" not in logged
    await agent.remove_all(within=200)
