"""Exclusive CPUs on real containers, as seen from inside: the first CPU is reserved, the second is for one container at a time."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import MakeAgent
from support.agent import Agent, Json, container_status, make_container, make_pod
from support.world import PODS, a_world
from testbed import containerd, host
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration

STATIC: dict[str, Any] = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
UNEXPECTED = "UnexpectedAdmissionError"
#: Which CPUs the first process may use, as its first action; then again and again.
REPORT = "while :; do grep Cpus_allowed_list /proc/self/status; sleep 0.2 & wait $!; done"


def sized(cpu: str) -> Json:
    amounts = {"cpu": cpu, "memory": "20Mi"}
    return {"requests": amounts, "limits": amounts}


def pod(name: str, cpu: str = "", **spec: Any) -> Json:
    """A pod that reports its CPUs; Guaranteed, if `cpu` is given."""
    more: dict[str, Any] = {"resources": sized(cpu)} if cpu else {}
    return make_pod(name, make_container(script=f"trap 'exit 0' TERM; {REPORT}", **more), **spec)


def seen(agent: Agent, name: str, restart: int = 0) -> list[str]:
    """The CPUs that the container has seen, the first ones first, repetitions left out."""
    found = re.findall(r"Cpus_allowed_list:\s*(\S+)", agent.output(name, "main", restart))
    return [cpus for number, cpus in enumerate(found) if not number or found[number - 1] != cpus]


def has_seen(agent: Agent, name: str, *cpus: str) -> bool:
    return seen(agent, name) == list(cpus)


async def sees(agent: Agent, name: str, *cpus: str) -> None:
    await agent.wait_for(f"{name} sees {cpus}", partial(has_seen, agent, name, *cpus))


def state(agent: Agent) -> Json:
    found: Json = json.loads((agent.root / "cpu_manager_state").read_text())
    return found


def metric(agent: Agent, name: str) -> float:
    _, text = agent.get("/metrics", agent.read_only_port)
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def quota(agent: Agent, of: Json) -> set[str]:
    """The CPU quotas of the pod's cgroup and those below it, as the kernel writes them."""
    found = set()
    for folder in agent.pod_cgroups():
        if of["metadata"]["uid"] in folder.name:
            for group in (folder, *(child for child in folder.iterdir() if child.is_dir())):
                for file in ("cpu.cfs_quota_us", "cpu.max"):
                    found |= set(host.read_control(group / file).split()[:1])
    return found


async def test_a_guaranteed_pod_has_its_cpu_to_itself(make_agent: MakeAgent, testbed: Testbed) -> None:
    agent = make_agent(**STATIC).start()
    agent.put(pod("early"))
    await agent.wait_running("early")
    await sees(agent, "early", "0-1")
    agent.put(pod("pinned", "1"))
    await agent.wait_running("pinned")
    await sees(agent, "pinned", "1")
    await sees(agent, "early", "0-1", "0")
    agent.put(pod("late"))
    await agent.wait_running("late")
    await sees(agent, "late", "0")
    pinned = agent.pods()["pinned"]
    assert quota(agent, pinned) <= {"-1", "max"}
    agent.put(pod("second", "1"))
    refused = await agent.wait_phase("second", "Failed")
    assert refused["status"]["reason"] == "UnexpectedAdmissionError", "it is critical, and nothing can be preempted"
    assert metric(agent, 'kubelet_admission_rejections_total{reason="UnexpectedAdmissionError"}') == 1
    assert metric(agent, "kubelet_cpu_manager_pinning_requests_total") == 1
    assert metric(agent, "kubelet_cpu_manager_pinning_errors_total") == 0
    assert metric(agent, "kubelet_cpu_manager_exclusive_cpu_allocation_count") == 1
    assert metric(agent, "kubelet_cpu_manager_shared_pool_size_millicores") == 0

    before = (await agent.look()).running_ids()
    for again in ("agent", "runtime"):
        agent.kill9()
        if again == "runtime":
            containerd.stop(testbed)
            containerd.start(testbed)
        agent.start()
        await agent.wait_running("pinned", "early", "late")
        assert (await agent.look()).running_ids() == before
        assert state(agent)["entries"] == {pinned["metadata"]["uid"]: {"main": "1"}}
        await agent.wait_phase("second", "Failed")
    assert (seen(agent, "pinned"), seen(agent, "late")) == (["1"], ["0"])

    agent.remove("pinned", "second")
    await agent.wait_gone("pinned")
    await sees(agent, "late", "0", "0-1")
    await sees(agent, "early", "0-1", "0", "0-1")
    assert "entries" not in state(agent)
    agent.put(pod("third", "1"))
    await agent.wait_running("third")
    await sees(agent, "third", "1")


async def test_a_lost_state_file_takes_no_cpu_from_a_running_container(make_agent: MakeAgent) -> None:
    agent = make_agent(**STATIC).start()
    agent.put(pod("shared"), pod("pinned", "1"))
    await agent.wait_running("shared", "pinned")
    await sees(agent, "pinned", "1")
    agent.kill9()
    (agent.root / "cpu_manager_state").unlink()
    agent.put(pod("a-new-one", "1"))
    agent.start()
    await agent.wait_running("pinned", "shared")
    await agent.wait_phase("a-new-one", "Failed")
    # too little CPU is found without the CPU manager, which may still be writing what it has found in the container
    await agent.wait_for("a new state file", (agent.root / "cpu_manager_state").exists)
    assert seen(agent, "pinned") == ["1"]
    assert list(state(agent)["entries"]) == [agent.pods()["pinned"]["metadata"]["uid"]]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}',
            'differs from state checkpoint policy "none"',
        ),
        ('{"policyName":"static","defaultCpuSet":"0-1","checksum":7}', "checkpoint is corrupted"),
        ('{"policyName":"static","defaultCp', "unexpected end of JSON input"),
    ],
)
async def test_a_state_file_that_does_not_fit_ends_the_start(make_agent: MakeAgent, content: str, why: str) -> None:
    agent = make_agent(**STATIC)
    agent.root.mkdir(parents=True, exist_ok=True)
    (agent.root / "cpu_manager_state").write_text(content)
    agent.start(wait=False)
    assert agent.process is not None
    assert agent.process.wait(30) == 1
    agent.kill9()
    log = agent.log_text()
    assert "Error: start cpu manager error: could not restore state from checkpoint: " in log
    how = f'delete the CPU manager checkpoint file "{agent.root}/cpu_manager_state" before restarting Kubelet'
    assert why in log and how in log
    assert "Traceback" not in log


async def test_single_numa_node_aligns_cpus_and_memory(make_agent: MakeAgent) -> None:
    memory = {
        "memoryManagerPolicy": "Static",
        "systemReserved": {"memory": "200Mi"},
        "evictionHard": {"memory.available": "100Mi"},
    }
    reserved = {"reservedMemory": [{"numaNode": 0, "limits": {"memory": "300Mi"}}]}
    policies = {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"}
    agent = make_agent(**STATIC, **memory, **reserved, **policies).start()
    agent.put(pod("pinned", "1"))
    await agent.wait_running("pinned")
    await sees(agent, "pinned", "1")
    uid = agent.pods()["pinned"]["metadata"]["uid"]
    written = json.loads((agent.root / "memory_manager_state").read_text())
    assert written["entries"][uid]["main"] == [{"numaAffinity": [0], "type": "memory", "size": 20 << 20}]
    requests, errors = (f"kubelet_topology_manager_admission_{what}_total" for what in ("requests", "errors"))
    assert (metric(agent, requests), metric(agent, errors)) == (1, 0)
    assert metric(agent, "kubelet_memory_manager_pinning_requests_total") == 1
    aligned = 'kubelet_container_aligned_compute_resources_count{scope="pod",boundary="numa_node"}'
    assert metric(agent, aligned) == 1


async def test_init_containers_and_what_follows_have_the_same_cpu(make_agent: MakeAgent) -> None:
    agent = make_agent(**STATIC).start()
    first = make_container("first", script="grep Cpus_allowed_list /proc/self/status", resources=sized("1"))
    agent.put(pod("pinned", "1", initContainers=[first]))
    await agent.wait_running("pinned")
    await sees(agent, "pinned", "1")
    assert agent.output("pinned", "first").split() == ["Cpus_allowed_list:", "1"]
    assert state(agent)["defaultCpuSet"] == "0"


async def test_a_second_pod_is_rejected_and_a_resize_leaves_the_first_without_a_quota(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    async with a_world(make_agent, tmp_path, **STATIC) as world:
        world.run(pod("pinned", "1"))
        await world.wait_ready("pinned")
        agent = world.agent
        before = world.pod("pinned")
        assert before is not None
        assert quota(agent, before) <= {"-1", "max"}
        world.run(pod("second", "1"))
        second = await world.wait("second", "rejected", lambda of: of["status"].get("phase") == "Failed")
        text = "Allocate failed due to not enough cpus available to satisfy request: requested=1, available=0, which is unexpected"
        assert (second["status"]["reason"], second["status"]["message"]) == (UNEXPECTED, f"Pod was rejected: {text}")
        await agent.wait_for("its Event", lambda: [event["message"] for event in world.events(UNEXPECTED)] == [text])

        world.server.update(f"{PODS}/pinned/resize", partial(_with_cpus, cpus="1"))

        def has_more(of: Json) -> bool:
            applied = container_status(of).get("resources", {}).get("limits", {})
            return applied.get("memory") == "40Mi" and not any(
                condition["type"].startswith("PodResize") for condition in of["status"]["conditions"]
            )

        after = await world.wait("pinned", "more memory", has_more)
        assert quota(agent, after) <= {"-1", "max"}
        world.server.update(f"{PODS}/pinned/resize", partial(_with_cpus, cpus="2"))
        refused = await world.wait("pinned", "refused", lambda of: pending(of).get("reason") == "Infeasible")
        assert "CPU Manager" in pending(refused)["message"]
        assert agent.log_text().count("Traceback") == 0


def _with_cpus(of: Json, cpus: str) -> None:
    amounts = {"cpu": cpus, "memory": "40Mi"}
    of["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}


def pending(of: Json) -> Json:
    return next(
        (
            dict(condition)
            for condition in of["status"].get("conditions", [])
            if condition["type"] == "PodResizePending"
        ),
        {},
    )


async def test_with_the_gate_off_exclusive_cpus_have_a_quota(make_agent: MakeAgent) -> None:
    old = ("--emulated-version", "1.36")  # later, the gate is locked
    agent = make_agent(old, **STATIC, featureGates={"DisableCPUQuotaWithExclusiveCPUs": False}).start()
    agent.put(pod("pinned", "1"))
    await agent.wait_running("pinned")
    await sees(agent, "pinned", "1")
    assert "100000" in quota(agent, agent.pods()["pinned"])


WHOLE: dict[str, Any] = {
    **STATIC,
    "topologyManagerPolicy": "best-effort",
    "topologyManagerScope": "pod",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "200Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "300Mi"}}],
    "featureGates": {"PodLevelResourceManagers": True},
}


async def test_the_containers_of_a_pod_share_what_it_has_as_a_whole(make_agent: MakeAgent) -> None:
    """They have a CPU that no other pod has, keep their quota, and keep the CPU over restarts, with the gate off too."""
    agent = make_agent(**WHOLE).start()
    agent.put(pod("early"))
    await agent.wait_running("early")
    await sees(agent, "early", "0-1")
    script = f"trap 'exit 0' TERM; {REPORT}"
    both = make_pod("whole", make_container(script=script), make_container("log", script=script), resources=sized("1"))
    agent.put(both)
    await agent.wait_running("whole")
    await sees(agent, "whole", "1")
    await agent.wait_for("log sees 1", lambda: agent.output("whole", "log").split()[1:2] == ["1"])
    await sees(agent, "early", "0-1", "0")
    whole = agent.pods()["whole"]
    uid = whole["metadata"]["uid"]
    assert "100000" in quota(agent, whole), "no container may take all from the others"
    assert state(agent)["entries"] == {uid: {"main": "1", "log": "1"}}
    assert json.loads(state(agent)["data"])["podEntries"] == {uid: {"cpuSet": "1"}}
    memory = json.loads(json.loads((agent.root / "memory_manager_state").read_text())["data"])
    assert memory["podEntries"][uid]["memoryBlocks"] == [{"numaAffinity": [0], "type": "memory", "size": 20 << 20}]
    booked = memory["machineState"]["0"]["memoryMap"]["memory"]["reserved"]
    assert booked == 20 << 20
    assert (
        metric(agent, 'resource_manager_container_assignments{resource_name="cpu",assignment_type="pod_shared"}') == 2
    )

    before = (await agent.look()).running_ids()
    for gates in ({"PodLevelResourceManagers": True}, {"PodLevelResourceManagers": False}):
        agent.kill9()
        agent.config_file.write_text(json.dumps({**json.loads(agent.config_file.read_text()), "featureGates": gates}))
        agent.start()
        await agent.wait_running("whole", "early")
        agent.put(pod("second", "1"))
        assert (await agent.wait_phase("second", "Failed"))["status"]["reason"] == UNEXPECTED
        assert (await agent.look()).running_ids() == before
        agent.remove("second")
        await agent.wait_gone("second")
    assert (seen(agent, "whole"), seen(agent, "early")) == (["1"], ["0-1", "0"])
    assert json.loads((agent.root / "memory_manager_state").read_text())["machineState"]["0"]["memoryMap"]["memory"][
        "reserved"
    ] == (20 << 20)
    agent.remove("whole")
    await agent.wait_gone("whole")
    await sees(agent, "early", "0-1", "0", "0-1")
    assert "entries" not in state(agent) and "podEntries" not in state(agent)["data"]
    agent.put(pod("third", "1"))
    await agent.wait_running("third")
    await sees(agent, "third", "1")
