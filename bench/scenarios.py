"""The scenarios: each drives the agent and the baseline alternately, and gives rows of the table.

Baseline and agent alternate, one by one where a few per cent decide, else in small blocks, so that a drift of the machine
meets both. While the baseline works the agent is frozen; afterwards it gets time to become idle, so that reading what the baseline
left counts for neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed import host
from testbed.faults import Faults
from testbed.private_runtime import Testbed

from bench.agent import Agent, manifest, runtime_name
from bench.baseline import NS_PER_MS, Baseline, Cycle, Template, find_pod, read_template
from bench.runtime import BenchError, RuntimeWatch
from bench.stats import Spread, spread, without_idle
from bench.table import Figure
from pykubelet.base.model.labels import POD_NAME
from pykubelet.edges.cri.client import CriClient
from pykubelet.observe.pleg.decide import RelistPeriods

_START_S, _SETTLE_S = 20.0, 0.35
#: Before a pod of the baseline nothing has happened for so long, as before one of the agent.
CALM_S = 0.5
# then the agent has looked what became of the baseline's pods, which it does not know
_FORGET_S = RelistPeriods().unknown_s + 0.2
_IDLE_S = 4.0
_POLL_S = 0.03


@dataclass(slots=True)
class Bench:
    """What the scenarios share. `template`: what the agent asked the runtime for; `faults`: where its programs can hang."""

    cri: CriClient
    watch: RuntimeWatch
    agent: Agent
    baseline: Baseline
    quick: bool
    template: Template | None = None
    figures: list[Figure] = field(default_factory=list)
    faults: Faults | None = None
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def learn(self) -> None:
        """Run one pod of each kind to warm up, and take the agent's requests as the baseline's."""
        name = "learn"
        before = len(self.watch.starts)
        self.agent.place([manifest(name)])
        await self.watch.wait_starts(before, 2, _START_S)
        await asyncio.sleep(_SETTLE_S)
        self.template = await read_template(self.cri, runtime_name(name))
        sandbox, _ = await find_pod(self.cri, runtime_name(name))
        self.agent.withdraw([name])
        await self.watch.deleted_at(sandbox)
        await self.baseline_cycles(2)

    async def baseline_cycles(self, count: int) -> list[Cycle]:
        """Pods of the baseline, one by one, with the agent frozen; then the agent at rest again."""
        if self.template is None:
            raise BenchError("the agent's requests are not known yet")
        with self.agent.frozen():
            await asyncio.sleep(CALM_S)
            cycles = [await self.baseline.cycle(self.template) for _ in range(count)]
        await self.rest()
        return cycles

    async def rest(self) -> None:
        await asyncio.sleep(_FORGET_S)
        await self.agent.wait_quiet()

    async def idle_rate(self, seconds: float = _IDLE_S) -> float:
        """CPU seconds per second while nothing happens."""
        used, began = self.agent.cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        return (self.agent.cpu_s() - used) / (time.monotonic() - began)

    async def started_at(self, name: str) -> int:
        """When the newest container of the agent's pod of manifest `name` started, by the runtime's own word."""
        _, container = await find_pod(self.cri, runtime_name(name))
        return await self.baseline.started_at(container)

    async def remove_all(self, names: Sequence[str], timeout_s: float = 60.0) -> None:
        """Withdraw the manifests and wait until the pods are gone from the runtime."""
        self.agent.withdraw(names)
        ours = {runtime_name(name) for name in names}
        deadline = time.monotonic() + timeout_s
        while any(s.labels.get(POD_NAME) in ours for s in await self.cri.list_pod_sandboxes()):
            if time.monotonic() > deadline:
                raise BenchError(f"pods of removed manifests are still in the runtime after {timeout_s:.0f} s")
            await asyncio.sleep(0.1)
        await self.agent.wait_quiet()


@contextlib.asynccontextmanager
async def prepared(testbed: Testbed, agent: Agent, cgroups: Sequence[str], quick: bool) -> AsyncIterator[Bench]:
    """All that the scenarios share, with the agent configured and not started. The last of `cgroups` is the baseline's."""
    cri = CriClient(testbed.endpoint)
    try:
        await cri.wait_connected(10)
        async with RuntimeWatch(cri) as watch:
            host.make_cgroup(cgroups[-1])
            agent.configure()
            baseline = Baseline(cri, watch, Path(testbed.folder, "baseline"), cgroups[-1])
            yield Bench(cri, watch, agent, baseline, quick)
    finally:
        await cri.close()


# One by one


@dataclass(slots=True)
class _Disk:
    """What pods cost of the disk, each block of them for one of its pods: calls of fsync, and KiB given to write(2)."""

    syncs: list[float] = field(default_factory=list)
    kib: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Singles:
    started: list[float] = field(default_factory=list)
    exited: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    start_cpu: list[float] = field(default_factory=list)
    remove_cpu: list[float] = field(default_factory=list)
    start_disk: _Disk = field(default_factory=_Disk)
    remove_disk: _Disk = field(default_factory=_Disk)
    cycles: list[Cycle] = field(default_factory=list)


async def one_by_one(bench: Bench) -> None:
    """20 pods started one by one, then removed one by one; and the same once more for what it costs."""
    blocks, size = (2, 4) if bench.quick else (4, 5)
    seen = _Singles()
    names = [[f"single-{block}-{i}" for i in range(size)] for block in range(blocks)]
    for name in itertools.chain(*names):
        seen.cycles += await bench.baseline_cycles(1)
        seen.started.append(await _start_one(bench, name))
    for block in names:
        seen.cycles += await bench.baseline_cycles(size)
        for name in block:
            exited, gone = await _remove_one(bench, name)
            seen.exited.append(exited)
            seen.gone.append(gone)
    await _costs(bench, seen, names)
    bench.figures += _single_figures(seen, blocks * size)


async def _costs(bench: Bench, seen: _Singles, names: list[list[str]]) -> None:
    """CPU and disk per pod, of an agent that is not stopped meanwhile: what it has to catch up with afterwards is no pod's cost."""
    for used_ms, disk, work in (
        (seen.start_cpu, seen.start_disk, _start_one),
        (seen.remove_cpu, seen.remove_disk, _remove_one),
    ):
        await bench.rest()
        idle = await bench.idle_rate()
        for block in names:
            syncs, written = await bench.agent.syncs(), bench.agent.written_bytes()
            cpu, began = bench.agent.cpu_s(), time.monotonic()
            for name in block:
                await work(bench, name)
            used, window = bench.agent.cpu_s() - cpu, time.monotonic() - began
            used_ms.append(without_idle(used, window, idle) / len(block) * 1000)
            disk.kib.append((bench.agent.written_bytes() - written) / len(block) / 1024)
            if syncs is not None:
                disk.syncs.append(((await bench.agent.syncs() or 0) - syncs) / len(block))


async def _start_one(bench: Bench, name: str) -> float:
    before = len(bench.watch.starts)
    placed = bench.agent.place([manifest(name)])
    await bench.watch.wait_starts(before, 2, _START_S)
    await asyncio.sleep(_SETTLE_S)
    return (await bench.started_at(name) - placed) / NS_PER_MS


async def _remove_one(bench: Bench, name: str) -> tuple[float, float]:
    sandbox, container = await find_pod(bench.cri, runtime_name(name))
    removed = bench.agent.withdraw([name])
    exited = await bench.watch.exited_at(container)
    gone = await bench.watch.deleted_at(sandbox)
    await asyncio.sleep(_SETTLE_S)
    return (exited - removed) / NS_PER_MS, (gone - removed) / NS_PER_MS


def _single_figures(seen: _Singles, count: int) -> list[Figure]:
    # each start is held against the pod of the baseline just before it, ends against all of them
    start = spread([cycle.start_ms for cycle in seen.cycles[:count]])
    exit_, gone = (spread([getattr(cycle, name) for cycle in seen.cycles]) for name in ("exit_ms", "gone_ms"))
    return [
        Figure(
            f"manifest appears to container started, {count} pods one by one",
            "ms",
            spread(seen.started),
            start,
            1.05 * start.median,
            "<= 1.05 x baseline",
            "1.0 x",
        ),
        Figure(
            "manifest removed to container's exit", "ms", spread(seen.exited), exit_, 40, "<= 40 ms", "450 ms (API)"
        ),
        Figure(
            "manifest removed to sandbox gone", "ms", spread(seen.gone), gone, 1.3 * gone.median, "<= 1.3 x baseline"
        ),
        Figure("agent CPU per pod started", "ms", spread(seen.start_cpu), None, 18, "<= 18 ms", "21-27 ms"),
        Figure("agent CPU per pod removed", "ms", spread(seen.remove_cpu), None, 13, "<= 13 ms", "19-21 ms"),
        *_disk_figures("started", seen.start_disk, 12),
        *_disk_figures("removed", seen.remove_disk, 6),
    ]


def _disk_figures(what: str, seen: _Disk, most_kib: int) -> list[Figure]:
    kib = Figure(f"written per pod {what}", "KiB", spread(seen.kib), None, most_kib, f"<= {most_kib} KiB")
    return [*([Figure(f"fsync calls per pod {what}", "", spread(seen.syncs), None, 0, "0")] if seen.syncs else ()), kib]


# Many at once


async def burst(bench: Bench) -> None:
    """30 manifests at once, and as many pods of the baseline at once."""
    count, rounds = 30, 1 if bench.quick else 3
    if bench.template is None:
        raise BenchError("the agent's requests are not known yet")
    baseline, agent, cpu = [], [], []
    for cycle in range(rounds):
        with bench.agent.frozen():
            baseline.append((await bench.baseline.burst(bench.template, count))[0])
        await bench.rest()
        names = [f"burst-{cycle}-{i}" for i in range(count)]
        used, before = bench.agent.cpu_s(), len(bench.watch.starts)
        placed = bench.agent.place([manifest(name) for name in names])
        await bench.watch.wait_starts(before, 2 * count, 90)
        await asyncio.sleep(_SETTLE_S)
        cpu.append((bench.agent.cpu_s() - used) / count * 1000)
        agent.append((max([await bench.started_at(name) for name in names]) - placed) / NS_PER_MS)
        await bench.remove_all(names)
    least = spread(baseline)
    name = f"{count} manifests at once, all started"
    bench.figures += [
        Figure(name, "ms", spread(agent), least, 1.10 * least.median, "<= 1.10 x baseline", "1.12 x"),
        Figure(f"agent CPU per pod started, {count} at once", "ms", spread(cpu)),
    ]


# A crash


async def restart(bench: Bench) -> None:
    """A container is killed; the next one starts."""
    count = 4 if bench.quick else 10
    cycles = await bench.baseline_cycles(count // 2)
    names = [f"restart-{i}" for i in range(count)]
    before = len(bench.watch.starts)
    bench.agent.place([manifest(name) for name in names])
    await bench.watch.wait_starts(before, 2 * count, 60)
    await asyncio.sleep(1)
    await bench.agent.wait_quiet()
    taken = [await _crash_one(bench, name) for name in names]
    await bench.remove_all(names)
    cycles += await bench.baseline_cycles(count - count // 2)
    baseline = spread([cycle.container_ms for cycle in cycles])
    limit, target = baseline.median + 60, "<= baseline (create + start) + 60 ms"
    bench.figures.append(
        Figure("container exit to the next one started", "ms", spread(taken), baseline, limit, target, "340 ms")
    )


async def _crash_one(bench: Bench, name: str) -> float:
    _, old = await find_pod(bench.cri, runtime_name(name))
    info = json.loads((await bench.cri.container_status(old, verbose=True)).info["info"])
    before = len(bench.watch.starts)
    os.kill(int(info["pid"]), signal.SIGKILL)
    await bench.watch.wait_starts(before, 1, _START_S)
    await asyncio.sleep(_SETTLE_S)
    return (await bench.started_at(name) - await bench.watch.exited_at(old)) / NS_PER_MS


# A full node


async def crowd(bench: Bench) -> None:
    """The first start; 50 pods: memory, idle cost, and a restart after SIGKILL."""
    count, idle_s, kills = 50, 20.0 if bench.quick else 60.0, 1 if bench.quick else 3
    agent = bench.agent
    first = [await _first_start(agent) for _ in range(kills + 2)]
    names = [f"crowd-{i}" for i in range(count)]
    before = len(bench.watch.starts)
    agent.place([manifest(name) for name in names])
    await bench.watch.wait_starts(before, 2 * count, 120)
    pods = await all_ready(agent, count, 30)
    await agent.wait_quiet()
    await asyncio.sleep(2)
    idle = await bench.idle_rate(idle_s)
    peak = agent.peak_rss_mib()
    await agent.wait_quiet()
    synced, healthy = [], []
    for _ in range(kills):
        agent.kill()
        began = agent.spawn()
        healthy.append((await agent.wait_healthy() - began) / 1e9)
        await same_again(agent, pods, 30)
        synced.append((time.time_ns() - began) / 1e9)
        await agent.wait_quiet()
    cpu = await _restart_cpu(agent, pods, max(synced) + 0.5)
    peak = max(peak, agent.peak_rss_mib())
    await bench.remove_all(names)
    bench.figures += [
        Figure(f"RSS with {count} pods, peak", "MiB", spread([peak]), None, 85, "<= 85 MiB", "122 MiB"),
        Figure(
            f"CPU with {count} idle pods, a minute",
            "s",
            spread([idle * 60]),
            None,
            0.4,
            "<= 0.4 s",
            "1.45 s",
        ),
        Figure(f"killed with {count} pods, start to all in sync", "s", spread(synced), None, 1.8, "<= 1.8 s", "2.7 s"),
        Figure("its CPU until half a second after that", "s", _spread_of(cpu), None, 0.9, "<= 0.9 s", "0.95 s"),
        Figure("start to /healthz ok", "s", spread(healthy), None, 0.8, "< 0.8 s"),
        Figure("the same in an empty root directory, without pods", "s", spread(first), None, 0.3, "<= 0.3 s"),
    ]


async def _first_start(agent: Agent) -> float:
    """Seconds from a start without any files of an earlier run until /healthz is ok."""
    agent.stop()
    agent.forget()
    began = agent.spawn()
    taken = (await agent.wait_healthy() - began) / 1e9
    await agent.wait_quiet()
    return taken


def _spread_of(value: float) -> Spread:
    return spread([value])


async def all_ready(agent: Agent, count: int, timeout_s: float) -> dict[str, tuple[str, ...]]:
    """The containers of each pod, once the agent reports `count` pods Running and Ready."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pods = await agent.ready_pods()
        if pods is not None and len(pods) == count:
            return pods
        await asyncio.sleep(0.25)
    raise BenchError(f"the agent does not report {count} ready pods within {timeout_s:.0f} s of their start")


async def same_again(agent: Agent, pods: dict[str, tuple[str, ...]], timeout_s: float) -> None:
    """Until the agent reports the same pods Running and Ready, with the same containers."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = await agent.ready_pods()
        if now == pods:
            return
        if now is not None and any(now[name] != ids for name, ids in pods.items() if name in now):
            raise BenchError("containers were started again after the agent was killed")
        await asyncio.sleep(_POLL_S)
    raise BenchError(f"a restarted agent does not report all pods within {timeout_s:.0f} s")


async def _restart_cpu(agent: Agent, pods: dict[str, tuple[str, ...]], wait_s: float) -> float:
    """CPU seconds of one more restart, during which the agent gets no requests."""
    agent.kill()
    used = agent.cpu_s()
    agent.spawn()
    await asyncio.sleep(wait_s)
    cpu = agent.cpu_s() - used
    await same_again(agent, pods, 10)
    return cpu
