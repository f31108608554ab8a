"""Probes: what they cost, and how soon their results show. One scenario, `probes`.

HTTP probes are answered by the containers (cost) or by this process itself (times), which then knows when it was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from testbed import images

from bench.agent import manifest, runtime_name
from bench.baseline import NS_PER_MS, find_pod
from bench.runtime import BenchError
from bench.scenarios import Bench
from bench.stats import spread, without_idle
from bench.table import Figure

_COUNT, _WINDOW_S = 50, 20.0
#: How long a server takes to come up, and how much of the default period of ten seconds may pass until its pod is ready.
_UP_S, _READY_S = 0.3, 1.0
#: All pods run before the first of them is probed; then extra probes come, and then only those of each period.
_DELAY_S = 20
_STEP_S = 0.003
NS_PER_S = 1e9
HTTPD = ["httpd", "-f", "-p", "8080", "-h", "/etc"]
EXEC_COMMAND = ["true"]


@dataclass
class Answerer:
    """An HTTP server for probes: `status` is what it answers, 503 for `failing` paths.

    `sent_ns`: when it first answered so for each path (wall clock).
    """

    status: str = "200 OK"
    port: int = 0
    sent_ns: dict[str, int] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            request = await reader.readuntil(b"\r\n\r\n")
            path = request.split(b" ")[1].decode()
            status = "200 OK" if path == "/good" else "503 Service Unavailable" if path in self.failing else self.status
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            self.sent_ns.setdefault(f"{path} {status[:3]}", time.time_ns())
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[Answerer]:
    """One on loopback."""
    answerer = Answerer()
    async with await asyncio.start_server(answerer.serve, "127.0.0.1", 0) as server:
        answerer.port = server.sockets[0].getsockname()[1]
        yield answerer


def with_container(name: str, **fields: Any) -> dict[str, Any]:
    """A manifest whose container has these fields too. One that does not hear its signal is not waited for."""
    pod = manifest(name, terminationGracePeriodSeconds=1)
    pod["spec"]["containers"][0] |= fields
    return pod


def http_probe(port: int, path: str, host: str = "", **terms: Any) -> dict[str, Any]:
    return {"httpGet": {"port": port, "path": path, **({"host": host} if host else {})}, "periodSeconds": 1, **terms}


async def until(what: str, holds: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> int:
    """The wall clock (ns) when `holds` was first seen to hold."""
    deadline = time.monotonic() + timeout_s
    while not await holds():
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {timeout_s:.0f} s")
        await asyncio.sleep(_STEP_S)
    return time.time_ns()


async def until_ready(bench: Bench, name: str, timeout_s: float = 30.0) -> int:
    async def is_ready() -> bool:
        return runtime_name(name) in (await bench.agent.ready_pods() or {})

    return await until(f"{name} is ready", is_ready, timeout_s)


async def probes(bench: Bench) -> None:
    """50 pods asked over HTTP each second; results on their way to the status; servers that come up; liveness to restart; commands."""
    await _cost(bench)
    async with answering() as answerer:
        await _ready_to_status(bench, answerer)
        await _never_ready(bench, answerer)
        await _liveness_to_start(bench, answerer)
    await _up_to_ready(bench)
    await _commands(bench)


async def _cost(bench: Bench) -> None:
    idle = await bench.idle_rate()
    names = [f"http-{n}" for n in range(_COUNT)]
    server = {"image": images.BUSYBOX, "command": HTTPD, "readinessProbe": http_probe(8080, "/passwd")}
    before = len(bench.watch.starts)
    bench.agent.place([with_container(name, **server) for name in names])
    await bench.watch.wait_starts(before, 2 * _COUNT, 120)

    async def all_ready() -> bool:
        return len(await bench.agent.ready_pods() or {}) == _COUNT

    await until("all probed pods are ready", all_ready, 60)
    await asyncio.sleep(3)
    used, began = bench.agent.cpu_s(), time.monotonic()
    await asyncio.sleep(_WINDOW_S / 2 if bench.quick else _WINDOW_S)
    used, passed = bench.agent.cpu_s() - used, time.monotonic() - began
    await bench.remove_all(names)
    per_thousand = without_idle(used, passed, idle) / (_COUNT * passed) * 1000
    figure = f"agent CPU for 1,000 HTTP probes, {_COUNT} pods each second"
    bench.figures.append(Figure(figure, "s", spread([per_thousand]), None, 0.4, "<= 0.4 s", "0.61 s"))


async def _ready_to_status(bench: Bench, answerer: Answerer) -> None:
    taken = []
    for number in range(5 if bench.quick else 15):
        name = f"ready-{number}"
        probe = http_probe(answerer.port, f"/{name}", "127.0.0.1")
        bench.agent.place([with_container(name, readinessProbe=probe)])
        seen = await until_ready(bench, name)
        taken.append((seen - answerer.sent_ns[f"/{name} 200"]) / NS_PER_MS)
        await bench.remove_all([name])
    bench.figures.append(
        Figure("first successful probe to the status ready", "ms", spread(taken), None, 50, "<= 50 ms")
    )


async def _up_to_ready(bench: Bench) -> None:
    """Only the default period and no more is asked for, as most manifests do."""
    taken = []
    server = {"image": images.BUSYBOX, "command": ["sh", "-c", f"sleep {_UP_S}; exec {' '.join(HTTPD)}"]}
    probe = {"httpGet": {"port": 8080, "path": "/passwd"}}
    for number in range(5 if bench.quick else 20):
        name = f"up-{number}"
        bench.agent.place([with_container(name, **server, readinessProbe=probe)])
        seen = await until_ready(bench, name)
        taken.append((seen - await bench.started_at(name)) / NS_PER_S)
        await bench.remove_all([name])
    figure = f"container started, server up {_UP_S} s later, to ready, default probe"
    bench.figures.append(Figure(figure, "s", spread(taken), None, _READY_S, f"<= {_READY_S:.0f} s", "0.67 s"))


async def _never_ready(bench: Bench, answerer: Answerer) -> None:
    """CPU of extra probes: the first thirty seconds of probing, against as long a time later."""
    idle = await bench.idle_rate()
    answerer.status = "500 Internal Server Error"
    names = [f"never-{n}" for n in range(_COUNT)]
    probe = {
        "httpGet": {"port": answerer.port, "path": "/never", "host": "127.0.0.1"},
        "initialDelaySeconds": _DELAY_S,
    }
    before = len(bench.watch.starts)
    bench.agent.place([with_container(name, readinessProbe=probe) for name in names])
    await bench.watch.wait_starts(before, 2 * _COUNT, 120)
    await asyncio.sleep(2)
    if answerer.sent_ns.get("/never 500"):
        raise BenchError(f"a pod was probed before all {_COUNT} ran: the first probes are not measured")
    per_pod = []
    for _ in range(2):
        used, began = bench.agent.cpu_s(), time.monotonic()
        await asyncio.sleep(_DELAY_S + 10)
        used, passed = bench.agent.cpu_s() - used, time.monotonic() - began
        per_pod.append(without_idle(used, passed, idle) / _COUNT * 1000)
    answerer.status = "200 OK"
    await bench.remove_all(names)
    first, later = (spread([ms]) for ms in per_pod)
    figure = f"agent CPU per pod that does not become ready, its first {_DELAY_S + 10} s"
    bench.figures.append(Figure(figure, "ms", first, later, 10, "<= 10 ms"))


async def _liveness_to_start(bench: Bench, answerer: Answerer) -> None:
    count = 4 if bench.quick else 10
    cycles = await bench.baseline_cycles(count)
    taken = []
    for number in range(count):
        name = f"live-{number}"
        answerer.status = "200 OK"
        probe = http_probe(answerer.port, f"/{name}", "127.0.0.1", failureThreshold=1)
        before = len(bench.watch.starts)
        bench.agent.place([with_container(name, livenessProbe=probe)])
        await bench.watch.wait_starts(before, 2, 20)
        await asyncio.sleep(0.5)
        before = len(bench.watch.starts)
        answerer.status = "500 Internal Server Error"
        await bench.watch.wait_starts(before, 1, 20)
        answerer.status = "200 OK"
        await asyncio.sleep(0.35)
        taken.append((await bench.started_at(name) - answerer.sent_ns[f"/{name} 500"]) / NS_PER_MS)
        await bench.remove_all([name])
    baseline = spread([cycle.exit_ms + cycle.container_ms for cycle in cycles])
    target = "<= baseline (kill + create + start) + 100 ms"
    figure = "failed liveness probe to the next container started"
    bench.figures.append(Figure(figure, "ms", spread(taken), baseline, baseline.median + 100, target))


async def _commands(bench: Bench) -> None:
    """The agent's own account of how long commands took, against the same calls made directly."""
    name = "exec"
    probe = {"exec": {"command": EXEC_COMMAND}, "periodSeconds": 1, "timeoutSeconds": 5}
    bench.agent.place([with_container(name, image=images.BUSYBOX, command=["sleep", "1000000"], readinessProbe=probe)])
    await until_ready(bench, name)
    _, container = await find_pod(bench.cri, runtime_name(name))
    baseline, means = [], []
    rounds, per_round = (2, 5) if bench.quick else (5, 8)
    for _ in range(rounds):
        taken = []
        with bench.agent.frozen():
            for _ in range(per_round):
                began = time.perf_counter()
                await bench.cri.exec_sync(container, EXEC_COMMAND, 5)
                taken.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(1.0 - taken[-1] / 1000)
        baseline.append(sum(taken) / per_round)
        await asyncio.sleep(1.5)
        before = await bench.agent.probe_seconds(runtime_name(name))
        await asyncio.sleep(per_round + 0.2)
        after = await bench.agent.probe_seconds(runtime_name(name))
        if after[1] - before[1] < per_round // 2:
            raise BenchError(
                f"{after[1] - before[1]} of some {per_round} exec probes succeeded, by the agent's metrics"
            )
        means.append((after[0] - before[0]) / (after[1] - before[1]) * 1000)
    await bench.remove_all([name])
    least, figure = spread(baseline), f"exec probe, mean of {per_round}"
    bench.figures.append(Figure(figure, "ms", spread(means), least, 1.2 * least.median, "<= 1.2 x raw ExecSync"))
