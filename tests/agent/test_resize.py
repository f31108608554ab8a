"""In-place resize as the API server asks for it: limits of running containers change, or the reason why not is reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, Json, condition, container_status, make_container, make_pod
from support.sizes import IN_PROGRESS, MIB, PENDING, has_size, instance_of, kernel_limits, reported, size
from support.world import PODS, World, a_world

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]


def resize(world: World, name: str, resources: Json) -> None:
    """What `kubectl patch --subresource resize` leaves of the pod's first container."""

    def changed(pod: Json) -> None:
        pod["spec"]["containers"][0]["resources"] = resources

    world.server.update(f"{PODS}/{name}/resize", changed)


def has_limits(agent: Agent, pod: Json, instance: str, limits: tuple[float, int]) -> bool:
    return kernel_limits(agent, pod, instance) == limits


async def limits_become(world: World, name: str, cpus: float, memory_mib: int) -> None:
    """Of the pod and its one container."""
    pod = world.pod(name)
    assert pod is not None
    for what in ("", instance_of(pod)):
        await world.agent.wait_for(
            f"limits of {what or name}",
            partial(has_limits, world.agent, pod, what, (cpus, memory_mib * MIB)),
        )


async def test_a_running_container_gets_another_size(world: World) -> None:
    small, large = size("400m", "64Mi"), size("800m", "128Mi")
    world.run(make_pod("web", make_container(resources=small)))
    await world.wait_ready("web")
    await limits_become(world, "web", 0.4, 64)
    before = world.pod("web")
    assert before is not None
    for resources, cpus, memory in ((large, 0.8, 128), (small, 0.4, 64)):
        resize(world, "web", resources)
        pod = await world.wait("web", "its new size", partial(has_size, resources=resources))
        await limits_become(world, "web", cpus, memory)
        assert instance_of(pod) == instance_of(before)
        assert container_status(pod)["restartCount"] == 0
        assert condition(pod, "Ready") == "True"
    await world.wait("web", "its generation", lambda pod: pod["status"].get("observedGeneration") == 3)


async def test_a_container_that_wants_a_restart_for_it_gets_one(world: World) -> None:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    container = make_container(resources=size("400m", "64Mi"), resizePolicy=policy)
    world.run(make_pod("web", container, make_container("beside")))
    await world.wait_ready("web")
    first = world.pod("web")
    assert first is not None
    resize(world, "web", size("800m", "64Mi"))
    pod = await world.wait("web", "more CPU", lambda pod: has_size(pod, size("800m", "64Mi")))
    assert instance_of(pod) == instance_of(first)
    resize(world, "web", size("800m", "128Mi"))
    pod = await world.wait("web", "more memory", lambda pod: has_size(pod, size("800m", "128Mi")))
    assert instance_of(pod) != instance_of(first)
    assert container_status(pod)["restartCount"] == 1
    assert container_status(pod, "beside")["restartCount"] == 0
    assert kernel_limits(world.agent, pod, instance_of(pod)) == (0.8, 128 * MIB)


async def test_memory_that_is_in_use_is_not_taken_away(world: World) -> None:
    large, small = size("400m", "96Mi"), size("400m", "16Mi")
    script = "dd if=/dev/zero of=/dev/shm/held bs=1M count=40; touch /tmp/there; while :; do sleep 1; done"
    ready = {"exec": {"command": ["test", "-e", "/tmp/there"]}, "periodSeconds": 1}
    world.run(make_pod("web", make_container(script=script, resources=large, readinessProbe=ready)))
    await world.wait_ready("web")
    resize(world, "web", small)
    pod = await world.wait("web", "in progress", lambda pod: reported(pod, IN_PROGRESS).get("reason") == "Error")
    assert "below current usage" in reported(pod, IN_PROGRESS)["message"]
    assert container_status(pod)["resources"]["limits"] == large["limits"]
    assert kernel_limits(world.agent, pod, instance_of(pod)) == (0.4, 96 * MIB)
    # asked for the old size again, nothing is left to be done
    resize(world, "web", large)
    pod = await world.wait("web", "no more than it had", lambda pod: has_size(pod, large))
    assert container_status(pod)["restartCount"] == 0


async def test_a_size_without_capacity_waits_until_there_is_some(world: World) -> None:
    small, huge = size("400m", "64Mi"), size("500", "64Mi")
    world.run(make_pod("web", make_container(resources=small)))
    await world.wait_ready("web")
    resize(world, "web", huge)
    pod = await world.wait("web", "deferred", lambda pod: reported(pod, PENDING).get("reason") == "Deferred")
    assert "cpu" in reported(pod, PENDING)["message"].lower()
    await limits_become(world, "web", 0.4, 64)
    resize(world, "web", size("800m", "64Mi"))
    await world.wait("web", "a size that fits", lambda pod: has_size(pod, size("800m", "64Mi")))
    await limits_become(world, "web", 0.8, 64)


async def volumes_in_memory_get_another_size(world: World) -> None:
    """As the container sees it, which goes on running."""
    mounts = [{"name": "v", "mountPath": "/v"}]
    volumes = [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}]
    world.run(make_pod("buffer", make_container(volumeMounts=mounts), volumes=volumes))
    await world.wait_ready("buffer")
    pod = world.pod("buffer")
    assert pod is not None
    folder = world.agent.root / "pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/v"

    def limit(pod: Json) -> None:
        pod["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] = "16Mi"

    assert shutil.disk_usage(folder).total == 8 * MIB
    world.server.update(f"{PODS}/buffer/resize", limit)
    await world.agent.wait_for("the size of the volume", lambda: shutil.disk_usage(folder).total == 16 * MIB)
    assert instance_of(await world.wait("buffer", "its generation", is_followed)) == instance_of(pod)


def is_followed(pod: Json) -> bool:
    return bool(pod["status"].get("observedGeneration") == 2)


async def test_a_size_that_can_never_be_is_infeasible(make_agent: MakeAgent, tmp_path: Path) -> None:
    static: dict[str, Any] = {"cpuManagerPolicy": "static", "systemReserved": {"cpu": "200m"}}
    gates = {"InPlacePodVerticalScalingMemoryBackedVolumes": True}
    async with a_world(make_agent, tmp_path, **static, featureGates=gates) as world:
        await volumes_in_memory_get_another_size(world)
        world.run(make_pod("web", make_container(resources=size("400m", "64Mi"))))
        await world.wait_ready("web")
        resize(world, "web", size("800m", "64Mi"))
        pod = await world.wait("web", "infeasible", lambda pod: reported(pod, PENDING).get("reason") == "Infeasible")
        assert 'CPU Manager policy "static"' in reported(pod, PENDING)["message"]
        assert kernel_limits(world.agent, pod) == (0.4, 64 * MIB)


async def test_a_killed_agent_remembers_what_it_gave_and_what_it_did_not(world: World) -> None:
    first, second, huge = size("400m", "64Mi"), size("800m", "96Mi"), size("500", "64Mi")
    world.run(make_pod("given", make_container(resources=first)))
    world.run(make_pod("waiting", make_container(resources=first)))
    await world.wait_ready("given", "waiting")
    resize(world, "given", second)
    resize(world, "waiting", huge)
    await world.wait("given", "its new size", lambda pod: has_size(pod, second))
    await world.wait("waiting", "deferred", lambda pod: reported(pod, PENDING).get("reason") == "Deferred")
    running = (await world.agent.look()).running_ids()
    mark = len(world.server.requests)

    world.agent.kill9()
    world.agent.start()
    world.run(make_pod("after"))
    await world.wait_ready("given", "waiting", "after")
    await limits_become(world, "given", 0.8, 96)
    await limits_become(world, "waiting", 0.4, 64)
    now = (await world.agent.look()).running_ids()
    assert running.items() <= now.items(), "no container was started again"
    pod = world.pod("waiting")
    assert pod is not None
    assert reported(pod, PENDING)["reason"] == "Deferred"
    assert container_status(pod)["allocatedResources"] == first["requests"]
    since = [s.body["status"] for s in world.server.requests[mark:] if s.path == f"{PODS}/given/status"]
    assert not any(c["type"] == PENDING for status in since for c in status.get("conditions", []))
    resize(world, "waiting", second)
    await world.wait("waiting", "what it may have now", lambda pod: has_size(pod, second))
    assert (await world.agent.look()).running_ids().items() >= running.items()
