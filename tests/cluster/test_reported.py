"""Situations that people have reported of the nodes of clusters (docs/recipes/field-report.md)."""

from __future__ import annotations

import asyncio
from typing import Any

from support.agent import NODE_NAME, Agent, Json, condition, container_status, make_container, make_pod, runtime_client
from support.cluster import Cluster, look

from pykubelet.base.model.ids import ContainerID, SandboxID

DEAF = "trap '' TERM; while true; do sleep 0.2; done"


def plain(name: str, *containers: Json, **spec: Any) -> Json:
    return make_pod(name, *containers, automountServiceAccountToken=False, **spec)


def test_the_same_name_again_is_a_new_pod_while_the_old_one_still_ends(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(plain("web", make_container(script=DEAF), terminationGracePeriodSeconds=3))
    (old,) = cluster.wait_ready("web")
    cluster.delete_pod("web", grace_s=0)
    cluster.run(plain("web"))
    (new,) = cluster.wait_ready("web")
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert container_status(new)["restartCount"] == 0 and not container_status(new)["lastState"]
    cluster.wait("the old one ended", lambda: len(look(cluster_agent).running_ids()) == 1)


def test_an_object_that_waits_for_another_stays_with_the_end_of_its_containers(
    cluster: Cluster, cluster_agent: Agent
) -> None:
    pod = plain("web", terminationGracePeriodSeconds=1)
    pod["metadata"]["finalizers"] = ["example.com/wait"]
    cluster.run(pod)
    cluster.wait_ready("web")
    cluster.delete_pod("web")
    ended = cluster.wait_pod("web", "ended", lambda p: container_status(p)["state"].get("terminated"))
    assert condition(ended, "Ready") == "False"
    cluster.wait("nothing runs", lambda: not look(cluster_agent).running_ids())
    cluster_agent.kill9()
    cluster_agent.start()
    cluster_agent.wait_healthy()
    assert not look(cluster_agent).running_ids()
    cluster.patch(f"{cluster.pods_path}/web", {"metadata": {"finalizers": None}})
    cluster.wait_gone("web")


def test_a_shorter_grace_ends_what_is_ending_already(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(plain("web", make_container(script=DEAF), terminationGracePeriodSeconds=600))
    cluster.wait_ready("web")
    cluster.delete_pod("web")
    cluster.wait_pod("web", "ending", lambda p: p["metadata"].get("deletionTimestamp"))
    cluster.delete_pod("web", grace_s=1)
    cluster.wait_gone("web", within=20)


def test_work_that_has_ended_is_not_done_again_when_the_runtime_has_lost_it(
    cluster: Cluster, cluster_agent: Agent
) -> None:
    cluster.run(plain("job", make_container(script="exit 0"), restartPolicy="Never"))
    done = cluster.wait_pod("job", "done", lambda p: p["status"]["phase"] == "Succeeded")
    cluster.wait("nothing runs", lambda: not look(cluster_agent).running_ids())
    cluster_agent.kill9()
    asyncio.run(forget_all(cluster_agent))
    cluster_agent.start()
    cluster_agent.wait_healthy()
    cluster.run(plain("later"))
    cluster.wait_ready("later")
    again = cluster.pod("job")
    assert again is not None and again["status"]["phase"] == "Succeeded"
    assert container_status(again)["state"] == container_status(done)["state"]
    assert len(look(cluster_agent).containers) == 1


async def forget_all(agent: Agent) -> None:
    """As after `crictl rmp --all`, or with a new disk of the runtime."""
    view = await agent.look()
    async with runtime_client(agent.testbed, 30) as client:
        for container in view.containers:
            await client.remove_container(ContainerID(container.id))
        for sandbox in view.sandboxes:
            await client.stop_pod_sandbox(SandboxID(sandbox.id))
            await client.remove_pod_sandbox(SandboxID(sandbox.id))


def test_an_image_that_is_corrected_starts_its_container_at_once(cluster: Cluster, cluster_agent: Agent) -> None:
    good = make_container()["image"]
    cluster.run(plain("web", make_container(image="127.0.0.1:1/none:1", imagePullPolicy="IfNotPresent")))
    cluster.wait_pod(
        "web", "back-off", lambda p: container_status(p)["state"].get("waiting", {}).get("reason") == "ImagePullBackOff"
    )
    cluster.kubectl("set", "image", "pod/web", f"{make_container()['name']}={good}")
    (pod,) = cluster.wait_ready("web", within=20)
    assert container_status(pod)["restartCount"] == 0


def test_pods_that_run_stay_when_their_node_no_longer_suits_them(cluster: Cluster, cluster_agent: Agent) -> None:
    node = f"/api/v1/nodes/{NODE_NAME}"
    cluster.patch(node, {"metadata": {"labels": {"zone": "a"}}})
    cluster.run(plain("web", nodeSelector={"zone": "a"}))
    (before,) = cluster.wait_ready("web")
    cluster.patch(node, {"metadata": {"labels": {"zone": None}}, "spec": {"unschedulable": True}})
    cluster_agent.kill9()
    cluster_agent.start()
    cluster_agent.wait_healthy()
    cluster.run(plain("later"))
    cluster.wait_ready("later")
    after = cluster.pod("web")
    assert after is not None and container_status(after)["containerID"] == container_status(before)["containerID"]
    cluster.patch(node, {"spec": {"unschedulable": None}})


def test_what_was_deleted_and_made_while_there_was_no_agent(cluster: Cluster, cluster_agent: Agent) -> None:
    cluster.run(plain("goes"), plain("stays"), plain("web"))
    before = {pod["metadata"]["name"]: pod for pod in cluster.wait_ready("goes", "stays", "web")}
    cluster_agent.kill9()
    cluster.delete_pod("goes")
    cluster.delete_pod("web", grace_s=0)
    cluster.run(plain("web"))
    cluster_agent.start()
    cluster.wait_gone("goes")
    stays, web = cluster.wait_ready("stays", "web")
    assert container_status(stays)["containerID"] == container_status(before["stays"])["containerID"]
    assert web["metadata"]["uid"] != before["web"]["metadata"]["uid"]
    cluster.wait("two run", lambda: len(look(cluster_agent).running_ids()) == 2)


def test_a_deleted_pod_is_not_ready_at_once(cluster: Cluster, cluster_agent: Agent) -> None:
    """Its address leaves the Services while it still answers what is under way."""
    probe = {
        "exec": {"command": ["sh", "-c", "test -e /listens && test ! -e /ending"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    script = "trap 'touch /ending; sleep 4; exit 0' TERM; touch /listens; while true; do sleep 0.2; done"
    cluster.run(plain("web", make_container(script=script, readinessProbe=probe), terminationGracePeriodSeconds=20))
    cluster.wait_ready("web")
    cluster.delete_pod("web")
    ending = cluster.wait_pod("web", "not ready", lambda p: condition(p, "Ready") == "False")
    assert container_status(ending)["state"].get("running"), "it still runs"
    cluster.wait_gone("web")
