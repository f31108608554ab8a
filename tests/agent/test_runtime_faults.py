"""The container runtime fails: missing at start, killed while pods start, names already taken."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Agent, container_status, make_container, make_pod
from support.gate import MOUNTS, UNTIL_OPEN, Gate
from testbed import containerd
from testbed.private_runtime import Testbed

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.testing.cri.fake import FakeFeatures, FakeRuntime, RuntimeFault

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]


async def test_the_runtime_is_missing_at_start(make_agent: MakeAgent, testbed: Testbed) -> None:
    containerd.stop(testbed)
    agent = make_agent().start()
    agent.put(make_pod("patient"))

    def reported() -> bool:
        waits = agent.explain("patient")["waits"]
        return any(wait["what"] == "container runtime" for wait in waits)

    await agent.wait_for("explain reports the runtime", reported)
    assert "container runtime" in agent.ask("pods").stdout
    assert agent.get("/healthz", agent.health_port) == (200, "ok")
    containerd.start(testbed)
    await agent.wait_running("patient")
    await agent.remove_all()
    assert agent.stop() == 0


async def test_a_runtime_that_comes_late_still_chooses_the_cgroup_driver(make_agent: MakeAgent, tmp_path: Path) -> None:
    """Configured for systemd, which is not even there; the runtime, once it answers, wants cgroupfs."""
    fake = FakeRuntime(str(tmp_path / "cri.sock"), features=FakeFeatures(cgroup_driver=pb.CGROUPFS))
    fake.add_image("localhost/busybox:1")
    agent = make_agent(cgroupDriver="systemd", containerRuntimeEndpoint=fake.endpoint).start()
    agent.put(make_pod("patient"))

    def reported() -> bool:
        return any(wait["what"] == "container runtime" for wait in agent.explain("patient")["waits"])

    await agent.wait_for("explain reports the runtime", reported)
    await fake.start()
    try:
        await agent.wait_for("the sandbox is made", lambda: [c for c in fake.calls if c.method == "RunPodSandbox"])
        [made] = [call.request for call in fake.calls if call.method == "RunPodSandbox"]
        parent = made.config.linux.cgroup_parent
        assert parent.startswith(f"{agent.cgroup}/kubepods/besteffort/pod"), parent
        assert agent.stop() == 0
    finally:
        await fake.stop()


async def test_the_health_port_answers_until_a_start_that_is_under_way_has_ended(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    """An agent that is asked to end waits for it; who asks the port whether it has ended must not start another one."""
    fake = FakeRuntime(str(tmp_path / "cri.sock"))
    fake.add_image("localhost/busybox:1")
    fake.inject(RuntimeFault("StartContainer", delay_s=2.0))
    await fake.start()
    try:
        agent = make_agent(containerRuntimeEndpoint=fake.endpoint).start()
        agent.put(make_pod("slow"))
        await agent.wait_for("a start", lambda: any(call.method == "StartContainer" for call in fake.calls))
        assert agent.process is not None
        agent.process.terminate()
        await agent.wait_for("its other ports are closed", lambda: agent.get("/pods", agent.read_only_port)[0] == 0)
        assert agent.get("/healthz", agent.health_port) == (200, "ok")
        assert agent.process.wait(30) == 0
    finally:
        await fake.stop()


async def test_the_runtime_is_killed_while_pods_start(make_agent: MakeAgent, testbed: Testbed, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    names = [f"pod-{number}" for number in range(10)]
    agent = make_agent().start()
    agent.put(make_pod("before"))
    await agent.wait_running("before")
    [before] = (await agent.look()).running
    first = [
        make_container("first", UNTIL_OPEN, volumeMounts=MOUNTS)
    ]  # half of them cannot be through before the others
    containers = make_container(), make_container("second")
    volumes = [gate.volume]
    agent.put(
        *(make_pod(name, *containers, initContainers=first[: n % 2], volumes=volumes) for n, name in enumerate(names))
    )
    await agent.wait_runtime("some run, some do not", lambda view: 3 <= len(view.running) <= 18)
    containerd.kill(testbed)
    containerd.start(testbed)
    gate.open()
    await agent.wait_running(*names, "before", within=90)
    wanted = sorted([f"{name}-node/{part}" for name in names for part in ("main", "second")] + ["before-node/main"])
    view = await agent.wait_runtime("one sandbox for each", lambda view: len(view.ready) == 11)
    assert view.running_names() == wanted
    assert before.id in {container.id for container in view.running}, "a running container is not touched"
    assert agent.alive
    await agent.remove_all()


async def test_a_name_is_already_taken_in_the_runtime(make_agent: MakeAgent, testbed: Testbed) -> None:
    """Another sandbox has the names of the first attempt: the agent goes on with the next one.

    CRI-O answers with that sandbox instead of an error, and the agent uses it.
    """
    agent = make_agent().start()
    agent.put(make_pod("taken"))
    [pod] = await agent.wait_running("taken")
    uid = pod["metadata"]["uid"]
    agent.stop()
    client = CriClient(testbed.endpoint)
    try:
        for sandbox in await client.list_pod_sandboxes():
            await client.stop_pod_sandbox(sandbox.id)
            await client.remove_pod_sandbox(sandbox.id)
        # no labels: the agent does not see it, but its name is taken
        squatter = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name="taken-node", namespace="default", uid=uid, attempt=0),
            log_directory=str(agent.folder / "squatter"),
            linux=pb.LinuxPodSandboxConfig(cgroup_parent=agent.cgroup),
        )
        held = await client.run_pod_sandbox(squatter)
        agent.process = None
        agent.start()
        view = await agent.wait_runtime("it runs", lambda view: view.running_names() == ["taken-node/main"])
        [own] = (s for s in view.ready if s.labels)
        assert own.metadata.attempt == (0 if own.id == held else 1)
        await agent.wait_running("taken")
        await client.stop_pod_sandbox(held)
        await client.remove_pod_sandbox(held)
    finally:
        await client.close()
    await agent.remove_all()


async def test_a_hung_runtime_call_of_one_pod_leaves_the_others_alone(make_agent: MakeAgent, tmp_path: Path) -> None:
    """A postStart hook that never returns blocks its own pod only."""
    hook = {"postStart": {"exec": {"command": ["/bin/sleep", "1000"]}}}
    agent = make_agent().start()
    agent.put(make_pod("hung", make_container(lifecycle=hook)))
    await agent.wait_runtime("it hangs", lambda view: view.of("hung-node").running)
    agent.put(make_pod("free"))
    await agent.wait_running("free")
    assert not container_status(agent.pods()["hung"]).get("ready")
    agent.remove("hung")
    await agent.wait_gone("hung")
    await agent.remove_all()


async def test_a_runtime_that_hangs_longer_than_a_call_may_take(make_agent: MakeAgent, testbed: Testbed) -> None:
    """Calls are given up and yet carried out later: nothing is made twice, and what was half made is used or removed."""
    agent = make_agent(runtimeRequestTimeout="1s").start()
    agent.put(make_pod("before"))
    await agent.wait_running("before")
    [before] = (await agent.look()).running
    names = [f"pod-{number}" for number in range(4)]
    for number, name in enumerate(names):
        agent.put(make_pod(name))
        await asyncio.sleep(0.1 + 0.15 * number)
        pid = testbed.pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(3)
            assert agent.get("/healthz", agent.health_port) == (200, "ok")
        finally:
            os.kill(pid, signal.SIGCONT)
    await agent.wait_running("before", *names)
    view = await agent.wait_runtime("one sandbox for each", lambda view: len(view.ready) == 5)
    assert view.running_names() == sorted(f"{name}-node/main" for name in ("before", *names))
    assert before.id in {container.id for container in view.running}
    await agent.remove_all()
