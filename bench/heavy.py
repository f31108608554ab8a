"""Pods that start beside a pod with 3,000 volumes, against the same pods without it. One scenario, `heavy`.

Rounds alternate: without the heavy pod, while it starts, and while it runs. Where it starts, its volumes are set up and the runtime
makes its mounts meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from bench.agent import manifest, runtime_name
from bench.baseline import NS_PER_MS
from bench.probes import until
from bench.runtime import BenchError
from bench.scenarios import Bench
from bench.stats import spread
from bench.table import Figure
from pykubelet.base.model.labels import POD_NAME
from pykubelet.edges.cri.cri_pb2 import CONTAINER_RUNNING

_VOLUMES, _MOST = 3000, 1.1
_SETTLE_S, _READY_S, _POLL_S = 0.35, 120.0, 0.05
_NAME = "heavy"


@dataclass
class _Seen:
    """Milliseconds from manifest to start."""

    alone: list[float] = field(default_factory=list)
    starting: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)


async def heavy(bench: Bench) -> None:
    """Pods one by one, beside a pod of 3,000 emptyDirs and without it."""
    seen, rounds, size = _Seen(), 2 if bench.quick else 4, 5
    for number in range(rounds):
        names = [f"light-{number}-{n}" for n in range(size)]
        seen.alone += [await _start(bench, name) for name in names]
        await bench.remove_all(names)
        bench.agent.place([_heavy_pod()])
        beside: list[str] = []
        while not await _is_ready(bench):
            if len(beside) > _READY_S / _SETTLE_S:
                raise BenchError("the pod of many volumes is not ready")
            beside.append(f"beside-{number}-{len(beside)}")
            seen.starting.append(await _start(bench, beside[-1]))
        await bench.remove_all(beside)
        names = [f"later-{number}-{n}" for n in range(size)]
        seen.running += [await _start(bench, name) for name in names]
        await bench.remove_all([*names, _NAME])
    bench.figures += _figures(seen)


def _heavy_pod() -> dict[str, Any]:
    names = [f"v{number}" for number in range(_VOLUMES)]
    pod = manifest(_NAME, terminationGracePeriodSeconds=1)
    pod["spec"]["volumes"] = [{"name": name, "emptyDir": {}} for name in names]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": f"/m/{name}"} for name in names]
    return pod


async def _is_ready(bench: Bench) -> bool:
    return runtime_name(_NAME) in (await bench.agent.ready_pods() or {})


async def _start(bench: Bench, name: str) -> float:
    """Milliseconds from the manifest of a pod to the start of its container."""
    placed = bench.agent.place([manifest(name)])

    async def runs() -> bool:
        await asyncio.sleep(_POLL_S)
        found = await bench.cri.list_containers()
        return any(one.labels.get(POD_NAME) == runtime_name(name) and one.state == CONTAINER_RUNNING for one in found)

    await until(f"{name} runs", runs, 60)
    started = await bench.started_at(name)
    await asyncio.sleep(_SETTLE_S)
    return (started - placed) / NS_PER_MS


def _figures(seen: _Seen) -> list[Figure]:
    alone = spread(seen.alone)
    return [
        Figure(
            f"manifest appears to container started, beside a pod of {_VOLUMES:,} emptyDirs that {does}",
            "ms",
            spread(times),
            alone,
            _MOST * alone.median,
            f"<= {_MOST} x without it",
        )
        for does, times in (("starts", seen.starting), ("runs", seen.running))
    ]
