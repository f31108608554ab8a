"""A real Prometheus scrapes a node as docs/monitoring.md configures it, and the queries of dashboards have values."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import MakeAgent
from support.agent import WAIT_S, Agent, make_container, make_pod
from support.api import NodeApi
from support.pki import Authority
from testbed import host, packages

pytestmark = pytest.mark.integration
GUIDE = Path(__file__).parents[2] / "docs" / "monitoring.md"
PAGES = ("/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource", "/metrics/slis")
#: What promtool reports of names that the kubelet and cAdvisor have had for years.
KNOWN_COMPLAINTS = re.compile(r'should (not )?have "_(count|total)" suffix|_duration_ms metric names|not \'camelCase\'')
QUERIES = (
    'sum(kubelet_running_pods{job="kubelet"}) >= 1',
    'sum(kubelet_running_containers{job="kubelet", container_state="running"}) >= 1',
    "sum by (le) (kubelet_pleg_relist_duration_seconds_bucket) * on () group_left (node) kubelet_node_name",
    "sum by (operation_type) (kubelet_runtime_operations_total) > 0",
    "sum(kubelet_pod_start_duration_seconds_count) >= 1",
    "sum(kubelet_pod_worker_duration_seconds_count) >= 1",
    'sum(volume_manager_total_volumes{state="actual_state_of_world"}) >= 1',
    "sum by (operation_name, volume_plugin) (storage_operation_duration_seconds_count) >= 1",
    'process_resident_memory_bytes{job="kubelet"} > 1e6',
    'kubernetes_build_info{git_version=~"v1.36.*"} == 1',
    'container_cpu_usage_seconds_total{job="cadvisor", image!="", container="app", pod="web-node"} >= 0',
    'container_memory_working_set_bytes{job="cadvisor", image!="", container="app"} > 0',
    'container_network_receive_bytes_total{job="cadvisor", image!="", pod="web-node", interface="eth0"} >= 0',
    'container_fs_usage_bytes{job="cadvisor", id="/"} / container_fs_limit_bytes{id="/"} < 1',
    'sum(container_memory_working_set_bytes{id="/"}) / sum(machine_memory_bytes) < 1',
    'sum(container_cpu_usage_seconds_total{id="/"}) / sum(machine_cpu_cores) > 0',
    'prober_probe_total{job="probes", pod="web-node", result="successful"} > 0',
    'pod_memory_working_set_bytes{job="resource", pod="web-node"} > 0',
    'kubernetes_healthcheck{job="slis", name="syncloop"} == 1',
)


def program(name: str) -> Path:
    found = packages.unpacked("prometheus", name)
    if found is None:
        pytest.fail(f"{name} is missing (make packages)")
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str
    log: Path

    def ask(self, path: str, **query: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[Any]:
        found = self.ask("query", query=query)["result"]
        assert isinstance(found, list)
        return found

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def start(configuration: str, folder: Path) -> tuple[subprocess.Popen[bytes], Prometheus]:
    config = folder / "prometheus.yml"
    config.write_text(configuration)
    subprocess.run([program("promtool"), "check", "config", config], check=True, capture_output=True)
    log, port = folder / "prometheus.log", host.free_port(0)
    argv = [str(program("prometheus")), f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=debug"]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder)
    return process, Prometheus(f"http://127.0.0.1:{port}", log)


def complaints(page: str) -> list[str]:
    """What promtool finds in a page, without what it finds in that of any kubelet."""
    command = [str(program("promtool")), "check", "metrics"]
    checked = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    return [line for line in checked.stderr.splitlines() if not KNOWN_COMPLAINTS.search(line)]


@asynccontextmanager
async def scraping(agent: Agent, pki: Path, folder: Path) -> AsyncIterator[Prometheus]:
    """Prometheus with the configuration of the guide, with the places and the interval of the test."""
    text = re.findall(r"```yaml\n(global:.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    for given, ours in {
        "/etc/prometheus/kubelet/": f"{pki}/",
        "node1.example:10250": f"127.0.0.1:{agent.port}",
        "scrape_interval: 30s": "scrape_interval: 1s\n  scrape_timeout: 1s",
    }.items():
        assert given in text, given
        text = text.replace(given, ours)
    process, served = start(text, folder)
    try:
        await agent.wait_for("Prometheus is ready", served.is_ready)
        yield served
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
    async with scraping(agent, tmp_path / "pki", tmp_path) as prometheus:
        for query in QUERIES:

            def has_values(query: str = query) -> bool:
                return bool(prometheus.values(query))

            await agent.wait_for(query, has_values)
        twice = 'count(count_over_time(up{job=~".+"}[1m]) >= 3) == 5'
        await agent.wait_for("every page was scraped three times", lambda: prometheus.values(twice))
        targets = prometheus.ask("targets")["activeTargets"]
        assert {t["scrapePool"] for t in targets} == {"kubelet", "cadvisor", "probes", "resource", "slis"}
        assert {(t["health"], t["lastError"]) for t in targets} == {("up", "")}
        kinds = prometheus.ask("metadata", metric="kubelet_pleg_relist_duration_seconds")
        assert [one["type"] for one in kinds["kubelet_pleg_relist_duration_seconds"]] == ["histogram"]
        log = prometheus.log.read_text().splitlines()
    assert [line for line in log if re.search("level=(warn|error)", line)] == [], (
        "no duplicate sample, none out of order"
    )
