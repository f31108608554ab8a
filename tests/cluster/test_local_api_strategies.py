"""The local API's strategies: objects are stored, changed and refused as a real API server does it, with its messages."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from local_api.strategies.cases import CASES
from local_api.strategies.contract import differences
from local_api.strategies.stored import StoredObjects
from local_api.strategies.tables import PODS, pod_body, table_differences
from support.cluster import Cluster

from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.classes import system_priority_classes


def send(cluster: Cluster, method: str, path: str, body: Json | None = None, accept: str = "application/json") -> Json:
    """Send a request as the administrator; returns the object of the answer."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    pool: Any = cluster.client.rest_client.pool_manager
    url = cluster.client.configuration.host + path
    headers = {"Content-Type": kind, "Accept": accept}
    answer = pool.request(method, url, body=None if body is None else msgspec.json.encode(body), headers=headers)
    found: Json = msgspec.json.decode(answer.data)
    return found


@pytest.mark.parametrize("group", CASES)
def test_strategies_answer_as_the_api_server(newest_cluster: Cluster, group: str) -> None:
    def ask(method: str, path: str, body: Json) -> Json:
        return send(newest_cluster, method, path, body)

    stored = StoredObjects()
    stored.namespace(newest_cluster.namespace)
    for found in system_priority_classes():
        stored.create("priorityclasses.scheduling.k8s.io", found)
    assert not (lines := differences(ask, stored, newest_cluster.namespace, CASES[group])), "\n".join(lines)


def test_tables_are_those_of_the_api_server(newest_cluster: Cluster) -> None:
    def get(path: str, accept: str) -> tuple[Json, float]:
        return send(newest_cluster, "GET", path, accept=accept), time.time()

    path = f"/api/v1/namespaces/{newest_cluster.namespace}/pods"
    for name, (_, status) in PODS.items():
        send(newest_cluster, "POST", path, pod_body(name))
        send(newest_cluster, "PATCH", f"{path}/{name}/status", {"status": status})
    lines: list[str] = []
    for kind in KINDS:
        if not kind.is_review:
            for namespace in (newest_cluster.namespace, "kube-system") if kind.is_namespaced else ("",):
                lines += table_differences(get, kind, namespace)
    assert not lines, "\n".join(lines)
