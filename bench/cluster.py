"""The scenarios of a node in a cluster: pods come from the API server and are watched there.

Baseline and agent alternate as in `scenarios.py`. Container starts are the runtime's own word; what a user sees is the time at
which a watch delivered here. The requests of the agent are counted from the API server's audit log.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.agent import NODE_NAME, manifest
from bench.api import CONFIG_MAPS, MERGE, STRATEGIC_MERGE, Api, Audit, PodWatch
from bench.baseline import NS_PER_MS, Made, Prepared, Template, find_pod, read_template
from bench.cluster_changes import failures, resize
from bench.cluster_figures import (
    KINDS,
    BaselineBurst,
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
from bench.scenarios import CALM_S, Bench, all_ready, same_again

_SETTLE_S = 0.35
_NOWHERE = "nowhere"
_NODES = "/api/v1/nodes"
_NODE = f"{_NODES}/{NODE_NAME}"
_CONTENT_S = 120.0
_READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def cluster_pod(name: str, token: bool = False, node: str = NODE_NAME) -> dict[str, Any]:
    """A pod bound to the node; `token`: with the usual volume of a service account token."""
    return manifest(name, nodeName=node, automountServiceAccountToken=token)


@dataclass(slots=True)
class ClusterBench:
    """What the scenarios share. The templates are what the agent asked the runtime for, without and with a token."""

    bench: Bench
    api: Api
    watch: PodWatch
    audit: Audit
    templates: dict[bool, Template] = field(default_factory=dict)
    trips: int = 0
    sent: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    async def learn(self) -> None:
        """Run one pod of each kind to warm up, and take the agent's requests as the baseline's."""
        await self.node_ready_at()
        for token in (False, True):
            name = f"learn-{token}".lower()
            await self.api.create_pod(cluster_pod(name, token))
            await self.watch.ready_at(name)
            await asyncio.sleep(_SETTLE_S)
            self.templates[token] = await read_template(self.bench.cri, name)
            await self.api.delete_pod(name, 1)
            await self.watch.gone_at(name)
        await self.bench.rest()

    async def mark_node_unknown(self) -> None:
        """Set the node's Ready condition to Unknown, as the node lifecycle controller does when an agent is away.

        What is read as Ready afterwards was written by the agent afterwards.
        """
        condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        await self.api.request("PATCH", f"{_NODE}/status", {"status": {"conditions": [condition]}}, STRATEGIC_MERGE)
        if await self._node_is_ready():
            raise BenchError("the node's Ready condition could not be set to Unknown")

    async def node_ready_at(self, timeout_s: float = 30.0) -> int:
        """When the node was first seen Ready."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if await self._node_is_ready():
                return time.time_ns()
            await asyncio.sleep(0.02)
        raise BenchError(f"the node does not become Ready within {timeout_s:.0f} s")

    async def _node_is_ready(self) -> bool:
        nodes = (await self.api.request("GET", _NODES))["items"]
        found = [c for n in nodes if n["metadata"]["name"] == NODE_NAME for c in n["status"].get("conditions", ())]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found)

    async def round_trips(self, trips: RoundTrips, count: int = 5) -> None:
        """What the API server needs, of a pod that no node takes."""
        for _ in range(count):
            self.trips += 1
            name = f"trip-{self.trips}"
            began = await self.api.create_pod(cluster_pod(name, node=_NOWHERE))
            trips.created.append((await self.watch.seen_at(name) - began) / NS_PER_MS)
            began = await self.api.patch_status(name, _READY)
            trips.patched.append((await self.watch.ready_at(name) - began) / NS_PER_MS)
            await self.api.delete_pod(name, 0)
            await self.watch.gone_at(name)

    async def baseline_burst(self, count: int, token: bool) -> BaselineBurst:
        """`count` pods at once, each with what cannot be left out: it is created and seen, made by the runtime calls,
        reported Ready and seen so. The API server knows them on a node that does not exist."""
        baseline, template, self.trips = self.bench.baseline, self.templates[token], self.trips + 1
        names = [f"baseline-{self.trips}-{i}" for i in range(count)]
        prepared = [baseline.prepare(template) for _ in names]

        async def make(name: str, pod: Prepared) -> Made:
            await self.api.create_pod(cluster_pod(name, token, _NOWHERE))
            await self.watch.seen_at(name)
            made = await baseline.make(pod)
            await self.api.patch_status(name, _READY)
            return made

        began = time.time_ns()
        made = await asyncio.gather(*(make(*pair) for pair in zip(names, prepared, strict=True)))
        ready = (await self.all_ready_at(names) - began) / NS_PER_MS
        gone = await baseline.remove_all(made)
        for name in names:
            await self.api.delete_pod(name, 0)
        await self.all_gone_at(names)
        return BaselineBurst(ready, gone)

    async def create_all(self, pods: Sequence[Mapping[str, Any]]) -> int:
        """All at once; when the first call began."""
        return min(await asyncio.gather(*(self.api.create_pod(pod) for pod in pods)))

    async def delete_all(self, names: Sequence[str]) -> int:
        """All at once, with a second's grace; when the first call began."""
        return min(await asyncio.gather(*(self.api.delete_pod(name, 1) for name in names)))

    async def all_gone_at(self, names: Sequence[str]) -> int:
        return max([await self.watch.gone_at(name) for name in names])

    async def all_ready_at(self, names: Sequence[str]) -> int:
        return max([await self.watch.ready_at(name) for name in names])

    def account(self) -> list[str]:
        """Lines: which requests the agent sent, by occasion."""
        return [
            f"requests {what}: "
            + ", ".join(f"{count} {verb} {resource}" for (verb, resource), count in Counter(sent).most_common())
            for what, sent in self.sent.items()
        ]


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
                await asyncio.sleep(_SETTLE_S)
            singles.delete_requests.append(_requests(cluster, f"deleted, {KINDS[token]}", mark, size))
    bench.figures += single_figures(KINDS[False], seen[False], trips, 1.05, "1.05 x")
    bench.figures += single_figures(KINDS[True], seen[True], trips, 1.10, "3.0 x")
    bench.figures += round_trip_figures(trips)


async def _start_one(cluster: ClusterBench, singles: Singles, name: str, token: bool) -> None:
    began = await cluster.api.create_pod(cluster_pod(name, token))
    ready = await cluster.watch.ready_at(name)
    await asyncio.sleep(_SETTLE_S)
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
