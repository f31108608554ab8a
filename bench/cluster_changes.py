"""How soon a client of the API server sees what happens to a running pod: a resize, a restart after a failed probe.

The baselines are what cannot be left out: the raw runtime calls, and the API server's own time for the patches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.agent import NODE_NAME
from bench.api import PODS, STRATEGIC_MERGE
from bench.baseline import NS_PER_MS
from bench.cluster_bench import NOWHERE, READY, SETTLE_S, ClusterBench
from bench.probes import answering, http_probe, with_container
from bench.runtime import BenchError
from bench.stats import spread
from bench.table import Figure
from pykubelet.edges.cri import cri_pb2 as pb

#: Sizes of the container, one after the other: more CPU, more memory, less memory, less CPU.
_SIZES = (
    {"cpu": "200m", "memory": "64Mi"},
    {"cpu": "200m", "memory": "96Mi"},
    {"cpu": "200m", "memory": "64Mi"},
    {"cpu": "100m", "memory": "64Mi"},
)
_CPU_PERIOD = 100_000


@dataclass(slots=True)
class Resizes:
    """Milliseconds from the patch of `/resize` until a watch shows the new limit, and of each part of the baseline."""

    seen: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    syncs: list[float] = field(default_factory=list)


async def resize(cluster: ClusterBench) -> None:
    """A running pod gets another size, again and again."""
    bench, name, found = cluster.bench, "resize", Resizes()
    rounds = 2 if bench.quick else 6
    await cluster.api.create_pod(_sized_pod(name, NODE_NAME))
    await cluster.watch.ready_at(name)
    made = await bench.baseline.make(bench.baseline.prepare(cluster.templates[False]))
    for _ in range(rounds):
        for size in _SIZES:
            with bench.agent.frozen():
                found.baseline.append(await _resize_baseline(cluster, made.container, size))
            await bench.rest()
            mark, syncs = cluster.audit.mark(), await bench.agent.syncs()
            found.seen.append(await _resize(cluster, name, size))
            await asyncio.sleep(SETTLE_S)
            if syncs is not None:
                found.syncs.append((await bench.agent.syncs() or 0) - syncs)
            patches = [sent for sent in cluster.audit.since(mark) if sent == ("patch", "pods/status")]
            found.requests.append(float(len(patches)))
    await bench.baseline.remove(made)
    await cluster.api.delete_pod(name, 1)
    await cluster.watch.gone_at(name)
    baseline = spread(found.baseline)
    bench.figures += [
        Figure(
            f"patch of /resize to the new limit in the status, {len(found.seen)} times",
            "ms",
            spread(found.seen),
            baseline,
            1.5 * baseline.median,
            "<= 1.5 x baseline",
            "21 ms",
        ),
        Figure("status patches per resize", "", spread(found.requests), None, 2, "<= 2"),
        *([Figure("fsync calls per resize", "", spread(found.syncs), None, 2, "<= 2")] if found.syncs else ()),
    ]


async def _resize(cluster: ClusterBench, name: str, size: Mapping[str, str]) -> float:
    began = await _patch_size(cluster, name, size)
    return (await cluster.watch.shows(name, "resized", lambda pod: _limits(pod) == size) - began) / NS_PER_MS


async def _resize_baseline(cluster: ClusterBench, container: str, size: Mapping[str, str]) -> float:
    """A patch until a watch shows it, UpdateContainerResources, and a patch of the status until a watch shows it.

    The first patch is of an annotation, because only pods of nodes that exist can be resized.
    """
    api, watch = cluster.api, cluster.watch
    cluster.trips += 1
    stand_in = f"size-{cluster.trips}"
    await api.create_pod(_sized_pod(stand_in, NOWHERE))
    await watch.seen_at(stand_in)
    await asyncio.sleep(SETTLE_S)
    began = time.time_ns()
    wanted = {"bench/size": f"{size['cpu']} {size['memory']}"}
    await api.request("PATCH", f"{PODS}/{stand_in}", {"metadata": {"annotations": wanted}}, STRATEGIC_MERGE)
    await watch.shows(stand_in, "patched", lambda pod: pod["metadata"].get("annotations") == wanted)
    linux = pb.LinuxContainerResources(
        cpu_period=_CPU_PERIOD,
        cpu_quota=int(size["cpu"].removesuffix("m")) * _CPU_PERIOD // 1000,
        memory_limit_in_bytes=int(size["memory"].removesuffix("Mi")) << 20,
    )
    await cluster.bench.cri.update_container_resources(container, linux)
    reported = {
        "name": "main",
        "image": "",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "resources": {"limits": size},
    }
    await api.patch_status(stand_in, {"containerStatuses": [reported]})
    took = (await watch.shows(stand_in, "reported", lambda pod: _limits(pod) == size) - began) / NS_PER_MS
    await api.delete_pod(stand_in, 0)
    await watch.gone_at(stand_in)
    return took


async def _patch_size(cluster: ClusterBench, name: str, size: Mapping[str, str]) -> int:
    """When the call began."""
    began = time.time_ns()
    container = {"name": "main", "resources": {"limits": size, "requests": size}}
    await cluster.api.request("PATCH", f"{PODS}/{name}/resize", {"spec": {"containers": [container]}}, STRATEGIC_MERGE)
    return began


def _sized_pod(name: str, node: str) -> dict[str, Any]:
    size = _SIZES[-1]
    pod = with_container(name, resources={"limits": size, "requests": size})
    pod["spec"] |= {"nodeName": node, "automountServiceAccountToken": False}
    return pod


def _limits(pod: Mapping[str, Any]) -> object:
    statuses = pod["status"].get("containerStatuses") or [{}]
    return statuses[0].get("resources", {}).get("limits")


async def failures(cluster: ClusterBench) -> None:
    """A liveness probe fails: from the answer that fails until a watch shows the next container."""
    bench, seen, baseline = cluster.bench, [], []
    count = 4 if bench.quick else 12
    async with answering() as answerer:
        for number in range(count):
            name, path = f"failing-{number}", f"/live-{number}"
            with bench.agent.frozen():
                baseline.append(await _restart_baseline(cluster))
            await bench.rest()
            probe = http_probe(answerer.port, path, "127.0.0.1", failureThreshold=1)
            pod = with_container(name, livenessProbe=probe)
            pod["spec"] |= {"nodeName": NODE_NAME, "automountServiceAccountToken": False}
            await cluster.api.create_pod(pod)
            await cluster.watch.ready_at(name)
            await asyncio.sleep(1.5)
            answerer.failing.add(path)
            restarted = await cluster.watch.shows(name, "restarted", _runs_again)
            answerer.failing.discard(path)
            failed = answerer.sent_ns.get(f"{path} 503")
            if failed is None:
                raise BenchError("a container was restarted before its probe failed")
            seen.append((restarted - failed) / NS_PER_MS)
            await cluster.api.delete_pod(name, 1)
            await cluster.watch.gone_at(name)
    limit = spread(baseline)
    what = f"liveness probe failed to the next container in the status, {count} times"
    bench.figures.append(Figure(what, "ms", spread(seen), limit, 1.15 * limit.median, "<= 1.15 x baseline"))


def _runs_again(pod: Mapping[str, Any]) -> bool:
    statuses = pod["status"].get("containerStatuses") or [{}]
    return statuses[0].get("restartCount") == 1 and "running" in statuses[0].get("state", {})


async def _restart_baseline(cluster: ClusterBench) -> float:
    """StopContainer, CreateContainer and StartContainer, and a patch of the status until a watch shows it."""
    bench, template = cluster.bench, cluster.templates[False]
    cluster.trips += 1
    name = f"restart-{cluster.trips}"
    pod = with_container(name)
    pod["spec"] |= {"nodeName": NOWHERE, "automountServiceAccountToken": False}
    await cluster.api.create_pod(pod)
    await cluster.watch.seen_at(name)
    prepared = bench.baseline.prepare(template)
    made = await bench.baseline.make(prepared)
    await asyncio.sleep(SETTLE_S)
    again = pb.ContainerConfig()
    again.CopyFrom(prepared.container)
    again.metadata.attempt += 1
    began = time.time_ns()
    await bench.cri.stop_container(made.container, 1)
    container = await bench.cri.create_container(made.sandbox, again, prepared.sandbox)
    await bench.cri.start_container(container)
    await cluster.api.patch_status(name, READY)
    took = (await cluster.watch.ready_at(name) - began) / NS_PER_MS
    await bench.baseline.remove(made)
    await cluster.api.delete_pod(name, 0)
    await cluster.watch.gone_at(name)
    return took
