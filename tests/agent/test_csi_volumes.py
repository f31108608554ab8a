"""Volumes of a CSI driver in pods on a real containerd: the driver is a process of its own that is killed, hangs and lies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, Json, make_container, make_pod
from support.csi import DRIVER, CsiProcess, csi_driver
from support.world import World

from pykubelet.edges.host.fs.mounts import read_fs_usage

STEPS = ("NodePublishVolume", "NodeUnpublishVolume")


def pod_with_volume(name: str, script: str = "", driver: str = DRIVER, **attributes: str) -> Json:
    script = script or 'echo written >> /data/file; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    container = make_container(script=script, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    volume = {"name": "data", "csi": {"driver": driver, "volumeAttributes": attributes}}
    return make_pod(name, container, volumes=[volume], securityContext={"fsGroup": 4321})


@asynccontextmanager
async def driver_of(agent: Agent, name: str = DRIVER, **behavior: Any) -> AsyncIterator[CsiProcess]:
    async with csi_driver(agent.root, agent.folder / name, name, behavior=behavior) as driver:
        yield driver


def target(agent: Agent, pod: Json) -> Path:
    uid: str = pod["metadata"]["uid"]
    return agent.root / "pods" / uid / "volumes/kubernetes.io~csi/data/mount"


def text_of(agent: Agent, name: str) -> str:
    """What the container of a pod has written into its volume."""
    pod = agent.pods().get(name)
    file = target(agent, pod) / "file" if pod is not None else None
    return file.read_text() if file is not None and file.exists() else ""


def measured_volumes(agent: Agent) -> list[Json]:
    """The volumes of the one pod in the Summary API."""
    _, text = agent.get("/stats/summary", agent.read_only_port)
    (pod,) = json.loads(text)["pods"]
    found: list[Json] = pod.get("volume", [])
    return [volume for volume in found if volume.get("capacityBytes")]


async def shows(agent: Agent, pod: str, text: str) -> bool:
    """Whether `explain` has the text. The test serves the API meanwhile."""
    answer = await asyncio.to_thread(agent.ask, "explain", pod, "-o", "json")
    return text in answer.stdout.replace('\\"', '"')


def offer(world: World, name: str = DRIVER, **spec: Any) -> None:
    """Create the CSIDriver."""
    fields = {"attachRequired": False, "podInfoOnMount": True, "fsGroupPolicy": "File"}
    body = {"metadata": {"name": name}, "spec": {**fields, "volumeLifecycleModes": ["Ephemeral"], **spec}}
    world.server.create("/apis/storage.k8s.io/v1/csidrivers", body)


def run(world: World, *pods: Json) -> None:
    for pod in pods:
        world.run(pod)


def delete(world: World, *names: str) -> None:
    for name in names:
        world.delete(name)


async def ends_without_trace(world: World, driver: CsiProcess) -> None:
    """Delete all pods; nothing of them is left, neither here nor at the driver."""
    names = [name for name, pod in world.agent.pods().items() if not pod["metadata"].get("deletionTimestamp")]
    delete(world, *names)
    await world.agent.wait_for("all pods gone", lambda: not world.agent.pods())
    await world.wait_nothing_left()
    assert driver.volumes() == []


async def test_a_pod_has_a_volume_of_its_own_as_long_as_it_lives(world: World) -> None:
    agent = world.agent
    offer(world)
    async with driver_of(agent) as driver:
        run(world, pod_with_volume("web", size="8Mi"))
        (pod,) = await agent.wait_running("web")
        await agent.wait_for("it is read", lambda: text_of(agent, "web") == "written\n")
        assert (target(agent, pod) / "file").read_text() == "written\n"
        assert json.loads((target(agent, pod).parent / "vol_data.json").read_text()) == {
            "attachmentID": driver_data(agent, pod)["attachmentID"],
            "driverName": DRIVER,
            "nodeName": driver_data(agent, pod)["nodeName"],
            "specVolID": "data",
            "volumeHandle": driver.volumes()[0],
            "volumeLifecycleMode": "Ephemeral",
        }
        (request,) = driver.requests("NodePublishVolume")
        context = {key.removeprefix("csi.storage.k8s.io/"): value for key, value in request["volume_context"].items()}
        assert (context["pod.name"], context["pod.uid"]) == (pod["metadata"]["name"], pod["metadata"]["uid"])
        assert (context["ephemeral"], context["size"]) == ("true", "8Mi")
        assert request["target_path"] == str(target(agent, pod))
        expected = read_fs_usage(str(target(agent, pod)))
        measured = await agent.wait_for("it is measured", lambda: measured_volumes(agent))
        assert (measured[0]["name"], measured[0]["capacityBytes"]) == ("data", expected.capacity_bytes)
        await ends_without_trace(world, driver)
        assert driver.names() == list(STEPS)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"size": "15Ti"}, "volume attribute size: ephemeral volumes have at most 10737418240 bytes"),
        ({"backing": "directory"}, "a directory of a pod's own needs a file system with project quotas: use image"),
    ],
)
async def test_a_pod_that_asks_for_too_much_is_refused(world: World, attributes: dict[str, str], text: str) -> None:
    offer(world)
    async with driver_of(world.agent) as driver:
        run(world, pod_with_volume("greedy", **attributes))
        await world.agent.wait_for("it is explained", lambda: shows(world.agent, "greedy", text))
        assert driver.volumes() == []
        await ends_without_trace(world, driver)


def driver_data(agent: Agent, pod: Json) -> dict[str, str]:
    found: dict[str, str] = json.loads((target(agent, pod).parent / "vol_data.json").read_text())
    assert found["attachmentID"].startswith("csi-") and found["nodeName"]
    return found


async def test_a_pod_waits_for_its_driver_to_register(world: World) -> None:
    agent = world.agent
    offer(world)
    run(world, pod_with_volume("early"))
    missing = f"driver name {DRIVER} not found in the list of registered CSI drivers"
    await agent.wait_for("it waits", lambda: shows(agent, "early", missing))
    assert await shows(agent, "early", f"try again when the CSI driver {DRIVER} has registered")
    async with driver_of(agent) as driver:
        await agent.wait_running("early")
        await driver.stop()
        delete(world, "early")
        await agent.wait_for("it stays", lambda: shows(agent, "early", missing))
    async with driver_of(agent) as driver:
        await ends_without_trace(world, driver)


async def test_a_restarted_agent_leaves_a_running_pod_and_its_volume_alone(world: World) -> None:
    agent = world.agent
    offer(world)
    async with driver_of(agent) as driver:
        run(world, pod_with_volume("web"))
        (pod,) = await agent.wait_running("web")
        before = agent.pods()["web"]["status"]["containerStatuses"][0]["containerID"]
        agent.kill9()
        await driver.behave(NodePublishVolume="fail INTERNAL broken")
        agent.start()
        await driver.wait_calls("NodePublishVolume", 4)  # begun and done, begun and failed
        await agent.wait_for("it is reported", lambda: shows(agent, "web", "broken"))
        assert (target(agent, pod) / "file").read_text() == "written\n"
        assert agent.pods()["web"]["status"]["containerStatuses"][0]["containerID"] == before
        await driver.behave(NodePublishVolume="")
        await ends_without_trace(world, driver)


async def test_nothing_is_deleted_that_a_lying_driver_left_mounted(world: World) -> None:
    agent = world.agent
    offer(world)
    async with driver_of(agent, NodeUnpublishVolume="lie") as driver:
        run(world, pod_with_volume("web"))
        (pod,) = await agent.wait_running("web")
        await agent.wait_for("it is read", lambda: text_of(agent, "web") == "written\n")
        delete(world, "web")
        await agent.wait_for("it is reported", lambda: shows(agent, "web", "is in use"))
        assert (target(agent, pod) / "file").read_text() == "written\n"
        assert (target(agent, pod).parent / "vol_data.json").exists()
        await driver.behave(NodeUnpublishVolume="")
        await ends_without_trace(world, driver)


async def test_a_driver_that_hangs_and_one_that_floods_cost_only_their_pods(world: World) -> None:
    agent = world.agent
    offer(world)
    slow, loud = "slow.example.com", "loud.example.com"
    offer(world, slow)
    offer(world, loud)
    async with (
        driver_of(agent) as good,
        driver_of(agent, slow, NodePublishVolume="hang") as hung,
        driver_of(agent, loud, NodePublishVolume="flood") as flooding,
    ):
        run(world, pod_with_volume("hung", driver=slow), pod_with_volume("flooded", driver=loud))
        await hung.wait_calls("NodePublishVolume", 1)
        await agent.wait_for("it fails", lambda: shows(agent, "flooded", "ResourceExhausted"))
        assert await shows(agent, "hung", f"the CSI driver {slow} publishes it")
        run(world, pod_with_volume("web"), make_pod("plain"))
        await agent.wait_running("web", "plain")
        delete(world, "web", "plain")
        await world.wait_gone("web", "plain")
        assert good.names("done") == list(STEPS)
        await asyncio.gather(hung.behave(NodePublishVolume=""), flooding.behave(NodePublishVolume=""))
        agent.kill9()  # ends the call that hangs
        agent.start()
        await agent.wait_running("hung", "flooded")
        await ends_without_trace(world, good)
        assert (hung.volumes(), flooding.volumes()) == ([], [])
