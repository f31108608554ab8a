"""Extensions of a real agent with real containers: what they decide, and that a hostile one hurts no pod."""

from __future__ import annotations

import json
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import MakeAgent
from support.agent import Agent, Json, make_pod

pytestmark = pytest.mark.integration

PRICE = """
from dataclasses import dataclass
from pathlib import Path

from pykubelet.extension import Admission, Extension, Hold, Node, Pod, Reject


@dataclass(frozen=True)
class PriceSettings:
    never: str


class Price(Extension):
    name, api, version, Settings = "price", "1.0", "0.1", PriceSettings

    def admit(self, pod: Pod, node: Node) -> Admission:
        if pod.labels.get("batch") == self.settings.never:
            return Reject("TooExpensive", "power is expensive")
        if node.time % 2 < 1 and "hold" in pod.labels:
            return Hold("cheap power", "the price is high", again_s=1)
        return None
"""
HOSTILE = """
from pykubelet.extension import Extension


class Hostile(Extension):
    name, api = "hostile", "1.0"

    def admit(self, pod, node):
        {line}
"""


def write(folder: Path, text: str, name: str) -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def labelled(name: str, **labels: str) -> Json:
    pod = make_pod(name)
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}}


def extensions(agent: Agent) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = agent.ask_json("explain", "node")["extensions"]
    return found


async def test_an_extension_takes_part_in_admission(make_agent: MakeAgent, tmp_path: Path) -> None:
    path, settings = write(tmp_path, PRICE, "price.py"), write(tmp_path, "never: 'yes'\n", "price.yaml")
    agent = make_agent(flags=("--extension", f"{path}={settings}"))
    agent.put(make_pod("web"), labelled("batch", batch="yes"), labelled("later", hold=""))
    agent.start()
    await agent.wait_running("web", "later")
    rejected = await agent.wait_phase("batch", "Failed")
    assert rejected["status"]["reason"] == "TooExpensive"
    assert rejected["status"]["message"] == "Pod was rejected: power is expensive (extension price)"
    (shown,) = extensions(agent)
    assert (shown["name"], shown["version"], shown["points"], shown["off"]) == ("price", "0.1", ["admit"], "")
    assert "price 0.1 (admit; " in agent.ask("explain", "node").stdout
    code, metrics = agent.get("/metrics", agent.read_only_port)
    assert code == 200 and 'pykubelet_extension_calls_total{extension="price",point="admit"}' in metrics


@pytest.mark.parametrize(
    "line",
    ["while True: pass", "raise ValueError(pod.name)", "return 3", "return 'x' * (1 << 30)", "import os; os._exit"],
)
async def test_a_hostile_extension_hurts_no_pod(make_agent: MakeAgent, tmp_path: Path, line: str) -> None:
    agent = make_agent(flags=("--extension", write(tmp_path, HOSTILE.format(line=line), "hostile.py")))
    names = [f"web-{number}" for number in range(4)]
    agent.put(*map(make_pod, names))
    agent.start()
    await agent.wait_running(*names)
    if line.startswith("import"):  # it does nothing
        assert extensions(agent)[0]["error"] == ""
        return
    (shown,) = extensions(agent)
    assert shown["error"].startswith("admit: ") and shown["off"] == "it has failed 3 times in a row"
    assert "off: it has failed 3 times in a row" in agent.ask("extensions").stdout
    assert "ExtensionFailed" in json.dumps(agent.ask_json("explain", "node")["timeline"])
    assert agent.ask("extensions", "enable", "hostile").returncode == 0
    assert extensions(agent)[0]["off"] == ""
    unknown = agent.ask("extensions", "enable", "other")
    assert unknown.returncode == 1 and "no extension named 'other' is loaded: hostile" in unknown.stderr


async def test_a_slow_machine_may_allow_more_cpu_time(make_agent: MakeAgent, tmp_path: Path) -> None:
    path = write(tmp_path, HOSTILE.format(line="while True: pass"), "hostile.py")
    agent = make_agent(flags=("--extension", path, "--extension-cpu-time", "10ms"))
    agent.put(make_pod("web"))
    agent.start()
    await agent.wait_running("web")
    assert extensions(agent)[0]["error"].endswith("ms of CPU time, more than 10 ms")


async def test_an_extension_that_ends_the_agent_is_off_at_its_third_start(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    path = write(tmp_path, HOSTILE.format(line="return sum(range(10 ** 12))"), "hostile.py")  # native code
    agent = make_agent(flags=("--extension", path))
    agent.put(make_pod("web"))
    for _ in range(2):
        agent.start(wait=False)
        assert agent.process is not None and agent.process.wait(60) == -signal.SIGABRT
        agent.process = None
    agent.start()
    await agent.wait_running("web")
    (shown,) = extensions(agent)
    assert shown["off"].startswith("the agent has ended 2 times while it worked on this; the last time it was aborted")


async def test_a_wrong_extension_stops_the_start(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent(flags=("--extension", write(tmp_path, "1/0", "bad.py")))
    agent.start(wait=False)
    assert agent.process is not None and agent.process.wait(30) == 1
    agent.process = None
    assert "bad.py: it cannot be imported: ZeroDivisionError: division by zero" in agent.log_text()
