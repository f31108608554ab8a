"""`python -m bench.interpreters PYTHON...`: one table of what the agent needs on each of several Python interpreters.

Each PYTHON is the interpreter of an environment in which pykubelet is installed. Their agents run in turn on one private
containerd, in an order that changes with each round, so that waves of the machine meet all of them. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed import containerd, images, node, places
from testbed.host import TestbedError
from testbed.private_runtime import Testbed

from bench import machine
from bench.agent import Agent, manifest
from bench.runtime import BenchError
from bench.scenarios import Bench, all_ready, prepared
from bench.stats import spread, without_idle
from bench.table import render_rows, render_spread
from pykubelet.edges.cri.errors import CriError

_STARTS = 3  # of each round
_SINGLES = 5  # of each round
_PODS_S = 300.0  # for all pods of a round to start, or to end
_IDLE_S = 20.0
#: What an interpreter reports about itself once it has imported the agent: an extension may switch the GIL on again.
_QUESTION = """
import json, platform, sys, sysconfig
from pykubelet.app.wiring import LATE
[__import__(name) for name in LATE]
from google.protobuf.internal import api_implementation
print(json.dumps({
    "version": f"{platform.python_implementation()} {platform.python_version()}",
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
    "jit": hasattr(sys, "_jit") and sys._jit.is_enabled(),
    "protobuf": api_implementation.Type(),
}))
"""


@dataclass(slots=True)
class Interpreter:
    """One row: the agent's program, what its interpreter is, its further flags and annotations of pods, and the samples of each column."""

    program: Path
    name: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)

    def pod(self, name: str) -> dict[str, Any]:
        """The manifest of a pod."""
        made = manifest(name)
        made["metadata"]["annotations"] = dict(self.annotations)
        return made

    def take(self, column: str, value: float) -> None:
        self.samples.setdefault(column, []).append(value)


#: Heading and unit of each column; `{}` is the number of pods.
COLUMNS = {
    "start": ("start to /healthz ok", "s"),
    "start_cpu": ("CPU of that", "s"),
    "rss": ("RSS at rest", "MiB"),
    "single": ("pod started, one at a time", "ms"),
    "pod_start": ("CPU per pod started, {} at once", "ms"),
    "pod_end": ("CPU per pod removed, {} at once", "ms"),
    "pods_rss": ("RSS with {} pods", "MiB"),
    "idle": ("CPU with {} idle pods, a minute", "s"),
}


def main() -> int:
    """Exit code 0 when all figures could be taken."""
    parser = argparse.ArgumentParser(prog="python -m bench.interpreters", description="The agent on interpreters.")
    parser.add_argument("python", nargs="+", type=Path, help="of an environment that has pykubelet")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--pods", type=int, default=100, help="how many start at once")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("bench: run as root: a node makes mounts, cgroups and network interfaces", file=sys.stderr)
        return 1
    try:
        interpreters = [find(python) for python in options.python]
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return compare(interpreters, options.rounds, options.pods)


def compare(interpreters: Sequence[Interpreter], rounds: int, pods: int) -> int:
    """Measure them in turn, and print the table. Returns the exit code."""
    node.sweep_dead_runs()
    folder = places.run_folder("bench")
    cgroups: list[str] = []
    try:
        testbed = containerd.up(folder, (images.PAUSE,))
        agent = Agent(testbed, folder / "node", interpreters[0].program)
        cgroups = [*agent.cgroups, f"/{testbed.name}-baseline"]
        try:
            return asyncio.run(_compare(testbed, agent, cgroups, interpreters, (rounds, pods)))
        finally:
            agent.stop()
    except (TestbedError, images.ImageError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        containerd.down(folder, cgroups)


async def _compare(
    testbed: Testbed,
    agent: Agent,
    cgroups: Sequence[str],
    interpreters: Sequence[Interpreter],
    numbers: tuple[int, int],
) -> int:
    """Measure and print the table; the exit code. `numbers`: of rounds and of pods."""
    rounds, count = numbers
    failure = ""
    async with prepared(testbed, agent, cgroups, quick=False) as bench:
        about = machine.describe((await bench.cri.version()).runtime_version)
        print(f"{about}, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}", flush=True)
        own = [testbed.cgroup, *cgroups]
        before = machine.read_load(own)
        try:
            await measure(bench, interpreters, rounds, count)
        except (BenchError, CriError, TestbedError) as error:
            failure = f"FAILED {agent.program}: {error}{agent.trouble()}"
        foreign = machine.foreign_cores(before, machine.read_load(own))
    print(f"\n{render(interpreters, count)}\n\nOther work, the kernel's included, kept {foreign:.2f} cores busy.")
    if failure:
        print(failure)
    return 1 if failure else 0


def find(python: Path) -> Interpreter:
    """The agent beside this interpreter. Raises BenchError when there is none that works."""
    command = [str(python), "-c", _QUESTION]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BenchError(f"{python}: {error.strerror}") from error
    program = python.absolute().with_name("pykubelet")
    if done.returncode != 0 or not program.exists():
        raise BenchError(f"{python} is not of an environment with pykubelet: {done.stderr[-2000:]}")
    return Interpreter(program, describe(json.loads(done.stdout)))


def describe(found: Mapping[str, object]) -> str:
    """The interpreter in words: its version, and what makes it faster or slower than usual."""
    name = str(found["version"]) + (" with JIT" if found["jit"] else "")
    if found["free_threaded"]:
        name += " free-threaded" + (", with the GIL again" if found["gil"] else "")
    return name + (", protobuf in Python" if found["protobuf"] == "python" else "")


def orders(interpreters: Sequence[Interpreter], rounds: int) -> Iterator[tuple[Interpreter, ...]]:
    """For each round all of them, beginning with another."""
    for number in range(rounds):
        first = number % len(interpreters)
        yield (*interpreters[first:], *interpreters[:first])


async def measure(bench: Bench, interpreters: Sequence[Interpreter], rounds: int, count: int) -> None:
    """Take the samples of all rounds."""
    for interpreter in interpreters:  # the first start writes bytecode
        await _start(bench.agent, interpreter, [])
    for number, order in enumerate(orders(interpreters, rounds)):
        for interpreter in order:
            began = time.monotonic()
            print(f"{number + 1}/{rounds} {interpreter.name} ...", end="", flush=True)
            await _measure_one(bench, interpreter, count)
            print(f" {time.monotonic() - began:.0f} s", flush=True)


async def _measure_one(bench: Bench, interpreter: Interpreter, count: int) -> None:
    agent = bench.agent
    for _ in range(_STARTS):
        await _start(agent, interpreter, ["start", "start_cpu"])
    interpreter.take("rss", agent.tree_rss_mib())
    for _ in range(_SINGLES):
        interpreter.take("single", await _single_ms(bench, interpreter))
    names = [f"pod-{next(bench.numbers)}" for _ in range(count)]
    idle = await bench.idle_rate()
    used, began, before = agent.cpu_s(), time.monotonic(), len(bench.watch.starts)
    agent.place([interpreter.pod(name) for name in names])
    await bench.watch.wait_starts(before, 2 * count, _PODS_S)
    await all_ready(agent, count, _PODS_S)
    await agent.wait_quiet()
    interpreter.take("pod_start", _each_ms(agent.cpu_s() - used, time.monotonic() - began, idle, count))
    interpreter.take("pods_rss", agent.tree_rss_mib())
    idle = await bench.idle_rate(_IDLE_S)
    interpreter.take("idle", 60 * idle)
    used, began = agent.cpu_s(), time.monotonic()
    await bench.remove_all(names, _PODS_S)
    interpreter.take("pod_end", _each_ms(agent.cpu_s() - used, time.monotonic() - began, idle, count))


async def _single_ms(bench: Bench, interpreter: Interpreter) -> float:
    """From the manifest of a pod until its container has started."""
    name, before = f"pod-{next(bench.numbers)}", len(bench.watch.starts)
    began = bench.agent.place([interpreter.pod(name)])
    await bench.watch.wait_starts(before, 2, _PODS_S)
    started = await bench.started_at(name)
    await bench.remove_all([name], _PODS_S)
    return (started - began) / 1e6


async def _start(agent: Agent, interpreter: Interpreter, taken: Sequence[str]) -> None:
    """Start this agent in an empty root directory. `taken`: the columns that get its seconds, and its CPU seconds."""
    agent.stop()
    agent.forget()
    agent.program, agent.flags = interpreter.program, interpreter.flags
    used, began = agent.cpu_s() if taken else 0.0, agent.spawn()
    healthy = await agent.wait_healthy()
    for column, value in zip(taken, ((healthy - began) / 1e9, agent.cpu_s() - used), strict=False):
        interpreter.take(column, value)
    await agent.wait_quiet()


def _each_ms(cpu_s: float, window_s: float, idle_rate: float, count: int) -> float:
    return without_idle(cpu_s, window_s, idle_rate) / count * 1000


def render(interpreters: Sequence[Interpreter], count: int) -> str:
    """A Markdown table with a row for each interpreter. `count`: of pods."""
    rows = [("interpreter", *(heading.format(count) for heading, _ in COLUMNS.values()))]
    for interpreter in interpreters:
        cells = ((interpreter.samples.get(column), unit) for column, (_, unit) in COLUMNS.items())
        rows.append(
            (interpreter.name, *(render_spread(spread(taken) if taken else None, unit) for taken, unit in cells))
        )
    return render_rows(rows)


if __name__ == "__main__":
    sys.exit(main())
