"""Pods that a node refuses although they were bound to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import NODE_NAME, Agent, Json, condition, make_pod, make_polite
from support.cluster import WITHIN_S, Cluster
from testbed import controlplane
from testbed.controlplane import CONTROLLERS

MakeAgent = Callable[..., Agent]
TAINT = {"key": "own.example.com/gone", "value": "yes", "effect": "NoExecute"}


def plain(name: str, **spec: Any) -> Json:
    return make_pod(name, automountServiceAccountToken=False, **spec)


@pytest.fixture
def without_controllers(cluster: Cluster) -> Iterator[None]:
    """No controller ends pods for the node's taints."""
    controlplane.stop(Path(cluster.plane.folder), (CONTROLLERS,))
    yield
    controlplane.start(cluster.plane, CONTROLLERS)


@pytest.mark.usefixtures("without_controllers")
def test_a_pod_that_does_not_tolerate_a_taint_that_ends_pods_is_refused(
    cluster: Cluster, make_cluster_agent: MakeAgent
) -> None:
    make_cluster_agent(registerWithTaints=[TAINT]).start()
    cluster.wait_node_ready()
    tolerating = plain("tolerates", tolerations=[{"key": TAINT["key"], "operator": "Exists"}])
    cluster.run(plain("does-not"), tolerating)
    refused = cluster.wait_pod("does-not", "its refusal", lambda pod: pod["status"]["phase"] == "Failed")
    assert refused["status"]["reason"] == "TaintToleration"
    assert refused["status"]["message"].startswith("Pod was rejected: Predicate TaintToleration failed: ")
    cluster.wait_ready("tolerates")


def test_a_pod_bound_right_after_a_change_of_labels_runs(cluster: Cluster, cluster_agent: Agent) -> None:
    names = [f"p{number}" for number in range(5)]
    for name in names:
        label = {"own.example.com/at": name}
        cluster.patch(f"/api/v1/nodes/{NODE_NAME}", {"metadata": {"labels": label}})
        cluster.run(plain(name, nodeSelector=label))
        cluster.wait_ready(name)
    cluster.run(plain("elsewhere", nodeSelector={"own.example.com/at": "elsewhere"}))
    refused = cluster.wait_pod("elsewhere", "its refusal", lambda pod: pod["status"]["phase"] == "Failed")
    assert refused["status"]["reason"] == "NodeAffinity"


def test_a_pod_preempted_for_a_critical_one_ends_as_its_containers_do(
    cluster: Cluster, make_cluster_agent: MakeAgent
) -> None:
    make_cluster_agent(maxPods=1).start()
    cluster.wait_node_ready()
    container = make_polite()
    container["command"][2] = container["command"][2].replace("exit 0", "sleep 1; exit 0")
    cluster.run(make_pod("polite", container, automountServiceAccountToken=False, terminationGracePeriodSeconds=30))
    cluster.wait_ready("polite")
    cluster.run(plain("critical", priorityClassName="system-node-critical"))
    seen = []
    for _, pod in cluster.watch_pods("metadata.name=polite", WITHIN_S):
        seen.append((pod["status"]["phase"], condition(pod, "DisruptionTarget")))
        if pod["status"]["phase"] != "Running":
            break
    assert seen[-1] == ("Succeeded", "True")
    assert set(seen[:-1]) <= {("Running", "")}, "why it ends is reported when it has ended"
    cluster.wait_ready("critical")
