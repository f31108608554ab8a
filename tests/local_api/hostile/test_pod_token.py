"""A pod that uses its token for all that it can send: it gets what its roles say, and others are answered."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec
import pytest
from local_api.hostile.measured import MeasuredApi, SmallClient, measured_api

from pykubelet_local_api.kinds.schema import load_schemas
from pykubelet_local_api.rest.fairness import BURST, MAX_LONG, RATE

CORE = "/api/v1/namespaces/default"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
ATTACK_S = 3.0
#: What another client may wait as a rule, on a machine that does other things too.
USUAL_S = 2.0


@pytest.fixture
def api(tmp_path: Path) -> Iterator[MeasuredApi]:
    load_schemas()
    with measured_api(tmp_path / "data") as made:
        yield made


class PodClient:
    """A client with the token of the default service account, and no certificate."""

    def __init__(self, api: MeasuredApi) -> None:
        _, data = api.ask("POST", f"{CORE}/serviceaccounts/default/token", {"spec": {}})
        token = msgspec.json.decode(data)["status"]["token"]
        self._api = api
        self.headers = {"Authorization": f"Bearer {token}"}

    def connect(self) -> http.client.HTTPSConnection:
        return self._api.connect(has_certificate=False)

    def ask(self, method: str, path: str, body: object = None) -> int:
        connection = self.connect()
        try:
            data = None if body is None else msgspec.json.encode(body)
            connection.request(method, path, data, self.headers | {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()


def may_read_config_maps(api: MeasuredApi) -> None:
    """A role for the pod's service account."""
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]
    assert api.ask("POST", f"{RBAC}/roles", {"metadata": {"name": "r"}, "rules": rules})[0] == 201
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    body = {"metadata": {"name": "r"}, "roleRef": role, "subjects": subjects}
    assert api.ask("POST", f"{RBAC}/rolebindings", body)[0] == 201


def test_a_pod_may_do_what_its_roles_say_and_no_more(api: MeasuredApi) -> None:
    pod = PodClient(api)
    api.ask("POST", f"{CORE}/configmaps", {"metadata": {"name": "m"}})
    assert pod.ask("GET", f"{CORE}/configmaps/m") == 403
    may_read_config_maps(api)
    found = {
        ("GET", f"{CORE}/configmaps/m"): 200,
        ("GET", f"{CORE}/configmaps"): 200,
        ("GET", "/api/v1/configmaps"): 403,
        ("GET", "/api/v1/namespaces/kube-system/configmaps"): 403,
        ("GET", "/api/v1/watch/namespaces/kube-system/configmaps"): 403,
        ("DELETE", f"{CORE}/configmaps/m"): 403,
        ("DELETE", f"{CORE}/configmaps"): 403,
        ("POST", f"{CORE}/configmaps"): 403,
        ("PUT", f"{CORE}/configmaps/m"): 403,
        ("PATCH", f"{CORE}/configmaps/m"): 403,
        ("GET", f"{CORE}/secrets"): 403,
        ("GET", f"{CORE}/pods/p/log"): 403,
        ("POST", f"{CORE}/pods/p/exec"): 403,
        ("POST", f"{CORE}/serviceaccounts/default/token"): 403,
        ("GET", "/api/v1/nodes/n/proxy/pods"): 403,
        ("GET", "/metrics"): 403,
        ("GET", "/version"): 200,
    }
    assert {asked: pod.ask(*asked, {} if asked[0] in ("POST", "PUT", "PATCH") else None) for asked in found} == found


def test_a_pod_that_asks_without_end_keeps_no_other_client_waiting(api: MeasuredApi) -> None:
    pod, client = PodClient(api), SmallClient(api)
    answered = 0
    until = time.monotonic() + ATTACK_S

    def attack() -> None:
        nonlocal answered
        connection = pod.connect()
        while time.monotonic() < until:
            connection.request("GET", f"{CORE}/secrets", headers=pod.headers)
            connection.getresponse().read()
            answered += 1
        connection.close()

    threads = [threading.Thread(target=attack) for _ in range(20)]
    with client.working():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answered <= BURST + RATE * (ATTACK_S + 5)
    assert median(client.reads) < USUAL_S
    assert median(client.writes) < USUAL_S


def test_a_pod_has_so_many_watches_at_a_time(api: MeasuredApi) -> None:
    may_read_config_maps(api)
    pod = PodClient(api)
    watches = []
    for number in range(MAX_LONG + 1):
        watches.append(pod.connect())
        watches[-1].request("GET", f"{CORE}/configmaps?watch=1", headers=pod.headers)
        assert watches[-1].getresponse().status == (200 if number < MAX_LONG else 429)
    for connection in watches:
        connection.close()
    until = time.monotonic() + 20
    while (status := pod.ask("GET", f"{CORE}/configmaps?watch=1&timeoutSeconds=1")) == 429 and time.monotonic() < until:
        pass
    assert status == 200
