"""The API server is away, for a start or for a while: what is on the node goes on, and is reported afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from support.agent import NODE_NAME, Agent, Json, container_status, make_container, make_pod
from support.cluster import Cluster, look
from testbed import controlplane, host
from testbed.controlplane import APISERVER

MakeAgent = Callable[..., Agent]


@pytest.fixture
def api_server(cluster: Cluster) -> Iterator[str]:
    """The tests stop it as they like; it is back in the end."""
    yield APISERVER
    controlplane.start(cluster.plane, APISERVER)


def own(cluster: Cluster, pod: Json) -> Json:
    """In the test's namespace."""
    return pod | {"metadata": pod["metadata"] | {"namespace": cluster.namespace}}


def test_static_pods_run_and_the_node_joins_later(
    cluster: Cluster, make_cluster_agent: MakeAgent, api_server: str
) -> None:
    controlplane.kill(cluster.plane, api_server)
    agent = make_cluster_agent()
    agent.put(own(cluster, make_pod("early")))
    agent.start()
    running = [f"early-{NODE_NAME}/main"]
    cluster.wait("it runs", lambda: look(agent).running_names() == running)
    controlplane.start(cluster.plane, api_server)
    cluster.wait_node_ready()
    cluster.wait_ready(f"early-{NODE_NAME}")


def test_pods_go_on_and_what_happened_is_reported_afterwards(
    cluster: Cluster, cluster_agent: Agent, api_server: str
) -> None:
    cluster.run(make_pod("steady"), make_pod("restarting", make_container(script="sleep 4; exit 1")))
    cluster.wait_ready("steady", "restarting")
    kept = look(cluster_agent).of("steady").running_ids()
    controlplane.kill(cluster.plane, api_server)
    cluster_agent.put(own(cluster, make_pod("meanwhile")))
    time.sleep(6)
    cluster.wait("its restart", lambda: len(look(cluster_agent).of("restarting").containers) > 1)
    assert look(cluster_agent).of("steady").running_ids() == kept
    controlplane.start(cluster.plane, api_server)
    cluster.wait_pod("restarting", "its restart", lambda pod: container_status(pod)["restartCount"] >= 1)
    cluster.wait_ready(f"meanwhile-{NODE_NAME}")
    cluster.wait_node_ready()
    cluster.run(make_pod("after"))
    cluster.wait_ready("after")


def test_an_api_server_that_hangs_for_moments_is_waited_for(
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
    cluster.wait_ready("after")


def test_an_api_server_that_hangs_longer_than_it_is_waited_for_is_left_and_found_again(
    cluster: Cluster, make_cluster_agent: MakeAgent, api_server: str
) -> None:
    agent = make_cluster_agent(nodeStatusUpdateFrequency="2s", nodeLeaseDurationSeconds=4).start()
    cluster.wait_node_ready()
    cluster.run(make_pod("steady"), make_pod("ending", make_container(script="sleep 10"), restartPolicy="Never"))
    cluster.wait_ready("steady", "ending")
    kept, pid = look(agent).of("steady").running_ids(), cluster.plane.pid(api_server)
    assert pid is not None
    before = agent.connections(cluster.plane.ports.api)
    with host.paused(pid):
        cluster.wait("its connections are left", lambda: not before & agent.connections(cluster.plane.ports.api), 60)
        cluster.wait("a pod ends", lambda: not look(agent).of("ending").running, 60)
        assert agent.get("/healthz", agent.health_port)[0] == 200
        assert look(agent).of("steady").running_ids() == kept
    cluster.wait_pod("ending", "its end", lambda pod: pod["status"]["phase"] == "Succeeded", 60)
    cluster.wait_node_ready()
    cluster.run(make_pod("after"))
    cluster.wait_ready("after")
    cluster.delete_pod("steady", 1)
    cluster.wait_gone("steady")
