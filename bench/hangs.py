"""The node beside storage that hangs, against the same pods and the same storage that answers. One scenario, `hangs`.

Blocks with and without the hang alternate. In both, twelve pods use the storage, three more have just been removed, and the agent
is killed and started again; beside the hang, four more wait for their volumes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from testbed import images
from testbed.fuse import HangingFileSystem

from bench.agent import Agent, manifest, runtime_name
from bench.baseline import NS_PER_MS
from bench.bulkheads import one_by_one
from bench.probes import Answerer, answering, until, with_container
from bench.runtime import BenchError
from bench.scenarios import Bench
from bench.stats import spread
from bench.table import Figure
from bench.volumes import DRIVER, driver_running

_USERS, _LEAVING, _LATE, _OTHERS = 12, 3, 4, 5
#: In each block: pods, questions to the Summary API, and restarts of the agent.
_PODS, _ASKED, _RESTARTS = 6, 5, 3
_LEAST, _MOST = 0.95, 1.10
_SLEEP = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
_SETTLE_S = 1.5
#: Longer than an answer of the Summary API may be used again.
_OLD_S = 1.2


@dataclass
class Storage:
    """What can hang: `stop` makes it hang, `go_on` ends that. `volume`: as pods have it, without a name."""

    volume: dict[str, Any]
    stop: Callable[[], None]
    go_on: Callable[[], None]

    def pod(self, name: str) -> dict[str, Any]:
        """A pod with a volume of it."""
        mounts = [{"name": "v", "mountPath": "/v"}]
        made = with_container(name, image=images.BUSYBOX, command=["/bin/sh", "-c", _SLEEP], volumeMounts=mounts)
        made["spec"]["volumes"] = [{"name": "v", **self.volume}]
        return made


@contextlib.asynccontextmanager
async def fuse(bench: Bench) -> AsyncIterator[Storage]:
    """A FUSE file system whose process is stopped."""
    folder = bench.agent.folder
    with HangingFileSystem(folder / "hanging", folder / "hanging-data") as system:
        volume = {"hostPath": {"path": str(system.path), "type": "Directory"}}
        yield Storage(volume, system.stop, system.answer)


@contextlib.asynccontextmanager
async def csi(bench: Bench) -> AsyncIterator[Storage]:
    """A CSI driver that is stopped."""
    async with driver_running(bench) as driver:
        yield Storage(
            {"csi": {"driver": DRIVER}},
            lambda: os.kill(driver.pid, signal.SIGSTOP),
            lambda: os.kill(driver.pid, signal.SIGCONT),
        )


@contextlib.asynccontextmanager
async def nfs(bench: Bench) -> AsyncIterator[Storage]:
    """A stand-in for mount(8), which mounts a tmpfs in place of an export. While the server is away it waits, as mount.nfs does."""
    folder = bench.agent.folder / "programs"
    program, lock = folder / "mount", folder / "server"
    folder.mkdir(exist_ok=True)
    mounts = f"flock -s {lock} true; shift $(($# - 1)); exec /usr/bin/mount -t tmpfs export"
    program.write_text(f'#!/bin/sh\ncase " $* " in *" nfs "*) {mounts} "$1" ;; esac\nexec /usr/bin/mount "$@"\n')
    program.chmod(0o755)
    bench.agent.programs = folder
    bench.agent.kill()
    await bench.agent.start()
    with lock.open("w") as server:
        yield Storage(
            {"nfs": {"server": "192.0.2.1", "path": "/"}},
            lambda: fcntl.flock(server, fcntl.LOCK_EX),
            lambda: fcntl.flock(server, fcntl.LOCK_UN),
        )


STORAGES: dict[str, Callable[[Bench], AbstractAsyncContextManager[Storage]]] = {
    "a FUSE file system": fuse,
    "a CSI driver": csi,
    "an NFS server": nfs,
}


@dataclass
class _Samples:
    """Milliseconds, by what was measured."""

    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, samples: Sequence[float]) -> None:
        self.found.setdefault(what, []).extend(samples)


async def hangs(bench: Bench) -> None:
    """Start, removal, probes, statistics and restarts beside each kind of storage while it hangs, and while it does not."""
    rounds = 1 if bench.quick else 4
    others = [f"other-{n}" for n in range(_OTHERS)]
    await _run_all(bench, [manifest(name) for name in others])
    async with answering() as answerer:
        await one_by_one(bench, answerer, 2)
        for kind, made in STORAGES.items():
            beside, without = _Samples(), _Samples()
            async with made(bench) as storage:
                users = [f"user-{n}" for n in range(_USERS)]
                await _run_all(bench, [storage.pod(name) for name in users])
                try:
                    for number in range(2 * rounds):
                        is_hung = number % 4 in (1, 2)  # neither is always the second
                        await _block(bench, answerer, storage, beside if is_hung else without, is_hung=is_hung)
                finally:
                    await bench.remove_all(users)
            bench.figures += _figures(kind, beside, without)
    await bench.remove_all(others)


async def _block(bench: Bench, answerer: Answerer, storage: Storage, samples: _Samples, *, is_hung: bool) -> None:
    leaving, late = [f"leaving-{n}" for n in range(_LEAVING)], [f"late-{n}" for n in range(_LATE)]
    await _run_all(bench, [storage.pod(name) for name in leaving])
    if is_hung:
        storage.stop()
    try:
        bench.agent.withdraw(leaving)
        if is_hung:
            bench.agent.place([storage.pod(name) for name in late])
        await asyncio.sleep(_SETTLE_S)
        await bench.agent.wait_quiet()
        await _measure(bench, answerer, samples)
    finally:
        if is_hung:
            storage.go_on()
            await bench.remove_all(late)
    await _all_gone(bench, leaving)
    await bench.rest()


async def _measure(bench: Bench, answerer: Answerer, samples: _Samples) -> None:
    found = await one_by_one(bench, answerer, 2 if bench.quick else _PODS)
    samples.add("start", found.start)
    samples.add("probe to status", found.status)
    samples.add("end", found.end)
    samples.add("removal", found.gone)
    await bench.agent.summary()  # the first after a start takes another measurement
    samples.add("/stats/summary", [await _summary(bench.agent) for _ in range(_ASKED)])
    samples.add("restart to ready", [await _restart(bench) for _ in range(1 if bench.quick else _RESTARTS)])


async def _summary(agent: Agent) -> float:
    """Milliseconds of one answer, in which the other pods are measured."""
    await asyncio.sleep(_OLD_S)
    began = time.monotonic()
    pods = {pod["podRef"]["name"]: pod for pod in (await agent.summary())["pods"]}
    took = (time.monotonic() - began) * 1000
    missing = [n for n in range(_OTHERS) if not _is_measured(pods.get(runtime_name(f"other-{n}")))]
    if missing:
        raise BenchError(f"/stats/summary does not measure {len(missing)} of {_OTHERS} pods that run")
    return took


def _is_measured(pod: dict[str, Any] | None) -> bool:
    return pod is not None and all(container["cpu"]["usageCoreNanoSeconds"] > 0 for container in pod["containers"])


async def _restart(bench: Bench) -> float:
    """Milliseconds from the start of an agent that was killed until it is healthy and reports the other pods, unchanged, as ready."""
    names = {runtime_name(f"other-{n}") for n in range(_OTHERS)}

    async def ready() -> dict[str, tuple[str, ...]]:
        return {name: ids for name, ids in (await bench.agent.ready_pods() or {}).items() if name in names}

    before = await ready()
    if len(before) != _OTHERS:
        raise BenchError(f"{len(before)} of {_OTHERS} other pods are ready before the agent is killed")
    bench.agent.kill()
    began = bench.agent.spawn()
    await bench.agent.wait_healthy()

    async def is_again() -> bool:
        return await ready() == before

    at = await until("the other pods are ready under a new agent", is_again)
    await bench.agent.wait_quiet()
    return (at - began) / NS_PER_MS


async def _run_all(bench: Bench, pods: list[dict[str, Any]]) -> None:
    names = {runtime_name(pod["metadata"]["name"]) for pod in pods}
    bench.agent.place(pods)

    async def is_so() -> bool:
        return names <= (await bench.agent.ready_pods() or {}).keys()

    await until(f"{len(names)} pods are ready", is_so, 90)


async def _all_gone(bench: Bench, names: list[str]) -> None:
    ours = {runtime_name(name) for name in names}

    async def is_so() -> bool:
        return not ours & {sandbox.metadata.name for sandbox in await bench.cri.list_pod_sandboxes()}

    await until("pods whose storage answers again are gone", is_so, 90)


def _figures(kind: str, beside: _Samples, without: _Samples) -> list[Figure]:
    rows = []
    for what, taken in beside.found.items():
        baseline = spread(without.found[what])
        target = f"{_LEAST} to {_MOST:.2f} x without it"
        most, least = _MOST * baseline.median, _LEAST * baseline.median
        name = f"{what} beside {kind} that hangs"
        rows.append(Figure(name, "ms", spread(taken), baseline, most, target, minimum=least))
    return rows
