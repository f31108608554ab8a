"""Pods that come and go in random order while the agent is killed again and again: nothing may stay behind."""

from __future__ import annotations

import os
import random
import time

from cluster.test_pods import nothing_left, plain
from support.agent import Agent, Json, make_container
from support.cluster import Cluster, look

PODS = int(os.environ.get("STORM_PODS", "200"))
KILLS = int(os.environ.get("STORM_KILLS", "20"))
AT_ONCE = 25


def some_pod(name: str, chance: random.Random) -> Json:
    """Pods that run, that end, that have init containers, that do not end when they are asked to."""
    kind = chance.randrange(5)
    if kind == 0:
        return plain(name, make_container(script="exit 0"), restartPolicy="Never")
    if kind == 1:
        return plain(name, initContainers=[make_container("first", "sleep 0.2")], terminationGracePeriodSeconds=1)
    if kind == 2:
        return plain(name, make_container(script='trap "" TERM; sleep 600'), terminationGracePeriodSeconds=1)
    if kind == 3:
        return plain(name, make_container(script="exit 1"), terminationGracePeriodSeconds=1)
    return plain(name, terminationGracePeriodSeconds=1)


def test_nothing_is_left_after_a_storm(cluster: Cluster, cluster_agent: Agent) -> None:
    seed = int(os.environ.get("STORM_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"STORM_SEED={seed}")
    chance = random.Random(seed)
    waiting = [f"s{n}" for n in range(PODS)]
    there: list[str] = []
    kills = set(chance.sample(range(1, 2 * PODS), KILLS))
    for step in range(1, 2 * PODS + 1):
        if waiting and (not there or (len(there) < AT_ONCE and chance.random() < 0.6)):
            name = waiting.pop()
            cluster.run(some_pod(name, chance))
            there.append(name)
        elif there:
            name = there.pop(chance.randrange(len(there)))
            cluster.delete_pod(name, grace_s=chance.choice((None, None, 1, 0)))
        if step in kills:
            cluster_agent.kill9()
            cluster_agent.start(wait=False)
        time.sleep(chance.random() * 0.1)
    for name in there:
        cluster.delete_pod(name)
    cluster_agent.wait_healthy()
    cluster.wait("no pod is stuck", lambda: not cluster.list_objects(cluster.pods_path), within=180)
    cluster.wait("nothing is left", lambda: nothing_left(cluster_agent), within=60)
    assert not look(cluster_agent).running
    assert cluster_agent.alive
