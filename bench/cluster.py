"""The scenarios of a node in a cluster: pods come from the API server and are watched there.

Baseline and agent alternate as in `scenarios.py`. Container starts are the runtime's own word; what a user sees is the time at
which a watch delivered here. The requests of the agent are counted from the API server's audit log.
"""

from __future__ import annotations

import asyncio
import time

from bench.api import CONFIG_MAPS, MERGE
from bench.baseline import NS_PER_MS, find_pod
from bench.cluster_bench import SETTLE_S, ClusterBench, cluster_pod
from bench.cluster_changes import failures, resize
from bench.cluster_figures import (
    KINDS,
    RoundTrips,
    Singles,
    burst_figures,
    content_figures,
    crowd_figures,
    idle_figures,
    round_trip_figures,
    single_figures,
)
from bench.runtime import BenchError
from bench.scenarios import CALM_S, all_ready, same_again

_CONTENT_S = 120.0


async def single(cluster: ClusterBench) -> None:
    """20 pods started one by one, then deleted one by one; without and with a token."""
    bench, trips = cluster.bench, RoundTrips()
    blocks, size = (2, 4) if bench.quick else (4, 5)
    seen = {False: Singles(), True: Singles()}
    for block in range(blocks):
        for token, singles in seen.items():
            names = [f"single-{token}-{block}-{i}".lower() for i in range(size)]
            mark = cluster.audit.mark()
            for name in names:
                with bench.agent.frozen():
                    await cluster.round_trips(trips, 1)
                    await asyncio.sleep(CALM_S)
                    singles.cycles.append(await bench.baseline.cycle(cluster.templates[token]))
                await bench.rest()
                await _start_one(cluster, singles, name, token)
            singles.start_requests.append(_requests(cluster, f"started, {KINDS[token]}", mark, size))
            await asyncio.sleep(1)
            mark = cluster.audit.mark()
            for name in names:
                deleted = await cluster.api.delete_pod(name, 1)
                singles.gone.append((await cluster.watch.gone_at(name) - deleted) / NS_PER_MS)
                await asyncio.sleep(SETTLE_S)
            singles.delete_requests.append(_requests(cluster, f"deleted, {KINDS[token]}", mark, size))
    bench.figures += single_figures(KINDS[False], seen[False], trips, 1.05, "1.05 x")
    bench.figures += single_figures(KINDS[True], seen[True], trips, 1.10, "3.0 x")
    bench.figures += round_trip_figures(trips)


async def _start_one(cluster: ClusterBench, singles: Singles, name: str, token: bool) -> None:
    began = await cluster.api.create_pod(cluster_pod(name, token))
    ready = await cluster.watch.ready_at(name)
    await asyncio.sleep(SETTLE_S)
    _, container = await find_pod(cluster.bench.cri, name)
    started = await cluster.bench.baseline.started_at(container)
    singles.started.append((started - began) / NS_PER_MS)
    singles.ready.append((ready - started) / NS_PER_MS)


def _requests(cluster: ClusterBench, what: str, mark: int, pods: int) -> float:
    """By pod, without what an idle node sends: its lease and its status."""
    sent = [request for request in cluster.audit.since(mark) if request[1] not in ("leases", "nodes/status")]
    if not sent:
        raise BenchError(f"no request for {pods} pods {what}: the audit log does not show the node's requests")
    cluster.sent.setdefault(what, []).extend(sent)
    return len(sent) / pods


async def burst(cluster: ClusterBench) -> None:
    """30 pods created at once, then deleted at once, and as many of the baseline; without and with a token."""
    for token in (False, True):
        await _burst(cluster, token)


async def _burst(cluster: ClusterBench, token: bool) -> None:
    bench = cluster.bench
    count, rounds = 30, 1 if bench.quick else 5
    baseline, runtime, ready, gone = [], [], [], []
    for cycle in range(rounds):
        with bench.agent.frozen():
            baseline.append(await cluster.baseline_burst(count, token))
            runtime.append((await bench.baseline.burst(cluster.templates[token], count))[0])
        await bench.rest()
        names = [f"burst-{token}-{cycle}-{i}".lower() for i in range(count)]
        began = await cluster.create_all([cluster_pod(name, token) for name in names])
        ready.append((await cluster.all_ready_at(names) - began) / NS_PER_MS)
        await bench.agent.wait_quiet()
        began = await cluster.delete_all(names)
        gone.append((await cluster.all_gone_at(names) - began) / NS_PER_MS)
        await bench.rest()
    bench.figures += burst_figures(KINDS[token], count, ready, gone, baseline, runtime)


async def crowd(cluster: ClusterBench) -> None:
    """100 pods at once: CPU and memory."""
    bench, count = cluster.bench, 100
    await bench.agent.wait_quiet()
    names = [f"crowd-{i}" for i in range(count)]
    used = bench.agent.cpu_s()
    await cluster.create_all([cluster_pod(name, token=True) for name in names])
    await cluster.all_ready_at(names)
    await asyncio.sleep(1)
    start = (bench.agent.cpu_s() - used) / count * 1000
    await bench.agent.wait_quiet()
    used = bench.agent.cpu_s()
    await cluster.delete_all(names)
    await cluster.all_gone_at(names)
    await asyncio.sleep(1)
    delete = (bench.agent.cpu_s() - used) / count * 1000
    bench.figures += crowd_figures(count, start, delete, bench.agent.peak_rss_mib())
    await bench.rest()


async def idle(cluster: ClusterBench) -> None:
    """50 pods: requests while nothing happens, and a restart after SIGKILL."""
    bench, agent = cluster.bench, cluster.bench.agent
    count, idle_s, kills = 50, 30.0 if bench.quick else 120.0, 1 if bench.quick else 3
    names = [f"idle-{i}" for i in range(count)]
    await cluster.create_all([cluster_pod(name, token=True) for name in names])
    await cluster.all_ready_at(names)
    pods = await all_ready(agent, count, 30)
    await agent.wait_quiet()
    await asyncio.sleep(5)
    mark = cluster.audit.mark()
    await asyncio.sleep(idle_s)
    sent = cluster.audit.since(mark)
    if not any(resource == "leases" for _, resource in sent):
        raise BenchError(f"no renewal of the node's lease in {idle_s:.0f} s: the audit log does not show its requests")
    requests = len(sent) * 60 / idle_s
    cluster.sent["idle"] = sent
    synced, ready = [], []
    for _ in range(kills):
        agent.kill()
        await cluster.mark_node_unknown()
        began = agent.spawn()
        node = asyncio.create_task(cluster.node_ready_at())
        await same_again(agent, pods, 30)
        synced.append((time.time_ns() - began) / 1e9)
        ready.append((await node - began) / 1e9)
        await agent.wait_quiet()
    if unready := sorted(cluster.watch.unready & set(names)):
        raise BenchError(f"seen unready after the agent was killed: {', '.join(unready)}")
    await cluster.delete_all(names)
    await cluster.all_gone_at(names)
    bench.figures += idle_figures(count, requests, synced, ready)


async def content(cluster: ClusterBench) -> None:
    """A ConfigMap that changes once a second, in the volume of a running pod."""
    bench, name, count = cluster.bench, "content", 10 if cluster.bench.quick else 40
    await cluster.api.request("POST", CONFIG_MAPS, {"metadata": {"name": name}, "data": {"text": "first"}})
    pod = cluster_pod(name)
    pod["spec"]["volumes"] = [{"name": "v", "configMap": {"name": name}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    await cluster.api.create_pod(pod)
    await cluster.watch.ready_at(name)
    (text,) = (bench.agent.folder / "kubelet").glob("pods/*/volumes/kubernetes.io~configmap/v/text")
    took = []
    for number in range(count):
        await asyncio.sleep(1)
        wanted, began = f"number {number}", time.monotonic()
        await cluster.api.request("PATCH", f"{CONFIG_MAPS}/{name}", {"data": {"text": wanted}}, MERGE)
        while text.read_text() != wanted:
            if time.monotonic() - began > _CONTENT_S:
                raise BenchError(f"a changed ConfigMap is not in the volume within {_CONTENT_S:.0f} s")
            await asyncio.sleep(0.001)
        took.append((time.monotonic() - began) * 1000)
    bench.figures += content_figures(took)
    await cluster.api.delete_pod(name, 1)
    await cluster.watch.gone_at(name)
    await cluster.api.request("DELETE", f"{CONFIG_MAPS}/{name}")
    await bench.rest()


SCENARIOS = {
    "single": single,
    "resize": resize,
    "failures": failures,
    "burst": burst,
    "crowd": crowd,
    "idle": idle,
    "content": content,
}
#: The first minor release of an API server that a scenario needs: pods have the subresource `resize` since 1.33.
SINCE = {"resize": 33}
