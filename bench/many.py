"""500 pods on one node: what a pod among them costs, beside a pod among 100."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

from bench.agent import manifest
from bench.scenarios import Bench
from bench.stats import spread, without_idle
from bench.table import Figure

FEW, MANY = 100, 500
#: The pods that are started or removed at once.
_BLOCK = 20
_STARTS_S, _SETTLE_S, _QUIET_S = 180.0, 0.35, 60.0
#: The KubeletConfiguration's default.
_USUAL_MAX_PODS = 110


@dataclass(slots=True)
class _Node:
    """What is measured on a node with some number of pods: CPU milliseconds per pod started and removed, MiB, CPU seconds per second."""

    started: list[float] = field(default_factory=list)
    removed: list[float] = field(default_factory=list)
    rss_mib: float = 0.0
    idle: float = 0.0


async def many(bench: Bench) -> None:
    """Fill the node twice, and start and remove some pods more on it each time."""
    names = [f"many-{number}" for number in range(MANY)]
    await _restart(bench, MANY + _BLOCK)
    try:
        await _start(bench, names[:FEW])
        few = await _measure(bench)
        await _start(bench, names[FEW:])
        more = await _measure(bench)
        for at in range(0, MANY, 2 * _BLOCK):
            await bench.remove_all(names[at : at + 2 * _BLOCK])
    finally:
        await _restart(bench, _USUAL_MAX_PODS)
    bench.figures += _figures(few, more)


async def _restart(bench: Bench, max_pods: int) -> None:
    bench.agent.stop()
    bench.agent.set_config(maxPods=max_pods)
    await bench.agent.start()


async def _start(bench: Bench, names: Sequence[str]) -> None:
    for at in range(0, len(names), _BLOCK):
        block, before = names[at : at + _BLOCK], len(bench.watch.starts)
        bench.agent.place([manifest(name) for name in block])
        await bench.watch.wait_starts(before, 2 * len(block), _STARTS_S)
    await asyncio.sleep(_SETTLE_S)
    await bench.agent.wait_quiet(_QUIET_S)


async def _measure(bench: Bench) -> _Node:
    seen = _Node(rss_mib=bench.agent.tree_rss_mib(), idle=await bench.idle_rate(15 if bench.quick else 60))
    for number in range(2 if bench.quick else 5):
        block = [f"more-{number}-{i}" for i in range(_BLOCK)]
        seen.started.append(await _cpu_ms(bench, seen.idle, _start(bench, block)))
        seen.removed.append(await _cpu_ms(bench, seen.idle, bench.remove_all(block)))
    return seen


async def _cpu_ms(bench: Bench, idle: float, work: Awaitable[None]) -> float:
    used, began = bench.agent.cpu_s(), time.monotonic()
    await work
    return without_idle(bench.agent.cpu_s() - used, time.monotonic() - began, idle) / _BLOCK * 1000


def _figures(few: _Node, more: _Node) -> list[Figure]:
    costs = (("started", few.started, more.started), ("removed", few.removed, more.removed))
    each_mib = (more.rss_mib - few.rss_mib) / (MANY - FEW)
    idle, share = spread([60 * few.idle]), MANY / FEW
    return [
        *(
            Figure(
                f"agent CPU per pod {what}, {_BLOCK} at once among {MANY}; baseline: among {FEW}",
                "ms",
                spread(now),
                spread(before),
                1.1 * spread(before).median,
                "<= 1.1 x baseline",
            )
            for what, before, now in costs
        ),
        Figure(f"RSS for each pod more, {FEW} to {MANY}", "MiB", spread([each_mib]), None, 0.08, "<= 0.08 MiB"),
        Figure(
            f"CPU with {MANY} idle pods, a minute; baseline: with {FEW}",
            "s",
            spread([60 * more.idle]),
            idle,
            1.1 * share * idle.median,
            f"<= {1.1 * share:.1f} x baseline",
        ),
    ]
