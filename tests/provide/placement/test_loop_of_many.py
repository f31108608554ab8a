"""Many pods, and pods of many containers: they are placed in order, and other tasks of the event loop go on meanwhile."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from provide.placement.cpu_pods import container, make_pod
from provide.placement.stand import cpu_managers, placing
from support.machines import Shape

from pykubelet.base.api.core import Pod
from pykubelet.base.model.ids import PodUID
from pykubelet.provide.placement.loop import CONTAINERS_AT_ONCE, PLACED_AT_ONCE

pytestmark = pytest.mark.virtual_time


def pod_of_many(uid: str, cpu: str = "1") -> Pod:
    containers = [container(f"c{number}", cpu) for number in range(400)]
    return msgspec.convert({"metadata": {"uid": uid, "name": uid}, "spec": {"containers": containers}}, Pod)


async def test_many_pods_are_placed_in_order_and_other_tasks_go_on_meanwhile(tmp_path: Path) -> None:
    """After a restart of the agent with pods of two sources, of which one has not reported."""
    shape = Shape(sockets=1, nodes_per_socket=1, cores_per_node=256, threads=1)
    async with placing(cpu_managers(shape), tmp_path) as stand:
        pods = [make_pod(f"pod-{number:03}", "1") for number in range(250)]
        stand.desire(*pods)
        versions = []
        while "pod-249" not in stand.placements.get().pods:
            await asyncio.sleep(0)
            versions.append(len(stand.placements.get().pods))
        assert len(set(versions)) >= 250 // PLACED_AT_ONCE
        assert await stand.cpus(pods[249]) == {"c0": "250"}
        gone = make_pod("gone", "5")
        stand.desire(*pods, gone, ready=False)
        await stand.cpus(gone)
        late = [make_pod(f"late-{number:03}", "1") for number in range(3 * PLACED_AT_ONCE)]
        shared = make_pod("shared", "1500m")
        stand.desire(*pods, *late, shared, ready=False)
        await stand.placed(shared)
        assert stand.placements.get().waits.keys() == {PodUID(pod.metadata.uid) for pod in late}
        stand.desire(*pods, *late, shared)
        assert await stand.cpus(late[4]) == {"c0": "255"}
        assert (await stand.rejected(late[5])).reason == "UnexpectedAdmissionError"


async def test_other_tasks_go_on_while_a_pod_of_many_containers_is_placed(tmp_path: Path) -> None:
    """It shares the CPUs of the node, so nothing has to be written in between."""
    async with placing(
        cpu_managers(Shape(sockets=1, nodes_per_socket=1, cores_per_node=4, threads=1)), tmp_path
    ) as stand:
        first = make_pod("first", "500m")
        stand.desire(first)
        await stand.placed(first)
        stand.desire(first, pod_of_many("many", "100m"))
        iterations = 0
        while "many" not in stand.placements.get().pods:
            iterations += 1
            await asyncio.sleep(0)
        assert iterations >= 400 // CONTAINERS_AT_ONCE


async def test_a_pod_that_goes_while_it_is_placed_keeps_nothing(tmp_path: Path) -> None:
    shape = Shape(sockets=1, nodes_per_socket=1, cores_per_node=500, threads=1)
    async with placing(cpu_managers(shape), tmp_path) as stand:
        stand.desire(pod_of_many("many"))
        for _ in range(2):
            await asyncio.sleep(0)
        late = make_pod("late", "499")
        stand.desire(late)
        assert await stand.cpus(late) == {"c0": "1-499"}
        state = json.loads((tmp_path / "cpu_manager_state").read_text())
        assert list(state["entries"]) == ["late"]
