"""What is recorded of the decisions of placement. That it comes out the same when it is replayed is in `tests/offline`."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
from provide.placement.together import GPU, NIC, FilledNode, make_managers
from support.cost import bytes_in_use, check_cost
from support.machines import Shape

from pykubelet.base.api.codec import encode
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.placement import DeviceResource, group_by_nodes
from pykubelet.provide.placement.provider import PreferredAllocationRequest
from pykubelet.provide.placement.recording import KEPT_DEVICES, KEPT_ENTRIES, KEPT_STEPS, AdmitPod, record_placement
from pykubelet.provide.placement.topology_scopes import admit
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


def make_devices(count: int, *, prefers: bool) -> DeviceResource:
    ids = {f"device-{number:06}": (number % 2,) for number in range(count)}
    return DeviceResource(frozenset(ids), nodes=ids, groups=group_by_nodes(ids), prefers=prefers)


def device_pod(uid: str, *counts: int) -> Pod:
    """A pod with a container for each of these numbers of GPUs."""
    amounts = [{GPU: str(count)} for count in counts]
    containers = [{"name": f"c{n}", "resources": {"requests": has, "limits": has}} for n, has in enumerate(amounts)]
    return msgspec.convert({"metadata": {"uid": uid, "name": uid}, "spec": {"containers": containers}}, Pod)


def device_node(count: int, *, prefers: bool = False) -> FilledNode:
    managers = make_managers(SHAPE, "none", "container")
    devices = replace(FilledNode(managers).devices, resources={GPU: make_devices(count, prefers=prefers)})
    return FilledNode(replace(managers, devices=devices))


def test_what_plugins_were_offered_does_not_stay() -> None:
    """Neither while a pod is admitted, nor in the steps afterwards."""
    node, pod = device_node(4000, prefers=True), device_pod("a", *[1] * 50)
    node.admit(pod)  # fills caches
    node.release(["a"])
    node.log.clear()
    before = bytes_in_use()
    node.admit(pod)
    node.release(["a"])
    assert len(node.log) == 52
    assert bytes_in_use() - before < 1 << 20


def test_an_answer_keeps_no_more_than_was_requested() -> None:
    node = device_node(1000, prefers=True)
    result = admit(node.managers.topology, node.managers.providers, device_pod("a", 2))
    assert isinstance(result, PreferredAllocationRequest)
    answered = node.devices.with_answer(result, [*sorted(result.available), "nonsense"])
    ((key, ids),) = answered.answers.items()
    assert sum(map(len, (key.must_include, ids))) == 2


def test_steps_of_many_devices_in_use_are_dropped() -> None:
    node = device_node(KEPT_DEVICES)
    node.admit(device_pod("large", KEPT_DEVICES // 2))
    for number in range(40):
        node.admit(device_pod(f"p{number}", 1))
    kept = {
        id(ids): len(ids)
        for step in node.log
        for managers in (step.state, step.after)
        for ids in managers.devices.state.in_use.values()  # type: ignore[attr-defined]
    }
    assert 1 <= len(node.log) < 10 and sum(kept.values()) <= KEPT_ENTRIES


def test_steps_of_many_containers_are_dropped() -> None:
    node = FilledNode(make_managers(SHAPE, "none", "container"))
    for number in range(40):
        node.admit(device_pod(f"p{number}", *[0] * 500))
    pods = [step.event.pod for step in node.log if isinstance(step.event, AdmitPod)]
    assert len(pods) >= 1 and sum(len(pod.spec.containers) for pod in pods) <= KEPT_ENTRIES // 8


def test_pods_are_recorded_by_names_and_resources_only() -> None:
    node = FilledNode(make_managers(SHAPE, "none", "container"))
    pod = random_pod(Random(1), 1, cpus=1)
    first = replace(pod.spec.containers[0], command=("secret",), image="private")
    node.admit(replace(pod, spec=replace(pod.spec, containers=(first, *pod.spec.containers[1:]))))
    assert "secret" not in json.dumps(recorded(node)) and "private" not in json.dumps(recorded(node))
