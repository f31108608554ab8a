"""All resource managers together: a node is filled with random pods and drained, a thousand times, with restarts between."""

from __future__ import annotations

from random import Random

import pytest
from provide.placement.pool_pods import random_whole_pod
from provide.placement.together import GPU, NIC, FilledNode, make_managers
from support.machines import Shape

from pykubelet.testing.random_pods import random_pod

ROUNDS = 125
NODES = {
    "one-node": (Shape(cores_per_node=8), "none", "container", ()),
    "best-effort": (Shape(sockets=2, cores_per_node=6), "best-effort", "container", ()),
    "restricted": (Shape(sockets=2, cores_per_node=6), "restricted", "container", ()),
    "single-numa-node": (Shape(sockets=2, cores_per_node=6), "single-numa-node", "container", ()),
    "pod-scope": (Shape(sockets=2, cores_per_node=6), "single-numa-node", "pod", ()),
    "whole-cores": (Shape(sockets=2, cores_per_node=6), "best-effort", "pod", ("full-pcpus-only",)),
    "four-nodes": (
        Shape(sockets=2, nodes_per_socket=2, cores_per_node=4, caches=2),
        "restricted",
        "pod",
        ("distribute-cpus-across-numa",),
    ),
    "no-smt": (
        Shape(nodes_per_socket=2, threads=1, caches=2),
        "best-effort",
        "container",
        ("prefer-align-cpus-by-uncorecache",),
    ),
}


#: With the gate PodLevelResourceManagers, half of the pods have resources as a whole.
WHOLE = {
    "whole-single": (Shape(sockets=2, cores_per_node=8), "single-numa-node", "pod", ()),
    "whole-best-effort": (Shape(sockets=2, cores_per_node=6), "best-effort", "pod", ()),
    "whole-restricted": (Shape(sockets=2, nodes_per_socket=2, cores_per_node=4, caches=2), "restricted", "pod", ()),
    "whole-full-cores": (Shape(sockets=2, cores_per_node=6), "best-effort", "pod", ("full-pcpus-only",)),
    "whole-distributed": (
        Shape(sockets=2, cores_per_node=6),
        "best-effort",
        "pod",
        ("distribute-cpus-across-numa", "full-pcpus-only"),
    ),
    "whole-by-container": (Shape(sockets=2, cores_per_node=6), "restricted", "container", ()),
    "whole-none": (Shape(sockets=2, cores_per_node=6), "none", "pod", ()),
}


@pytest.mark.parametrize("name", [*NODES, *WHOLE])
def test_a_node_is_drained_and_filled_without_a_leak(name: str) -> None:
    shape, policy, scope, options = {**NODES, **WHOLE}[name]
    random = Random(name)
    node = FilledNode(make_managers(shape, policy, scope, options, pod_level=name in WHOLE))
    unused = node.managers
    number = admitted = pools = 0
    for iteration in range(ROUNDS):
        rejected = 0
        while rejected < 2:
            number += 1
            if name in WHOLE and random.random() < 0.5:
                pod = random_whole_pod(random, number, cpus=3)
            else:
                pod = random_pod(random, number, cpus=4, resources=(GPU, NIC), memory_mi=512)
            fits = node.admit(pod, fails=random.random() < 0.05)
            if fits:
                node.claim(pod, random.sample(("shared", "other", f"own-{number}"), random.randint(0, 2)))
            admitted += fits
            rejected += not fits
            if node.pods and random.random() < 0.2:
                node.release([random.choice(list(node.pods))])
        node.check()
        pools += len(node.managers.cpu_state.pools)
        if iteration % 5 == 0:
            node.restart()
            node.check()
        node.release(random.sample(list(node.pods), len(node.pods)))
        now = node.managers
        assert now.cpu_state.default == unused.cpu_state.default and not now.cpu_state.holders
        assert now.memory.state == unused.memory.state
        assert not node.devices.state.entries and not any(node.devices.state.in_use.values())
        assert not node.devices.answers and now.holders() == frozenset()
        assert node.claims == {}
    assert admitted > ROUNDS, "the node was not filled"
    places_whole = name in WHOLE and scope == "pod" and policy != "none"
    assert (pools > 20) == places_whole, pools
