"""What a real agent shows of the CPUs and memory that its containers have: commands, the pod resources API, a replay."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from agent.conftest import MakeAgent
from agent.test_resource_claims import run_with_claim
from provide.claims.samples import GPU as DRIVER
from support.agent import Agent, Json, make_container, make_pod
from support.device_plugins import Device, device_plugin
from support.drivers import dra_driver
from support.world import World
from testbed import containerd

from pykubelet.app import cli
from pykubelet.edges.plugins import podresources_pb2 as pb

pytestmark = pytest.mark.integration

GPU = "example.com/gpu"
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


async def call(agent: Agent, method: str, request: bytes = b"", version: str = "v1") -> bytes:
    path = f"unix:{agent.root}/pod-resources/kubelet.sock"
    async with grpc.aio.insecure_channel(path, options=(("grpc.default_authority", "localhost"),)) as channel:
        answer: bytes = await channel.unary_unary(f"/{version}.PodResourcesLister/{method}", None, None)(request)
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
    assert [(pod.name, [list(container.cpu_ids) for container in pod.containers]) for pod in listed] == [
        ("first-node", [[1]])
    ]
    [block] = listed[0].containers[0].memory
    assert (block.memory_type, block.size, [node.ID for node in block.topology.nodes]) == ("memory", 20 << 20, [0])
    allocatable = pb.AllocatableResourcesResponse.FromString(await call(agent, "GetAllocatableResources"))
    assert list(allocatable.cpu_ids) == [1]
    assert [memory.memory_type for memory in allocatable.memory] == ["memory"]

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


async def test_devices_and_why_another_pod_has_none(make_agent: MakeAgent) -> None:
    agent = make_agent().start()
    devices: list[Device] = [("a", "Healthy", [0]), ("b", "Healthy", [0]), ("c", "Unhealthy", None)]
    async with device_plugin(agent.root, GPU, devices) as plugin:
        await plugin.wait_calls("Register", 1)
        await agent.wait_for("devices", lambda: rows(agent, "a,b") == ["    a,b                free"])
        agent.put(wanting("first", 1))
        await agent.wait_running("first")
        agent.put(wanting("second", 2))
        await agent.wait_phase("second", "Failed")
        why = f"Container main needs 2 {GPU}; free: 1, held by default/first-node main (1); 1 unhealthy\n"
        assert why in agent.ask("explain", "second").stdout
        shown = agent.ask("explain", "node").stdout
        assert f"  {GPU}\n    a                  default/first-node main\n    b                  free\n" in shown
        assert f"No NUMA node:\n  {GPU}\n    c                  unhealthy\n" in shown
        pods = pb.ListPodResourcesResponse.FromString(await call(agent, "List")).pod_resources
        assert [(pod.name, [held(container) for container in pod.containers]) for pod in pods] == [
            ("first-node", [[("a", [0])]])
        ]
        allocatable = pb.AllocatableResourcesResponse.FromString(await call(agent, "GetAllocatableResources"))
        assert held(allocatable) == [("a", [0]), ("b", [0])]
        old = pb.ListPodResourcesResponse.FromString(await call(agent, "List", version="v1alpha1")).pod_resources
        assert {pod.name: held(pod.containers[0]) for pod in old}["first-node"] == [("a", [])]


async def test_claims(world: World) -> None:
    agent = world.agent
    containerd.describe_devices(agent.testbed, f"{DRIVER}/gpu", ["one"])
    async with dra_driver(agent.root) as driver:
        await driver.behave([{"device": "dev-0", "requests": ["gpu"], "cdi": [f"{DRIVER}/gpu={{name}}"]}])
        run_with_claim(world, "web", "one")
        await world.wait_ready("web")
        [pod] = pb.ListPodResourcesResponse.FromString(await call(agent, "List")).pod_resources
        [claim] = pod.containers[0].dynamic_resources
        assert (claim.claim_name, claim.claim_namespace) == ("one", "default")
        [device] = claim.claim_resources
        assert (device.driver_name, device.pool_name, device.device_name) == (DRIVER, "pool", "dev-0")
        assert [cdi_device.name for cdi_device in device.cdi_devices] == [f"{DRIVER}/gpu=one"]
        shown = await asyncio.to_thread(agent.ask, "explain", "node")
        assert (
            f"Resource claims:\n  default/one\n    {DRIVER}/pool/dev-0\n    held by default/web main\n" in shown.stdout
        )
        world.delete("web")
        await driver.wait_calls("NodeUnprepareResources", 1)


def wanting(name: str, count: int) -> Json:
    amounts = {GPU: str(count)}
    script = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    return make_pod(name, make_container(script=script, resources={"requests": amounts, "limits": amounts}))


def held(listed: pb.ContainerResources | pb.AllocatableResourcesResponse) -> list[tuple[str, list[int]]]:
    return [(",".join(found.device_ids), [node.ID for node in found.topology.nodes]) for found in listed.devices]


def rows(agent: Agent, ids: str) -> list[str]:
    return [line for line in agent.ask("explain", "node").stdout.splitlines() if line.split()[:1] == [ids]]


def cpus(agent: Agent, key: str) -> str:
    found = json.loads(agent.ask("explain", "node", "-o", "json").stdout)["placement"]["numa_nodes"][0][key]
    assert isinstance(found, str)
    return found
