"""One pod that is stuck, for a real reason, leaves all others alone, and `explain` says what it is stuck in.

Nothing is timed here: the others have to get on while the fault lasts. How fast they do is measured by `bench`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, Json, container_status, make_container, make_pod
from testbed import containerd, host, images
from testbed.containerd import Testbed
from testbed.faults import DeafFileSystem, Faults

pytestmark = pytest.mark.integration

READY = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 5}
DEAF = 'trap "" TERM; while :; do sleep 3600 & wait $!; done'


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def testbed(faults: Faults) -> Iterator[Testbed]:
    """A containerd of these tests' own, with programs that can be made to hang."""
    folder = Path(f"/tmp/pyk-stuck-{os.getpid()}")
    try:
        running = containerd.up(folder, (images.PAUSE, images.BUSYBOX), str(faults.bin_dir))
        host.make_cgroup(f"/{running.name}")
        yield running
    finally:
        faults.release()
        found = containerd.load(folder)
        containerd.down(folder, [f"/{found.name}"] if found else [])


@pytest.fixture
def hanging(faults: Faults) -> Iterator[Faults]:
    yield faults
    faults.release()


async def others_go_on(agent: Agent, tag: str) -> None:
    """A pod starts, is probed, ready and told; another one runs to its end; both go; the node is well."""
    agent.put(make_pod(f"{tag}-new", make_container(readinessProbe=READY, livenessProbe=READY)))
    agent.put(make_pod(f"{tag}-done", make_container(script="exit 0"), restartPolicy="Never"))
    await agent.wait_running(f"{tag}-new")
    await agent.wait_phase(f"{tag}-done", "Succeeded")
    agent.remove(f"{tag}-new", f"{tag}-done")
    await agent.wait_gone(f"{tag}-new", f"{tag}-done")
    assert agent.get("/healthz", agent.health_port) == (200, "ok")
    assert agent.ask_json("pods")["waits"] == [], "the node itself waits for nothing"


async def stuck_in(agent: Agent, pod: str, what: str, *words: str, within: float = 20.0) -> Json:
    """The wait that `explain` tells of, with these words in it."""
    found: list[Json] = []

    def told() -> bool:
        waits = agent.explain(pod)["waits"]
        found[:] = [w for w in waits if w["what"] == what and all(word in str(w) for word in words)]
        return bool(found)

    await agent.wait_for(f"explain tells that {pod} waits: {what} {words}", told, within)
    return found[0]


async def test_a_container_start_that_never_returns(agent: Agent, hanging: Faults) -> None:
    agent.put(make_pod("start", make_container(script="sleep 2; exit 1")))
    await agent.wait_runtime("it runs", lambda view: view.of("start-node").running)
    hanging.hang_runtime("start-node", "create")
    await stuck_in(agent, "start", "container start", "main", "StartContainer")
    await others_go_on(agent, "beside-start")
    agent.remove("start")
    await others_go_on(agent, "beside-its-end")
    hanging.release()
    await agent.wait_gone("start", within=60)


async def test_a_stop_that_never_returns(agent: Agent, hanging: Faults) -> None:
    agent.put(make_pod("stop"))
    await agent.wait_running("stop")
    hanging.hang_runtime("stop-node", "kill")
    agent.remove("stop")
    await stuck_in(agent, "stop", "container to end", "main", "StopContainer")
    await others_go_on(agent, "beside-stop")
    hanging.release()
    await agent.wait_gone("stop", within=60)


async def test_a_network_that_takes_minutes_for_one_pod(agent: Agent, hanging: Faults) -> None:
    hanging.hang_network("wire-node")
    agent.put(make_pod("wire"))
    await stuck_in(agent, "wire", "sandbox", "RunPodSandbox")
    await others_go_on(agent, "beside-wire")
    hanging.release()
    await agent.wait_running("wire", within=60)
    agent.remove("wire")
    await agent.wait_gone("wire")


async def test_exec_probes_that_never_end(agent: Agent, hanging: Faults) -> None:
    """One whose command sleeps, which the runtime ends; and one for which the runtime itself never answers."""
    slow = {"exec": {"command": ["sleep", "1000"]}, "periodSeconds": 1, "timeoutSeconds": 1}
    agent.put(make_pod("slow", *(make_container(f"c{n}", readinessProbe=slow) for n in range(4))))
    agent.put(make_pod("mute", *(make_container(f"c{n}", readinessProbe=READY) for n in range(4))))
    await agent.wait_running("mute")
    hanging.hang_runtime("mute-node", "exec")
    await stuck_in(agent, "slow", "readiness probe", "timed out after 1s")
    await stuck_in(agent, "mute", "readiness probe", "has not ended")
    await others_go_on(agent, "beside-probes")
    hanging.release()
    agent.remove("slow", "mute")
    await agent.wait_gone("slow", "mute", within=40)


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[DeafFileSystem]:
    system = DeafFileSystem(tmp_path / "deaf")
    yield system
    system.close()


async def test_volumes_that_do_not_answer(agent: Agent, deaf: DeafFileSystem) -> None:
    """More of them than there are workers for such things."""
    volume = {"name": "data", "hostPath": {"path": str(deaf.path), "type": "Directory"}}
    mount = {"name": "data", "mountPath": "/data"}
    names = [f"volume-{n}" for n in range(12)]
    agent.put(*(make_pod(name, make_container(volumeMounts=[mount]), volumes=[volume]) for name in names))
    for name in names:
        await stuck_in(agent, name, "volume", "data")
    await others_go_on(agent, "beside-volumes")
    agent.remove(*names)
    await others_go_on(agent, "beside-their-end")
    deaf.close()
    await agent.wait_gone(*names, within=60)


async def test_a_container_that_ignores_its_signal(agent: Agent) -> None:
    agent.put(make_pod("deaf", make_container(script=DEAF), terminationGracePeriodSeconds=25))
    await agent.wait_running("deaf")
    agent.remove("deaf")
    wait = await stuck_in(agent, "deaf", "container to end", "main", "StopContainer")
    assert wait["next_step"] == "SIGKILL"
    await others_go_on(agent, "beside-deaf")
    await agent.wait_gone("deaf", within=60)


def peak_mib(agent: Agent) -> float:
    assert agent.process is not None
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


async def test_a_line_of_100_mb_without_an_end(make_agent: Any) -> None:
    """It is rotated away, its end is told in short, and the agent's memory does not grow with it."""
    agent = make_agent(containerLogMaxSize="1Mi", containerLogMaxFiles=2, containerLogMonitorInterval="3s").start()
    agent.put(make_pod("bystander"))
    await agent.wait_running("bystander")
    before = peak_mib(agent)
    line, rest = (f"head -c {size} /dev/zero | tr '\\0' x" for size in (100_000_000, 500_000))
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    agent.put(make_pod("loud", make_container(script=f"{line}; sleep 8; {rest}; exit 1", **policy)))
    await agent.wait_pod("loud", "restarted", lambda pod: container_status(pod)["restartCount"] > 0, within=90)
    ended = container_status(agent.pods()["loud"])["lastState"]["terminated"]
    assert 0 < len(ended["message"]) <= 4096
    assert set(ended["message"]) <= {"x", "\n"}, ended["message"][-500:]
    await others_go_on(agent, "beside-loud")
    [logs] = agent.logs.glob("*_loud-node_*/main")
    assert any(path.name.startswith("0.log.") for path in logs.iterdir()), "the line was rotated away"
    assert peak_mib(agent) < before + 30
    await agent.remove_all()


async def test_more_exec_probes_than_the_machine_can_do_kill_nobody(make_agent: Any) -> None:
    """Probes come late, but a container that is well is never taken for sick. The benchmark does the same with 500."""
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 3}
    agent = make_agent().start()
    names = [f"crowd-{n}" for n in range(8)]
    for name in names:
        containers = [make_container(f"c{n}", livenessProbe=probe, readinessProbe=probe) for n in range(8)]
        agent.put(make_pod(name, *containers, hostNetwork=True))
    await agent.wait_running(*names, within=400)
    before = (await agent.look()).running_ids()
    await others_go_on(agent, "in-the-crowd")
    pods = agent.pods()
    assert {entry["restartCount"] for name in names for entry in pods[name]["status"]["containerStatuses"]} == {0}
    after = (await agent.look()).running_ids()
    assert before == after
    assert "probe failed" not in agent.log_text()
    await agent.remove_all(within=200)
