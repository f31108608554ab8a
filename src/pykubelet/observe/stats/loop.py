"""Measures the resource usage of pods and the node, on demand.

Owns: the cell `Usage`. Reads: `Observed`, `Mounts`, `Plugins`. While requests come, it measures every `PERIOD_S`, so that rates are
those of the last seconds. It stops `REST_AFTER_S` after the last request. Then only the CPU time of each cgroup is read, every
`READING_PERIOD_S`: the first request gets rates of the time since then. `files.py` measures file systems.
"""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.cells import Cell, CellWriter, Mailbox
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.usage import Details, NodeUse, PodUse, Usage, UsageWanted
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.host.proc.procfs import read_pid_limit, read_process_count
from pykubelet.observe.stats.files import FILES_WAIT_S, PERIOD_S, FileSettings, FileUsage
from pykubelet.observe.stats.rates import (
    CpuTotals,
    Readings,
    add_reading,
    base_of,
    node_with_rates,
    pod_with_rates,
    totals_of,
)
from pykubelet.observe.stats.sandbox_images import SandboxImages
from pykubelet.observe.stats.tree import UsageSources, read_cpu_totals, read_details, read_node, read_pods

log = Log("stats")
REST_AFTER_S = 300.0
#: While nothing is requested. With 100 pods a reading takes 4 ms of CPU.
READING_PERIOD_S = 60.0
#: The shortest time that a rate covers. Only the first answer after the start may have to wait for it.
FIRST_GAP_S = 0.25
MEASURE_DEADLINE_S = 10.0


class StatsInputs(Value):
    """The cells that the loop reads, and the mailbox that wakes it."""

    wanted: Mailbox[UsageWanted]
    observed: Cell[Observed]
    mounts: Cell[Mounts]
    plugins: Cell[Plugins]


class _Measured(Value):
    """What one measurement has read. `at`: monotonic seconds."""

    at: float
    node: NodeUse | None
    pods: dict[PodUID, PodUse]
    details: Details | None


class StatsLoop:
    """`run` never returns."""

    def __init__(
        self,
        inputs: StatsInputs,
        usage: CellWriter[Usage],
        sources: UsageSources,
        settings: FileSettings,
        cri: CriClient,
        flight: SingleFlight,
        clock: Clock,
    ) -> None:
        self._inputs = inputs
        self._usage = usage
        self._sources = sources
        self._root_dir = settings.paths.root
        self._sandbox_images = SandboxImages(cri)
        self._flight = flight
        self._clock = clock
        self._readings: Readings = ()
        self._files_until = float("-inf")
        self._learning: asyncio.Task[None] | None = None
        self._supervisor = Supervisor("stats")
        self._files = FileUsage(inputs.mounts, inputs.plugins, settings, cri, flight, clock, self._supervisor)

    async def run(self) -> None:
        """Wait for requests and measure. Never returns."""
        async with self._supervisor as supervisor:
            supervisor.start_root("stats-loop", self._follow())
            raise await supervisor.wait_failed()

    async def _follow(self) -> None:
        await self._read_totals()
        asked_at = float("-inf")
        while True:
            is_asked = self._clock.monotonic() - asked_at < REST_AFTER_S
            try:
                async with asyncio.timeout(PERIOD_S if is_asked else READING_PERIOD_S):
                    wanted = await self._inputs.wanted.get_all()
            except TimeoutError:
                await (self._measure() if is_asked else self._read_totals())
                continue
            asked_at = self._clock.monotonic()
            await self._answer(wanted)

    async def _answer(self, wanted: list[UsageWanted]) -> None:
        now = self._usage.get()
        with_files = any(request.with_files for request in wanted)
        with_details = any(request.with_details for request in wanted)
        with_new_files = any(request.with_new_files for request in wanted)
        if with_files:
            self._files_until = self._clock.monotonic() + REST_AFTER_S
        fresh = now.taken_at is not None and now.taken_at >= max(request.at_least for request in wanted)
        if (
            fresh
            and not with_new_files
            and (now.with_files or not with_files)
            and (now.details is not None or not with_details)
        ):
            return
        age = self._clock.monotonic() - self._readings[0].at if self._readings else 0.0
        if age < FIRST_GAP_S:
            await asyncio.sleep(FIRST_GAP_S - age)
        await self._measure(with_details=with_details, with_new_files=with_new_files)

    async def _read_totals(self) -> None:
        """Read the CPU time of all cgroups, as the base of later rates."""

        def read() -> CpuTotals:
            return CpuTotals(self._clock.monotonic(), read_cpu_totals(self._sources))

        outcome = await self._flight.run("stats", read, MEASURE_DEADLINE_S)
        if isinstance(outcome, Done):
            self._readings = add_reading(self._readings, outcome.value)
        elif isinstance(outcome, Failed):
            log.warning("the CPU time of pods cannot be read", error=outcome.error)

    async def _measure(self, *, with_details: bool = False, with_new_files: bool = False) -> None:
        began = self._clock.monotonic()
        observed, sources = self._inputs.observed.get(), self._sources
        with_files = began < self._files_until
        if with_files:
            await self._files.measure(observed, all_now=with_new_files)
        if with_details:
            await self._learn_sandbox_images(observed)

        def read() -> _Measured:
            brief = not with_details
            at, wall = self._clock.monotonic(), self._clock.wall()
            node, pods = read_node(sources, wall, brief=brief), read_pods(sources, observed, wall, brief=brief)
            details = read_details(sources, node, pods, self._root_dir) if with_details else None
            return _Measured(at, node, pods, details)

        outcome = await self._flight.run("stats", read, MEASURE_DEADLINE_S)
        if not isinstance(outcome, Done):
            why = str(outcome.error) if isinstance(outcome, Failed) else "the kernel does not answer"
            self._publish(replace(self._usage.get(), taken_at=began, error=why))
            return
        found = outcome.value
        if found.node is None:
            self._publish(Usage(began, error="the root control group cannot be read"))
            return
        base = base_of(self._readings, found.at)
        self._readings = add_reading(self._readings, totals_of(found.at, found.node, found.pods))
        node = self._files.of_node(node_with_rates(found.node, found.at, base))
        node = replace(node, max_pids=read_pid_limit(), running_pids=read_process_count())
        pods = {uid: self._complete(uid, pod_with_rates(pod, found.at, base)) for uid, pod in found.pods.items()}
        self._publish(Usage(began, node, pods, with_files, found.details))

    def _complete(self, uid: PodUID, pod: PodUse) -> PodUse:
        image = self._sandbox_images.known.get(pod.sandbox_id, "")
        return replace(self._files.of_pod(uid, pod), sandbox_image=image)

    def _publish(self, usage: Usage) -> None:
        if usage.error and usage.error != self._usage.get().error:
            log.warning("cannot read what is used", error=usage.error)
        self._usage.publish(usage)

    async def _learn_sandbox_images(self, observed: Observed) -> None:
        """Ask for the images of new sandboxes. Waits at most `FILES_WAIT_S`."""
        sandboxes = [sandbox.id for view in observed.pods.values() for sandbox in view.sandboxes[:1]]
        is_running = self._learning is not None and not self._learning.done()
        if self._sandbox_images.known.keys() != set(sandboxes) and not is_running:
            self._learning = self._supervisor.start_root("stats-sandboxes", self._sandbox_images.learn(sandboxes))
            await asyncio.wait([self._learning], timeout=FILES_WAIT_S)
