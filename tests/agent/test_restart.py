"""The agent is killed at any moment and started again: nothing restarts, nothing is doubled, nothing goes backwards."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import (
    Agent,
    Json,
    condition,
    container_status,
    is_ready,
    make_container,
    make_pod,
    waiting_reason,
)
from support.crashes import assert_not_backwards
from support.gate import MOUNTS, UNTIL_OPEN, Gate

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
KILLS = int(os.environ.get("PYKUBELET_KILLS", "50"))
SEED = int(os.environ.get("PYKUBELET_SEED", "1"))


def statuses(agent: Agent) -> dict[str, Json]:
    return {name: pod["status"] for name, pod in agent.pods().items()}


def lasting(status: Json) -> Json:
    """All but the start time: without an API server it is that of the agent, as with the reference."""
    return {name: value for name, value in status.items() if name != "startTime"}


async def test_running_pods_do_not_notice(make_agent: MakeAgent) -> None:
    agent = make_agent().start()
    volumes = [{"name": "m", "emptyDir": {"medium": "Memory"}}, {"name": "d", "emptyDir": {}}]
    mounts = [{"name": "m", "mountPath": "/m"}, {"name": "d", "mountPath": "/d", "subPath": "x"}]
    counted = (
        "if [ -e /d/once ]; then trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done; fi; touch /d/once; exit 3"
    )
    side = make_container("side", restartPolicy="Always")
    agent.put(
        make_pod("plain"),
        make_pod("rich", make_container(volumeMounts=mounts), initContainers=[side], volumes=volumes),
        make_pod("restarted", make_container(script=counted, volumeMounts=mounts), volumes=volumes),
        make_pod("done", make_container(script="exit 0"), restartPolicy="Never"),
        make_pod("failed", make_container(script="exit 2"), restartPolicy="Never"),
        make_pod("crashing", make_container(script="exit 4")),
    )
    await agent.wait_running("plain", "rich")
    await agent.wait_pod("restarted", "back", lambda pod: is_ready(pod) and container_status(pod)["restartCount"] == 1)
    for name in ("done", "failed"):
        await agent.wait_pod(name, "put away", put_away)
    await agent.wait_pod("crashing", "held back", lambda pod: waiting_reason(pod) == "CrashLoopBackOff")
    before, ids = statuses(agent), (await agent.look()).running_ids()
    ids.pop("crashing-node/main", None)  # its pause may be over by now
    assert before["restarted"]["containerStatuses"][0]["restartCount"] == 1

    for signal in ("kill", "term"):
        if signal == "kill":
            agent.kill9()
        else:
            assert agent.stop() == 0
        agent.start(wait=False)
        seen: list[dict[str, Json]] = []

        def complete(seen: list[dict[str, Json]] = seen) -> bool:
            seen.append(statuses(agent))
            return set(seen[-1]) == set(before) and len(seen) > 20

        await agent.wait_for("all pods are reported again", complete)
        await agent.wait_running("plain", "rich", "restarted")
        for look in seen:
            for name, status in look.items():
                assert_not_backwards(name, before[name], status)
        after = statuses(agent)
        for name in ("plain", "rich", "restarted", "done", "failed"):
            assert lasting(after[name]) == lasting(before[name])
            assert after[name]["startTime"] >= before[name]["startTime"]
        now = (await agent.look()).running_ids()
        assert {name: now.get(name) for name in ids} == ids
    await agent.remove_all()


async def test_a_post_start_hook_runs_to_its_end_though_the_agent_is_killed(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    script = f"echo begin >> /gate/hook; {UNTIL_OPEN}; echo end >> /gate/hook"
    hook = {"postStart": {"exec": {"command": ["sh", "-c", script]}}}
    hooked = make_container(lifecycle=hook, volumeMounts=MOUNTS)
    agent = make_agent().start()
    agent.put(make_pod("hooked", hooked, make_container("second"), volumes=[gate.volume]))
    lines = tmp_path / "hook"

    async def wait_begun(times: int) -> None:
        await agent.wait_for("the hook runs", lambda: lines.exists() and lines.read_text().count("begin") == times)

    await wait_begun(1)
    first = (await agent.look()).running_ids()
    for kills in (1, 2):
        agent.kill9()
        agent.start()
        await wait_begun(1 + kills)
        assert (await agent.look()).running_ids() == first
        assert not container_status(agent.pods()["hooked"])["ready"]
    gate.open()
    await agent.wait_running("hooked")
    assert lines.read_text().splitlines() == ["begin"] * 3 + ["end"]
    agent.kill9()
    agent.start()
    await agent.wait_running("hooked")
    await asyncio.sleep(1)
    assert lines.read_text().splitlines()[-1] == "end", "a hook that has ended is not run again"
    assert not (agent.root / "post_start_hooks").exists()
    await agent.remove_all()


def put_away(pod: Json) -> bool:
    """Over and its sandbox gone; a pod without a sandbox yet reports the same about its sandbox."""
    return pod["status"]["phase"] in ("Succeeded", "Failed") and condition(pod, "PodReadyToStartContainers") == "False"


async def test_damaged_files_of_its_own_do_not_stop_it(make_agent: MakeAgent) -> None:
    agent = make_agent().start()
    mounts = [{"name": "m", "mountPath": "/m"}, {"name": "info", "mountPath": "/info"}]
    info = {"name": "info", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}
    volumes = [{"name": "m", "emptyDir": {"medium": "Memory"}}, info]
    agent.put(*(make_pod(f"pod-{n}", make_container(volumeMounts=mounts), volumes=volumes) for n in range(3)))
    await agent.wait_running("pod-0", "pod-1", "pod-2")
    ids = (await agent.look()).running_ids()
    chance = random.Random(SEED)
    for damage in (lambda data: b"", lambda data: data[: len(data) // 2], lambda data: chance.randbytes(256)):
        agent.kill9()
        files = own_files(agent.root)
        assert files
        for path in files:
            path.write_bytes(damage(path.read_bytes()))
        agent.start()
        await agent.wait_running("pod-0", "pod-1", "pod-2")
        assert (await agent.look()).running_ids() == ids
    agent.put(make_pod("after"))
    await agent.wait_running("after")
    await agent.remove_all()
    assert agent.stop() == 0


def own_files(root: Path) -> list[Path]:
    """Every regular file below the root directory that the agent wrote."""
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]


def churn(number: int) -> Json:
    """Pods of all temperaments: steady, ending, crashing, slow to stop, with init containers and volumes."""
    volumes = [{"name": "m", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "m", "mountPath": "/m"}]
    name = f"churn-{number}"
    match number % 5:
        case 0:
            return make_pod(name, make_container(volumeMounts=mounts), volumes=volumes)
        case 1:
            return make_pod(name, make_container(script="sleep 0.3; exit 1"))
        case 2:
            return make_pod(name, make_container(script="sleep 0.5"), restartPolicy="Never")
        case 3:
            return make_pod(name, initContainers=[make_container("init", "sleep 0.2")])
        case _:
            slow = "trap 'sleep 0.5; exit 0' TERM; while :; do sleep 3600 & wait $!; done"
            return make_pod(name, make_container(script=slow), make_container("second"))


async def test_killed_fifty_times_while_pods_start_stop_and_crash(make_agent: MakeAgent) -> None:
    chance = random.Random(SEED)
    agent = make_agent()
    (agent.folder / "trash").mkdir()
    present: set[int] = set()
    began = time.monotonic()
    for _ in range(KILLS):
        agent.start(wait=False)
        moment = time.monotonic() + chance.uniform(0.2, 1.6)
        while (left := moment - time.monotonic()) > 0:
            number = chance.randrange(10)
            if number in present:
                agent.remove(f"churn-{number}")
                present.discard(number)
            else:
                agent.put(churn(number))
                present.add(number)
            await asyncio.sleep(min(left, chance.uniform(0.02, 0.5)))
        assert agent.alive, f"seed {SEED}: it ended by itself\n{agent.log_tail()}"
        agent.kill9()
    print(f"{KILLS} kills in {time.monotonic() - began:.0f} s, seed {SEED}")

    for number in range(10):
        if number not in present:
            agent.put(churn(number))
    agent.start()
    steady = [n for n in range(10) if n % 5 in (0, 3, 4)]
    await agent.wait_running(*(f"churn-{n}" for n in steady), within=60)
    for number in (2, 7):
        await agent.wait_phase(f"churn-{number}", "Succeeded")
    for number in (1, 6):
        await agent.wait_pod(f"churn-{number}", "crashed", lambda pod: container_status(pod)["restartCount"] >= 1, 60)
    wanted = sorted([f"churn-{n}-node/main" for n in steady] + [f"churn-{n}-node/second" for n in (4, 9)])

    def exactly(names: list[str]) -> bool:
        return [name for name in names if name not in ("churn-1-node/main", "churn-6-node/main")] == wanted

    view = await agent.wait_runtime("exactly the desired run", lambda view: exactly(view.running_names()))
    assert len(view.ready) == len({s.metadata.uid for s in view.ready}), "one sandbox for each pod"
    await asyncio.sleep(3)
    again = await agent.look()
    assert exactly(again.running_names()) and len(again.ready) == len({s.metadata.uid for s in again.ready})
    await agent.remove_all(60)
    assert agent.stop() == 0
