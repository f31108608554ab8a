"""Decisions of placement are recorded, and come out the same when they are replayed from the record."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from provide.placement.together import GPU, NIC, FilledNode, make_managers
from support.cost import check_cost
from support.machines import Shape

from pykubelet.base.api.codec import encode
from pykubelet.base.kit.values import replace
from pykubelet.base.model.placement import DeviceResource
from pykubelet.provide.placement.recording import (
    KEPT_DEVICES,
    KEPT_STEPS,
    PlacementRecordingError,
    parse_placement,
    record_placement,
    replay_placement,
)
from pykubelet.testing.random_pods import random_pod

SHAPE = Shape(sockets=2, cores_per_node=6)


def busy_node(name: str, policy: str = "restricted", scope: str = "container") -> FilledNode:
    """A node on which pods came and went for a while."""
    random, node = Random(name), FilledNode(make_managers(SHAPE, policy, scope))
    for number in range(60):
        node.admit(random_pod(random, number, cpus=4, resources=(GPU, NIC), memory_mi=512))
        if node.pods and random.random() < 0.5:
            node.release([random.choice(list(node.pods))])
        if number == 30:
            node.restart()
        if number == 40:
            gpus = node.devices.resources[GPU]
            ill = replace(gpus, healthy=gpus.healthy - {"gpu-0"}, unhealthy=frozenset({"gpu-0"}))
            node.managers = replace(
                node.managers, devices=replace(node.devices, resources={**node.devices.resources, GPU: ill})
            )
    return node


def recorded(node: FilledNode) -> Any:
    document = record_placement(node.log.snapshot(), "1.2.3")
    return json.loads(json.dumps(document))


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_a_replay_comes_out_as_recorded(policy: str, scope: str) -> None:
    node = busy_node(f"{policy}-{scope}", policy, scope)
    document = recorded(node)
    replayed = replay_placement(parse_placement(document))
    assert [line for one in replayed for line in one.differences] == []
    assert len(replayed) == len(node.log.snapshot()) > 60
    results = [one.result for one in replayed]
    assert sum("reason" in one for one in results) > 5 and sum("asks" in one for one in results) > 5
    # what follows from the steps before is not repeated
    assert sum(one["given"]["memory"] is not None for one in document["steps"]) <= 3


def test_another_policy_makes_differences() -> None:
    document = recorded(busy_node("other", "restricted"))
    document["rules"]["topology"]["policy"] = "none"
    different = [one for one in replay_placement(parse_placement(document)) if one.differences]
    assert different
    assert any('recorded "TopologyAffinityError", now nothing' in line for one in different for line in one.differences)


def test_the_oldest_steps_are_dropped() -> None:
    node = FilledNode(make_managers(SHAPE, "best-effort", "container"))
    random = Random(1)
    for number in range(KEPT_STEPS):
        if node.admit(random_pod(random, number, cpus=2)):
            node.release(list(node.pods))
    steps = replay_placement(parse_placement(recorded(node)))
    assert len(steps) == KEPT_STEPS and not any(one.differences for one in steps)


def test_devices_that_come_and_go_do_not_fill_the_memory() -> None:
    node = FilledNode(make_managers(SHAPE, "none", "container"))
    random = Random(1)
    for iteration in range(20):
        ids = frozenset(f"{iteration}-{number}" for number in range(KEPT_DEVICES // 4))
        node.managers = replace(node.managers, devices=replace(node.devices, resources={GPU: DeviceResource(ids)}))
        node.admit(random_pod(random, iteration, cpus=1, resources=(GPU,)))
    kept = node.log.snapshot()
    assert 1 <= len(kept) < 10
    assert not any(one.differences for one in replay_placement(parse_placement(recorded(node))))


def test_many_devices_hold_nothing_up() -> None:
    node = FilledNode(make_managers(SHAPE, "none", "container"))
    ids = [f"device-{number:06}" for number in range(KEPT_DEVICES)]
    nodes = dict.fromkeys(ids, (0, 1))
    node.managers = replace(
        node.managers, devices=replace(node.devices, resources={GPU: DeviceResource(frozenset(ids), nodes=nodes)})
    )
    random = Random(1)
    for number in range(KEPT_STEPS):
        node.admit(random_pod(random, number, cpus=1, resources=(GPU,)))

    async def record() -> None:
        document = record_placement(node.log.snapshot(), "1.2.3")
        assert document is not None
        assert len(encode(document)) > 900_000

    check_cost("a recording", record)
    more = DeviceResource(frozenset([*ids, "one more"]))
    node.managers = replace(node.managers, devices=replace(node.devices, resources={GPU: more}))
    node.admit(random_pod(random, -1, cpus=1))
    assert record_placement(node.log.snapshot(), "1.2.3") is None


def test_pods_are_recorded_by_names_and_resources_only() -> None:
    node = FilledNode(make_managers(SHAPE, "none", "container"))
    pod = random_pod(Random(1), 1, cpus=1)
    first = replace(pod.spec.containers[0], command=("secret",), image="private")
    node.admit(replace(pod, spec=replace(pod.spec, containers=(first, *pod.spec.containers[1:]))))
    assert "secret" not in json.dumps(recorded(node)) and "private" not in json.dumps(recorded(node))


def test_what_is_no_recording_is_refused() -> None:
    document = recorded(busy_node("refused"))
    with pytest.raises(PlacementRecordingError, match="version: 9 is not supported, only 1"):
        parse_placement({**document, "version": 9})
    document["steps"][0]["at"] = "noon"
    with pytest.raises(PlacementRecordingError, match=r"Expected `float`, got `str` - at `\$.steps\[0\].at`"):
        parse_placement(document)
