"""A node whose wall clock is an hour fast, in a real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

from support.agent import NODE_NAME, Agent, make_container, make_pod
from support.cluster import Cluster, node_condition
from support.wall_clock import WallClock

from pykubelet.base.api.times import parse_time

MakeAgent = Callable[..., Agent]
HOUR_S = 3600
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}"
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


def test_a_node_that_is_an_hour_fast_is_a_node_like_others(cluster: Cluster, make_cluster_agent: MakeAgent) -> None:
    agent = make_cluster_agent(nodeStatusUpdateFrequency="2s", nodeLeaseDurationSeconds=4)
    clock = WallClock(agent.folder / "clock")
    clock.set(HOUR_S)
    agent.environment.update(clock.environment)
    agent.start()
    cluster.wait_node_ready()

    def renewed() -> float:
        lease = cluster.get(LEASE)
        return parse_time(lease["spec"]["renewTime"]) if lease is not None else 0.0

    def own_time() -> float:
        """0: the lease is still that of the node before."""
        return found if abs((found := renewed()) - HOUR_S - time.time()) < HOUR_S / 2 else 0.0

    cluster.run(make_pod("web", make_container(script=f"test -s {TOKEN} && echo has one; sleep 1000")))
    cluster.wait_ready("web")
    cluster.wait("its output", lambda: "has one" in cluster.kubectl("logs", "web"))
    assert cluster.kubectl("exec", "web", "--", "echo", "hello") == "hello\n"
    first = cluster.wait("its own time", own_time)
    cluster.wait("the lease is renewed again and again", lambda: renewed() > first + 3)
    cluster.delete_pod("web", 1)
    cluster.wait_gone("web")
    node = cluster.node()
    assert node is not None and node_condition(node, "Ready") == "True"
