"""Pods beside one that is stuck: whether their start, status and end take as long as ever. One scenario, `bulkheads`.

Needs a runtime whose programs can be made to hang (`testbed.faults`), which costs each of its calls a little: so it is run
alone, on a runtime of its own. Every fault is measured against blocks right before and after it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from testbed import images
from testbed.faults import Faults
from testbed.fuse import HangingFileSystem

from bench.agent import runtime_name
from bench.baseline import NS_PER_MS, find_pod
from bench.probes import Answerer, answering, http_probe, until_ready, with_container
from bench.runtime import BenchError
from bench.scenarios import Bench, all_ready
from bench.stats import Spread, percentile
from bench.table import Figure
from pykubelet.base.model.labels import POD_NAME
from pykubelet.edges.cri import cri_pb2 as pb

_DEAF = 'trap "" TERM; while :; do sleep 3600 & wait $!; done'
_SLEEP = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
_SHARE = 1.10
SAMPLES = 60
"""In each block: the 99th percentile of a few is their slowest, which is chance. A run takes a quarter of an hour."""


@dataclass
class Samples:
    """Milliseconds: manifest to container started, first good probe to status ready, manifest gone to exit and to sandbox gone."""

    start: list[float] = field(default_factory=list)
    status: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)


def shell(name: str, script: str, **more: object) -> dict[str, object]:
    return with_container(name, image=images.BUSYBOX, command=["/bin/sh", "-c", script], **more)


@dataclass
class Stage:
    """What a fault needs."""

    bench: Bench
    faults: Faults
    names: list[str] = field(default_factory=list)

    async def started(self, *pods: dict[str, object]) -> None:
        before = len(self.bench.watch.starts)
        self.placed(*pods)
        await self.bench.watch.wait_starts(before, 2 * len(pods), 60)

    def placed(self, *pods: dict[str, object]) -> None:
        self.bench.agent.place(pods)
        self.names += [str(pod["metadata"]["name"]) for pod in pods]  # type: ignore[index]


@contextlib.asynccontextmanager
async def start_hangs(stage: Stage) -> AsyncIterator[None]:
    await stage.started(shell("stuck", "sleep 1; exit 1"))
    stage.faults.hang_runtime(runtime_name("stuck"), "create")
    await asyncio.sleep(3)
    yield


@contextlib.asynccontextmanager
async def stop_hangs(stage: Stage) -> AsyncIterator[None]:
    await stage.started(shell("stuck", _SLEEP))
    stage.faults.hang_runtime(runtime_name("stuck"), "kill")
    stage.bench.agent.withdraw(["stuck"])
    stage.names.remove("stuck")
    await asyncio.sleep(1)
    yield


@contextlib.asynccontextmanager
async def network_hangs(stage: Stage) -> AsyncIterator[None]:
    stage.faults.hang_network(runtime_name("stuck"))
    stage.placed(shell("stuck", _SLEEP))
    await asyncio.sleep(1)
    yield


@contextlib.asynccontextmanager
async def probes_hang(stage: Stage) -> AsyncIterator[None]:
    """Four whose commands sleep, and four for which the runtime does not answer."""
    slow = {"exec": {"command": ["sleep", "1000"]}, "periodSeconds": 1, "timeoutSeconds": 1}
    mute = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 5}
    names = [f"mute-{n}" for n in range(4)]
    await stage.started(*(shell(f"slow-{n}", _SLEEP, readinessProbe=slow) for n in range(4)))
    await stage.started(*(shell(name, _SLEEP, readinessProbe=mute) for name in names))
    for name in names:
        stage.faults.hang_runtime(runtime_name(name), "exec")
    await asyncio.sleep(3)
    yield


@contextlib.contextmanager
def hanging_volume(stage: Stage) -> Iterator[tuple[HangingFileSystem, list[dict[str, object]]]]:
    """A file system that can be made to hang, and 12 pods with it as a volume."""
    folder = stage.bench.agent.folder
    with HangingFileSystem(folder / "deaf", folder / "deaf-data") as system:
        volume = {"name": "v", "hostPath": {"path": str(system.path), "type": "Directory"}}
        pods = [shell(f"deaf-{n}", _SLEEP, volumeMounts=[{"name": "v", "mountPath": "/v"}]) for n in range(12)]
        for pod in pods:
            pod["spec"]["volumes"] = [volume]  # type: ignore[index]
        yield system, pods


@contextlib.asynccontextmanager
async def volumes_hang(stage: Stage) -> AsyncIterator[None]:
    with hanging_volume(stage) as (system, pods):
        system.stop()
        stage.placed(*pods)
        await asyncio.sleep(2)
        yield


@contextlib.asynccontextmanager
async def used_volumes_hang(stage: Stage) -> AsyncIterator[None]:
    """They hang when their pods run; half of these have been withdrawn, and cannot go."""
    with hanging_volume(stage) as (system, pods):
        for pod in pods[:3]:
            probe = {"exec": {"command": ["ls", "/v"]}, "periodSeconds": 10, "timeoutSeconds": 1}
            pod["spec"]["containers"][0]["readinessProbe"] = probe  # type: ignore[index]
        await stage.started(*pods)
        system.stop()
        gone = [str(pod["metadata"]["name"]) for pod in pods[6:]]  # type: ignore[index]
        stage.bench.agent.withdraw(gone)
        stage.names[:] = [name for name in stage.names if name not in gone]
        await asyncio.sleep(5)
        yield


@contextlib.asynccontextmanager
async def signal_ignored(stage: Stage) -> AsyncIterator[None]:
    pod = shell("stuck", _DEAF)
    pod["spec"]["terminationGracePeriodSeconds"] = 60  # type: ignore[index]
    await stage.started(pod)
    stage.bench.agent.withdraw(["stuck"])
    stage.names.remove("stuck")
    await asyncio.sleep(1)
    yield


@contextlib.asynccontextmanager
async def log_floods(stage: Stage) -> AsyncIterator[None]:
    """One line of 100 MB; what is measured is what comes after it, with the file there."""
    await stage.started(shell("stuck", f"head -c 100000000 /dev/zero | tr '\\0' x; {_SLEEP}"))
    await asyncio.sleep(5)
    yield


async def _running(stage: Stage, prefix: str) -> set[str]:
    """Ids of the running containers of pods whose names begin so."""
    found = await stage.bench.cri.list_containers(state=pb.CONTAINER_RUNNING)
    return {container.id for container in found if container.labels.get(POD_NAME, "").startswith(prefix)}


@contextlib.asynccontextmanager
async def containers_crowd(stage: Stage, period_s: int = 3600) -> AsyncIterator[None]:
    """25 pods of 10 containers with two exec probes each, which are asked once and then every `period_s`."""
    probe = {"exec": {"command": ["true"]}, "periodSeconds": period_s, "timeoutSeconds": 1}
    for n in range(25):
        pod = shell(f"crowd-{n}", _SLEEP)
        [container] = pod["spec"]["containers"]  # type: ignore[index]
        pod["spec"] |= {  # type: ignore[operator]
            "hostNetwork": True,
            "containers": [
                container | {"name": f"c{i}", "livenessProbe": probe, "readinessProbe": probe} for i in range(10)
            ],
        }
        stage.placed(pod)
    await all_ready(stage.bench.agent, 25, 240)
    await asyncio.sleep(5)
    running = await _running(stage, "crowd-")
    yield
    if await _running(stage, "crowd-") != running:
        raise BenchError("containers of the crowd were killed because the node was slow")


@contextlib.asynccontextmanager
async def commands_crowd(stage: Stage) -> AsyncIterator[None]:
    """500 exec probes of period 1 s: more than two cores can carry out, so others find a busy machine."""
    async with containers_crowd(stage, period_s=1):
        yield


Fault = Callable[[Stage], AbstractAsyncContextManager[None]]
FAULTS: dict[str, Fault] = {
    "a container start that never returns": start_hangs,
    "a container stop that never returns": stop_hangs,
    "a network plugin that never returns": network_hangs,
    "8 exec probes that never end": probes_hang,
    "12 volumes that do not answer": volumes_hang,
    "a hung volume that 12 pods use": used_volumes_hang,
    "a container that ignores SIGTERM": signal_ignored,
    "a log line of 100 MB": log_floods,
    "250 containers": containers_crowd,
    "500 exec probes a second in 250 containers": commands_crowd,
}
CROWD, COMMANDS = list(FAULTS)[-2:]


async def bulkheads(bench: Bench) -> None:
    """Pods one by one without a fault, beside it, and without it again.

    What probes do to others is held against as many containers without them: those alone make the runtime slower.
    """
    if bench.faults is None:
        raise BenchError("this scenario needs `--only bulkheads`, alone")
    size = 4 if bench.quick else SAMPLES
    faults = [entry for entry in FAULTS.items() if not (bench.quick and entry[0] in (CROWD, COMMANDS))]
    async with answering() as answerer:
        await one_by_one(bench, answerer, 3)
        before = crowd = await one_by_one(bench, answerer, size)
        for what, fault in faults:
            stage = Stage(bench, bench.faults)
            try:
                async with fault(stage):
                    beside = await one_by_one(bench, answerer, size)
            finally:
                bench.faults.release()
                await bench.remove_all(stage.names)
            after = await one_by_one(bench, answerer, size)
            without = crowd if what == COMMANDS else _joined(before, after)
            bench.figures += _figures(what, without, beside)
            before, crowd = after, beside


def _joined(samples: Samples, other: Samples) -> Samples:
    return Samples(samples.start + other.start, samples.status + other.status, samples.end + other.end)


async def one_by_one(bench: Bench, answerer: Answerer, count: int) -> Samples:
    """Pods that start, are probed and go, one after the other."""
    found = Samples()
    for _ in range(count):
        name = f"beside-{next(bench.numbers)}"
        before = len(bench.watch.starts)
        probe = http_probe(answerer.port, f"/{name}", "127.0.0.1")
        placed = bench.agent.place([with_container(name, readinessProbe=probe)])
        ready = await until_ready(bench, name, 60)
        if len(bench.watch.starts) < before + 2:
            raise BenchError(f"{name} is ready, but the runtime has not reported its start")
        sandbox, container = await find_pod(bench.cri, runtime_name(name))
        found.start.append((await bench.baseline.started_at(container) - placed) / NS_PER_MS)
        found.status.append((ready - answerer.sent_ns[f"/{name} 200"]) / NS_PER_MS)
        removed = bench.agent.withdraw([name])
        found.end.append((await bench.watch.exited_at(container, 60) - removed) / NS_PER_MS)
        found.gone.append((await bench.watch.deleted_at(sandbox, 60) - removed) / NS_PER_MS)
        await asyncio.sleep(0.2)
    return found


def _figures(what: str, alone: Samples, beside: Samples) -> list[Figure]:
    """The containers of the crowd alone are no fault: their rows have no target."""
    rows = []
    for name, without, found in (
        ("start", alone.start, beside.start),
        ("probe to status", alone.status, beside.status),
        ("end", alone.end, beside.end),
    ):
        baseline = _p99(without)
        limit, target = (_SHARE * baseline.median, "<= 1.10 x without it") if what != CROWD else (None, "")
        rows.append(Figure(f"{name} p99 beside {what}", "ms", _p99(found), baseline, limit, target))
    return rows


def _p99(samples: list[float]) -> Spread:
    """The 99th percentile where the table looks for the median; least and greatest beside it."""
    return Spread(percentile(samples, 0.99), min(samples), max(samples), len(samples))
