"""The API server is away, for a start or for a while: what is on the node goes on, and is told afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from support.agent import NODE_NAME, Agent, container_status, make_container, make_pod
from support.cluster import Cluster, look
from testbed import controlplane, host
from testbed.controlplane import APISERVER

MakeAgent = Callable[..., Agent]


@pytest.fixture
def api_server(cluster: Cluster) -> Iterator[str]:
    """The tests stop it as they like; it is back in the end."""
    yield APISERVER
    controlplane.start(cluster.plane, APISERVER)


def test_static_pods_run_and_the_node_joins_later(
    cluster: Cluster, make_cluster_agent: MakeAgent, api_server: str
) -> None:
    controlplane.kill(cluster.plane, api_server)
    agent = make_cluster_agent()
    pod = make_pod("early")
    agent.put(pod | {"metadata": pod["metadata"] | {"namespace": cluster.namespace}})
    agent.start()
    running = [f"early-{NODE_NAME}/main"]
    host.wait_until(lambda: look(agent).running_names() == running, 20)
    assert look(agent).running_names() == running
    controlplane.start(cluster.plane, api_server)
    cluster.wait_node_ready(within=15)
    cluster.wait_ready(f"early-{NODE_NAME}")


def test_pods_go_on_and_what_happened_is_told_afterwards(
    cluster: Cluster, cluster_agent: Agent, api_server: str
) -> None:
    cluster.run(make_pod("steady"), make_pod("restarting", make_container(script="sleep 4; exit 1")))
    cluster.wait_ready("steady", "restarting")
    kept = look(cluster_agent).of("steady").running_ids()
    controlplane.kill(cluster.plane, api_server)
    time.sleep(6)
    view = look(cluster_agent)
    assert view.of("steady").running_ids() == kept
    assert len(view.of("restarting").containers) > 1
    controlplane.start(cluster.plane, api_server)
    cluster.wait_pod("restarting", "its restart", lambda pod: container_status(pod)["restartCount"] >= 1, 15)
    cluster.wait_node_ready()
    cluster.run(make_pod("after"))
    cluster.wait_ready("after", within=20)


def test_an_api_server_that_hangs_is_left_and_found_again(
    cluster: Cluster, cluster_agent: Agent, api_server: str
) -> None:
    cluster.run(make_pod("before"))
    cluster.wait_ready("before")
    pid = cluster.plane.pid(api_server)
    assert pid is not None
    with host.paused(pid):
        time.sleep(3)
        assert cluster_agent.get("/healthz", cluster_agent.health_port)[0] == 200
    cluster.run(make_pod("after"))
    cluster.wait_ready("after", within=20)
