"""What controllers and people do to pods: graces, evictions, Deployments."""

from __future__ import annotations

import time

import pytest
from support.agent import NODE_NAME, Agent, container_status, make_pod, make_polite
from support.cluster import Cluster, look
from testbed.controlplane import CONTROLLERS_S


def test_a_pod_is_given_its_grace(cluster: Cluster, cluster_agent: Agent) -> None:
    script = 'trap "sleep 1; exit 7" TERM; touch /tmp/listens; while :; do sleep 3600 & wait $!; done'
    slow = make_polite() | {"command": ["/bin/sh", "-c", script]}
    cluster.run(make_pod("slow", slow, terminationGracePeriodSeconds=30))
    cluster.wait_ready("slow")
    began = time.monotonic()
    last = cluster.delete_and_watch("slow", 60)[-1]
    assert container_status(last)["state"]["terminated"]["exitCode"] == 7, "it was not killed"
    assert time.monotonic() - began >= 1


def test_the_eviction_api_ends_a_pod(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(make_pod("moved"))
    cluster.wait_ready("moved")
    version = "v1" if cluster.plane.programs.minor >= 22 else "v1beta1"
    body = {"apiVersion": f"policy/{version}", "kind": "Eviction", "metadata": {"name": "moved"}}
    cluster.create(f"{cluster.pods_path}/moved/eviction", body)
    cluster.wait_gone("moved")
    assert not look(cluster_agent).of("moved").running


@pytest.mark.scheduler
@pytest.mark.parametrize("count", [10])
def test_pods_of_a_deployment_are_scheduled_run_and_go(cluster: Cluster, cluster_agent: Agent, count: int) -> None:
    template = make_pod("web")
    body = {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }
    deployments = f"/apis/apps/v1/namespaces/{cluster.namespace}/deployments"
    cluster.create(deployments, body)

    def available() -> bool:
        deployment = cluster.get(f"{deployments}/web")
        return deployment is not None and deployment["status"].get("availableReplicas") == count

    cluster.wait("all available", available, CONTROLLERS_S)
    assert {pod["spec"]["nodeName"] for pod in cluster.list_objects(cluster.pods_path)} == {NODE_NAME}
    cluster.delete(f"{deployments}/web")
    cluster.wait("all gone", lambda: not cluster.list_objects(cluster.pods_path), CONTROLLERS_S)
    assert not look(cluster_agent).running
