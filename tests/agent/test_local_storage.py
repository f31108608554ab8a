"""Pods that exceed a limit of local storage are evicted with the kubelet's message, and their neighbors stay: real containers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import MakeAgent
from support.agent import Json, condition, make_container, make_pod
from support.world import World, a_world

from pykubelet.edges.host.proc.procfs import read_meminfo

pytestmark = pytest.mark.integration

STORAGE = "ephemeral-storage"
#: Two measurements of files, two passes and what the runtime needs to measure writable layers.
WITHIN_S = 120.0
MIB = 1 << 20
VOLUMES = [{"name": "data", "emptyDir": {"sizeLimit": "4Mi"}}]
MOUNTS = [{"name": "data", "mountPath": "/data"}]


def limited(limit: str, script: str) -> Json:
    return make_container(script=script, resources={"limits": {STORAGE: limit}})


def write(path: str, mib: int) -> str:
    return f"dd if=/dev/zero of={path} bs=1M count={mib} 2>/dev/null; sleep 3600"


def log(mib: int) -> str:
    return f"yes 0123456789012345678901234567890123456789 | head -c {mib * MIB}; sleep 3600"


FILLERS: dict[str, tuple[Json, str]] = {
    "volume": (
        make_pod("filler", make_container(script=write("/data/file", 8), volumeMounts=MOUNTS), volumes=VOLUMES),
        'Usage of EmptyDir volume "data" exceeds the limit "4Mi". ',
    ),
    "log": (
        make_pod("filler", limited("2Mi", log(4))),
        "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
    ),
    "rootfs": (
        make_pod("filler", limited("4Mi", write("/file", 8))),
        "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. ",
    ),
    "container": (
        make_pod("filler", limited("4Mi", write("/file", 8)), limited("1Gi", "sleep 3600") | {"name": "side"}),
        'Container main exceeded its local ephemeral storage limit "4Mi". ',
    ),
}


@pytest.fixture
async def storage_world(make_agent: MakeAgent, tmp_path: Path) -> AsyncIterator[World]:
    """Without thresholds of the node."""
    settings: dict[str, Any] = {
        "evictionHard": {"memory.available": str(read_meminfo()["MemTotal"] // 1000)},
        "volumeStatsAggPeriod": "1s",
    }
    async with a_world(make_agent, tmp_path, **settings) as world:
        yield world


@pytest.mark.parametrize("kind", FILLERS)
async def test_a_pod_that_exceeds_its_limit_is_evicted(storage_world: World, kind: str) -> None:
    world = storage_world
    filler, message = FILLERS[kind]
    script = f"{log(1).removesuffix('; sleep 3600')}; {write('/data/file', 2)}"
    within = limited("1Gi", script) | {"volumeMounts": MOUNTS}
    world.run(make_pod("neighbor", within, volumes=VOLUMES))
    await world.wait_ready("neighbor")
    world.run(filler)
    ended = await world.wait("filler", "evicted", lambda pod: pod["status"].get("phase") == "Failed", WITHIN_S)
    assert (ended["status"]["reason"], ended["status"]["message"]) == ("Evicted", message)
    assert condition(ended, "DisruptionTarget") == "", "the cause is the pod itself"
    [event] = await eviction_events(world)
    assert (event["type"], event["message"], event["involvedObject"]["name"]) == ("Warning", message, "filler")
    assert "annotations" not in event["metadata"]
    await world.wait_ready("neighbor")
    neighbor = world.pod("neighbor")
    assert neighbor is not None and neighbor["status"]["containerStatuses"][0]["restartCount"] == 0


async def eviction_events(world: World) -> list[Json]:
    """The Events of evictions, once there is one: Events are sent after statuses."""

    def found() -> list[Json]:
        events = (item for item in world.server.store.objects.values() if item.get("kind") == "Event")
        return [event for event in events if event["reason"] == "Evicted"]

    await world.agent.wait_for("an Event of the eviction", lambda: bool(found()))
    return found()


async def test_an_evicted_pod_that_ends_well_has_succeeded(storage_world: World) -> None:
    world = storage_world
    script = f"trap 'exit 0' TERM; {write('/data/file', 8).removesuffix('; sleep 3600')}; sleep 3600 & wait"
    world.run(make_pod("filler", make_container(script=script, volumeMounts=MOUNTS), volumes=VOLUMES))
    ended = await world.wait(
        "filler", "its end", lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"), WITHIN_S
    )
    status = ended["status"]
    assert (status["phase"], status.get("reason"), status.get("message")) == ("Succeeded", None, None)
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    [event] = await eviction_events(world)
    assert event["message"] == 'Usage of EmptyDir volume "data" exceeds the limit "4Mi". '
