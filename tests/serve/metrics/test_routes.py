"""How old an answer about usage may be."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.model.usage import CpuUse, GroupUse, MemoryUse, NodeUse, Usage, UsageWanted
from pykubelet.net.http.server import Request, Response
from pykubelet.serve.metrics.cadvisor import MachineFacts
from pykubelet.serve.metrics.routes import StatsRoutes

MACHINE = MachineFacts(2, 1, 1, 1 << 30, 0, "boot", "machine", "system", "6.1", "Linux")


@dataclass
class StatusPackage:
    """Stands for observe/stats: `answers` are published one by one as wishes come, stamped with the moment."""

    clock: ManualClock
    usage: CellWriter[Usage]
    answers: list[Usage] = field(default_factory=list)

    def post(self, wish: UsageWanted) -> None:
        del wish
        if self.answers:
            answer = self.answers.pop(0)
            moment = self.clock.monotonic()
            self.usage.publish(Usage(moment, answer.node, with_files=answer.with_files, error=answer.error))


def used(cpu_ns: int) -> Usage:
    node = NodeUse(GroupUse(1.0, CpuUse(cpu_ns), MemoryUse()), memory_capacity=1 << 30, booted_at=1.0)
    return Usage(node=node, with_files=True)


def standing(*answers: Usage) -> tuple[StatsRoutes, StatusPackage]:
    clock = ManualClock()
    cell, writer = make_cell("usage", Usage())
    free = StatusPackage(clock, writer, list(answers))
    return StatsRoutes(cell, free, clock, "n", 1.0, MACHINE), free


async def summary(routes: StatsRoutes) -> tuple[int, str]:
    async with asyncio.timeout(60):
        answer = await routes.summary(Request("GET", "/stats/summary"))
    assert isinstance(answer, Response)
    return answer.status, answer.body.decode()


async def test_a_failed_measurement_is_reported_once_and_does_not_change_the_next_answer() -> None:
    routes, free = standing(used(1_000), Usage(error="the kernel does not answer"), used(2_000))
    assert (await summary(routes))[0] == 200
    free.clock.advance(30)
    status, text = await summary(routes)
    assert (status, text.strip()) == (500, "Internal Error: the kernel does not answer")
    free.clock.advance(30)
    status, text = await summary(routes)
    assert status == 200
    assert json.loads(text)["node"]["cpu"]["usageCoreNanoSeconds"] == 2_000


async def test_a_failed_measurement_is_an_error_of_the_scrape() -> None:
    routes, _ = standing(Usage(error="the kernel does not answer"))
    answer = await routes.resource_metrics(Request("GET", "/metrics/resource"))
    assert isinstance(answer, Response)
    assert b"\nresource_scrape_error 1\n" in answer.body and b"node_cpu" not in answer.body
    assert b"\nscrape_error" not in answer.body  # hidden since Kubernetes 1.30
