"""Devices of device plugins in real containers: as seen from inside, through restarts of plugin and agent, and under bad plugins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import MakeAgent
from support.agent import Agent, Json, make_container, make_pod, sweep
from support.device_plugins import Device, PluginProcess, device_plugin, healthy
from support.world import World
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration

R, BAD = "example.com/device", "example.com/bad"
#: What a container sees of its devices.
LOOK = 'echo "ids=$IDS own=$OWN file=$(cat /plugin/file)"; test -c /dev/given && echo x > /dev/given && echo device'
STAY = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


def wanting(name: str, count: int, resource: str = R, script: str = f"{LOOK}; {STAY}", **spec: Any) -> Json:
    """A pod whose container requests devices and prints what it sees of them."""
    amounts = {resource: str(count)}
    main = make_container(
        script=script, resources={"requests": amounts, "limits": amounts}, env=[{"name": "OWN", "value": "1"}]
    )
    return make_pod(name, main, **spec)


def response(folder: Path) -> dict[str, Any]:
    """What the plugin adds to containers. `OWN` is in the pod's spec too, which wins."""
    folder.mkdir(exist_ok=True)
    (folder / "file").write_text("hello")
    return {
        "envs": {"IDS": "{ids}", "OWN": "of the plugin"},
        "mounts": [{"container_path": "/plugin", "host_path": str(folder), "read_only": True}],
        "devices": [{"container_path": "/dev/given", "host_path": "/dev/null", "permissions": "rw"}],
        "annotations": {"example.com/ids": "{ids}"},
    }


async def registered(agent: Agent, *plugins: PluginProcess) -> None:
    """The node has healthy devices of these plugins: their lists came after their calls."""

    def known() -> bool:
        allocatable = agent.ask_json("explain", "node")["allocatable"]
        return all(int(allocatable.get(plugin.name, 0)) for plugin in plugins)

    await agent.wait_for("devices", known)


async def annotations_of(agent: Agent, name: str) -> dict[str, str]:
    (found,) = (await agent.look()).of(f"{name}-node").running
    return dict(found.annotations)


def health(pod: Json) -> list[tuple[str, str]]:
    (status,) = pod["status"]["containerStatuses"]
    found = [
        (resource["resourceID"], resource["health"])
        for r in status.get("allocatedResourcesStatus", [])
        for resource in r["resources"]
    ]
    return sorted(found)


async def test_devices_inside_a_container_through_all_restarts(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent().start()
    added, options = response(tmp_path / "plugin"), ["--pre-start", "--prefers"]
    async with device_plugin(agent.root, R, healthy("a", "b", "c"), response=added, options=options) as plugin:
        await registered(agent, plugin)
        agent.put(wanting("first", 2))
        (first,) = await agent.wait_running("first")
        expected = "ids=b,c own=1 file=hello\ndevice\n"  # the plugin prefers the last ones
        await agent.wait_for("output", lambda: agent.output("first", "main") == expected)
        assert (await annotations_of(agent, "first"))["example.com/ids"] == "b,c"
        assert plugin.calls("PreStartContainer") == [{"call": "PreStartContainer", "ids": ["b", "c"]}]
        await agent.wait_pod("first", "health", lambda pod: health(pod) == [("b", "Healthy"), ("c", "Healthy")])
        # another pod competes for what is left
        agent.put(wanting("second", 2))
        refused = await agent.wait_phase("second", "Failed")
        why = f"requested number of devices unavailable for {R}. Requested: 2, Available: 1"
        assert refused["status"]["reason"] == "UnexpectedAdmissionError"
        assert refused["status"]["message"].endswith(f"Allocate failed due to {why}, which is unexpected")
        agent.remove("second")
        await agent.wait_gone("second")
        # a device falls ill
        await plugin.list_devices([("a", "Healthy", None), ("b", "Unhealthy", None), ("c", "Healthy", None)])
        await agent.wait_pod("first", "ill", lambda pod: health(pod) == [("b", "Unhealthy"), ("c", "Healthy")])
        await plugin.list_devices(healthy("a", "b", "c"))
        await agent.wait_pod("first", "well", lambda pod: health(pod) == [("b", "Healthy"), ("c", "Healthy")])
        # the agent restarts alone; the plugin registers again when it sees the new socket
        before = (await agent.look()).running_ids()
        agent.kill9()
        agent.start()
        await agent.wait_running("first")
        await plugin.wait_calls("Register", 2)
        await registered(agent, plugin)
        assert (await agent.look()).running_ids() == before
        assert len(plugin.calls("Allocate")) == 1
    # the plugin is gone: the pod stays, also if the agent restarts before the plugin
    agent.kill9()
    agent.start()
    await agent.wait_running("first")
    assert (await agent.look()).running_ids() == before
    agent.put(wanting("third", 1))
    refused = await agent.wait_phase("third", "Failed")
    assert f"no healthy devices present; cannot allocate unhealthy devices {R}" in refused["status"]["message"]
    agent.remove("third")
    async with device_plugin(agent.root, R, healthy("a", "b", "c"), response=added, options=options) as plugin:
        await registered(agent, plugin)
        await agent.wait_gone("third")
        agent.put(wanting("fourth", 1))
        await agent.wait_running("fourth")
        assert plugin.calls("Allocate") == [{"call": "Allocate", "ids": [["a"]]}]
        # the devices of a pod that is gone are free
        agent.remove("first")
        await agent.wait_gone("first")
        agent.put(wanting("fifth", 2))
        await agent.wait_running("fifth")
        await agent.wait_for("output", lambda: "ids=b,c" in agent.output("fifth", "main"))
        assert (
            first["metadata"]["uid"] not in (agent.root / "device-plugins" / "kubelet_internal_checkpoint").read_text()
        )


async def test_after_a_reboot_a_pod_whose_plugin_is_not_there_is_refused(
    make_agent: MakeAgent, testbed: Testbed
) -> None:
    agent = make_agent().start()
    async with device_plugin(agent.root, R, healthy("a")) as plugin:
        await registered(agent, plugin)
        agent.put(wanting("lost", 1, script=STAY), make_pod("plain"))
        await agent.wait_running("lost", "plain")
        agent.kill9()
    await sweep(testbed)  # no container survives a reboot
    agent.start()
    refused = await agent.wait_phase("lost", "Failed")
    why = f"no healthy devices present; cannot allocate unhealthy devices {R}"
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    assert refused["status"]["message"].endswith(f"Allocate failed due to {why}, which is unexpected")
    await agent.wait_running("plain")


async def test_bad_plugins_cost_only_the_pods_that_use_them(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent().start()
    added = response(tmp_path / "plugin")
    async with (
        device_plugin(agent.root, R, healthy("a", "b"), response=added) as plugin,
        device_plugin(agent.root, BAD, healthy("x", "y"), options=["--pre-start", "--prefers"]) as bad,
    ):
        await registered(agent, plugin, bad)
        await bad.misbehave(allocate="hang")
        agent.put(wanting("stuck", 1, BAD, STAY))
        await bad.wait_calls("Allocate", 1)
        agent.put(wanting("works", 1), make_pod("plain"))
        await agent.wait_running("works", "plain")
        waits = agent.explain("stuck")
        assert "Allocate" in json.dumps(waits)
        # the plugin crashes: its pod is refused, and the others stay
        await bad.kill()
        refused = await agent.wait_phase("stuck", "Failed")
        assert "Allocate failed due to rpc error: code = Unavailable" in refused["status"]["message"]
        agent.remove("stuck")
        await agent.wait_gone("stuck")
        await agent.wait_running("works", "plain")
    async with device_plugin(agent.root, BAD, healthy("x", "y"), options=["--pre-start", "--prefers"]) as bad:
        await registered(agent, bad)
        await bad.misbehave(prefer="lie", pre_start="fail not ready")
        agent.put(wanting("lied-to", 1, BAD, STAY))

        def waits_for_plugin(pod: Json) -> bool:
            (status,) = pod["status"].get("containerStatuses") or [{}]
            waiting = status.get("state", {}).get("waiting", {})
            return "PreStartContainer rpc failed with err: rpc error: code = Internal desc = not ready" in waiting.get(
                "message", ""
            )

        pod = await agent.wait_pod("lied-to", "PreStartContainer fails", waits_for_plugin)
        assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        assert bad.calls("Allocate") == [{"call": "Allocate", "ids": [["x"]]}]
        await bad.misbehave(list="flood")
        agent.put(make_pod("beside"))
        await agent.wait_running("beside")


async def test_the_node_reports_its_devices(world: World) -> None:
    agent = world.agent

    def amounts() -> tuple[str | None, str | None]:
        status = (world.node() or {}).get("status", {})
        return status.get("capacity", {}).get(R), status.get("allocatable", {}).get(R)

    listed: list[Device] = [("a", "Healthy", None), ("b", "Unhealthy", None)]
    async with device_plugin(agent.root, R, listed):
        await agent.wait_for("capacity", lambda: amounts() == ("2", "1"))
    await agent.wait_for("no plugin", lambda: amounts() == ("2", "0"))
    agent.kill9()
    agent.start()
    await agent.wait_for("no plugin since the start", lambda: amounts() == ("0", "0"))


async def test_devices_are_aligned_with_exclusive_cpus(make_agent: MakeAgent) -> None:
    """The machine has one NUMA node, 0. A device that claims to be on another one fits with no CPU."""
    policies = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "topologyManagerPolicy": "single-numa-node"}
    agent = make_agent(**policies).start()

    def exclusive(name: str, resource: str) -> Json:
        pod = wanting(name, 1, resource, f"grep Cpus_allowed_list /proc/self/status; {STAY}")
        amounts = pod["spec"]["containers"][0]["resources"]
        amounts["limits"] = amounts["requests"] = {resource: "1", "cpu": "1", "memory": "20Mi"}
        return pod

    async with (
        device_plugin(agent.root, R, [("a", "Healthy", [0]), ("b", "Healthy", None)]) as plugin,
        device_plugin(agent.root, BAD, [("x", "Healthy", [1])]) as far,
    ):
        await registered(agent, plugin, far)
        agent.put(exclusive("far", BAD))
        refused = await agent.wait_phase("far", "Failed")
        assert refused["status"]["reason"] == "TopologyAffinityError"
        assert refused["status"]["message"].endswith("Resources cannot be allocated with Topology locality")
        agent.put(exclusive("near", R))
        await agent.wait_running("near")
        assert plugin.calls("Allocate") == [{"call": "Allocate", "ids": [["a"]]}]
        await agent.wait_for("output", lambda: "Cpus_allowed_list:\t1" in agent.output("near", "main"))
