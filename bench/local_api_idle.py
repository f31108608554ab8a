"""`python -m bench.local_api_idle`: what a whole machine with the local API takes while its pods are idle.

A node as `make run API=1` starts it: containerd, the local API, which applies a folder of pods, and the agent, which joins it. When all
pods run, nothing happens for a while; then the memory and the CPU time of both processes are read. Exit code 1 if their sum is above its
target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from testbed import containerd, images, local_api, node, places
from testbed.host import TestbedError

from bench.agent import PROGRAM, manifest, status_kib
from bench.runtime import BenchError

#: Resident memory of both processes, as `ps` shows it, in MiB, and their CPU time in percent of a core.
RSS_MIB, CPU_PERCENT = 100.0, 0.5
#: Until all pods run, on a machine that is very busy.
_START_S = 120.0


class Usage:
    """What one process takes, from `start` on."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self._cpu_s = self._used_s()
        self._began = time.monotonic()

    def _used_s(self) -> float:
        """CPU time of the process and of its children that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    @property
    def cpu_percent(self) -> float:
        """Of one core."""
        return (self._used_s() - self._cpu_s) * 100 / (time.monotonic() - self._began)

    @property
    def rss_mib(self) -> float:
        return status_kib(self.pid, "VmRSS") / 1024

    @property
    def pss_mib(self) -> float:
        """Shared pages count in parts."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


async def wait_running(folder: Path, pods: int) -> float:
    """Wait until the agent reports that all pods run; the seconds that this took. Raises BenchError."""
    began = time.monotonic()
    port = json.loads((folder / "kubelet.yaml").read_text())["readOnlyPort"]
    async with aiohttp.ClientSession() as client:
        while time.monotonic() - began < _START_S:
            if await _running(client, f"http://127.0.0.1:{port}/pods") == pods:
                return time.monotonic() - began
            await asyncio.sleep(0.2)
    raise BenchError(f"not all pods run within {_START_S:.0f} s: see the logs in {folder}")


async def _running(client: aiohttp.ClientSession, url: str) -> int:
    try:
        async with client.get(url) as answer:
            found: Any = await answer.json(content_type=None)
    except (OSError, aiohttp.ClientError):
        return 0
    return sum(pod["status"].get("phase") == "Running" for pod in found["items"] or ())


async def measure(folder: Path, options: argparse.Namespace) -> int:
    """Start the node, wait, print, and judge."""
    applied = folder / "applied"
    applied.mkdir(parents=True)
    for number in range(options.pods):
        (applied / f"idle-{number}.yaml").write_text(yaml.safe_dump(manifest(f"idle-{number}")))
    testbed = containerd.up(folder, (images.PAUSE,))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode; compiling takes 2 MiB
    joined = node.Joined(*local_api.start(folder, options.program, node.NODE_NAME, applied))
    node.start_agent(testbed, options.program, local_api.no_manifests(folder), joined)
    took_s = await wait_running(folder, options.pods)
    print(
        f"{options.pods} pods run after {took_s:.1f} s; idle for {options.rest} s, then measured for {options.seconds} s"
    )
    await asyncio.sleep(options.rest)
    pids = {"agent": node.agent_pid(folder), "local API": local_api.pid(folder)}
    usages = [Usage(name, pid) for name, pid in pids.items() if pid is not None]
    if len(usages) < len(pids):
        raise BenchError(f"a process has ended: see the logs in {folder}")
    await asyncio.sleep(options.seconds)
    return judged(usages)


def judged(usages: list[Usage]) -> int:
    """Print the figures. Returns 1 if a target is missed."""
    all_rss = all_cpu = 0.0
    for usage in usages:
        rss, pss, cpu = usage.rss_mib, usage.pss_mib, usage.cpu_percent
        all_rss, all_cpu = all_rss + rss, all_cpu + cpu
        print(
            f"  {usage.name:10} {rss:6.1f} MiB resident, {pss:5.1f} with shared pages in parts, {cpu:5.2f} % of a core"
        )
    for name, value, target in (("MiB resident", all_rss, RSS_MIB), ("% of a core", all_cpu, CPU_PERCENT)):
        verdict = "reached" if value <= target else "MISSED"
        print(f"  together   {value:6.2f} {name}  target {target:g}: {verdict}")
    return int(all_rss > RSS_MIB or all_cpu > CPU_PERCENT)


def main() -> int:
    """Measure a node below a folder of its own, and remove it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.local_api_idle", description="The local API and the agent beside idle pods."
    )
    parser.add_argument("--pods", type=int, default=20)
    parser.add_argument("--program", type=Path, default=PROGRAM, help="another installation of pykubelet")
    parser.add_argument(
        "--rest", type=int, default=60, help="seconds from when all pods run until the figures are taken"
    )
    parser.add_argument("--seconds", type=int, default=60, help="how long CPU time is measured")
    options = parser.parse_args()
    node.sweep_dead_runs()
    folder = places.run_folder("bench")
    try:
        return asyncio.run(measure(folder, options))
    except (BenchError, TestbedError, images.ImageError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        node.down(folder)


if __name__ == "__main__":
    sys.exit(main())
