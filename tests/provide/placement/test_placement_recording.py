"""What is recorded of the decisions of placement. That it comes out the same when it is replayed is in `tests/offline`."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from provide.placement.together import GPU, NIC, FilledNode, make_managers
from support.cost import check_cost
from support.machines import Shape

from pykubelet.base.api.codec import encode
from pykubelet.base.kit.values import replace
from pykubelet.base.model.placement import DeviceResource
from pykubelet.provide.placement.recording import KEPT_DEVICES, KEPT_STEPS, record_placement
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
    document = record_placement(node.log, "1.2.3")
    return json.loads(json.dumps(document))


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
        document = record_placement(node.log, "1.2.3")
        assert document is not None
        assert len(encode(document)) > 900_000

    check_cost("a recording", record)
    more = DeviceResource(frozenset([*ids, "one more"]))
    node.managers = replace(node.managers, devices=replace(node.devices, resources={GPU: more}))
    node.admit(random_pod(random, -1, cpus=1))
    assert record_placement(node.log, "1.2.3") is None


def test_pods_are_recorded_by_names_and_resources_only() -> None:
    node = FilledNode(make_managers(SHAPE, "none", "container"))
    pod = random_pod(Random(1), 1, cpus=1)
    first = replace(pod.spec.containers[0], command=("secret",), image="private")
    node.admit(replace(pod, spec=replace(pod.spec, containers=(first, *pod.spec.containers[1:]))))
    assert "secret" not in json.dumps(recorded(node)) and "private" not in json.dumps(recorded(node))
