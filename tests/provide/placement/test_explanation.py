"""The explanation of a rejection: what the pod needs, what is free of it, and who has the rest."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from provide.placement.together import GPU, NIC, FilledNode, make_managers
from support.cost import check_cost
from support.machines import Shape

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.placement import DeviceResource, group_by_nodes
from pykubelet.provide.placement.explanation import explain_rejection, pod_name
from pykubelet.testing.random_pods import random_pod

SHAPE = Shape(sockets=2, cores_per_node=6)


def make_pod(name: str, **limits: str) -> Pod:
    """A Guaranteed pod with one container `main`. `gpu`, `nic`: devices."""
    amounts = {"cpu": "100m", "memory": "1Mi"} | {
        {"gpu": GPU, "nic": NIC}.get(key, key): amount for key, amount in limits.items()
    }
    container = {"name": "main", "resources": {"requests": amounts, "limits": amounts}}
    metadata = {"name": name, "namespace": "default", "uid": f"{name}-uid"}
    return msgspec.convert({"metadata": metadata, "spec": {"containers": [container]}}, Pod)


def why(node: FilledNode, pod: Pod) -> str:
    """The explanation of a pod that the node rejects."""
    names = {uid: pod_name(known) for uid, known in node.pods.items()}
    assert not node.admit(pod)
    managers = node.rejected_by
    return explain_rejection(managers.topology, managers.providers, pod, names)


def node_with(policy: str, *pods: Pod, scope: str = "container") -> FilledNode:
    node = FilledNode(make_managers(SHAPE, policy, scope))
    for pod in pods:
        assert node.admit(pod), node.rejections
    return node


@pytest.mark.parametrize(
    ("policy", "taken", "wanted", "expected"),
    [
        (
            "single-numa-node",
            [{"cpu": "8"}, {"cpu": "9"}],
            {"cpu": "4"},
            "4 CPUs on one NUMA node; largest free: 3 on node 0, held by default/a main (8), the system (1)",
        ),
        (
            "none",
            [{"cpu": "20"}],
            {"cpu": "4"},
            "4 CPUs; free: 3 (3 on node 0, 0 on node 1), held by default/a main (20), the system (1)",
        ),
        (
            "single-numa-node",
            [{"gpu": "3"}, {"gpu": "2"}],
            {"gpu": "3"},
            f"3 {GPU} on one NUMA node; largest free: 2 on node 1, held by default/b main (2)",
        ),
        ("single-numa-node", [], {"gpu": "5"}, f"5 {GPU} on one NUMA node; the largest node has 4"),
        ("restricted", [], {"gpu": "9"}, f"9 {GPU}; free: 8"),
        ("none", [{"gpu": "7"}], {"gpu": "2"}, f"2 {GPU}; free: 1, held by default/a main (7)"),
        (
            "restricted",
            [{"gpu": "2"}],
            {"gpu": "7"},
            f"7 {GPU} on 2 NUMA nodes; largest free: 6 on nodes 0, 1, held by default/a main (2)",
        ),
        (
            "single-numa-node",
            [{"memory": "10Gi"}, {"memory": "12Gi"}],
            {"memory": "8Gi"},
            "8Gi of memory on one NUMA node; largest free: 5632Mi on node 0, held by default/a main (10Gi)",
        ),
        (
            "none",
            [{"memory": "10Gi"}, {"memory": "12Gi"}],
            {"memory": "8Gi"},
            "8Gi of memory on one NUMA node; largest free: 5632Mi on node 0, held by default/a main (10Gi)"
            "; nodes of which one is in use by itself cannot be used together",
        ),
        ("single-numa-node", [], {"memory": "17Gi"}, "17Gi of memory on one NUMA node; the largest node has 16Gi"),
        (
            "restricted",
            [{"memory": "2Gi"}, {"memory": "3Gi"}, {"memory": "12Gi"}],
            {"memory": "18Gi"},
            "18Gi of memory; free: 10752Mi on node 0, 4Gi on node 1, "
            "held by default/c main (12Gi), default/b main (3Gi), default/a main (2Gi)",
        ),
        (
            "single-numa-node",
            [{"cpu": "10"}, {"gpu": "3", "cpu": "3"}],
            {"cpu": "8", "gpu": "4"},
            f"all resources on the same NUMA nodes; {GPU} fits on node 0, cpu fits on node 1, memory fits on node 0 or node 1",
        ),
    ],
)
def test_what_is_missing(policy: str, taken: list[dict[str, str]], wanted: dict[str, str], expected: str) -> None:
    node = node_with(policy, *(make_pod(name, **limits) for name, limits in zip("abc", taken, strict=False)))
    assert why(node, make_pod("late", **wanted)) == f"container main needs {expected}"


def test_by_pod() -> None:
    node = node_with("single-numa-node", make_pod("a", gpu="2"), make_pod("b", gpu="3"), scope="pod")
    expected = f"needs 3 {GPU} on one NUMA node; largest free: 2 on node 0, held by default/a main (2)"
    assert why(node, make_pod("late", gpu="3", cpu="2")) == expected


def test_unhealthy_devices_and_a_plugin_that_is_gone() -> None:
    node = node_with("none", make_pod("a", gpu="2"))
    gpus = node.devices.resources[GPU]
    ill = replace(gpus, healthy=gpus.healthy & {"gpu-6", "gpu-7", "gpu-0"}, unhealthy=gpus.healthy - {"gpu-6", "gpu-7"})
    gone = DeviceResource(is_stopped=True)
    node.managers = replace(node.managers, devices=replace(node.devices, resources={GPU: ill, NIC: gone}))
    assert "; 6 unhealthy" in why(node, make_pod("late", gpu="3"))
    assert why(node, make_pod("later", nic="1")) == f"container main needs 1 {NIC}; no device plugin offers any now"


def test_many_holders_are_counted() -> None:
    node = node_with("none", *(make_pod(f"p{number:02}", cpu="1") for number in range(23)))
    text = why(node, make_pod("late", cpu="1"))
    assert text.endswith("default/p11 main (1), 11 more, the system (1)") and len(text) < 400


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_every_rejection_is_explained(policy: str, scope: str) -> None:
    random, node = Random(policy), FilledNode(make_managers(SHAPE, policy, scope))
    explained = 0
    for number in range(80):
        pod = random_pod(random, number, cpus=6, resources=(GPU, NIC), memory_mi=1500)
        if node.admit(pod):
            continue
        managers = node.rejected_by
        text = explain_rejection(managers.topology, managers.providers, pod, {})
        assert "needs " in text and len(text) < 1000
        explained += 1
        node.release(list(node.pods)[:2])
    assert explained > 10


def test_100_000_devices_hold_nothing_up() -> None:
    ids = {f"device-{number:06}": (number % 2,) for number in range(100_000)}
    node = FilledNode(make_managers(SHAPE, "single-numa-node", "container"))
    resource = DeviceResource(frozenset(ids), nodes=ids, groups=group_by_nodes(ids))
    node.managers = replace(node.managers, devices=replace(node.devices, resources={GPU: resource}))
    pod, managers = make_pod("late", gpu="60000"), node.managers

    async def explain() -> None:
        text = explain_rejection(managers.topology, managers.providers, pod, {})
        assert text == f"container main needs 60000 {GPU} on one NUMA node; the largest node has 50000"

    check_cost("an explanation", explain)
