"""Asking the node: health and read-only ports, `pykubelet pods`, `pykubelet explain`."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest
from support.agent import PROGRAM, Agent, Json, make_container, make_pod, waiting_reason

pytestmark = pytest.mark.integration


def run_program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def pods(agent: Agent) -> None:
    agent.put(
        make_pod("web", make_container("one"), make_container("two")),
        make_pod("stuck", make_container(image="localhost/missing:1")),
        make_pod("crash", make_container(script="exit 3")),
        make_pod("done", make_container(script="exit 0"), restartPolicy="Never"),
    )


async def test_the_pods_as_a_table_and_as_json(agent: Agent, pods: None) -> None:
    await agent.wait_running("web")
    await agent.wait_phase("done", "Succeeded")
    await agent.wait_pod("stuck", "stuck", lambda pod: waiting_reason(pod) == "ErrImageNeverPull")
    await agent.wait_pod("crash", "held", lambda pod: waiting_reason(pod) == "CrashLoopBackOff")
    expected = {
        "web-node": ("2/2", "Running"),
        "stuck-node": ("0/1", "ErrImageNeverPull"),
        "crash-node": ("0/1", "CrashLoopBackOff"),
        "done-node": ("0/1", "Completed"),
    }

    def reported() -> dict[str, Json] | None:
        found = {pod["name"]: pod for pod in agent.ask_json("pods")["pods"]}
        return found if {name: (pod["ready"], pod["status"]) for name, pod in found.items()} == expected else None

    found = await agent.wait_for("all are reported", reported)  # one that crashes runs for a moment now and then
    assert found["crash-node"]["restarts"] >= 1 and found["web-node"]["restarts"] == 0
    assert found["crash-node"]["namespace"] == "default"

    def table() -> list[str]:
        return agent.ask("pods").stdout.splitlines()

    lines = await agent.wait_for(
        "the table reports it", lambda: "CrashLoopBackOff" in "".join((t := table())[1:2]) and t
    )
    assert len(lines) == 5
    assert [line.split()[1] for line in lines[1:]] == ["crash-node", "done-node", "stuck-node", "web-node"]


async def test_a_pod_is_explained(agent: Agent, pods: None) -> None:
    await agent.wait_pod("stuck", "stuck", lambda pod: waiting_reason(pod) == "ErrImageNeverPull")
    reported = agent.explain("stuck")
    [wait] = [
        wait for wait in reported["waits"] if wait["what"] == "container start"
    ]  # beside what a try just waits for
    assert wait["subject"] == "main" and wait["reason"] == "ErrImageNeverPull" and wait["owner"] and wait["since"] > 0
    assert reported["timeline"]
    text = agent.ask("explain", "stuck-node").stdout
    assert "ErrImageNeverPull" in text and wait["owner"] in text
    for name in ("stuck-node", "default/stuck-node", reported["uid"][:12]):
        assert agent.ask("explain", name).returncode == 0


async def test_who_is_not_there(agent: Agent, pods: None, tmp_path: Path) -> None:
    answer = agent.ask("explain", "missing")
    assert answer.returncode == 1 and "missing" in answer.stderr and not answer.stdout
    alone = run_program("pods", "--root-dir", str(tmp_path))
    assert alone.returncode == 1 and str(tmp_path) in alone.stderr and "Traceback" not in alone.stderr
    wrong = run_program("pods", "-o", "xml")
    assert wrong.returncode != 0 and "xml" in wrong.stderr


async def test_only_root_may_ask(agent: Agent) -> None:
    [path] = list(agent.root.glob("*.sock"))
    mode = path.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600 and path.stat().st_uid == 0


async def test_the_ports(agent: Agent, pods: None) -> None:
    for port in (agent.health_port, agent.read_only_port):
        assert agent.get("/healthz", port) == (200, "ok")
        code, text = agent.get("/healthz?verbose", port)
        assert code == 200 and "[+]ping ok" in text and text.rstrip().endswith("healthz check passed")
    code, text = agent.get("/pods", agent.read_only_port)
    assert code == 200
    listed = json.loads(text)
    assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
    assert agent.get("/pods", agent.health_port)[0] == 404
    assert agent.get("/nothing", agent.read_only_port)[0] == 404


async def test_a_recording_of_a_pod_runs_again_as_recorded(agent: Agent, pods: None, tmp_path: Path) -> None:
    await agent.wait_running("web")
    recording = agent.ask("explain", "web", "--recording")
    assert recording.returncode == 0, recording.stderr
    file = tmp_path / "web.json"
    file.write_text(recording.stdout)
    replayed = run_program("replay", str(file))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "-> Sync" in replayed.stdout and "every step came out as recorded" in replayed.stdout
