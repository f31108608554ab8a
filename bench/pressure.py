"""What the eviction manager costs a node that is short of nothing: idle CPU with thresholds for every signal, and with none."""

from __future__ import annotations

import asyncio

from bench.agent import Agent, manifest
from bench.scenarios import Bench, all_ready, same_again
from bench.stats import spread
from bench.table import Figure

#: A threshold for every signal; none of them is ever met.
EVERY_SIGNAL = {
    "memory.available": "1Mi",
    "nodefs.available": "1Mi",
    "nodefs.inodesFree": "1",
    "imagefs.available": "1Mi",
    "imagefs.inodesFree": "1",
    "pid.available": "1",
}
#: A threshold of 0% is none.
NO_SIGNAL = dict.fromkeys(EVERY_SIGNAL, "0%")


async def eviction(bench: Bench) -> None:
    """100 idle pods under an agent without thresholds, as the baseline, and under one with all, alternately."""
    count, idle_s, rounds = (20, 20.0, 1) if bench.quick else (100, 60.0, 2)
    agent = bench.agent
    names = [f"eviction-{i}" for i in range(count)]
    before = len(bench.watch.starts)
    agent.place([manifest(name) for name in names])
    await bench.watch.wait_starts(before, 2 * count, 180)
    pods = await all_ready(agent, count, 60)
    usual = agent.settings["evictionHard"]
    idle: dict[str, list[float]] = {"with": [], "without": []}
    try:
        for _ in range(rounds):
            for which, thresholds in (("without", NO_SIGNAL), ("with", EVERY_SIGNAL)):
                await _restart_with(agent, thresholds, pods)
                idle[which].append(60 * await bench.idle_rate(idle_s))
    finally:
        await _restart_with(agent, usual, pods)
        await bench.remove_all(names)
    baseline = spread(idle["without"])
    bench.figures.append(
        Figure(
            f"CPU with {count} idle pods, a minute, all eviction signals",
            "s",
            spread(idle["with"]),
            baseline,
            baseline.median + 0.05,
            "<= baseline (no thresholds) + 0.05 s",
        )
    )


async def _restart_with(agent: Agent, thresholds: object, pods: dict[str, tuple[str, ...]]) -> None:
    """Restart the agent with these thresholds, and wait until it has taken its pods over and is at rest."""
    agent.stop()
    agent.set_config(evictionHard=thresholds)
    await agent.start()
    await same_again(agent, pods, 30)
    await asyncio.sleep(12)  # the first measurements of all loops are over
    await agent.wait_quiet()
