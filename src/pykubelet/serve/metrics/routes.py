"""The handlers of `/stats/summary` and of all paths of metrics, which request a fresh `Usage` from observe/stats.

Reads: the cell `Usage`. Writes nothing; `UsageWanted` goes into the mailbox of observe/stats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from pykubelet.base.api.codec import encode
from pykubelet.base.kit.cells import Cell, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.exposition import CONTENT_TYPE, render_metrics
from pykubelet.base.kit.metrics import PROBES, REGISTRY, MetricFamily, MetricSample
from pykubelet.base.kit.values import Value
from pykubelet.base.model.usage import Usage, UsageWanted
from pykubelet.edges.host.proc.self_stats import read_self
from pykubelet.net.http.server import JSON, Answer, Request, Response, text
from pykubelet.serve.endpoints.endpoint import EndpointHandler
from pykubelet.serve.endpoints.health import HEALTH_CHECKS, Check
from pykubelet.serve.metrics.cadvisor import MachineFacts, cadvisor_families
from pykubelet.serve.metrics.kubelet import MetricsInputs, kubelet_families, process_families, process_start
from pykubelet.serve.metrics.protobuf_exposition import PROTOBUF_CONTENT_TYPE, render_protobuf, wants_protobuf
from pykubelet.serve.metrics.releases import of_release
from pykubelet.serve.metrics.resource import resource_families
from pykubelet.serve.metrics.stability import with_stability
from pykubelet.serve.metrics.summary import render_summary

DEADLINE_S = 15.0
#: The age of file systems' figures that `/metrics` accepts; the reference kubelet measures them once a minute.
KEPT_FRESH_S = 60.0


class UsageRules(Value):
    """`max_age_s`: how old the served usage may be. `with_hidden`: whether hidden metrics are shown."""

    max_age_s: float = 1.0
    with_hidden: bool = False


class StatsRoutes:
    """The handlers. `started_at`: the wall second at which the agent started."""

    def __init__(
        self,
        usage: Cell[Usage],
        wanted: Post[UsageWanted],
        clock: Clock,
        node: str,
        started_at: float,
        machine: MachineFacts,
        rules: UsageRules | None = None,
    ) -> None:
        self._rules = rules or UsageRules()
        self._usage = usage
        self._wanted = wanted
        self._clock = clock
        self._node = node
        self._started_at = started_at
        self._machine = machine

    async def fresh(self, *, with_files: bool, with_details: bool = False) -> Usage | None:
        """Wait for a `Usage` that is at most `max_age_s` old; None if there is none within DEADLINE_S."""
        at_least = self._clock.monotonic() - self._rules.max_age_s
        self._wanted.post(UsageWanted(at_least, with_files, with_details))

        def is_fresh(usage: Usage) -> bool:
            """Whether the usage is new enough. A new failure counts too."""
            has_all = (usage.with_files or not with_files) and (usage.details is not None or not with_details)
            is_young = usage.taken_at is not None and usage.taken_at >= at_least
            return is_young and (has_all or bool(usage.error))

        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._usage.wait_for(is_fresh)
        except TimeoutError:
            return None

    def keep_fresh(self) -> None:
        """Have file systems measured from time to time, for the next request."""
        self._wanted.post(UsageWanted(self._clock.monotonic() - KEPT_FRESH_S))

    async def summary(self, request: Request) -> Answer:
        """`/stats/summary` as JSON; 500 if the usage cannot be read in time."""
        brief = request.first("only_cpu_and_memory") in ("true", "1")
        usage = await self.fresh(with_files=not brief)
        if usage is None:
            return text(500, "Internal Error: usage could not be read in time")
        try:
            document = render_summary(usage, self._node, self._started_at, only_cpu_and_memory=brief)
        except ValueError as error:
            return text(500, f"Internal Error: {error}")
        return Response(200, encode(document), JSON)

    async def resource_metrics(self, request: Request) -> Answer:
        """`/metrics/resource`. If the usage cannot be read in time, its error metric is 1."""
        usage = await self.fresh(with_files=False) or Usage(error="usage could not be read in time")
        return await _page(request, with_stability(resource_families(usage, with_hidden=self._rules.with_hidden)))

    async def cadvisor_metrics(self, request: Request) -> Answer:
        """`/metrics/cadvisor`. If the usage cannot be read in time, its error metric is 1."""
        usage = await self.fresh(with_files=True, with_details=True) or Usage(error="usage could not be read in time")
        return await _page(request, cadvisor_families(usage, self._machine))


async def _page(request: Request, families: Iterable[MetricFamily]) -> Response:
    if wants_protobuf(request.headers.get("accept", "")):
        return Response(200, await render_protobuf(families), PROTOBUF_CONTENT_TYPE)
    return Response(200, render_metrics(families), CONTENT_TYPE)


def agent_metrics(inputs: Callable[[], MetricsInputs], usage: StatsRoutes) -> EndpointHandler:
    """`/metrics`. The usage of claims is that of the last measurement; a scrape never waits for a new one."""

    async def handle(request: Request) -> Answer:
        now = inputs()
        if any(volume.claim is not None for pod in now.mounts.pods.values() for volume in pod.volumes.values()):
            usage.keep_fresh()
        families = [*REGISTRY.families(), *kubelet_families(now), *process_families(read_self())]
        families.sort(key=lambda family: family.name)
        return await _page(request, with_stability(of_release(families, now.release), now.release))

    return handle


async def probe_metrics(request: Request) -> Answer:
    """`/metrics/probes`."""
    families = [*PROBES.families(), process_start(read_self())]
    return await _page(request, with_stability(families, without=()))


def health_metrics(checks: Mapping[str, Check]) -> EndpointHandler:
    """`/metrics/slis`: the current result of each health check, and the counts of its results at requests of `/healthz`."""

    async def handle(request: Request) -> Answer:
        now = [
            MetricSample(0.0 if check() else 1.0, (("name", name), ("type", "healthz")))
            for name, check in checks.items()
        ]
        text = "This metric records the result of a single healthcheck."
        families = [
            MetricFamily("kubernetes_healthcheck", "gauge", text, now),
            HEALTH_CHECKS.family(),
            process_start(read_self()),
        ]
        return await _page(request, with_stability(families, without=()))

    return handle
