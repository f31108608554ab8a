"""`python -m bench`: a private containerd, the agent on it, and the table of figures. Needs root; ends within minutes.

With `--cluster` the agent is a node of a private control plane, and its pods come from there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from testbed import containerd, controlplane, images, node, places
from testbed.controlplane import ControlPlane
from testbed.faults import Faults
from testbed.host import TestbedError
from testbed.private_runtime import Testbed

from bench import cluster, machine
from bench.agent import NODE_NAME, PROGRAM, Agent
from bench.api import Api, Audit, PodWatch
from bench.bulkheads import bulkheads
from bench.cluster_bench import ClusterBench
from bench.containers import containers
from bench.hangs import hangs
from bench.heavy import heavy
from bench.many import many
from bench.placement import placement
from bench.pressure import eviction
from bench.probes import probes
from bench.runtime import BenchError
from bench.scenarios import Bench, burst, crowd, one_by_one, prepared, restart
from bench.server import server
from bench.table import Figure, render_table, to_object
from bench.volumes import volumes
from pykubelet.edges.cri.errors import CriError

_LONGEST_S = {False: 1500.0, True: 900.0}
SCENARIOS = {
    "single": one_by_one,
    "burst": burst,
    "containers": containers,
    "restart": restart,
    "crowd": crowd,
    "probes": probes,
    "bulkheads": bulkheads,
    "server": server,
    "eviction": eviction,
    "placement": placement,
    "volumes": volumes,
    "heavy": heavy,
    "hangs": hangs,
    "many": many,
}
# it needs a runtime of its own, whose programs can be made to hang
_ALONE = "bulkheads"
#: Scenarios that take long and have to be named.
_NAMED = (_ALONE, "hangs", "many")


def main() -> int:
    """Exit code 0 when all figures could be taken, whatever they are; 1 when one could not."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Speed and cost against the baseline.")
    parser.add_argument("--cluster", action="store_true", help="measure a node of a cluster")
    choices = sorted({*SCENARIOS, *cluster.SCENARIOS})
    parser.add_argument("--only", action="append", choices=choices, help="this scenario only (may be repeated)")
    parser.add_argument("--quick", action="store_true", help="fewer samples, shorter idle time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    parser.add_argument("--program", type=Path, default=PROGRAM, help="the agent to measure")
    parser.add_argument("--keep-log", type=Path, metavar="FILE", help="copy the agent's log to FILE in the end")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("bench: run as root: a node makes mounts, cgroups and network interfaces", file=sys.stderr)
        return 1
    node.sweep_dead_runs()
    folder = places.run_folder("bench")
    cgroups: list[str] = []
    try:
        faults = Faults(folder / "faults") if options.only == [_ALONE] else None
        testbed = containerd.up(folder, (images.PAUSE, images.BUSYBOX), str(faults.bin_dir) if faults else "")
        plane = _control_plane(testbed, folder) if options.cluster else None
        agent = Agent(testbed, folder / "node", options.program, _joined(plane))
        cgroups = [*agent.cgroups, *([plane.cgroup] if plane else []), f"/{testbed.name}-baseline"]
        try:
            return asyncio.run(_run(testbed, plane, agent, cgroups, (options, faults)))
        finally:
            agent.stop()
            if options.keep_log and agent.log.exists():
                options.keep_log.write_bytes(agent.log.read_bytes())
    except (TestbedError, images.ImageError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        controlplane.stop(folder)
        containerd.down(folder, cgroups)


def _control_plane(testbed: Testbed, folder: Path) -> ControlPlane:
    return controlplane.up(folder, audited=True, cgroup=f"/{testbed.name}-control")


def _joined(plane: ControlPlane | None) -> node.Joined | None:
    return node.Joined(controlplane.node_kubeconfig(plane, NODE_NAME), plane.authority) if plane else None


async def _run(
    testbed: Testbed,
    plane: ControlPlane | None,
    agent: Agent,
    cgroups: Sequence[str],
    asked: tuple[argparse.Namespace, Faults | None],
) -> int:
    options, faults = asked
    names = options.only or _usual(plane)
    async with prepared(testbed, agent, cgroups, options.quick) as bench:
        bench.faults = faults
        version = (await bench.cri.version()).runtime_version
        about = machine.describe(version) + (f", Kubernetes 1.{plane.programs.minor}" if plane else "")
        print(
            f"{about}\n{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, scenarios: {', '.join(names)}", flush=True
        )
        own = [testbed.cgroup, *cgroups]
        before = machine.read_load(own)
        failures = await (_measure(bench, names) if plane is None else _measure_in_cluster(bench, plane, names))
        foreign = machine.foreign_cores(before, machine.read_load(own))
        seconds = time.monotonic() - before.at
    print(f"\n{render_table(bench.figures)}\n")
    print(
        "In brackets: 10th to 90th percentile (least and greatest of fewer than five samples). Reach is by the median."
    )
    print(f"The run took {seconds:.0f} s; other work, the kernel's included, kept {foreign:.2f} cores busy.")
    if foreign > machine.BUSY_CORES:
        print(
            "WARNING: the machine was busy with something else: these figures are too high, and their ratios doubtful."
        )
    for failure in failures:
        print(f"FAILED {failure}")
    if options.json:
        options.json.write_text(json.dumps(_document(bench.figures, about, foreign, failures), indent=2) + "\n")
    return 1 if failures else 0


def _usual(plane: ControlPlane | None) -> list[str]:
    """The scenarios that run if none is named."""
    if plane is None:
        return [name for name in SCENARIOS if name not in _NAMED]
    return [name for name in cluster.SCENARIOS if cluster.SINCE.get(name, 0) <= plane.programs.minor]


def _document(figures: Sequence[Figure], about: str, foreign: float, failures: Sequence[str]) -> dict[str, object]:
    return {
        "machine": about,
        "time": time.time(),
        "foreign_cores": foreign,
        "busy": foreign > machine.BUSY_CORES,
        "figures": [to_object(figure) for figure in figures],
        "failures": list(failures),
    }


async def _measure(bench: Bench, names: Sequence[str]) -> list[str]:
    scenarios = {name: partial(SCENARIOS[name], bench) for name in names}
    return await _run_scenarios(bench.agent, bench.learn, scenarios, _LONGEST_S[False])


async def _measure_in_cluster(bench: Bench, plane: ControlPlane, names: Sequence[str]) -> list[str]:
    api = Api(plane)
    try:
        async with PodWatch(api) as watch:
            joined = ClusterBench(bench, api, watch, Audit(plane.audit_log, f"system:node:{NODE_NAME}"))
            scenarios = {name: partial(cluster.SCENARIOS[name], joined) for name in names}
            failures = await _run_scenarios(bench.agent, joined.learn, scenarios, _LONGEST_S[True])
            print(*joined.account(), sep="\n")
            return failures
    finally:
        await api.close()


async def _run_scenarios(
    agent: Agent,
    learn: Callable[[], Awaitable[None]],
    scenarios: Mapping[str, Callable[[], Awaitable[None]]],
    most_s: float,
) -> list[str]:
    """Run the scenarios; one that fails leaves the others alone. Returns what failed."""
    failures: list[str] = []
    try:
        async with asyncio.timeout(most_s):
            await agent.start()
            await learn()
            for name, scenario in scenarios.items():
                began = time.monotonic()
                print(f"{name} ...", end="", flush=True)
                try:
                    await scenario()
                    print(f" {time.monotonic() - began:.0f} s", flush=True)
                except (BenchError, CriError, TestbedError, OSError) as error:  # OSError: also a client's time-out
                    print(" failed", flush=True)
                    failures.append(f"{name}: {type(error).__name__}: {error}{agent.trouble()}")
    except (BenchError, CriError, TestbedError) as error:
        failures.append(f"start: {error}{agent.trouble()}")
    except TimeoutError:
        failures.append(f"not done within {most_s:.0f} s")
    return failures


if __name__ == "__main__":
    sys.exit(main())
