"""A real Prometheus scrapes a node as docs/monitoring.md configures it, and the queries of dashboards have values."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agent.conftest import MakeAgent
from support.agent import NODE_NAME, WAIT_S, Agent, make_container, make_pod
from support.api import NodeApi
from support.pki import Authority
from support.prometheus import JOBS, Prometheus, configuration, queries
from testbed import host, packages

pytestmark = pytest.mark.integration
PAGES = ("/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource", "/metrics/slis")
#: What promtool reports of names that the kubelet and cAdvisor have had for years.
KNOWN_COMPLAINTS = re.compile(r'should (not )?have "_(count|total)" suffix|_duration_ms metric names|not \'camelCase\'')

#: Each has a value if the histogram is a native one. A relist takes between a microsecond and a minute.
NATIVE_QUERIES = (
    "histogram_count(kubelet_pleg_relist_duration_seconds) >= 1",
    "histogram_quantile(0.5, kubelet_pleg_relist_duration_seconds) > 1e-6 < 60",
    "sum by (operation_type) (histogram_count(kubelet_runtime_operations_duration_seconds)) >= 1",
    'kubelet_running_pods{job="kubelet"} >= 1',
    'container_cpu_usage_seconds_total{job="cadvisor", container="app"} >= 0',
)


def program(name: str) -> Path:
    found = packages.unpacked("prometheus", name)
    if found is None:
        pytest.fail(f"{name} is missing (make packages)")
    return found


def start(text: str, folder: Path, *flags: str) -> tuple[subprocess.Popen[bytes], Prometheus, Path]:
    """The process, its API and its log."""
    config = folder / "prometheus.yml"
    config.write_text(text)
    subprocess.run([program("promtool"), "check", "config", config], check=True, capture_output=True)
    log, port = folder / "prometheus.log", host.free_port(0)
    argv = [str(program("prometheus")), f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=debug", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder)
    return process, Prometheus(f"http://127.0.0.1:{port}"), log


def complaints(page: str) -> list[str]:
    """What promtool finds in a page, without what it finds in that of any kubelet."""
    command = [str(program("promtool")), "check", "metrics"]
    checked = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    return [line for line in checked.stderr.splitlines() if not KNOWN_COMPLAINTS.search(line)]


@asynccontextmanager
async def scraping(agent: Agent, pki: Path, folder: Path, *flags: str) -> AsyncIterator[tuple[Prometheus, Path]]:
    """Prometheus with the configuration of the guide, with the places and the interval of the test."""
    text = configuration()
    for given, ours in {
        "/etc/prometheus/kubelet/": f"{pki}/",
        "node1.example:10250": f"127.0.0.1:{agent.port}",
        "scrape_interval: 30s": "scrape_interval: 1s\n  scrape_timeout: 1s",
    }.items():
        assert given in text, given
        text = text.replace(given, ours)
    process, served, log = start(text, folder, *flags)
    try:
        await agent.wait_for("Prometheus is ready", served.is_ready)
        yield served, log
    finally:
        process.terminate()
        try:
            process.wait(WAIT_S)
        finally:
            process.kill()


async def test_prometheus_scrapes_the_node_and_dashboards_have_values(make_agent: MakeAgent, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    server = authority.sign("server", "/CN=node")
    client = authority.sign("prometheus", "/CN=prometheus")
    agent = make_agent(
        authentication={
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(authority.cert)},
        },
        tlsCertFile=str(server.cert),
        tlsPrivateKeyFile=str(server.key),
    )
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    app = make_container(
        "app",
        script="while :; do sleep 0.2; done",
        volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}],
        readinessProbe=probe,
    )
    # without one process namespace, a sandbox of CRI-O has no image
    agent.put(make_pod("web", app, volumes=[{"name": "scratch", "emptyDir": {}}], shareProcessNamespace=True))
    agent.start()
    await agent.wait_running("web")
    api = NodeApi(agent.port, certificate=(str(client.cert), str(client.key))).wait_listening()
    for page in PAGES:
        code, text = await asyncio.to_thread(api.ask, page)
        assert code == 200
        assert complaints(text) == [], page
    async with scraping(agent, tmp_path / "pki", tmp_path) as (prometheus, log):
        for query in queries(NODE_NAME):

            def has_values(query: str = query) -> bool:
                return bool(prometheus.values(query))

            await agent.wait_for(query, has_values)
        twice = f'count(count_over_time(up{{job=~".+"}}[1m]) >= 3) == {len(JOBS)}'
        await agent.wait_for("every page was scraped three times", lambda: prometheus.values(twice))
        assert prometheus.is_up(), prometheus.ask("targets")
        kinds = prometheus.ask("metadata", metric="kubelet_pleg_relist_duration_seconds")
        assert [entry["type"] for entry in kinds["kubelet_pleg_relist_duration_seconds"]] == ["histogram"]
        lines = log.read_text().splitlines()
    assert [line for line in lines if re.search("level=(warn|error)", line)] == [], (
        "no duplicate sample, none out of order"
    )
    # with native histograms, it scrapes protobuf
    folder = tmp_path / "native"
    folder.mkdir()
    async with scraping(agent, tmp_path / "pki", folder, "--enable-feature=native-histograms") as (prometheus, log):
        for query in NATIVE_QUERIES:

            def has_native_values(query: str = query) -> bool:
                return bool(prometheus.values(query))

            await agent.wait_for(query, has_native_values)
        await agent.wait_for("every page was scraped three times", lambda: prometheus.values(twice))
        assert prometheus.is_up(), prometheus.ask("targets")
        lines = log.read_text().splitlines()
    assert [line for line in lines if re.search("level=(warn|error)", line)] == []
