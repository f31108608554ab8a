"""Pages of metrics as answers: compression, headers, and the levels in help texts."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import TypeVar

import pytest

from pykubelet.base.kit.exposition import CONTENT_TYPE, render_metrics
from pykubelet.base.kit.flight import Outcome, SingleFlight, Uncertain
from pykubelet.base.kit.metrics import MetricFamily, MetricSample
from pykubelet.net.http.server import Answer, Request, Response
from pykubelet.serve.metrics.protobuf_exposition import PROTOBUF_CONTENT_TYPE
from pykubelet.serve.metrics.routes import health_metrics, probe_metrics
from pykubelet.serve.metrics.scrape import scrape, takes_gzip
from pykubelet.serve.metrics.stability import with_stability

T = TypeVar("T")
PAGE = b'container_last_seen{id="/kubepods/burstable"} 1795541039 1795541039875\n' * 2000


class Stuck(SingleFlight):
    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        return Uncertain(0.0)


async def fetched(accepted: str | None, page: bytes = PAGE, flight: SingleFlight | None = None) -> Response:
    async def handler(_: Request) -> Answer:
        return Response(200, page, "text/plain")

    headers = {"accept-encoding": accepted} if accepted is not None else {}
    answer = await scrape(handler, flight or SingleFlight("test"), 1795541342.75)(
        Request("GET", "/metrics", headers=headers)
    )
    assert isinstance(answer, Response) and answer.headers["Process-Start-Time-Unix"] == "1795541342"
    return answer


async def test_a_page_is_compressed_for_clients_that_take_it() -> None:
    answer = await fetched("gzip")
    assert answer.headers["Content-Encoding"] == "gzip" and answer.content_type == "text/plain"
    assert gzip.decompress(answer.body) == PAGE
    assert len(answer.body) < len(PAGE) / 10
    plain = await fetched(None)
    assert plain.body == PAGE and "Content-Encoding" not in plain.headers


async def test_short_pages_and_busy_machines_give_plain_pages() -> None:
    assert "Content-Encoding" not in (await fetched("gzip", b"up 1\n")).headers
    answer = await fetched("gzip", flight=Stuck("test"))
    assert answer.body == PAGE and "Content-Encoding" not in answer.headers


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5, br", True),
        ("gzip;q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("", False),
        ("identity", False),
        ("x-gzip", False),
        ("*", False),
        (";;,,;q=", False),
    ],
)
def test_accept_encoding(accepted: str, expected: bool) -> None:
    assert takes_gzip(accepted) is expected


def test_help_texts_begin_with_the_level_of_stability() -> None:
    names = ("resource_scrape_error", "prober_probe_total", "kubelet_node_name", "process_open_fds", "pykubelet_x")
    text = render_metrics(with_stability(MetricFamily(n, "gauge", "Text.", [MetricSample(1)]) for n in names)).decode()
    assert [line.split(" ", 2)[2] for line in text.splitlines() if "HELP" in line] == [
        "resource_scrape_error [STABLE] Text.",
        "prober_probe_total [BETA] Text.",
        "kubelet_node_name [ALPHA] Text.",
        "process_open_fds Text.",
        "pykubelet_x Text.",
    ]


async def test_the_start_of_the_process_has_a_level_on_the_small_pages() -> None:
    for handler in (probe_metrics, health_metrics({})):
        answer = await handler(Request("GET", "/metrics/probes"))
        assert isinstance(answer, Response)
        assert b"# HELP process_start_time_seconds [ALPHA] Start time" in answer.body


@pytest.mark.parametrize(("only_text", "expected"), [(False, PROTOBUF_CONTENT_TYPE), (True, CONTENT_TYPE)])
async def test_protobuf_for_clients_that_prefer_it(only_text: bool, expected: str) -> None:
    """With the gate NativeHistograms on."""
    page = scrape(probe_metrics, SingleFlight("test"), 0.0, only_text=only_text)
    headers = {"accept": f"{PROTOBUF_CONTENT_TYPE},text/plain;q=0.5"}
    answer = await page(Request("GET", "/metrics/probes", headers=headers))
    assert isinstance(answer, Response)
    assert answer.content_type == expected
    answer = await page(Request("GET", "/metrics/probes", headers={"accept": "text/plain"}))
    assert isinstance(answer, Response)
    assert answer.content_type == CONTENT_TYPE
