"""A Prometheus that scrapes a node as docs/monitoring.md configures it, and what dashboards ask it about kubelets."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from support.guides import blocks

GUIDE = "monitoring.md"
#: The names of the scrape configurations, one for each page of the node.
JOBS = ("kubelet", "cadvisor", "probes", "resource", "slis")
#: Each has a value on a node that runs the pod `web-NODE` with a probe, a network of its own and an emptyDir.
_QUERIES = (
    'sum(kubelet_running_pods{job="kubelet"}) >= 1',
    'sum(kubelet_running_containers{job="kubelet", container_state="running"}) >= 1',
    "sum by (le) (kubelet_pleg_relist_duration_seconds_bucket) * on () group_left (node) kubelet_node_name",
    "sum by (operation_type) (kubelet_runtime_operations_total) > 0",
    "sum(kubelet_pod_start_duration_seconds_count) >= 1",
    "sum(kubelet_pod_worker_duration_seconds_count) >= 1",
    'sum(volume_manager_total_volumes{state="actual_state_of_world"}) >= 1',
    "sum by (operation_name, volume_plugin) (storage_operation_duration_seconds_count) >= 1",
    'process_resident_memory_bytes{job="kubelet"} > 1e6',
    'kubernetes_build_info{git_version=~"v1.37.*"} == 1',
    'container_cpu_usage_seconds_total{job="cadvisor", image!="", container="app", pod="web-NODE"} >= 0',
    'container_memory_working_set_bytes{job="cadvisor", image!="", container="app"} > 0',
    'container_network_receive_bytes_total{job="cadvisor", image!="", pod="web-NODE", interface="eth0"} >= 0',
    'container_fs_usage_bytes{job="cadvisor", id="/"} / container_fs_limit_bytes{id="/"} < 1',
    'sum(container_memory_working_set_bytes{id="/"}) / sum(machine_memory_bytes) < 1',
    'sum(container_cpu_usage_seconds_total{id="/"}) / sum(machine_cpu_cores) > 0',
    'prober_probe_total{job="probes", pod="web-NODE", result="successful"} > 0',
    'pod_memory_working_set_bytes{job="resource", pod="web-NODE"} > 0',
    'kubernetes_healthcheck{job="slis", name="syncloop"} == 1',
)


def queries(node: str) -> list[str]:
    """The queries of dashboards, for a node of this name."""
    return [query.replace("web-NODE", f"web-{node}") for query in _QUERIES]


def configuration() -> str:
    """The text of prometheus.yml in the guide."""
    [text] = [text for text in blocks(GUIDE, "yaml", "Prometheus") if text.startswith("global:")]
    return text


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs; `url` is where it answers."""

    url: str

    def ask(self, path: str, **query: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[Any]:
        found = self.ask("query", query=query)["result"]
        assert isinstance(found, list)
        return found

    def is_up(self) -> bool:
        """Whether the last scrape of every page succeeded."""
        targets = self.ask("targets")["activeTargets"]
        states = {target["scrapePool"]: (target["health"], target["lastError"]) for target in targets}
        return states == dict.fromkeys(JOBS, ("up", ""))

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
