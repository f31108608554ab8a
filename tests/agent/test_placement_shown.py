"""What a real agent shows of the CPUs and memory that its containers have: commands, the pod resources API, a replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from agent.conftest import MakeAgent
from support.agent import Agent, Json, make_container, make_pod

from pykubelet.app import cli
from pykubelet.edges.plugins import podresources_pb2 as pb

pytestmark = pytest.mark.integration

POLICIES: dict[str, Any] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "200Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "300Mi"}}],
    "topologyManagerPolicy": "single-numa-node",
}


def pinned(name: str) -> Json:
    amounts = {"cpu": "1", "memory": "20Mi"}
    script = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    resources = {"requests": amounts, "limits": amounts}
    return make_pod(name, make_container(script=script, resources=resources))


async def call(agent: Agent, method: str, request: bytes = b"") -> bytes:
    path = f"unix:{agent.root}/pod-resources/kubelet.sock"
    async with grpc.aio.insecure_channel(path, options=(("grpc.default_authority", "localhost"),)) as channel:
        answer: bytes = await channel.unary_unary(f"/v1.PodResourcesLister/{method}", None, None)(request)
        return answer


async def test_what_a_pinned_pod_has(make_agent: MakeAgent, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = make_agent(**POLICIES).start()
    agent.put(pinned("first"))
    await agent.wait_running("first")
    lines = agent.ask("explain", "node").stdout.splitlines()
    assert "  0                    reserved" in lines
    assert "  1                    default/first-node main" in lines
    assert "  20Mi memory          default/first-node main" in lines
    assert "  main: CPUs 1, 20Mi memory on node 0\n" in agent.ask("explain", "first").stdout

    listed = pb.ListPodResourcesResponse.FromString(await call(agent, "List")).pod_resources
    assert [(pod.name, [list(one.cpu_ids) for one in pod.containers]) for pod in listed] == [("first-node", [[1]])]
    [block] = listed[0].containers[0].memory
    assert (block.memory_type, block.size, [node.ID for node in block.topology.nodes]) == ("memory", 20 << 20, [0])
    allocatable = pb.AllocatableResourcesResponse.FromString(await call(agent, "GetAllocatableResources"))
    assert list(allocatable.cpu_ids) == [1]
    assert [one.memory_type for one in allocatable.memory] == ["memory"]

    recording = tmp_path / "recording.json"
    recording.write_text(agent.ask("explain", "node", "--recording").stdout)
    assert cli.main(["replay", str(recording)]) == 0
    out = capsys.readouterr().out
    assert "-> main: CPUs 1, 20971520 bytes of memory on node 0" in out
    assert "every step came out as recorded" in out

    agent.remove("first")
    await agent.wait_gone("first")
    await agent.wait_for("CPU 1 is free", lambda: cpus(agent, "shared") == "1")
    assert pb.ListPodResourcesResponse.FromString(await call(agent, "List")) == pb.ListPodResourcesResponse()


def cpus(agent: Agent, key: str) -> str:
    found = json.loads(agent.ask("explain", "node", "-o", "json").stdout)["placement"]["numa_nodes"][0][key]
    assert isinstance(found, str)
    return found
