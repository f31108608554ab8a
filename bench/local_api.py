"""`python -m bench.local_api`: the local API with many objects and watchers, while clients write.

Beside it is what the disk takes: an append and `fdatasync` of as many bytes as an object has, in the same folder and at the same rate. Exit
code 1 if the 99th percentile of a write or the memory is above its target, or a watcher has missed a change.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import ssl
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from bench.agent import PROGRAM
from bench.stats import spread

#: A write at the 99th percentile, in milliseconds.
WRITE_MS = 50.0
#: Memory that each object may take, and the server without objects, in KiB.
OBJECT_KIB, BASE_KIB = 12, 80 << 10
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
MAPS = "/api/v1/namespaces/default/configmaps"


class Server:
    """The program in a process of its own. Use it in `async with`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __aenter__(self) -> Server:
        words = (
            PROGRAM,
            "local-api",
            "--data-dir",
            str(self.folder / "data"),
            "--port",
            "0",
            "--service-address",
            "",
            "--node-name",
            "bench",
        )
        self._log = (self.folder / "log").open("wb")
        self._process = await asyncio.create_subprocess_exec(*words, stderr=self._log)
        kubeconfig = self.folder / "data" / "admin.kubeconfig"
        while not kubeconfig.exists() or b'"serving"' not in (self.folder / "log").read_bytes():
            if self._process.returncode is not None:
                raise RuntimeError((self.folder / "log").read_text())
            await asyncio.sleep(0.05)
        found = yaml.safe_load(kubeconfig.read_text())
        cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
        self.url = cluster["server"]
        self.tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        for name in ("client-certificate-data", "client-key-data"):
            (self.folder / name).write_bytes(base64.b64decode(user[name]))
        self.tls.load_cert_chain(self.folder / "client-certificate-data", self.folder / "client-key-data")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        await self._process.wait()
        self._log.close()

    @property
    def rss_kib(self) -> int:
        """Its resident memory."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * PAGE_KIB

    @property
    def cpu_s(self) -> float:
        """The CPU time that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def config_map(number: int, round_: int) -> Any:
    """An object of about two kilobytes."""
    return {
        "metadata": {"name": f"m{number}", "labels": {"app": f"a{number % 50}"}},
        "data": {"text": f"{round_} " * 200},
    }


async def fill(client: aiohttp.ClientSession, url: str, objects: int) -> None:
    """Create all objects, twenty at a time."""
    waiting = iter(range(objects))

    async def create() -> None:
        for number in waiting:
            async with client.post(url + MAPS, json=config_map(number, 0)) as answer:
                assert answer.status == 201, await answer.text()

    await asyncio.gather(*(create() for _ in range(20)))


async def watch(client: aiohttp.ClientSession, url: str, version: str, counts: list[int], at: int) -> None:
    """Count the changes of one watch, until cancelled."""
    async with client.get(f"{url}{MAPS}?watch=true&resourceVersion={version}") as answer:
        async for data in answer.content.iter_any():  # without parsing: the machine is measured with this client on it
            counts[at] += data.count(b"\n")


async def write(client: aiohttp.ClientSession, url: str, number: int, round_: int, times: list[float]) -> None:
    """One merge patch."""
    start = time.perf_counter()
    headers = {"Content-Type": "application/merge-patch+json"}
    body = msgspec.json.encode({"data": {"text": f"{round_} " * 200}})
    async with client.patch(f"{url}{MAPS}/m{number}", data=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
    times.append((time.perf_counter() - start) * 1000)


def disk_times(folder: Path, writes: int) -> list[float]:
    """The milliseconds of appending and syncing two kilobytes."""
    times = []
    with open(folder / "disk", "wb", buffering=0) as file:
        for _ in range(writes):
            start = time.perf_counter()
            file.write(b"x" * 2048)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - start) * 1000)
    return times


async def measure(options: argparse.Namespace, folder: Path) -> int:
    """Measure, print, and judge."""
    async with Server(folder) as server:
        connector = aiohttp.TCPConnector(ssl=server.tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as client:
            idle_kib = server.rss_kib
            await fill(client, server.url, options.objects)
            full_kib = server.rss_kib
            async with client.get(f"{server.url}{MAPS}?limit=1") as answer:
                version = (await answer.json())["metadata"]["resourceVersion"]
            counts = [0] * options.watchers
            watching = [
                asyncio.ensure_future(watch(client, server.url, version, counts, at)) for at in range(options.watchers)
            ]
            await asyncio.sleep(2)
            times: list[float] = []
            writes, cpu_s = options.rate * options.seconds, server.cpu_s
            start, running = time.perf_counter(), []
            for number in range(writes):
                running.append(
                    asyncio.ensure_future(write(client, server.url, number % options.objects, number + 1, times))
                )
                await asyncio.sleep(max(0.0, start + (number + 1) / options.rate - time.perf_counter()))
            await asyncio.gather(*running)
            took_s, cpu_s = time.perf_counter() - start, server.cpu_s - cpu_s
            for _ in range(100):
                if min(counts, default=writes) >= writes:
                    break
                await asyncio.sleep(0.1)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            return judged(
                options, times, disk_times(folder, 200), counts, (idle_kib, full_kib, server.rss_kib), cpu_s / took_s
            )


def judged(
    options: argparse.Namespace,
    times: Sequence[float],
    disk: Sequence[float],
    counts: Sequence[int],
    kib: tuple[int, int, int],
    cpu: float,
) -> int:
    """Print the figures. Returns 1 if a target is missed."""
    p99 = sorted(times)[int(len(times) * 0.99)]
    writes = options.rate * options.seconds
    allowed = BASE_KIB + OBJECT_KIB * options.objects
    rows = [
        ("write, median (ms)", spread(times).median, None),
        ("write, 99th percentile (ms)", p99, WRITE_MS),
        ("append and sync of the disk, median (ms)", spread(disk).median, None),
        ("cores", cpu, None),
        ("memory without objects (MiB)", kib[0] / 1024, None),
        ("memory with objects (MiB)", kib[1] / 1024, None),
        ("memory at the end (MiB)", kib[2] / 1024, allowed / 1024),
        ("changes that the slowest watcher has missed", float(writes - min(counts, default=writes)), 0.0),
    ]
    print(
        f"{options.objects} objects, {options.watchers} watchers, {options.rate} writes a second for {options.seconds} s"
    )
    for name, value, target in rows:
        verdict = "" if target is None else f"  target {target:g}: {'reached' if value <= target else 'MISSED'}"
        print(f"  {name:45} {value:9.2f}{verdict}")
    return int(any(target is not None and value > target for _, value, target in rows))


def main() -> int:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.local_api", description="The local API with many objects and watchers."
    )
    parser.add_argument("--objects", type=int, default=5000)
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--rate", type=int, default=100, help="writes a second")
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-local-api-", dir="/var/tmp") as folder:
        return asyncio.run(measure(options, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
