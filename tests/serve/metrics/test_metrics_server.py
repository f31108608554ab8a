"""`/metrics/resource` as metrics-server reads it, which is what `kubectl top` shows and autoscalers go by."""

from __future__ import annotations

import pytest
from support.metrics_server import Batch, decode, top

from pykubelet.base.kit.exposition import render_metrics
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.usage import ContainerUse, CpuUse, GroupUse, MemoryUse, NodeUse, PodUse, Usage
from pykubelet.serve.metrics.resource import resource_families

AT = 1_700_000_000.25
MIB = 1 << 20


def group(at: float, cpu_s: float, memory: int) -> GroupUse:
    return GroupUse(at, CpuUse(int(cpu_s * 1e9)), MemoryUse(usage=2 * memory, working_set=memory))


def used(at: float, node_s: float, *containers: tuple[str, float], name: str = "web") -> Usage:
    reported = tuple(ContainerUse(c, c, "busybox", f"/p/{c}", AT - 60.5, group(at, s, 5 * MIB)) for c, s in containers)
    pod = PodUse(PodRef("shop", name, PodUID("u")), "/p", AT - 61, group(at, 9, 20 * MIB), reported)
    return Usage(1.0, NodeUse(group(at, node_s, 900 * MIB), 1 << 30, 1.0), {pod.ref.uid: pod})


def scraped(usage: Usage) -> Batch:
    return decode(render_metrics(resource_families(usage)).decode())


def test_the_hidden_name_of_the_scrape_error_is_shown_on_request() -> None:
    shown = render_metrics(resource_families(Usage(1.0), with_hidden=True)).decode()
    assert "\nscrape_error 0" in shown and "# HELP scrape_error (Deprecated since 1.29.0) 1 if" in shown
    assert "\nscrape_error" not in render_metrics(resource_families(Usage(1.0))).decode()


def test_top_of_the_node_and_its_pods() -> None:
    before = scraped(used(AT, 1000.0, ("app", 1.0), ("sidecar", 2.0)))
    now = scraped(used(AT + 15, 1007.5, ("app", 4.0), ("sidecar", 2.75)))
    shown = top(before, now)
    assert shown.keys() == {"node", "web"}
    assert list(shown["node"]) == [pytest.approx(0.5), 900 * MIB]
    assert list(shown["web"]) == [pytest.approx(0.25), 10 * MIB]


def test_times_are_those_of_the_look_to_the_millisecond_and_starts_those_of_the_containers() -> None:
    batch = scraped(used(AT, 1.0, ("app", 1.0)))
    assert batch.node is not None and batch.node.at == AT
    point = batch.pods["shop", "web"]["app"]
    assert (point.at, point.started_at) == (AT, AT - 60.5)


def test_a_restarted_container_has_no_rate_across_its_lives() -> None:
    before, now = used(AT, 1.0, ("app", 1.0)), used(AT + 15, 2.0, ("app", 1.5))
    (uid, pod), *_ = now.pods.items()
    again = replace(now, pods={uid: replace(pod, containers=(replace(pod.containers[0], started_at=AT + 5),))})
    assert top(scraped(before), scraped(again)).keys() == {"node"}


def test_a_failed_measurement_reports_no_old_figures() -> None:
    batch = scraped(Usage(1.0, error="the kernel does not answer"))
    assert batch.node is None and batch.pods == {}


def test_every_figure_is_reported_however_large_or_small() -> None:
    large, small = used(AT, 123_456_789.123456789, ("app", 0.000000001)), used(AT, 1.0, ("app", 1e6))
    node = scraped(large).node
    assert node is not None and node.cpu == 123_456_789.123456789
    assert scraped(large).pods["shop", "web"]["app"].cpu == 1e-9
    assert scraped(small).pods["shop", "web"]["app"].cpu == 1e6
