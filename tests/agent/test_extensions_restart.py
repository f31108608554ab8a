"""An extension decides whether and when real containers start again, and a restarted agent asks it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent.conftest import MakeAgent
from support.agent import Json, container_status, make_container, make_pod, waiting_reason
from support.world import a_world

pytestmark = pytest.mark.integration

RESTARTS = """
from pykubelet.extension import Extension, RestartAfter, RestartNever


class Restarts(Extension):
    name, api = "restarts", "1.0"

    def restart(self, container, history):
        if container.name == "slow":
            return RestartAfter(120)
        if container.name == "main" and history.exits[0].exit_code == 3:
            return RestartNever("three are enough") if history.restarts >= 3 else RestartAfter(0)
        return None
"""


async def test_an_extension_decides_about_restarts(make_agent: MakeAgent, tmp_path: Path) -> None:
    (tmp_path / "restarts.py").write_text(RESTARTS)
    agent = make_agent(flags=("--extension", str(tmp_path / "restarts.py"))).start()
    agent.put(
        make_pod("ends", make_container(script="exit 3")),
        make_pod("part", make_container(script="exit 3"), make_container("beside")),
        make_pod("waits", make_container("slow", script="exit 1")),
    )
    ended = await agent.wait_phase("ends", "Failed", within=20)  # with the back-off it would take longer
    terminated = container_status(ended)["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (3, "Error")
    assert container_status(ended)["restartCount"] == 3
    part = await agent.wait_pod("part", "its end", has_ended)
    assert part["status"]["phase"] == "Running" and runs(part, "beside")
    held = await agent.wait_pod("waits", "held back", lambda pod: waiting_reason(pod, "slow") == "CrashLoopBackOff")
    message = container_status(held, "slow")["state"]["waiting"]["message"]
    assert message.startswith("back-off 2m0s restarting failed container=slow pod=")
    assert message.endswith("(extension restarts)") and container_status(held, "slow")["restartCount"] == 0
    (wait,) = [w for pod in agent.ask_json("pods")["pods"] if pod["name"].startswith("waits") for w in pod["waits"]]
    assert (wait["what"], wait["owner"], wait["subject"]) == ("container restart", "extension", "slow")
    explained = json.dumps(agent.ask_json("explain", "ends-node"))
    assert "NotRestarted" in explained and "three are enough (extension restarts)" in explained

    agent.kill9()
    agent.start()
    await agent.wait_phase("ends", "Failed")
    part = await agent.wait_pod("part", "its end", has_ended)
    assert runs(part, "beside")
    await agent.wait_pod("waits", "held back", lambda pod: waiting_reason(pod, "slow") == "CrashLoopBackOff")
    assert agent.ask_json("explain", "node")["extensions"][0]["error"] == ""
    await agent.remove_all()


def has_ended(pod: Json) -> bool:
    """Whether the container has ended after three restarts."""
    status = container_status(pod)
    return "terminated" in status["state"] and status["restartCount"] == 3


def runs(pod: Json, name: str) -> bool:
    """Whether the container of the pod runs."""
    return "running" in container_status(pod, name)["state"]


async def test_a_pod_of_the_api_server_ends_and_stays_ended(make_agent: MakeAgent, tmp_path: Path) -> None:
    (tmp_path / "restarts.py").write_text(RESTARTS)
    own = ("--extension", str(tmp_path / "restarts.py"))
    async with a_world(lambda flags: make_agent(flags=(*flags, *own)), tmp_path) as world:
        world.run(make_pod("ends", make_container(script="exit 3"), restartPolicy="Always"))
        ended = await world.wait("ends", "its end", lambda pod: pod["status"].get("phase") == "Failed")
        assert container_status(ended)["restartCount"] == 3
        world.agent.kill9()
        world.agent.start()
        world.run(make_pod("later"))
        await world.wait_ready("later")
        still = world.pod("ends")
        assert still is not None and still["status"]["phase"] == "Failed"
        assert container_status(still) == container_status(ended)
        world.delete("ends")
        await world.wait_gone("ends")
