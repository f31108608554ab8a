"""Pods of a cluster on a node: started, reported, deleted; forced, in crowds, and over restarts of both ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.agent import (
    NODE_NAME,
    Agent,
    Json,
    RuntimeView,
    condition,
    container_status,
    make_container,
    make_pod,
    make_polite,
)
from support.cluster import Cluster, look
from testbed import controlplane
from testbed.controlplane import APISERVER

from pykubelet.edges.cri import cri_pb2 as pb

PLAIN: dict[str, Any] = {"automountServiceAccountToken": False}


def plain(name: str, *containers: Json, **spec: Any) -> Json:
    return make_pod(name, *containers, **PLAIN, **spec)


def ended_with(pod: Json, code: int) -> bool:
    return bool(container_status(pod)["state"].get("terminated", {}).get("exitCode") == code)


def nothing_left(agent: Agent) -> bool:
    view = look(agent)
    return not view.sandboxes and not view.containers and not agent.leftovers()


def has_ended(view: RuntimeView) -> bool:
    """It has begun, and runs no more."""
    return bool(view.containers) and all(c.state == pb.CONTAINER_EXITED for c in view.containers)


def test_a_pod_runs_and_is_deleted(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(plain("web", make_polite()))
    (pod,) = cluster.wait_ready("web")
    status = pod["status"]
    assert status["podIP"] and status["podIPs"][0]["ip"] == status["podIP"]
    assert status["startTime"] and status["qosClass"] == "BestEffort"
    assert status.get("observedGeneration") == pod["metadata"].get("generation")  # servers before 1.33 have none
    kinds = [c["type"] for c in status["conditions"]]
    assert sorted(kinds) == ["ContainersReady", "Initialized", "PodReadyToStartContainers", "PodScheduled", "Ready"]
    last = cluster.delete_and_watch("web")[-1]
    assert ended_with(last, 0)
    assert last["status"]["phase"] == "Succeeded"
    cluster.wait("nothing left", lambda: nothing_left(cluster_agent))


def test_exit_codes_and_phases_are_reported(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(plain("job", make_container(script="exit 3"), restartPolicy="Never"))
    pod = cluster.wait_pod("job", "its end", lambda p: p["status"]["phase"] == "Failed")
    assert ended_with(pod, 3)
    assert condition(pod, "Ready") == "False"
    cluster.delete_pod("job")
    cluster.wait_gone("job")


def test_thirty_at_once(cluster: Cluster, cluster_agent: Agent) -> None:
    names = [f"p{n}" for n in range(30)]
    cluster.run(*(plain(name, terminationGracePeriodSeconds=1) for name in names))
    cluster.wait_ready(*names, within=120)
    for name in names:
        cluster.delete_pod(name)
    for name in names:
        cluster.wait_gone(name, 60)
    cluster.wait("nothing left", lambda: nothing_left(cluster_agent))


def test_a_forced_deletion_ends_what_runs(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(plain("web"))
    cluster.wait_ready("web")
    cluster.delete_pod("web", grace_s=0)
    assert cluster.pod("web") is None
    cluster.wait("nothing left", lambda: nothing_left(cluster_agent))


def test_a_pod_deleted_before_it_could_start(cluster: Cluster, cluster_agent: Agent) -> None:
    slow = make_container("wait", "sleep 600")
    cluster.run(plain("web", initContainers=[slow]))
    cluster.wait_pod("web", "its init container", lambda p: container_status(p, "wait")["state"].get("running"))
    cluster.delete_pod("web", grace_s=1)
    cluster.wait_gone("web")
    missing = make_container(image="127.0.0.1:1/none:1", imagePullPolicy="IfNotPresent")
    cluster.run(plain("none", missing))
    reasons = ("ErrImagePull", "ImagePullBackOff")
    cluster.wait_pod(
        "none", "its error", lambda p: container_status(p)["state"].get("waiting", {}).get("reason") in reasons
    )
    cluster.delete_pod("none", grace_s=1)
    cluster.wait_gone("none")
    cluster.wait("nothing left", lambda: nothing_left(cluster_agent))


def test_a_pod_that_does_not_fit_fails_with_the_reason(cluster: Cluster, cluster_agent: Agent) -> None:
    greedy = make_container(resources={"requests": {"cpu": "1000"}})
    cluster.run(plain("greedy", greedy), plain("lost", nodeSelector={"nowhere": "here"}))
    pod = cluster.wait_pod("greedy", "refused", lambda p: p["status"]["phase"] == "Failed")
    assert pod["status"]["reason"] == "OutOfcpu"
    assert pod["status"]["message"].startswith("Pod was rejected: Node didn't have enough resource: cpu")
    pod = cluster.wait_pod("lost", "refused", lambda p: p["status"]["phase"] == "Failed")
    assert pod["status"]["reason"] == "NodeAffinity"
    for name in ("greedy", "lost"):
        cluster.delete_pod(name)
        cluster.wait_gone(name)


def test_a_readiness_gate_of_another_counts(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(plain("gated", readinessGates=[{"conditionType": "example.com/gate"}]))
    cluster.wait_pod("gated", "containers ready", lambda p: condition(p, "ContainersReady") == "True")
    pod = cluster.pod("gated")
    assert pod is not None
    assert condition(pod, "Ready") == "False"
    gate = [{"op": "add", "path": "/status/conditions/-", "value": {"type": "example.com/gate", "status": "True"}}]
    cluster.core.patch_namespaced_pod_status("gated", cluster.namespace, gate)
    cluster.wait_ready("gated")
    cluster.delete_pod("gated")
    cluster.wait_gone("gated")


def test_a_killed_agent_goes_on_where_it_was(cluster: Cluster, cluster_agent: Agent) -> None:
    names = [f"p{n}" for n in range(5)]
    cluster.run(*(plain(name) for name in names))
    before = {p["metadata"]["name"]: p["status"] for p in cluster.wait_ready(*names)}
    cluster_agent.kill9()
    cluster.delete_pod("p0", grace_s=1)
    cluster.delete_pod("p1", grace_s=0)
    cluster_agent.start()
    cluster.wait_gone("p0")
    for name in names[2:]:
        (pod,) = cluster.wait_ready(name)
        assert pod["status"]["containerStatuses"] == before[name]["containerStatuses"]
        assert pod["status"]["conditions"] == before[name]["conditions"]
    cluster.wait("only those left", lambda: len(look(cluster_agent).sandboxes) == 3)


def test_an_agent_killed_while_a_pod_ends(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(plain("web", make_container(script='trap "" TERM; sleep 600'), terminationGracePeriodSeconds=3))
    cluster.wait_ready("web")
    cluster.delete_pod("web")
    time.sleep(0.5)
    cluster_agent.kill9()
    cluster_agent.start()
    cluster.wait_gone("web")
    cluster.wait("nothing left", lambda: nothing_left(cluster_agent))


def test_an_api_server_that_comes_back_hears_all(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(plain("job", make_container(script="sleep 3; exit 4"), restartPolicy="Never"), plain("web"))
    cluster.wait_ready("web")
    cluster.wait("the job has begun", lambda: look(cluster_agent).of("job").containers)
    controlplane.stop(Path(cluster.plane.folder), (APISERVER,))
    cluster.wait("the end of the job", lambda: has_ended(look(cluster_agent).of("job")))
    controlplane.start(cluster.plane, APISERVER)
    pod = cluster.wait_pod("job", "its end", lambda p: p["status"]["phase"] == "Failed")
    assert ended_with(pod, 4)
    cluster.wait_ready("web")
    for name in ("job", "web"):
        cluster.delete_pod(name, grace_s=1)
        cluster.wait_gone(name)


@pytest.mark.parametrize("grace_s", [30, 0])
def test_a_static_pod_has_a_mirror(cluster: Cluster, cluster_agent: Agent, grace_s: int) -> None:
    cluster_agent.put(make_pod("fixed") | {"metadata": {"name": "fixed", "namespace": cluster.namespace}})
    name = f"fixed-{NODE_NAME}"
    cluster.wait("a mirror", lambda: cluster.pod(name))
    (pod,) = cluster.wait_ready(name)
    node = cluster.node()
    assert node is not None
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME, "uid": node["metadata"]["uid"], "controller": True}
    assert pod["metadata"]["ownerReferences"] == [owner]
    first = pod["metadata"]["uid"]
    running = look(cluster_agent).running_ids()
    cluster.delete_pod(name, grace_s)

    def is_another() -> bool:
        now = cluster.pod(name)
        return now is not None and now["metadata"]["uid"] != first and now["status"]["phase"] == "Running"

    cluster.wait("another mirror", is_another)
    cluster.wait_ready(name)
    assert look(cluster_agent).running_ids() == running
    cluster_agent.remove("fixed")
    cluster.wait("no mirror", lambda: cluster.pod(name) is None)


def is_put_away(pod: Json) -> bool:
    """No status of it will be sent any more."""
    return pod["status"]["phase"] == "Succeeded" and condition(pod, "PodReadyToStartContainers") == "False"


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_pod_that_succeeded_stays_so_over_a_restart(cluster: Cluster, cluster_agent: Agent, policy: str) -> None:
    cluster.run(plain("done", make_container(script="exit 0"), restartPolicy=policy))
    pod = cluster.wait_pod("done", "its end and that of its sandbox", is_put_away)
    cluster_agent.kill9()
    cluster_agent.start()
    time.sleep(1.0)
    again = cluster.pod("done")
    assert again is not None
    assert again["status"] == pod["status"]
    cluster.delete_pod("done")
    cluster.wait_gone("done")


def test_no_pod_is_seen_unready_through_a_restart_of_the_agent(cluster: Cluster, cluster_agent: Agent) -> None:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    names = [f"p{n}" for n in range(8)]
    probed = make_container(readinessProbe=probe)
    cluster.run(*(plain(name, *([probed] if n % 2 else [])) for n, name in enumerate(names)))
    cluster.wait_ready(*names, within=60)
    cluster_agent.kill9()
    cluster_agent.start()
    seen = list(cluster.watch_pods("", 6.0))
    assert {pod["metadata"]["name"] for _, pod in seen} == set(names)
    unready = [pod["metadata"]["name"] for kind, pod in seen if kind != "ADDED" and condition(pod, "Ready") != "True"]
    assert unready == []
    cluster_agent.wait_healthy()
    for name in names:
        cluster.delete_pod(name, grace_s=1)
    for name in names:
        cluster.wait_gone(name)
