"""What `/metrics` and `/metrics/slis` answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_api.server import serving
from local_api.test_restart import MAPS, ask, client_of
from prometheus_client.parser import text_string_to_metric_families

from pykubelet.net.http.server import text
from pykubelet.net.http.wire import Request
from pykubelet_local_api.rest.metrics import REQUESTS, count_request
from pykubelet_local_api.rest.paths import parse_target

PODS = "/api/v1/namespaces/default/pods"
CORE = ("", "v1", "pods")


async def test_requests_and_objects_are_counted(tmp_path: Path) -> None:
    of = ("POST", "", "v1", "configmaps", "", "namespace")
    before = REQUESTS.value(*of, "201"), REQUESTS.value(*of, "409")
    async with serving(tmp_path) as api, client_of(api) as client:
        for status in (201, 409):
            assert (await ask(client, "POST", MAPS, {"metadata": {"name": "counted"}}))[0] == status
        async with client.get("/metrics") as answer:
            assert (answer.status, answer.content_type) == (200, "text/plain")
            samples = [s for f in text_string_to_metric_families(await answer.text()) for s in f.samples]
        stored = api.store.count("configmaps")
    assert (REQUESTS.value(*of, "201"), REQUESTS.value(*of, "409")) == (before[0] + 1, before[1] + 1)
    shown = {s.labels["code"] for s in samples if s.name == "apiserver_request_total" and s.labels["verb"] == "POST"}
    assert shown >= {"201", "409"}
    durations = [s for s in samples if s.name == "apiserver_request_duration_seconds_count"]
    assert any(s.labels["resource"] == "configmaps" and s.value >= 2 for s in durations)
    sums = [s for s in samples if s.name == "apiserver_request_duration_seconds_sum"]
    # others are of earlier tests in this process, some in virtual time, in which a request may take none
    assert any(s.value > 0 for s in sums if s.labels["resource"] == "configmaps" and s.labels["verb"] == "POST")
    objects = {s.labels["resource"]: s.value for s in samples if s.name == "apiserver_resource_objects"}
    assert objects["configmaps"] == stored > 0


async def test_slis_are_the_health_checks(tmp_path: Path) -> None:
    async with serving(tmp_path) as api, client_of(api) as client, client.get("/metrics/slis") as answer:
        text = await answer.text()
    assert 'kubernetes_healthcheck{name="ping",type="readyz"} 1' in text


@pytest.mark.parametrize("path", ["/metrics", "/metrics/slis"])
async def test_only_clients_with_the_right_see_them(tmp_path: Path, path: str) -> None:
    async with (
        serving(tmp_path) as api,
        client_of(api) as client,
        client.get(path, headers={"Impersonate-User": "someone"}) as answer,
    ):
        assert answer.status == 403


def test_the_query_of_a_refused_request_is_not_read() -> None:
    labels = ("LIST", *CORE, "", "namespace")
    before = REQUESTS.value(*labels, "403")
    count_request(Request("GET", PODS, "&a" * 10_000), parse_target(PODS), text(403, ""), 0.1)
    assert REQUESTS.value(*labels, "403") == before + 1


@pytest.mark.parametrize(
    ("method", "path", "labels"),
    [
        ("GET", PODS, ("LIST", *CORE, "", "namespace")),
        ("GET", "/api/v1/pods?watch=true", ("WATCH", *CORE, "", "cluster")),
        ("GET", f"{PODS}/p", ("GET", *CORE, "", "resource")),
        ("PATCH", f"{PODS}/p/status", ("PATCH", *CORE, "status", "resource")),
        ("DELETE", PODS, ("DELETECOLLECTION", *CORE, "", "namespace")),
        ("POST", f"{PODS}/p/exec", ("CONNECT", *CORE, "exec", "resource")),
        ("GET", "/version", ("GET", "", "", "", "", "")),
        ("BREW", "/version", ("other", "", "", "", "", "")),
    ],
)
def test_what_a_request_counts_as(method: str, path: str, labels: tuple[str, ...]) -> None:
    before = REQUESTS.value(*labels, "200")
    path, _, query = path.partition("?")
    count_request(Request(method, path, query), parse_target(path), text(200, ""), 0.1)
    assert REQUESTS.value(*labels, "200") == before + 1
