"""The agent dies and comes back: no pod of the cluster notices, and no watch shows one that is not ready."""

from __future__ import annotations

import threading

from support.agent import Agent, Json, condition, make_pod
from support.cluster import Cluster, look

COUNT = 12


def test_no_pod_is_seen_unready_while_the_agent_restarts(cluster: Cluster, cluster_agent: Agent) -> None:
    names = [f"pod-{n}" for n in range(COUNT)]
    cluster.run(*(make_pod(name) for name in names))
    cluster.wait_ready(*names)
    running = look(cluster_agent).running_ids()
    seen: list[Json] = []
    done = threading.Event()

    def keep_watch() -> None:
        watcher = Cluster(cluster.plane, cluster.namespace)
        for _, pod in watcher.watch_pods("", 20):
            seen.append(pod)
            if done.is_set():
                return

    watching = threading.Thread(target=keep_watch)
    watching.start()
    for how in (cluster_agent.kill9, cluster_agent.stop):
        how()
        cluster_agent.start()
        cluster.wait_node_ready()
    cluster.patch(f"{cluster.pods_path}/pod-0", {"metadata": {"labels": {"the": "end"}}})
    done.set()
    cluster.patch(f"{cluster.pods_path}/pod-0", {"metadata": {"labels": {"very": "end"}}})
    watching.join(25)
    assert len(seen) >= COUNT
    assert all(condition(pod, "Ready") == "True" for pod in seen)
    assert look(cluster_agent).running_ids() == running
    restarts = [c["restartCount"] for pod in seen for c in pod["status"]["containerStatuses"]]
    assert set(restarts) == {0}
