"""Pods of five containers and five volumes, against the runtime's calls made side by side. One scenario, `containers`.

The baseline creates all containers at once and starts each as soon as it and those before it are there: the order of starts is promised
(docs/start-order.md). A second one makes even the starts side by side, which is the least that the runtime needs. Both stop all containers
at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed import images

from bench.agent import manifest, runtime_name
from bench.baseline import NS_PER_MS, Template, find_pod, read_templates
from bench.runtime import BenchError
from bench.scenarios import CALM_S, Bench
from bench.stats import Spread, spread
from bench.table import Figure
from pykubelet.base.model.labels import POD_NAME

COUNT = 5
_GRACE_S, _SETTLE_S, _START_S = 30, 0.35, 20.0


@dataclass
class _Seen:
    """Milliseconds of the agent (`started`, `gone`), and of the baselines with starts in order and with starts side by side."""

    started: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    ordered: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    removed: list[float] = field(default_factory=list)


async def containers(bench: Bench) -> None:
    """Pods one by one, each made and removed by the agent and by both baselines, one after the other."""
    seen, names = _Seen(), [f"many-{number}" for number in range(6 if bench.quick else 20)]
    await _start(bench, "many-first")
    template = await read_templates(bench.cri, runtime_name("many-first"))
    await _remove(bench, "many-first")
    await _baseline(bench, template, is_ordered=True)
    for name in names:
        for is_ordered, started in ((True, seen.ordered), (False, seen.together)):
            start_ms, gone_ms = await _baseline(bench, template, is_ordered=is_ordered)
            started.append(start_ms)
            seen.removed.append(gone_ms)
        seen.started.append(await _start(bench, name))
        seen.gone.append(await _remove(bench, name))
    bench.figures += _figures(seen)


def _pod(name: str) -> dict[str, Any]:
    """Five containers, each of which mounts five volumes of several kinds."""
    pod = manifest(name)
    names = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    sources: list[dict[str, Any]] = [
        {"emptyDir": {}},
        {"emptyDir": {}},
        {"emptyDir": {"medium": "Memory"}},
        {"downwardAPI": names},
        {"projected": {"sources": [{"downwardAPI": names}]}},
    ]
    volumes = [{"name": f"v{number}", **source} for number, source in enumerate(sources)]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    container = {"image": images.PAUSE, "imagePullPolicy": "IfNotPresent", "volumeMounts": mounts}
    pod["spec"]["containers"] = [{"name": f"c{number}", **container} for number in range(COUNT)]
    pod["spec"]["volumes"] = volumes
    return pod


async def _start(bench: Bench, name: str) -> float:
    """Milliseconds from the manifest to the start of the last container."""
    before = len(bench.watch.starts)
    placed = bench.agent.place([_pod(name)])
    await bench.watch.wait_starts(before, 1 + COUNT, _START_S)
    await asyncio.sleep(_SETTLE_S)
    found = await bench.cri.list_containers(labels={POD_NAME: runtime_name(name)})
    if len(found) != COUNT:
        raise BenchError(f"pod {name} has {len(found)} containers, not {COUNT}")
    return (max([await bench.baseline.started_at(c.id) for c in found]) - placed) / NS_PER_MS


async def _remove(bench: Bench, name: str) -> float:
    """Milliseconds from the removal of the manifest until the sandbox is gone."""
    sandbox, _ = await find_pod(bench.cri, runtime_name(name))
    removed = bench.agent.withdraw([name])
    gone = await bench.watch.deleted_at(sandbox)
    await asyncio.sleep(_SETTLE_S)
    return (gone - removed) / NS_PER_MS


async def _baseline(bench: Bench, templates: Sequence[Template], *, is_ordered: bool) -> tuple[float, float]:
    """Milliseconds to the start of the last container, and from the first stop until the sandbox is gone; with the agent frozen."""
    pods = bench.baseline.prepare_all(templates)
    cri, sandbox_config = bench.cri, pods[0].sandbox
    with bench.agent.frozen():
        await asyncio.sleep(CALM_S)
        began = time.time_ns()
        sandbox = await cri.run_pod_sandbox(sandbox_config)
        creations = [asyncio.create_task(cri.create_container(sandbox, pod.container, sandbox_config)) for pod in pods]

        async def start(creation: asyncio.Task[str]) -> str:
            container = await creation
            await cri.start_container(container)
            return container

        made = [await start(c) for c in creations] if is_ordered else await asyncio.gather(*map(start, creations))
        await asyncio.sleep(_SETTLE_S)
        started = max([await bench.baseline.started_at(container) for container in made])
        stopped = time.time_ns()
        await asyncio.gather(*(cri.stop_container(container, _GRACE_S) for container in made))
        await cri.stop_pod_sandbox(sandbox)
        await cri.remove_pod_sandbox(sandbox)
        gone = await bench.watch.deleted_at(sandbox)
        await asyncio.sleep(_SETTLE_S)
    await bench.rest()
    return (started - began) / NS_PER_MS, (gone - stopped) / NS_PER_MS


def _figures(seen: _Seen) -> list[Figure]:
    ordered, removed = spread(seen.ordered), spread(seen.removed)
    return [
        _against(
            f"manifest appears to all started, pods of {COUNT} containers and volumes", seen.started, ordered, 1.05
        ),
        Figure("the same calls with the starts side by side too", "ms", spread(seen.together)),
        _against(f"manifest removed to sandbox gone, pods of {COUNT} containers", seen.gone, removed, 1.3),
    ]


def _against(what: str, taken: Sequence[float], baseline: Spread, times: float) -> Figure:
    target = f"<= {times:g} x baseline (side by side)"
    return Figure(what, "ms", spread(taken), baseline, times * baseline.median, target)
