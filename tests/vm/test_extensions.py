"""Extensions under systemd on cgroup v2: values of cgroups that stay, and processes within their limits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent.test_process_extensions import HELLO, SAMPLES, install
from support.agent import PROGRAM, Json, container_status, make_container, make_pod
from support.processes import wait_end
from support.unit import CGROUP_MOUNT, LONG_S, UnitAgent, container_group, show, systemctl

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
MIB = 1 << 20
GROUP = "kubelet_extensions.slice/kubelet_extensions-{}.slice"
FILES = ("memory.low", "memory.high", "memory.max", "cpu.weight", "pids.max")
#: By the cgroup driver. systemd has no setting for the file of scopes, and writes 0 at each reload (docs/extensions/points.md).
MORE_FILES = {"cgroupfs": ("memory.oom.group",), "systemd": ()}
#: Another owner of values that the agent writes itself, beside those of the sample.
WEIGHT = """
from pykubelet.extension import Extension


class Weight(Extension):
    name, api = "weight", "1.0"

    def cgroup(self, pod, container, values):
        if container is None:
            return {"cpu.weight": "33", "pids.max": "77"}
        return {"cpu.weight": "22", "memory.max": str(int(values["memory.max"]) * 2)}
"""


def make_with(make_unit: MakeUnit, *extensions: str, **settings: Any) -> UnitAgent:
    agent = make_unit(**settings)
    given = tuple(word for extension in extensions for word in ("--extension", extension))
    # emulated CPUs that wait for real ones count that time as used
    agent.flags = (*given, "--extension-cpu-time", "100ms")
    return agent


def shown(agent: UnitAgent, name: str) -> Json:
    found: list[Json] = agent.ask_json("explain", "node")["extensions"]
    return next(extension for extension in found if extension["name"] == name)


def values(group: Path, files: tuple[str, ...]) -> dict[str, str]:
    return {file: (group / file).read_text().strip() for file in files}


async def values_of(agent: UnitAgent, *containers: str) -> dict[str, dict[str, str]]:
    """The values of containers, such as `web-node/main`, and of the groups of their pods."""
    ids = (await agent.look()).running_ids()
    groups = {name: container_group(ids[name]) for name in containers}
    pods = {f"pod of {name}": group.parent for name, group in groups.items()}
    return {name: values(group, (*FILES, *MORE_FILES[agent.driver])) for name, group in {**groups, **pods}.items()}


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
async def test_values_of_extensions_stay(make_unit: MakeUnit, tmp_path: Path, driver: str) -> None:
    weight = tmp_path / "weight.py"
    weight.write_text(WEIGHT)
    agent = make_with(make_unit, str(SAMPLES / "memory_tiering.py"), str(weight), cgroupDriver=driver).start()
    hot = make_container("cache", resources={"requests": {"memory": "16Mi"}})
    cold = make_container("archive", resources={"limits": {"memory": "64Mi"}})
    notes = {"tier.example.com/cache": "hot", "tier.example.com/archive": "cold"}
    plain = make_container(resources={"limits": {"memory": "64Mi"}, "requests": {"cpu": "100m"}})
    agent.put(make_pod("shop", hot, cold, annotations=notes), make_pod("web", plain))
    await agent.wait_running("shop", "web", within=LONG_S)

    await ask_until_in_time(agent)
    names = ("shop-node/cache", "shop-node/archive", "web-node/main")
    found = await values_of(agent, *names)
    assert found["shop-node/cache"]["memory.low"] == str(16 * MIB)
    assert found["shop-node/archive"]["memory.high"] == str(32 * MIB)
    assert found["pod of shop-node/cache"]["memory.low"] == str(16 * MIB)
    assert found["pod of web-node/main"]["cpu.weight"] == "33"
    assert found["pod of web-node/main"]["pids.max"] == "77"
    assert found["web-node/main"]["cpu.weight"] == "22" and found["web-node/main"]["memory.max"] == str(128 * MIB)

    systemctl("daemon-reload")  # systemd writes what it knows of each unit
    systemctl("daemon-reexec")
    assert await values_of(agent, *names) == found
    old = agent.main_pid()
    agent.kill9()
    agent.wait_restarted(old)
    pods = await agent.wait_running("shop", "web", within=LONG_S)
    assert [container_status(pod)["restartCount"] for pod in pods] == [0, 0]
    await ask_until_in_time(agent)
    assert await values_of(agent, *names) == found
    assert [shown(agent, name)["error"] for name in ("memory-tiering", "weight")] == ["", ""]


async def ask_until_in_time(agent: UnitAgent) -> None:
    """Start the agent again, which asks about all that runs, until no answer took more CPU time than it may.

    Emulated CPUs that wait for real ones count that time as used.
    """
    for _ in range(10):
        await agent.wait_for("its questions", lambda: is_asked(agent), LONG_S)
        if not any("CPU time" in shown(agent, name)["error"] for name in ("memory-tiering", "weight")):
            return
        agent.stop()
        agent.start()
    raise AssertionError(f"this machine is too slow: {shown(agent, 'memory-tiering')}")


def is_asked(agent: UnitAgent) -> bool:
    """Whether the agent has asked about the pods that run and their containers, and so has written the answers.

    The first extension is asked about the pod with its annotation alone, the other one about what the first has not decided.
    """
    _, text = agent.get("/metrics", agent.read_only_port)
    calls = re.findall(r'^pykubelet_extension_calls_total{extension=".*",point="cgroup"} (\d+)$', text, re.MULTILINE)
    return sum(map(int, calls)) >= 5


async def test_a_process_with_the_systemd_driver(make_unit: MakeUnit, tmp_path: Path) -> None:
    archive, cache = tmp_path / "archive", tmp_path / "cache"
    (archive / "base").mkdir(parents=True)
    (archive / "base/data").write_text("data\n")
    agent = make_with(make_unit, install("warm-cache", tmp_path, source=str(archive), cache=str(cache), keep=0)).start()
    group = CGROUP_MOUNT / GROUP.format("warm_cache")  # a hyphen would be another level of slices
    await agent.wait_for("it runs", lambda: not shown(agent, "warm-cache")["off"], LONG_S)
    (pid,) = pids(group)
    limits = {"memory.max": str(256 * MIB), "pids.max": "64"}
    assert {file: (group / file).read_text().strip() for file in limits} == limits
    unit = show(group.name, "MemoryMax", "TasksMax", "ActiveState")
    assert unit == {"MemoryMax": str(256 * MIB), "TasksMax": "64", "ActiveState": "active"}

    agent.put(make_pod("web", make_container(), annotations={"cache.example.com/warm": "base"}))
    await agent.wait_running("web", within=LONG_S)
    assert os.listdir(cache) == ["base"]
    systemctl("daemon-reload")
    systemctl("daemon-reexec")
    assert pids(group) == [pid]
    assert {file: (group / file).read_text().strip() for file in limits} == limits
    agent.remove("web")
    await agent.wait_gone("web", within=LONG_S)
    await agent.wait_for("the data set is removed", lambda: os.listdir(cache) == [], LONG_S)

    old = agent.main_pid()
    agent.kill9()
    agent.wait_restarted(old)
    wait_end(pid)
    await agent.wait_for("another process", lambda: pids(group) not in ([], [pid]), LONG_S)
    agent.put(make_pod("again", make_container(), annotations={"cache.example.com/warm": "base"}))
    await agent.wait_running("again", within=LONG_S)
    assert os.listdir(cache) == ["base"]
    assert agent.stop() == 0
    assert not group.exists()


async def test_hostile_processes_stay_within_their_limits(make_unit: MakeUnit, tmp_path: Path) -> None:
    acts = {
        "bomb": "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "hoarder": "held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))",
    }
    for name, act in acts.items():
        path = tmp_path / f"{name}.py"
        path.write_text(HELLO.format(python=f"{PROGRAM.parent}/python3") + act)
        path.chmod(0o755)
    agent = make_with(make_unit, *(str(tmp_path / f"{name}.py") for name in acts)).start()
    agent.put(make_pod("web"))
    await agent.wait_running("web", within=LONG_S)
    bomb = CGROUP_MOUNT / GROUP.format("bomb")
    await agent.wait_for("many processes", lambda: len(pids(bomb)) > 32, LONG_S)
    assert len(pids(bomb)) <= 64
    await agent.wait_for("the kernel ends the other", lambda: shown(agent, "hoarder")["error"] != "", LONG_S)
    (pod,) = await agent.wait_running("web", within=LONG_S)
    assert container_status(pod)["restartCount"] == 0
    assert agent.stop() == 0
    left = [CGROUP_MOUNT / GROUP.format(name) for name in acts]  # systemd removes a slice after its answer
    await agent.wait_for("their groups are gone", lambda: not any(map(Path.exists, left)), LONG_S)


def pids(group: Path) -> list[int]:
    """The processes of a group; none if there is no group."""
    try:
        return [int(line) for line in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []
