"""The fate of pods as Kubernetes documents it: rolled over, drained, on a node that dies, on a node that is cut off and returns.

Source: the Kubernetes documentation "Deployments", "Safely Drain a Node", "Taints and Tolerations", "Pod Lifecycle",
"Force Delete StatefulSet Pods", "Node Status".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.agent import Json, condition
from support.cluster import WITHIN_S, bound
from ten.nodes import Ten
from ten.workloads import (
    MEMBERS,
    REPLICAS,
    SURPLUS,
    assert_never_two,
    container_ids,
    is_deleted,
    member_on,
    names,
    note_killed,
    pod,
    pods,
    ready,
    tolerations,
    uid,
    wait_all,
    wait_back,
    wait_unknown,
    wait_web,
    web_status,
)
from testbed import host

PARTITION_S = 300.0
LONG_S = 2 * WITHIN_S
#: Between two looks of those who watch all the time.
STEP_S = 0.5 * host.SLOWNESS
ENDED = ("Succeeded", "Failed")


@contextmanager
def watching_web(ten: Ten) -> Iterator[list[tuple[int, int]]]:
    """While the block runs: the pods of the Deployment that are available and that exist, again and again."""
    seen: list[tuple[int, int]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(STEP_S):
            status = web_status(ten)
            seen.append((status.get("availableReplicas", 0), status.get("replicas", 0)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@contextmanager
def watching_phases(ten: Ten) -> Iterator[list[str]]:
    """While the block runs: every pod that had ended and was reported as not ended later."""
    wrong: list[str] = []
    ended = threading.Event()

    def look() -> None:
        phases: dict[str, str] = {}
        while not ended.wait(STEP_S):
            for item in pods(ten):
                phase = item["status"].get("phase", "")
                if phases.get(uid(item)) in ENDED and phase not in ENDED:
                    wrong.append(f"{item['metadata']['name']}: {phases[uid(item)]} became {phase}")
                phases[uid(item)] = phase

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield wrong
    finally:
        ended.set()
        thread.join()


def assert_runtimes_agree(ten: Ten) -> None:
    """The runtimes of all nodes have one running container of each pod that the API server has, and no other."""

    def differ() -> str:
        running = sorted(ten.running().values())
        known = sorted(runtime_uid(item) for item in pods(ten) if item["status"].get("phase") not in ENDED)
        surplus, missing = set(running) - set(known), set(known) - set(running)
        return "" if running == known else f"only at runtimes {surplus}, only at the API server {missing}"

    try:
        ten.cluster.wait("runtimes and API server agree", lambda: not differ(), LONG_S)
    except AssertionError:
        raise AssertionError(differ()) from None


def runtime_uid(found: Json) -> str:
    """The UID that the runtime has of a pod: that of its manifest for a mirror pod."""
    return str(found["metadata"].get("annotations", {}).get("kubernetes.io/config.mirror", uid(found)))


def test_all_pods_are_rolled_over(ten: Ten) -> None:
    before = {uid(web) for web in ready(ten, "web")}
    with watching_web(ten) as seen, ten.explained(1, 10):
        ten.cluster.kubectl("set", "env", "deployment/web", "ROUND=2")
        ten.cluster.kubectl("rollout", "status", "deployment/web", f"--timeout={5 * LONG_S:.0f}s", timeout_s=6 * LONG_S)
    after = {uid(web) for web in ready(ten, "web")}
    assert len(after) == REPLICAS
    assert not after & before
    assert min(available for available, _ in seen) >= REPLICAS * (1 - SURPLUS), "as many as maxUnavailable leaves"
    assert max(exist for _, exist in seen) <= REPLICAS * (1 + SURPLUS), "no more than maxSurge allows"
    assert all(ready(ten, "web", node) for node in ten.nodes)
    assert_runtimes_agree(ten)


def test_a_drained_node_keeps_what_belongs_to_it(ten: Ten) -> None:
    node = ten.node(2)
    helper, member = ready(ten, "helper", node)[0], member_on(ten, node)
    with ten.explained(2):
        limit = f"--timeout={3 * LONG_S:.0f}s"
        ten.cluster.kubectl(
            "drain", node.name, "--ignore-daemonsets", "--delete-emptydir-data", limit, timeout_s=4 * LONG_S
        )
        assert names(pods(ten, node=node)) == {helper["metadata"]["name"], f"fixed-{node.name}"}
        assert [uid(item) for item in ready(ten, "helper", node)] == [uid(helper)]
        ten.cluster.wait_ready(f"fixed-{node.name}")
        assert len(node.running()) == 2
        wait_web(ten)
        moved = ten.cluster.wait_ready(member["metadata"]["name"], within=LONG_S)[0]
        assert moved["spec"]["nodeName"] != node.name
        ten.cluster.kubectl("uncordon", node.name)
        back = pod("back", nodeSelector={"kubernetes.io/hostname": node.name})
        ten.cluster.create(ten.cluster.pods_path, back)
        ten.cluster.wait_ready("back")
        ten.cluster.delete_pod("back")
        ten.cluster.wait_gone("back")
    assert_never_two(ten)
    assert_runtimes_agree(ten)


def test_a_node_that_dies_loses_its_pods_to_others_and_returns(ten: Ten) -> None:
    node = ten.node(1)
    helper, member, webs = ready(ten, "helper", node)[0], member_on(ten, node), ready(ten, "web", node)
    name = member["metadata"]["name"]
    assert webs
    node.kill()
    note_killed(ten, pods(ten, "db", node))
    wait_unknown(ten, node)
    ten.cluster.wait("its pods are deleted", lambda: all(map(is_deleted, pods(ten, "web", node))))
    wait_web(ten)
    waiting = ten.cluster.pod(name)
    assert waiting is not None
    assert uid(waiting) == uid(member), "it may still run, so it has no successor"
    assert is_deleted(waiting)
    left = ten.cluster.pod(helper["metadata"]["name"])
    assert left is not None
    assert uid(left) == uid(helper), "it tolerates that the node is away"
    assert not is_deleted(left)
    node.start_runtime()
    node.start_agent()
    with ten.explained(1):
        wait_back(ten, node)
        ten.cluster.wait("deleted pods are gone", lambda: not any(map(is_deleted, pods(ten, node=node))), LONG_S)
        successor = ten.cluster.wait_pod(name, "a successor", lambda p: uid(p) != uid(member) and is_ready(p), LONG_S)
        assert uid(successor) != uid(member)
        again = ten.cluster.wait_ready(helper["metadata"]["name"], f"fixed-{node.name}", within=LONG_S)[0]
        assert uid(again) == uid(helper)
        assert [status["restartCount"] for status in again["status"]["containerStatuses"]] == [1]
        assert not {uid(web) for web in webs} & set(node.running().values())
        wait_all(ten)
    assert_never_two(ten)
    assert_runtimes_agree(ten)


def is_ready(found: Json) -> bool:
    return condition(found, "Ready") == "True"


def test_a_node_that_is_cut_off_for_five_minutes_returns(ten: Ten) -> None:
    node, other = ten.node(3), ten.node(10)
    cluster = ten.cluster
    here: Json = {"nodeName": node.name, "tolerations": tolerations(None)}
    helper, member = ready(ten, "helper", node)[0], member_on(ten, node)
    webs = {uid(web) for n in (node, other) for web in ready(ten, "web", n)}
    minute = "sleep 90; exit 0"
    cluster.create(cluster.pods_path, pod("stays", **here))
    cluster.create(cluster.pods_path, pod("forced", **here))
    cluster.wait_ready("stays", "forced")
    cluster.create(cluster.pods_path, pod("brief", minute, restartPolicy="Never", **here))
    stays, brief = *cluster.wait_ready("stays"), *cluster.wait_ready("brief")
    forced = cluster.pod("forced")
    assert forced is not None
    first = cluster.node(node.name)
    assert first is not None
    began = time.monotonic()
    for cut in (node, other):
        cut.unplug()
    try:
        wait_unknown(ten, node)
        wait_unknown(ten, other)
        cluster.wait_pod("stays", "not ready in the eyes of the control plane", lambda p: not is_ready(p))
        cluster.delete_pod("forced", 0)
        assert cluster.pod("forced") is None
        cluster.create(cluster.pods_path, bound(pod("later"), node.name))
        node.put_static_pod(pod("fixed-later"))
        wait_web(ten)
        waiting = cluster.pod(member["metadata"]["name"])
        assert waiting is not None
        assert uid(waiting) == uid(member), "it may still run, so it has no successor"
        assert is_deleted(waiting)
        time.sleep(max(0.0, began + PARTITION_S - time.monotonic()))
        running = node.running()
        assert uid(forced) in running.values(), "it runs on: the node cannot know"
        assert uid(member) in running.values()
        assert "fixed-later" in {name.partition("-ten")[0] for name in node.look().running_names()}
    finally:
        for cut in (node, other):
            cut.plug_in()
    with watching_phases(ten) as wrong, ten.explained(3, 10):
        for cut in (node, other):
            wait_back(ten, cut)
        cluster.wait("deleted pods are gone", lambda: not any(map(is_deleted, pods(ten))), LONG_S)
        ended = cluster.wait_pod("brief", "its end is reported", lambda p: p["status"]["phase"] == "Succeeded")
        assert uid(ended) == uid(brief)
        again = cluster.wait_ready("stays", helper["metadata"]["name"], f"fixed-{node.name}", "later")
        assert [uid(again[0]), uid(again[1])] == [uid(stays), uid(helper)]
        assert container_ids(again[0]) == container_ids(stays), "it ran all the time"
        assert [status["restartCount"] for status in again[0]["status"]["containerStatuses"]] == [0]
        cluster.wait_ready(f"fixed-later-{node.name}")
        cluster.wait("no trace of what was forced", lambda: uid(forced) not in node.running().values())
        assert not webs & {u for n in (node, other) for u in n.running().values()}
        wait_all(ten)
        assert len(ready(ten, "db")) == MEMBERS
        assert cluster.kubectl("exec", "stays", "--", "echo", "hello") == "hello\n"
        cluster.kubectl("logs", "stays")
    assert wrong == []
    last = cluster.node(node.name)
    assert last is not None
    assert uid(last) == uid(first)
    assert node.is_healthy(), "the same process all the time"
    assert_never_two(ten)
    cluster.kubectl("delete", "pod", "stays", "brief", "later", "--wait=true", timeout_s=LONG_S)
    assert_runtimes_agree(ten)
