"""One pod that is stuck, for a real reason, leaves all others alone, and `explain` shows what it is stuck in.

Nothing is timed here: the others have to get on while the fault lasts. How fast they do is measured by `bench`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent import Agent, Json, make_container, make_pod
from support.beside import READY, others_go_on
from support.gate import MOUNTS, UNTIL_OPEN, Gate
from testbed import containerd, host, images, places
from testbed.faults import Faults
from testbed.fuse import HangingFileSystem
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration

DEAF = 'trap "" TERM; while :; do sleep 3600 & wait $!; done'


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def testbed(faults: Faults) -> Iterator[Testbed]:
    """A containerd of these tests' own, with programs that can be made to hang."""
    folder = places.run_folder("stuck")
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


async def stuck_in(agent: Agent, pod: str, what: str, *words: str, within: float = 60.0) -> Json:
    """The wait that `explain` reports, with these words in it."""
    found: list[Json] = []

    def reported() -> bool:
        waits = agent.explain(pod)["waits"]
        found[:] = [w for w in waits if w["what"] == what and all(word in str(w) for word in words)]
        return bool(found)

    await agent.wait_for(f"explain reports that {pod} waits: {what} {words}", reported, within)
    return found[0]


def call_of(testbed: Testbed, verb: str) -> str:
    """The call to the runtime in which `runc <verb>` runs for a container."""
    return "CreateContainer" if testbed.is_crio and verb == "create" else "StartContainer"


async def test_a_container_start_that_never_returns(agent: Agent, testbed: Testbed, hanging: Faults) -> None:
    agent.put(make_pod("start", make_container(script="sleep 2; exit 1")))
    await agent.wait_runtime("it runs", lambda view: view.of("start-node").running)
    hanging.hang_runtime("start-node", "create")
    await stuck_in(agent, "start", "container start", "main", call_of(testbed, "create"))
    await others_go_on(agent, "beside-start")
    agent.remove("start")
    await others_go_on(agent, "beside-its-end")
    hanging.release()
    await agent.wait_gone("start", within=60)


@pytest.mark.parametrize("verb", ["create", "start"])
async def test_an_agent_killed_in_the_middle_of_a_start_has_failed_nothing(
    agent: Agent, testbed: Testbed, hanging: Faults, tmp_path: Path, verb: str
) -> None:
    """The runtime gives up what it was asked for by a dead agent; a pod that never restarts runs all the same."""
    name = f"cut-{verb}"
    gate = Gate(tmp_path)
    init = make_container("init", UNTIL_OPEN, volumeMounts=MOUNTS)
    more: Json = {"initContainers": [init], "volumes": [gate.volume], "restartPolicy": "Never"}
    agent.put(make_pod(name, make_container(script="exit 0"), **more))
    await agent.wait_runtime("the init container runs", lambda view: view.of(f"{name}-node").running)
    hanging.hang_runtime(f"{name}-node", verb)
    gate.open()
    await stuck_in(agent, name, "container start", "main", call_of(testbed, verb))
    agent.kill9()
    await asyncio.sleep(0.5)
    hanging.release()
    agent.start()
    await agent.wait_phase(name, "Succeeded")
    agent.remove(name)
    await agent.wait_gone(name)


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


def network_namespaces(testbed: Testbed) -> set[Path]:
    return set(testbed.state.glob("*/netns/*"))


@pytest.mark.parametrize("verb", ["create", "start"])
async def test_a_sandbox_that_gets_on_after_its_pod_was_removed_leaves_nothing(
    agent: Agent, testbed: Testbed, hanging: Faults, verb: str
) -> None:
    """The call was given up, and what the runtime has begun goes on: it may even make the pod's cgroup once more."""
    before = network_namespaces(testbed)
    name = f"late-{verb}"
    hanging.hang_runtime(f"{name}-node", verb)
    agent.put(make_pod(name, shareProcessNamespace=True))  # without that, CRI-O runs nothing for a sandbox
    await stuck_in(agent, name, "sandbox", "RunPodSandbox")
    agent.remove(name)
    await agent.wait_gone(name)
    await asyncio.sleep(4)  # the cgroup was looked for once by now
    hanging.release()
    await asyncio.sleep(2)
    await agent.wait_gone(name)

    def left() -> list[str]:
        return [*agent.leftovers(), *(str(path) for path in network_namespaces(testbed) - before)]

    # where no call for it is repeated, CRI-O keeps the network namespace of a sandbox for two minutes at most
    await agent.wait_for("cgroup, logs, directories and network namespace are gone", lambda: not left(), 180)


async def test_exec_probes_that_never_end(agent: Agent, hanging: Faults) -> None:
    """A probe with a command that sleeps, which the runtime ends; and one for which the runtime itself never answers."""
    slow = {"exec": {"command": ["sleep", "1000"]}, "periodSeconds": 1, "timeoutSeconds": 1}
    agent.put(make_pod("slow", *(make_container(f"c{n}", readinessProbe=slow) for n in range(4))))
    agent.put(make_pod("mute", *(make_container(f"c{n}", readinessProbe=READY) for n in range(4))))
    await agent.wait_running("mute")
    hanging.hang_runtime("mute-node", "exec")
    await stuck_in(agent, "slow", "readiness probe", "timed out")
    await stuck_in(agent, "mute", "readiness probe", "has not ended")
    await others_go_on(agent, "beside-probes")
    hanging.release()
    agent.remove("slow", "mute")
    await agent.wait_gone("slow", "mute")


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[HangingFileSystem]:
    with HangingFileSystem(tmp_path / "deaf", tmp_path / "data") as system:
        system.stop()
        yield system


async def test_volumes_that_do_not_answer(agent: Agent, deaf: HangingFileSystem) -> None:
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
