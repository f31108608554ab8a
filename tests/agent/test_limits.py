"""Containers that reach the limits of their pod: only they feel it, and the agent reports why."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.agent import Agent, Json, condition, container_status, make_container, make_pod, waiting_reason
from testbed import host

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
LIMITS = {"limits": {"cpu": "500m", "memory": "32Mi"}}


#: Uses up its memory once the file is there: a runtime watches the memory of a container from the end of its start on.
EATS = "until test -e /state/go; do sleep 0.1; done; rm /state/go; {}"
MOUNTS = [{"name": "state", "mountPath": "/state"}]


def volumes_at(folder: Path) -> list[Json]:
    return [{"name": "state", "hostPath": {"path": str(folder), "type": "Directory"}}]


def terminated(pod: Json) -> Json:
    found: Json = container_status(pod)["state"].get("terminated") or {}
    return found


async def test_a_container_over_its_memory_limit_is_reported_as_oom_killed(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    """How long that takes is printed (`pytest -rP`), not judged: other load decides it here."""
    agent = make_agent().start()
    hog = make_container(script=EATS.format("exec tail /dev/zero"), resources=LIMITS, volumeMounts=MOUNTS)
    agent.put(make_pod("hog", hog, restartPolicy="Never", volumes=volumes_at(tmp_path)))
    await agent.wait_running("hog")
    (tmp_path / "go").touch()
    ended = terminated(await agent.wait_pod("hog", "its container has ended", terminated))
    seen = time.time()
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    (container,) = (await agent.look()).of("hog-node").containers
    killed = await agent.finished_at(container.id)
    print(f"OOMKilled was reported {seen - killed:.3f} s after the kill")
    assert killed <= seen
    await agent.wait_for("the kernel's record", lambda: "the kernel killed a process" in agent.log_text())
    # the limit of a pod was hit, not that of the machine
    assert "System OOM encountered, victim process: tail" not in agent.log_text()
    await agent.remove_all()
    assert agent.stop() == 0


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
async def test_an_init_container_that_is_oom_killed_and_exits_with_0(
    policy: str, make_agent: MakeAgent, tmp_path: Path
) -> None:
    """The kernel kills a child of its first process; the regular container is never started."""
    agent = make_agent().start()
    eater = make_container("eater", EATS.format("tail /dev/zero; exit 0"), resources=LIMITS, volumeMounts=MOUNTS)
    agent.put(make_pod("fed", initContainers=[eater], restartPolicy=policy, volumes=volumes_at(tmp_path)))

    def runs_again(pod: Json, restarts: int) -> bool:
        shown = container_status(pod, "eater")
        return shown["restartCount"] == restarts and "running" in shown["state"]

    for restarts in range(1 if policy == "Never" else 2):  # the first restart is at once
        await agent.wait_pod("fed", "it runs", partial(runs_again, restarts=restarts))
        (tmp_path / "go").touch()
    if policy == "Never":
        pod = await agent.wait_phase("fed", "Failed")
        state = pod["status"]["initContainerStatuses"][0]["state"]["terminated"]
        assert "init container eater has failed: it ended with 0 (OOMKilled)" in agent.ask("explain", "fed-node").stdout
    else:
        pod = await agent.wait_pod("fed", "back-off", lambda pod: waiting_reason(pod, "eater") == "CrashLoopBackOff")
        state = pod["status"]["initContainerStatuses"][0]["lastState"]["terminated"]
        (wait,) = agent.explain("fed")["waits"]
        assert "it ended with 0 (OOMKilled)" in wait["detail"]
    assert (state["reason"], state["exitCode"]) == ("OOMKilled", 0)
    assert condition(pod, "Initialized") == "False"
    assert container_status(pod)["state"] == {"waiting": {"reason": "PodInitializing"}}
    status = "Init:OOMKilled" if policy == "Never" else "Init:CrashLoopBackOff"
    assert status in agent.ask("pods").stdout
    await agent.remove_all()
    assert agent.stop() == 0


async def test_a_fork_bomb_stays_inside_its_pod(make_agent: MakeAgent) -> None:
    agent = make_agent(podPidsLimit=64).start()
    bomb = "for i in 1 2 3; do (while :; do sleep 3600 & done) & done; exec sleep 3600"
    agent.put(make_pod("bomb", make_container(script=bomb, resources=LIMITS), terminationGracePeriodSeconds=0))

    def is_full() -> bool:
        """The kernel counts refusals in the group of the container, or of the pod, by its version."""
        counts = [path for group in agent.pod_cgroups() for path in group.rglob("pids.events")]
        return any("max 0" not in (host.read_control(path) or "max 0") for path in counts)

    await agent.wait_for("the kernel refuses the pod a process", is_full)
    limits = {host.read_control(Path(group, "pids.max")).strip() for group in agent.pod_cgroups()}
    assert "64" in limits
    forks = {"exec": {"command": ["sh", "-c", "sleep 0; sleep 0 & wait"]}, "periodSeconds": 1, "timeoutSeconds": 10}
    agent.put(make_pod("neighbor", make_container(readinessProbe=forks)))
    await agent.wait_running("neighbor")
    assert agent.pods()["bomb"]["status"]["phase"] == "Running"
    await agent.remove_all()
    assert agent.stop() == 0
