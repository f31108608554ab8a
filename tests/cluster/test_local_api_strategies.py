"""The local API's strategies: objects are stored, changed and refused as a real API server does it, with its messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from local_api.strategies.cases import CASES
from local_api.strategies.contract import differences
from local_api.strategies.stored import StoredObjects
from support.cluster import Cluster

from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.classes import system_priority_classes


@pytest.mark.parametrize("group", CASES)
def test_strategies_answer_as_the_api_server(cluster: Cluster, group: str) -> None:
    def ask(method: str, path: str, body: Json) -> Json:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        pool: Any = cluster.client.rest_client.pool_manager
        answer = pool.request(
            method,
            cluster.client.configuration.host + path,
            body=msgspec.json.encode(body),
            headers={"Content-Type": kind},
        )
        found: Json = msgspec.json.decode(answer.data)
        return found

    stored = StoredObjects()
    stored.namespace(cluster.namespace)
    for found in system_priority_classes():
        stored.create("priorityclasses.scheduling.k8s.io", found)
    assert not (lines := differences(ask, stored, cluster.namespace, CASES[group])), "\n".join(lines)
