"""How long the admission of a pod takes with all resource managers on: CPU time on a described machine, without an agent.

The machine is filled with random pods; whenever one is rejected, some are released. The decision is the agent's own code.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from bench.runtime import BenchError
from bench.scenarios import Bench
from bench.stats import percentile, spread
from bench.table import Figure
from pykubelet.provide.placement import cpu_state, memory_state
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.topology_scopes import Admitted, admit
from pykubelet.testing.random_pods import random_pod
from pykubelet_offline.simulate_input import read_machine, read_settings, start_simulation

FOLDER = Path(__file__).parent
MACHINE, CONFIG = FOLDER / "machine-256.yaml", FOLDER / "all-managers.yaml"
RESOURCES = ("example.com/gpu", "example.com/nic")
MOST_MS = 1.0


async def placement(bench: Bench) -> None:
    """Three rows: an admission, the slowest of a hundred, and writing the state files' texts after it."""
    times, texts = measure_admissions(200 if bench.quick else 2000)
    what = "admission of a pod, 256 CPUs on 8 NUMA nodes, all managers, CPU"
    bench.figures.append(Figure(what, "ms", spread(times), limit=MOST_MS, target=f"<= {MOST_MS:g} ms"))
    bench.figures.append(Figure(f"{what}, slowest of a hundred", "ms", spread([percentile(times, 0.99)])))
    bench.figures.append(Figure("the texts of its state files, CPU", "ms", spread(texts)))


def measure_admissions(count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of CPU for `count` admissions, and for the state files' texts after those that succeeded."""
    random, managers = Random(1), start_simulation(read_machine(str(MACHINE)), read_settings(str(CONFIG))).managers
    times: list[float] = []
    texts: list[float] = []
    placed: list[str] = []
    for number in range(count):
        pod = random_pod(random, number, cpus=12, resources=RESOURCES, memory_mi=4096)
        began = time.thread_time()
        result = admit(managers.topology, managers.providers, pod)
        if isinstance(result, Admitted):
            managers = managers.with_providers(result.providers)
        times.append((time.thread_time() - began) * 1000)
        if isinstance(result, Admitted):
            placed.append(pod.metadata.uid)
            texts.append(_encode(managers))
        elif placed:
            gone = [placed.pop(random.randrange(len(placed))) for _ in range(min(3, len(placed)))]
            managers = managers.release(gone)
    if not texts or len(texts) == count:
        raise BenchError(f"of {count} pods {len(texts)} were admitted: the machine was never full, or always")
    return times, texts


def _encode(managers: Managers) -> float:
    began = time.thread_time()
    cpu_state.encode(managers.cpu_policy, managers.cpu_state)
    memory_state.encode(managers.memory.policy, managers.memory.state)
    return (time.thread_time() - began) * 1000
