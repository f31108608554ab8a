"""Pods that start beside a pod with 3,000 volumes. One scenario, `heavy`.

Rounds alternate: without the heavy pod, while it starts, and while it runs. A running one must not be noticed: the baseline is the
same pods without it. While it starts, the runtime and the kernel need the processors for its mounts, which slows every other pod,
whatever makes them: the baseline is pods made by raw runtime calls, beside raw calls for a container with as many mounts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from bench.agent import manifest, runtime_name
from bench.baseline import NS_PER_MS, Prepared, Template
from bench.probes import until
from bench.runtime import BenchError
from bench.scenarios import CALM_S, Bench
from bench.stats import spread
from bench.table import Figure
from pykubelet.base.model.labels import POD_NAME
from pykubelet.edges.cri import cri_pb2 as pb

_VOLUMES = 3000
_MOST_RUNNING, _MOST_STARTING = 1.1, 1.5
_SETTLE_S, _READY_S, _POLL_S = 0.35, 120.0, 0.05
_NAME = "heavy"


@dataclass
class _Seen:
    """Milliseconds from manifest, or from the first runtime call, to start."""

    alone: list[float] = field(default_factory=list)
    starting: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)


async def heavy(bench: Bench) -> None:
    """Pods one by one, beside a pod of 3,000 emptyDirs and without it."""
    seen, rounds, size = _Seen(), 2 if bench.quick else 4, 5
    for number in range(rounds):
        names = [f"light-{number}-{n}" for n in range(size)]
        seen.alone += [await _start(bench, name) for name in names]
        await bench.remove_all(names)
        seen.raw += await _raw(bench)
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


async def _raw(bench: Bench) -> list[float]:
    """Milliseconds from RunPodSandbox to the start of pods made by raw calls, while a container of as many mounts is made."""
    assert bench.template is not None
    light, seen, made = bench.template, [], []
    with bench.agent.frozen():
        making = asyncio.create_task(bench.baseline.make(await asyncio.to_thread(_prepare_heavy, bench, light)))
        while not making.done():
            made.append(await bench.baseline.make(bench.baseline.prepare(light)))
            seen.append((await bench.baseline.started_at(made[-1].container) - made[-1].began_ns) / NS_PER_MS)
        await bench.baseline.remove_all([*made, await making])
    await asyncio.sleep(CALM_S)
    return seen


def _prepare_heavy(bench: Bench, light: Template) -> Prepared:
    heavy = Template(pb.PodSandboxConfig(), pb.ContainerConfig())
    heavy.sandbox.CopyFrom(light.sandbox)
    heavy.container.CopyFrom(light.container)
    folder = bench.agent.folder / "heavy"
    for number in range(_VOLUMES):
        (folder / f"v{number}").mkdir(parents=True, exist_ok=True)
        heavy.container.mounts.add(host_path=str(folder / f"v{number}"), container_path=f"/m/v{number}")
    return bench.baseline.prepare(heavy)


async def _is_ready(bench: Bench) -> bool:
    return runtime_name(_NAME) in (await bench.agent.ready_pods() or {})


async def _start(bench: Bench, name: str) -> float:
    """Milliseconds from the manifest of a pod to the start of its container."""
    placed = bench.agent.place([manifest(name)])

    async def runs() -> bool:
        await asyncio.sleep(_POLL_S)
        found = await bench.cri.list_containers()
        return any(
            container.labels.get(POD_NAME) == runtime_name(name) and container.state == pb.CONTAINER_RUNNING
            for container in found
        )

    await until(f"{name} runs", runs, 60)
    started = await bench.started_at(name)
    await asyncio.sleep(_SETTLE_S)
    return (started - placed) / NS_PER_MS


def _figures(seen: _Seen) -> list[Figure]:
    beside = f"manifest appears to container started, beside a pod of {_VOLUMES:,} emptyDirs that"
    alone, raw = spread(seen.alone), spread(seen.raw)
    return [
        Figure(
            f"{beside} runs",
            "ms",
            spread(seen.running),
            alone,
            _MOST_RUNNING * alone.median,
            f"<= {_MOST_RUNNING} x without it",
        ),
        Figure(
            f"{beside} starts",
            "ms",
            spread(seen.starting),
            raw,
            _MOST_STARTING * raw.median,
            f"<= {_MOST_STARTING} x raw calls beside raw calls",
        ),
    ]
